"""YAML as people mean it."""

from pathlib import Path

import pytest
import yaml

from rebapl.errors import UserError
from rebapl.yaml_files import parse_yaml, read_yaml


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
    with pytest.raises(UserError, match="cannot be read"):
        read_yaml(tmp_path / "x.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "empty.yaml") == {}
