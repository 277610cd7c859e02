"""What commands show of their progress, and what the shell completes."""

import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rebapl.cli import completion, console
from rebapl.cli.commands import app
from rebapl.cli.progress import PlainSteps, StepProgress
from rebapl.data.embedded import EMBEDDED
from rebapl.data.published import PUBLISHED
from rebapl.learners import METHODS
from rebapl.sampling import PRESETS


def test_a_line_now_and_then_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = 0.0, list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    steps = PlainSteps("training", "steps", said.append)
    for second in range(2001):
        now = float(second)
        steps.moved(1000 + second, 6000, 0.5 if second > 10 else float("nan"))
    assert said[0] == "training: 1010 of 6000 steps, about 83 min left"
    assert said[1] == "training: 1020 of 6000 steps, loss 0.500, about 83 min left"
    assert len(said) < 80  # more rarely later: not one every ten seconds
    steps.moved(5, None)
    now += 1000
    steps.moved(7, None)
    assert said[-1] == "training: 7 steps"


def test_bars_leave_stdout_alone_and_escape_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as far as rich can tell
    with StepProgress(unit="images") as progress:
        moved = progress.begin("predicting [red]x")
        moved(3, 10)
        sys.stdout.write("a row\n")
        progress.warn("skipped: a\x1b[2J.png")
        moved(10, 10)
    shown = capsys.readouterr()
    assert shown.out == "a row\n"
    assert "predicting [red]x" in shown.err
    assert "10/10" in shown.err
    assert "left" in shown.err
    assert "a\\x1b[2J.png" in shown.err


def test_piped_commands_say_what_they_do_and_quiet_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "EVERY_SECONDS", 0.0)
    run, other = tmp_path / "a", tmp_path / "b"
    words = ["train", "--data", "digits", "--shots", "1", "--epochs", "1", "--device", "cpu", "test_images=5"]
    trained = CliRunner().invoke(app, [*words, "--out", str(run)])
    assert trained.exit_code == 0, trained.output
    assert "coop · mle on digits, seed 1: training, step 1 of 1" in trained.stderr.splitlines()
    assert "coop · mle on digits, seed 1: 1 of 1 steps" in trained.stderr
    silent = CliRunner().invoke(app, [*words, "--out", str(other), "-q"])
    assert silent.stderr == ""
    assert silent.stdout.startswith("trained: ")
    scored = CliRunner().invoke(app, ["evaluate", str(run), "--device", "cpu"])
    assert scored.stderr.splitlines()[0] == f"scoring {run}"
    assert f"scoring {run}: 15 of 15 images" in scored.stderr
    silent = CliRunner().invoke(app, ["evaluate", str(run), "--device", "cpu", "--quiet"])
    assert (silent.stderr, silent.stdout) == ("", scored.stdout)


def test_the_shell_completes_every_name_without_importing_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(completion.methods("")) == set(METHODS)
    assert set(completion.kinds_of_inference("")) == set(PRESETS)
    assert completion.datasets("") == [*EMBEDDED, *PUBLISHED]
    assert completion.methods("mm") == ["mmrl", "mmrl++"]
    monkeypatch.chdir(tmp_path)
    assert completion.runs("") == []
    for name in ("photos", "pets"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    assert completion.runs("") == completion.runs("runs/p") == ["runs/pets", "runs/photos"]
    assert completion.runs("ru") == ["runs/"]


def test_completion_answers_the_shell() -> None:
    asked = {"_REBAPL_COMPLETE": "complete_bash", "COMP_WORDS": "rebapl train --method ma", "COMP_CWORD": "3"}
    said = CliRunner().invoke(app, [], env=asked, prog_name="rebapl")
    assert said.stdout.split() == ["maple"]
