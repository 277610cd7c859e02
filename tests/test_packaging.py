"""What a package index is told: the Pythons, the extras and their pins, and the licences of all that is inside."""

import re
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on

ROOT = Path(__file__).parents[1]
ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = ABOUT["project"]


def named(requirement: str) -> str:
    """The name of a required package, as the pins write it."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")  # type: ignore[index]


def test_the_pythons_are_named() -> None:
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    assert named == {"3.10", "3.11", "3.12", "3.13"}
    assert PROJECT["requires-python"] == ">=3.10"


def test_every_extra_is_pinned_and_tested() -> None:
    pinned = {named(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")}
    extras = PROJECT["optional-dependencies"]
    itself, *others = extras["dev"]
    assert set(re.findall(r"[a-z]+", itself)) == {"rebapl", *extras} - {"dev"}, "what is not installed is not tested"
    required = [requirement for extra, given in extras.items() if extra != "dev" for requirement in given]
    for requirement in [*PROJECT["dependencies"], *others, *required, *ABOUT["build-system"]["requires"]]:
        assert named(requirement) in pinned, requirement


def test_the_licences_of_all_that_is_embedded_are_included() -> None:
    files = {path.name for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)}
    fonts = ROOT / "tools/captioned/fonts"
    assert files == {"LICENSE", "NOTICE", *(path.name for path in fonts.glob("LICENSE_*"))}
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for path in ("backbones/mini", "learners/imagenet_templates.txt"):
        assert (ROOT / "src/rebapl" / path).exists()
        assert f"rebapl/{path}" in notice
    for name in files - {"NOTICE"}:
        assert name in notice
