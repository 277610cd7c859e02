"""Options that say where runs happen."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rebapl.cli import options
from rebapl.cli.commands import app


@pytest.mark.parametrize(
    ("device", "jobs", "begins"),
    [(None, None, False), ("cuda", 1, False), (None, 2, True), ("cuda:0,cuda:1", None, True)],
)
def test_workers_begin_to_import_as_soon_as_several_runs_at_a_time_are_asked_for(
    device: str | None, jobs: int | None, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(options, "begin_server", lambda: begun.append(True))
    options.expect_workers(device, jobs)
    assert bool(begun) == begins


@pytest.mark.parametrize(
    "words",
    [
        "train --jobs 2 --method ma",
        "train --device cuda:0,cuda:1 --method ma",
        "learn --jobs 2 --method ma",
        "learn --device cuda:0,cuda:1 --method ma",
    ],
)
def test_they_do_not_begin_where_the_shell_completes_a_word(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell would wait for them."""
    monkeypatch.setattr(options, "begin_server", lambda: pytest.fail("begun"))
    asked = {"_REBAPL_COMPLETE": "complete_bash", "COMP_WORDS": f"rebapl {words}", "COMP_CWORD": "5"}
    assert CliRunner().invoke(app, [], env=asked, prog_name="rebapl").stdout.split() == ["maple"]


def test_several_devices_to_learn_on_are_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(options, "begin_server", lambda: begun.append(True))
    CliRunner().invoke(app, ["learn", "nowhere", "--device", "cpu,cpu"])
    assert begun


def test_a_ray_cluster_that_does_not_answer_is_named_at_once(tmp_path: Path) -> None:
    words = f"train --data digits --engine ray -E address=127.0.0.1:1 --runs {tmp_path}".split()
    assert "no Ray cluster could be reached at '127.0.0.1:1'" in str(CliRunner().invoke(app, words).exception)
