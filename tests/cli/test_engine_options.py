"""Options that say where runs happen."""

import pytest

from rebapl.cli import engine_options


@pytest.mark.parametrize(
    ("given", "begins"), [(None, False), (1, False), (2, True), ("cuda", False), ("cuda:0,cuda:1", True)]
)
def test_workers_begin_to_import_as_soon_as_several_runs_at_a_time_are_asked_for(
    given: str | int | None, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(engine_options, "begin_server", lambda: begun.append(True))
    assert engine_options.expect_workers(given) == given
    assert bool(begun) == begins
