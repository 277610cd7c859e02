"""What commands show of their progress, and what the shell completes."""

import io
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from small_jobs import jobs, tiny
from typer.testing import CliRunner

from rebapl.cli import options
from rebapl.cli import progress as progress_module
from rebapl.cli.commands import app
from rebapl.cli.progress import StepProgress
from rebapl.data.embedded import EMBEDDED
from rebapl.data.published import PUBLISHED
from rebapl.learners import METHODS
from rebapl.runs.jobs import Failure, Outcome, Retried, Started, Stepped
from rebapl.runs.run import Job
from rebapl.sampling import PRESETS

DIED = Failure("worker died", "the process was lost")


def events(wanted: list[Job]) -> list:
    one, two, three = wanted[:3]
    return [
        Started(one, 1, "node1", 7),
        Stepped(one, 5, 30, float("nan")),
        Stepped(one, 15, 30, 0.25),
        Started(two, 1, "node2", 8),
        Stepped(two, 3, 30, float("nan")),
        Retried(two, DIED),
        Started(two, 2, "node1", 9),
        Outcome(three, "failed", Failure("bad input", "no \x1b[31msuch"), 1, 0.5),
        Outcome(two, "done", None, 2, 75.0),
    ]


@pytest.fixture
def wanted(tmp_path: Path) -> list[Job]:
    cycles = Job.of(tiny(inference="ensemble", epochs=2, inference_settings={"cycles": 3}), tmp_path)
    return [cycles, *jobs(tmp_path, 2, 3, 4)]


def test_a_terminal_has_a_bar_for_each_job(wanted: list[Job]) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160, color_system=None)
    with StepProgress(jobs=wanted, console=console) as progress:
        for event in events(wanted)[:4]:
            progress.show(event)
        progress.progress.refresh()
        for word in (wanted[0].name, "15/30", "cycle 2 of 3 · loss 0.250"):
            assert word in screen.getvalue()
        for event in events(wanted)[4:]:
            progress.show(event)
            shown = [progress.progress.tasks[index].description for index in range(len(progress.progress.tasks))]
            ended = [job.name for job in wanted if progress.states[job.folder] != "running"]
            assert not set(shown) & set(ended), "a bar of an attempt that has ended stays"
    assert "is tried again, the process was lost" in screen.getvalue()
    assert r"no \x1b[31msuch (1 queued, 2 running, 1 failed)" in screen.getvalue()


def test_a_pipe_has_plain_lines(wanted: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebapl.cli.progress.EVERY_SECONDS", 0.0)
    monkeypatch.setattr("rebapl.cli.progress.EVERY_SHARE", 0.0)
    said = io.StringIO()
    with StepProgress(jobs=wanted, console=Console(file=said, width=160)) as progress:
        for event in events(wanted):
            progress.show(event)
    first, second, third = (job.folder.name for job in wanted[:3])
    lines = said.getvalue().splitlines()
    assert lines[:3] == [
        f"{first}: started on node1",
        f"{first}: 5 of 30 steps, cycle 1 of 3",
        lines[2],
    ]
    assert lines[2].startswith(f"{first}: 15 of 30 steps, cycle 2 of 3, loss 0.250, about ")
    assert lines[3:] == [
        f"{second}: started on node2",
        f"{second}: 3 of 30 steps",
        f"{second}: is tried again, the process was lost",
        f"{second}: started on node1, attempt 2",
        rf"{third}: failed, no \x1b[31msuch (1 queued, 2 running, 1 failed)",
        f"{second}: done in 1 min 15 s (1 queued, 1 running, 1 done, 1 failed)",
    ]


def test_quiet_says_only_what_is_tried_again(wanted: list[Job]) -> None:
    said = io.StringIO()
    with StepProgress(True, jobs=wanted, console=Console(file=said, width=160)) as progress:
        for event in events(wanted):
            progress.show(event)
    assert said.getvalue().splitlines() == [f"{wanted[1].folder.name}: is tried again, the process was lost"]


def test_a_line_now_and_then_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = 0.0, list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(StepProgress, "note", lambda _, line: said.append(line))
    moved = StepProgress(console=Console(file=io.StringIO())).begin("training")
    for second in range(2001):
        now = float(second)
        moved(1000 + second, 6000, 0.5 if second > 40 else float("nan"))
    assert said[0] == "training: 1030 of 6000 steps, about 83 min left"
    assert said[1] == "training: 1060 of 6000 steps, loss 0.500, about 82 min left"
    assert len(said) < 40  # more rarely later: not one every thirty seconds
    moved(5, None)
    now += 1000
    moved(7, None)
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
    monkeypatch.setattr(progress_module, "EVERY_SECONDS", 0.0)
    run, other = tmp_path / "a", tmp_path / "b"
    words = ["train", "--data", "digits", "--shots", "1", "--epochs", "1", "--device", "cpu", "test_images=5"]
    trained = CliRunner().invoke(app, [*words, "--out", str(run)])
    assert trained.exit_code == 0, trained.output
    _, begun, step, done = trained.stderr.splitlines()
    assert begun == "a: started on cpu"
    assert step.startswith("a: 1 of 1 steps")
    assert done.startswith("a: done in ")
    silent = CliRunner().invoke(app, [*words, "--out", str(other), "-q"])
    assert silent.stderr == ""
    assert silent.stdout.startswith("trained: ")
    scored = CliRunner().invoke(app, ["evaluate", str(run), "--device", "cpu"])
    assert scored.stderr.splitlines()[0] == f"scoring {run}"
    assert f"scoring {run}: 15 of 15 images" in scored.stderr
    silent = CliRunner().invoke(app, ["evaluate", str(run), "--device", "cpu", "--quiet"])
    assert (silent.stderr, silent.stdout) == ("", scored.stdout)
    both = CliRunner().invoke(app, ["evaluate", str(run), "--device", "cpu", "--corruptions", "fog@1,fog@2"])
    for line in (f"scoring {run}: 15 of 15 images", f"scoring {run}, corrupted: 10 of 10 images"):
        assert line in both.stderr


def test_the_shell_completes_every_name_without_importing_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(options.complete_methods("")) == set(METHODS)
    assert set(options.complete_inference("")) == set(PRESETS)
    assert options.complete_datasets("") == [*EMBEDDED, *PUBLISHED]
    assert options.complete_methods("mm") == ["mmrl", "mmrl++"]
    monkeypatch.chdir(tmp_path)
    assert options.complete_runs("") == []
    for name in ("photos", "pets"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    assert options.complete_runs("") == options.complete_runs("runs/p") == ["runs/pets", "runs/photos"]
    assert options.complete_runs("ru") == ["runs/"]
    calls = "".join(f"options.complete_{names}('');" for names in ("methods", "inference", "datasets", "runs"))
    code = f"import sys; from rebapl.cli import options; {calls} sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_completion_answers_the_shell() -> None:
    asked = {"_REBAPL_COMPLETE": "complete_bash", "COMP_WORDS": "rebapl train --method ma", "COMP_CWORD": "3"}
    said = CliRunner().invoke(app, [], env=asked, prog_name="rebapl")
    assert said.stdout.split() == ["maple"]
