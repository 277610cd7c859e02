"""The preset files: what they may hold, how they extend one another, and that mistakes are named."""

from pathlib import Path

import pytest

from rebapl.errors import UserError
from rebapl.sampling.presets import PRESETS, preset, preset_values, register_preset
from rebapl.sampling.presets.reading import ORIGINS, FromRecipe, Value, read_preset, read_presets

from .toy import ToyRecipe


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_every_preset_has_a_line_for_people_and_known_origins() -> None:
    assert next(iter(PRESETS)) == "mle"
    assert all(each.about for each in PRESETS.values())
    assert {value.origin for each in PRESETS.values() for value in each.values.values()} == set(ORIGINS)


def test_a_file_extends_another_value_by_value(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        _start="recipe: {sampler.lr: {recipe: lr}}\nours: {cycles: 2, curve.kind: cosine, curve.floor: 0.1}",
        mine="about: mine\nextends: _start\npaper: {cycles: 3, repulsion.distance.kind: mmd}\n"
        "methods: {maple: {paper: {sampler.lr: 2e-3}}}",
        yours="extends: mine\nours: {epochs: {recipe: epochs, times: 3}}\nmethods: {maple: {ours: {batch: 2}}}",
        constant="extends: mine\ndefinition: {curve.kind: constant}",
    )
    assert list(read_presets(folder)) == ["constant", "mine", "yours"]
    mine, yours, constant = (read_preset(folder / f"{name}.yaml") for name in ("mine", "yours", "constant"))
    assert mine.about == "mine"
    assert mine.values == {
        "sampler.lr": Value(FromRecipe("lr"), "recipe"),
        "cycles": Value(3, "paper"),
        "curve.kind": Value("cosine", "ours"),
        "curve.floor": Value(0.1, "ours"),
        "repulsion.distance.kind": Value("mmd", "paper"),
    }
    assert mine.methods == {"maple": {"sampler.lr": Value(0.002, "paper")}}
    assert yours.values["epochs"] == Value(FromRecipe("epochs", 3), "ours")
    assert yours.methods["maple"] == {"sampler.lr": Value(0.002, "paper"), "batch": Value(2, "ours")}
    assert constant.values["curve.kind"] == Value("constant", "definition")
    assert "curve.floor" not in constant.values  # of another kind, nothing stays


def test_a_preset_from_outside_extends_one_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PRESETS, "known", dict(PRESETS.known))
    write(tmp_path, longer="about: longer\nextends: rebapl\nours: {cycles: 7}", mle="extends: ensemble")
    assert register_preset(tmp_path / "longer.yaml") == "longer"
    values = preset_values("longer", ToyRecipe(lr=0.1, epochs=3, batch=4))
    assert values["cycles"] == Value(7, "ours")
    assert values["repulsion.distance.kind"] == Value("wasserstein", "ours")
    assert register_preset(tmp_path / "longer.yaml") == "longer"  # once more does no harm
    write(tmp_path, misspelt="extends: rebapl\nours: {repulsion.imags: 4}")
    with pytest.raises(UserError, match=r"repulsion\.imags: there is no such setting, did you mean 'images'\?"):
        preset(register_preset(tmp_path / "misspelt.yaml"), ToyRecipe(lr=0.1, epochs=3, batch=4))
    with pytest.raises(UserError, match=r"the preset 'mle' of .* is taken: name the file otherwise"):
        register_preset(tmp_path / "mle.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("our: {cycles: 3}", "did you mean 'ours'"),
        ("ours: {cycels: 3}", "did you mean 'cycles'"),
        ("ours: {repulsoin.distance: mmd}", "did you mean 'repulsion'"),
        ("ours: {cycles: 3}\npaper: {cycles: 2}", "stands twice, as ours and as paper"),
        ("extends: x", "extends itself"),
        ("extends: nothing", "there is no"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, x=text)
    with pytest.raises(UserError, match=message):
        read_preset(tmp_path / "x.yaml")
