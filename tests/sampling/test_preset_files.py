"""The form that presets and recipes share, and that mistakes are named; presets from outside."""

from pathlib import Path

import pytest

from rebapl.errors import UserError
from rebapl.origins import ORIGINS, Derived, SettingsFile, Value, combined, read_settings_file
from rebapl.sampling.presets import PRESETS, preset, preset_values, register_preset

from .toy import ToyRecipe


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def read(path: Path) -> SettingsFile:
    return read_settings_file(path, ["cycles", "curve", "sampler", "batch", "epochs"], ["lr", "epochs", "shots"])


def test_every_preset_has_a_line_for_people_and_known_origins() -> None:
    assert next(iter(PRESETS)) == "mle"
    assert all(each.about for each in PRESETS.values())
    layers = [layer for each in PRESETS.values() for layer in each.under(each.variants)]
    assert {value.origin for layer in layers for value in layer.values()} == {*ORIGINS} - {"published"}


def test_what_is_the_recipes_own_is_called_so() -> None:
    """A number that only the method's recipe gives was tagged *paper* or *authors' code*."""
    for each in PRESETS.values():
        for layer in each.under(each.variants):
            own = {v.origin for v in layer.values() if isinstance(v.value, Derived) and v.value.times == 1}
            assert own <= {"recipe", "ours"}
    origins = {
        name: preset_values(name, ToyRecipe(lr=0.1, epochs=200, batch=4), "coop")["restart.kind"].origin
        for name in ("csghmc", "rebapl", "rebapl-paper", "rebapl-authors")
    }
    assert origins == {
        "csghmc": "authors' code",
        "rebapl": "ours",
        "rebapl-paper": "ours",
        "rebapl-authors": "authors' code",
    }
    for name in ("rebapl-paper", "rebapl-authors"):
        assert preset_values(name, ToyRecipe(lr=0.1, epochs=200, batch=4), "coop")["epochs"] == Value(200, "recipe")


def test_a_file_extends_another_value_by_value(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        _start="recipe: {sampler.lr: {from: lr}}\nours: {cycles: 2, curve.kind: cosine, curve.floor: 0.1}",
        mine="about: mine\nextends: _start\npaper: {cycles: 3, curve.kind: cosine}\n"
        "variants: {maple: {paper: {sampler.lr: 2e-3}}}",
        yours="extends: mine\nours: {epochs: {from: epochs, times: 3}}\nvariants: {'maple, coop': {ours: {batch: 2}}}",
        constant="extends: mine\ndefinition: {curve.kind: constant}",
    )
    quantities = {"lr": 0.1, "epochs": 5}
    mine, yours, constant = (read(folder / f"{name}.yaml") for name in ("mine", "yours", "constant"))
    assert mine.about == "mine"
    assert combined(mine.under([]), quantities) == {
        "sampler.lr": Value(0.1, "recipe"),
        "cycles": Value(3, "paper"),
        "curve.kind": Value("cosine", "paper"),
        "curve.floor": Value(0.1, "ours"),
    }
    assert combined(mine.under(["maple", "vpt"]), quantities)["sampler.lr"] == Value(0.002, "paper")
    assert combined(yours.under(["maple"]), quantities)["epochs"] == Value(15, "ours")
    assert combined(yours.under(["maple"]), quantities)["sampler.lr"] == Value(0.002, "paper")
    assert [combined(yours.under([name]), quantities)["batch"].value for name in ("maple", "coop")] == [2, 2]
    assert "batch" not in combined(yours.under(["vpt"]), quantities)
    found = combined(constant.under([]), quantities)
    assert found["curve.kind"] == Value("constant", "definition")
    assert "curve.floor" not in found  # of another kind, nothing stays


def test_a_value_may_follow_a_quantity(tmp_path: Path) -> None:
    text = "ours: {sampler.lr: {over: shots, times: 0.8}, epochs: {from: epochs, times: 0.2}}"
    layers = read(write(tmp_path, x=text) / "x.yaml").under([])
    assert combined(layers, {"shots": 4, "epochs": 1}) == {"sampler.lr": Value(0.2, "ours"), "epochs": Value(1, "ours")}
    assert combined(layers, {"epochs": 20}) == {"epochs": Value(4, "ours")}  # without shots, its default


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
        ("ours: 3", "stands where a mapping is expected"),
        ("ours: {1: 3}", "unknown setting in x.yaml '1'"),
        ("variants: {maple: 5}", "5 stands where a mapping is expected"),
        ("variants: {maple: {cycles: 5}}", "unknown origin in x.yaml 'cycles'"),
        ("ours: {cycles: {from: epoch}}", "the quantity is one of lr, epochs, shots"),
        ("ours: {cycles: {from: epochs, over: lr}}", "write {from: QUANTITY, times: NUMBER}"),
        ("ours: {cycles: {from: epochs, times: x}}", "write {from: QUANTITY, times: NUMBER}"),
        ("ours: {cycles: {from: {}}}", "the quantity is one of"),
        ("ours: {cycels: 3}", "did you mean 'cycles'"),
        ("ours: {samplr.lr: 2}", "did you mean 'sampler'"),
        ("ours: {cycles: 3}\npaper: {cycles: 2}", "stands twice, as ours and as paper"),
        ("extends: x", "extends itself"),
        ("extends: nothing", "there is no"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, x=text)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "x.yaml")
