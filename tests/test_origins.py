"""The YAML form that presets and recipes share: how files extend one another, and that mistakes are named."""

from pathlib import Path

import pytest

from rebapl.errors import UserError
from rebapl.origins import SettingsFile, Value, combined, read_settings_file


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def read(path: Path) -> SettingsFile:
    return read_settings_file(path, ["cycles", "curve", "sampler", "batch", "epochs"], ["lr", "epochs", "shots"])


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


def test_a_mapping_is_the_origin_of_the_values_that_it_gives_and_of_no_others() -> None:
    below = {"curve.kind": Value("cosine", "paper"), "curve.floor": Value(0.1, "paper")}
    found = combined([below, {"curve": Value({"floor": 0.2}, "ours")}], {})
    assert found == {"curve.kind": Value("cosine", "paper"), "curve.floor": Value(0.2, "ours")}
    assert combined([below, {"curve": Value("constant", "ours")}], {}) == {"curve.kind": Value("constant", "ours")}


def test_a_value_may_follow_a_quantity(tmp_path: Path) -> None:
    text = "ours: {sampler.lr: {over: shots, times: 0.8}, epochs: {from: epochs, times: 0.2}}"
    layers = read(write(tmp_path, x=text) / "x.yaml").under([])
    assert combined(layers, {"shots": 4, "epochs": 1}) == {"sampler.lr": Value(0.2, "ours"), "epochs": Value(1, "ours")}
    assert combined(layers, {"epochs": 20}) == {"epochs": Value(4, "ours")}  # without shots, its default


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
