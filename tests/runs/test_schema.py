"""The schema of configuration files: what people write passes, and mistakes do not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from rebapl.cli.commands import app
from rebapl.learners import METHODS
from rebapl.runs.config_file import build_config, run_schema
from rebapl.sampling import PRESETS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = run_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def examples() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [(page.name, text) for page in pages for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)]
    return [(page, text) for page, text in found if "data:" in text]


def test_there_are_examples() -> None:
    assert any(page == "runs.md" for page, _ in examples())


@pytest.mark.parametrize(("page", "text"), examples())
def test_the_examples_of_the_pages_pass_and_resolve(validator: Draft202012Validator, page: str, text: str) -> None:
    content = yaml.safe_load(text)
    assert validator.is_valid(content), page
    build_config(content).resolved()


@pytest.mark.parametrize(
    ("method", "inference"), [*((method, "rebapl") for method in METHODS), *(("maple", name) for name in PRESETS)]
)
def test_every_resolved_run_passes(validator: Draft202012Validator, method: str, inference: str) -> None:
    """All settings that there are, with the values that they have by default."""
    resolved = build_config({"data": "digits", "method": method, "inference": inference}).resolved().plain()
    chosen: dict[str, Any] = {"data": "digits", "method": resolved["method"]}
    if method != "zero-shot":
        chosen["inference"] = resolved["inference"]
    assert [error.message for error in validator.iter_errors(chosen)] == []


@pytest.mark.parametrize(
    "given",
    [
        {"extends": "common.yaml", "seed": 2},
        {"method": {"depth": 3}, "inference": {"batch": 4}},
        {"targets": "dtd,eurosat"},
        {"targets": ["dtd", "eurosat"]},
        {"inference": {"name": "rebapl", "repulsion.distance": "energy", "sampler.lr": 0.1}},
        {"inference": {"repulsion": {"force": {"kind": "absolute", "strength": 2}, "distance": {"bandwidth": 1.0}}}},
        {"inference": {"sampler": "sgld", "repulsion": None}},
    ],
)
def test_what_is_right_passes(validator: Draft202012Validator, given: dict[str, Any]) -> None:
    assert [error.message for error in validator.iter_errors(given)] == []


@pytest.mark.parametrize(
    "given",
    [
        {"dta": "digits"},
        {"shots": "sixteen"},
        {"shots": 0},
        {"protocol": "base"},
        {"method": "cop"},
        {"method": {"name": "coop", "depth": 3}},
        {"method": {"name": "maple", "tokens": 2.5}},
        {"inference": "rebappl"},
        {"inference": {"name": "rebapl", "cycels": 3}},
        {"inference": {"cycles": 0}},
        {"inference": {"sampler": {"kind": "sgd", "temperature": 1.0}}},
        {"inference": {"sampler": {"kind": "sgdd"}}},
        {"inference": {"repulsion": {"force": {"kind": "fading", "strength": 2}}}},
        {"inference": {"repulsion": {"distance": "euclid"}}},
        {"inference": {"repulsions.distance": "mmd"}},
    ],
)
def test_what_is_wrong_does_not(validator: Draft202012Validator, given: dict[str, Any]) -> None:
    assert not validator.is_valid(given)


def test_the_command_prints_or_writes_it(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["config", "schema"])
    assert json.loads(printed.stdout) == run_schema()
    written = CliRunner().invoke(app, ["config", "schema", "--out", str(tmp_path / "s.json")])
    assert written.exit_code == 0
    assert json.loads((tmp_path / "s.json").read_text()) == run_schema()
