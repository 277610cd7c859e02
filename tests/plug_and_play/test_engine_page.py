"""The engine of docs/engine.md, run as it stands there."""

from pathlib import Path
from typing import Any

import pytest
from pages import blocks, run_code

from rebapl.cli.options import engine_of
from rebapl.errors import UserError
from rebapl.runs.engine import LocalEngine
from rebapl.runs.jobs import Event, Outcome
from rebapl.runs.results import read_result
from rebapl.runs.run import run_all


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names of the page after its code has run, in an empty folder and with one seed."""
    folder, code = tmp_path_factory.mktemp("engine"), "\n".join(blocks("docs/engine.md"))
    assert "seed in (1, 2)" in code
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {**run_code(code.replace("seed in (1, 2)", "seed in (1,)"), "docs/engine.md"), "folder": folder}


def test_it_gives_what_the_local_engine_gives(page: dict[str, Any], tmp_path: Path) -> None:
    folders = run_all(page["configs"], tmp_path, engine=LocalEngine(["cpu"]))
    assert [folder.name for folder in folders] == [folder.name for folder in page["folders"]]
    for ours, theirs in zip(folders, page["folders"], strict=True):
        assert read_result(page["folder"] / theirs).parts == read_result(ours).parts


def test_what_is_done_is_not_done_again(page: dict[str, Any]) -> None:
    events: list[Event] = []
    run_all(
        page["configs"], page["folder"] / "runs", engine=page["ProcessEngine"](Path("runs")), on_event=events.append
    )
    assert [event.attempts for event in events if isinstance(event, Outcome)] == [0]


def test_a_failure_is_named_and_does_not_stop_the_others(page: dict[str, Any]) -> None:
    events: list[Event] = []
    configs = [page["RunConfig"]("no-such-data", "coop", backbone="mini"), page["configs"][0]]
    with pytest.raises(UserError, match=r"1 of 2 runs failed(.|\n)*no-such-data"):
        run_all(configs, page["folder"] / "runs", engine=page["ProcessEngine"](Path("runs")), on_event=events.append)
    assert [event.state for event in events if isinstance(event, Outcome)] == ["done", "failed"]


def test_it_is_found_by_its_name(page: dict[str, Any]) -> None:
    engine = engine_of("processes", Path("runs"), options=["python=python3"])
    assert isinstance(engine, page["ProcessEngine"])
    assert engine.options.python == "python3"
