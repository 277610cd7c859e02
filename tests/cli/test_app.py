"""The command line as a person meets it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rebapl import __version__
from rebapl.cli.values import parse_settings
from rebapl.errors import UserError


def rebapl(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-c", "from rebapl.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)


def test_help_is_quick_and_names_the_commands() -> None:
    rebapl("--help")  # once, so that compiled files are there
    start = time.perf_counter()
    shown = rebapl("--help")
    assert time.perf_counter() - start < 1.0
    assert shown.returncode == 0
    for command in ("demo", "train", "evaluate", "toy", "list"):
        assert command in shown.stdout


def test_version() -> None:
    assert rebapl("--version").stdout.strip() == f"rebapl {__version__}"


def test_train_then_evaluate(tmp_path: Path) -> None:
    words = ("train --data digits --method coop --inference mle --shots 2 --seed 1 --backbone mini --epochs 1").split()
    trained = rebapl(*words, "--out", "runs/x", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "trained: runs/x" in trained.stdout
    scored = rebapl("evaluate", "runs/x", cwd=tmp_path)
    assert scored.returncode == 0, scored.stderr
    for word in ("base", "novel", "harmonic mean"):
        assert word in scored.stdout
    assert (tmp_path / "runs/x/results.json").is_file()
    again = rebapl(*words, "--out", "runs/x", cwd=tmp_path)
    assert "already trained" in again.stdout


def test_bad_input_is_one_clear_line_without_a_traceback(tmp_path: Path) -> None:
    shown = rebapl("train", "--data", "digit", "--backbone", "mini", "--out", "x", cwd=tmp_path)
    assert shown.returncode == 2
    assert "did you mean 'digits'" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert list(tmp_path.iterdir()) == []


def test_list_names_what_there_is() -> None:
    shown = rebapl("list").stdout
    for word in ("digits", "shapes-rotated", "maple", "mmrl++", "rebapl", "svgd"):
        assert word in shown


def test_settings_are_read_by_section() -> None:
    given = ["method.tokens=16", "method.init=null", "inference.restart=warm"]
    given.append('inference.repulsion={"metric": "energy"}')
    assert parse_settings(given) == {
        "method": {"tokens": 16, "init": None},
        "inference": {"restart": "warm", "repulsion": {"metric": "energy"}},
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [("tokens=4", "section.name=value"), ("method.tokens", "section.name=value"), ("methd.tokens=4", "'method'")],
)
def test_settings_that_make_no_sense_are_refused(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_settings([word])
