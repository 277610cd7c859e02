"""What is shown of many runs: a table in a terminal, lines elsewhere."""

import io
from pathlib import Path

import pytest
from rebapl.cli.live import LiveRuns
from rich.console import Console
from small_jobs import jobs, tiny

from rebapl.runs.engine import Ended, Failure, Outcome, Retried, Started, Stepped
from rebapl.runs.run import Job

DIED = Failure("worker died", "the process was lost")


def events(wanted: list[Job]) -> list:
    one, two, three = wanted[:3]
    return [
        Started(one, 1, "node1", 7),
        Stepped(one, 5, 30, float("nan")),
        Stepped(one, 15, 30, 0.25),
        Started(two, 1, "node2", 8),
        Retried(two, DIED),
        Started(two, 2, "node1", 9),
        Ended(Outcome(three, "failed", Failure("bad input", "no \x1b[31msuch"), 1, 0.5)),
        Ended(Outcome(two, "done", None, 2, 75.0)),
    ]


@pytest.fixture
def wanted(tmp_path: Path) -> list[Job]:
    cycles = Job.of(tiny(inference="ensemble", epochs=2, inference_settings={"cycles": 3}), tmp_path)
    return [cycles, *jobs(tmp_path, 2, 3, 4)]


def test_a_terminal_has_one_table(wanted: list[Job]) -> None:
    screen = io.StringIO()
    live = LiveRuns(wanted, console=Console(file=screen, force_terminal=True, width=160, color_system=None))
    with live:
        for event in events(wanted):
            live.show(event)
        table = io.StringIO()
        Console(file=table, width=160).print(live.table())
    first, *_ = [line for line in table.getvalue().splitlines() if wanted[0].folder.name in line]
    for word in ("node1", "15 of 30", "2 of 3", "0.250"):
        assert word in first
    assert wanted[1].folder.name not in table.getvalue(), "what is done is only counted"
    assert r"no \x1b[31msuch" in table.getvalue()
    assert "1 queued, 1 running, 1 done, 1 failed" in table.getvalue()
    assert "is tried again, the process was lost" in screen.getvalue()


def test_a_pipe_has_plain_lines(wanted: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    with LiveRuns(wanted, console=Console(file=io.StringIO())) as live:
        for event in events(wanted):
            live.show(event)
    first, second, third = (job.folder.name for job in wanted[:3])
    assert capsys.readouterr().err.splitlines() == [
        f"{first}: started on node1",
        f"{first}: step 5 of 30, cycle 1 of 3",
        f"{second}: started on node2",
        f"{second}: is tried again, the process was lost",
        f"{second}: started on node1, attempt 2",
        rf"{third}: failed, no \x1b[31msuch (1 queued, 2 running, 1 failed)",
        f"{second}: done in 1:15 (1 queued, 1 running, 1 done, 1 failed)",
    ]
