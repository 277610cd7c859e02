"""Stored results are read back as written. Old and newer files are read, and damaged ones are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from rebapl.errors import UserError
from rebapl.runs.folder import changed_files
from rebapl.runs.results import RESULTS, RunResult, read_result, write_result

SCORES = {"accuracy": 60.0, "nll": 0.5, "ece": 2.0}
BASE = {**SCORES, "images": 9, "per_sample": [SCORES]}
NOVEL = {**BASE, "accuracy": 30.0, "nll": 0.7}
CONTENT = {
    "parts": {"base": BASE, "novel": NOVEL},
    "protocols": {"base-to-novel": ["base", "novel"]},
    "base_to_novel": {"base": 60.0, "novel": 30.0, "hm": 40.0, "nll": 0.6, "ece": 2.0},
    "samples": 1,
    "seconds": {"training": 3.5, "evaluation": 1.5},
    "device": "cpu (x86_64)",
}


def stored(folder: Path) -> dict[str, Any]:
    """The content of the file, with the checksum at its end."""
    content = json.loads((folder / RESULTS).read_text())
    assert list(content)[-1] == "sha256"
    assert changed_files(folder) == []
    return {key: value for key, value in content.items() if key != "sha256"}


def store(folder: Path, content: Any) -> Path:
    (folder / RESULTS).write_text(json.dumps(content))
    return folder


def test_the_file_keeps_its_shape(tmp_path: Path) -> None:
    write_result(tmp_path, read_result(store(tmp_path, CONTENT)))
    assert stored(tmp_path) == CONTENT
    assert list(stored(tmp_path)) == list(CONTENT)


def test_values_of_a_newer_version_are_kept(tmp_path: Path) -> None:
    newer = {**CONTENT, "energy": 7, "parts": {"base": {**BASE, "top5": 99.0}, "novel": NOVEL}}
    result = read_result(store(tmp_path, newer)).changed(samples=2)
    write_result(tmp_path, result)
    assert stored(tmp_path) == {**newer, "samples": 2}


def test_an_early_file_is_read(tmp_path: Path) -> None:
    result = read_result(store(tmp_path, {"parts": {"test": {**SCORES, "images": 9}}}))
    assert (result.parts["test"].brier, result.seconds.training, result.diversity) == (None, None, None)
    with pytest.raises(UserError, match="no scores on base and novel classes, only on test"):
        _ = result.base_novel


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({}, "parts is missing"),
        ({**CONTENT, "parts": {"base": {**BASE, "nll": "low"}}}, "parts.base.nll is 'low': it must be a number"),
        ({**CONTENT, "parts": {"base": {**BASE, "per_sample": [{}]}}}, "parts.base.per_sample.0.accuracy is missing"),
        ({**CONTENT, "parts": {"base": {**BASE, "accuracy": float("nan")}}}, "parts.base.accuracy"),
        ({**CONTENT, "seconds": {"training": "3"}}, "seconds.training"),
        ([], "no JSON object"),
    ],
)
def test_a_damaged_file_is_refused_with_its_path_and_the_field(tmp_path: Path, content: Any, field: str) -> None:
    store(tmp_path, content)
    with pytest.raises(UserError, match="is damaged") as refused:
        read_result(tmp_path)
    assert str(tmp_path / RESULTS) in str(refused.value)
    assert field in str(refused.value)


def test_a_run_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"it has no {RESULTS}"):
        read_result(tmp_path)


def test_the_harmonic_mean_follows_from_the_parts() -> None:
    assert RunResult(**{**CONTENT, "base_to_novel": {"hm": 1.0}}).base_novel["hm"] == pytest.approx(40.0)
