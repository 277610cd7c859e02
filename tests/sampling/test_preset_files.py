"""The preset files: what they may hold, how they extend one another, and that mistakes are named."""

from pathlib import Path

import pytest

from rebapl.errors import UserError
from rebapl.sampling.presets import ABOUT, PRESETS
from rebapl.sampling.presets.reading import ORIGINS, FromRecipe, Value, read_preset, read_presets


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_every_preset_has_a_line_for_people_and_known_origins() -> None:
    assert next(iter(PRESETS)) == "mle"
    assert all(ABOUT[name] for name in PRESETS)
    assert {value.origin for values in PRESETS.values() for value in values.values()} == set(ORIGINS)


def test_a_file_extends_another_value_by_value(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        _start="recipe: {lr: {recipe: lr}}\nours: {cycles: 2, floor: 0.1}",
        mine="about: mine\nextends: _start\npaper: {cycles: 3, repulsion.metric: mmd}\n"
        "methods: {maple: {paper: {lr: 2e-3}}}",
        yours="extends: mine\nours: {epochs: {recipe: epochs, times: 3}}\nmethods: {maple: {ours: {batch: 2}}}",
    )
    assert list(read_presets(folder)) == ["mine", "yours"]
    mine, yours = (read_preset(folder / f"{name}.yaml") for name in ("mine", "yours"))
    assert mine.about == "mine"
    assert mine.values == {
        "lr": Value(FromRecipe("lr"), "recipe"),
        "cycles": Value(3, "paper"),
        "floor": Value(0.1, "ours"),
        "repulsion.metric": Value("mmd", "paper"),
    }
    assert mine.methods == {"maple": {"lr": Value(0.002, "paper")}}
    assert yours.values["epochs"] == Value(FromRecipe("epochs", 3), "ours")
    assert yours.methods["maple"] == {"lr": Value(0.002, "paper"), "batch": Value(2, "ours")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("our: {cycles: 3}", "did you mean 'ours'"),
        ("ours: {cycels: 3}", "did you mean 'cycles'"),
        ("ours: {repulsion.metrik: mmd}", "did you mean 'repulsion.metric'"),
        ("ours: {cycles: 3}\npaper: {cycles: 2}", "stands twice, as ours and as paper"),
        ("extends: x", "extends itself"),
        ("extends: nothing", "there is no"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, x=text)
    with pytest.raises(UserError, match=message):
        read_preset(tmp_path / "x.yaml")
