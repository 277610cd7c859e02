"""YAML as people write it, and the common form of presets and recipes, in which files extend one another."""

from pathlib import Path

import pytest
import yaml

from rebapl.errors import UserError
from rebapl.yaml_files import SettingsFile, Value, combined, parse_yaml, read_settings_file, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("5e4", 50000.0),
        ("-1.5E-2", -0.015),
        (".5", 0.5),
        ("2.", 2.0),
        ("3", 3),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("null", None),
        ("1e", "1e"),
        ("e3", "e3"),
        ("[1, 2e-1]", [1, 0.2]),
        ('{"metric": "energy"}', {"metric": "energy"}),
    ],
)
def test_values(text: str, value: object) -> None:
    read = parse_yaml(text)
    assert read == value
    assert type(read) is type(value)


def test_nothing_is_executed_and_no_key_stands_twice() -> None:
    for text in ("!!python/object/apply:os.getcwd []", "a: {b: 1, b: 2}", "{{a}: 1}", "? [a]\n: 1"):
        with pytest.raises(yaml.YAMLError):
            parse_yaml(text)


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^{tmp_path / 'x.yaml'} cannot be read \(No such file or directory\)$"):
        read_yaml(tmp_path / "x.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "empty.yaml") == {}


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
    ("derived", "quantity"), [("{from: lr, times: 2}", None), ("{from: lr, times: 2}", {"a": 1}), ("{over: lr}", 0.0)]
)
def test_a_multiple_of_no_number_and_a_division_by_zero_are_refused(
    tmp_path: Path, derived: str, quantity: object
) -> None:
    layers = read(write(tmp_path, x=f"ours: {{sampler.lr: {derived}}}") / "x.yaml").under([])
    with pytest.raises(UserError, match="'lr', which is"):
        combined(layers, {"lr": quantity})


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
