"""Many runs: the same results wherever they happen, nothing done twice, and one failure is only one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebapl.errors import UserError
from rebapl.runs.engine import run_all
from rebapl.runs.folder import RESULTS, RunConfig


def tiny(**changes) -> RunConfig:
    given = {"data": "digits", "method": "coop", "backbone": "mini", "shots": 1, "epochs": 1, "test_images": 20}
    return RunConfig(**{**given, **changes})


def parts(folder: Path):
    return json.loads((folder / RESULTS).read_text())["parts"]


def test_processes_side_by_side_give_what_one_gives(tmp_path: Path) -> None:
    configs = [tiny(seed=seed) for seed in (1, 2)]
    ended: list[tuple[int, int]] = []
    one = run_all(configs, tmp_path / "one", devices=["cpu"])
    two = run_all(
        configs,
        tmp_path / "two",
        devices=["cpu", "cpu:0"],
        progress=lambda done, total, _name: ended.append((done, total)),
    )
    assert [folder.name for folder in one] == [folder.name for folder in two]
    assert [parts(folder) for folder in one] == [parts(folder) for folder in two]
    assert ended == [(1, 2), (2, 2)]


def test_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    (folder,) = run_all([tiny()], tmp_path, devices=["cpu"])
    before = (folder / RESULTS).stat().st_mtime_ns
    ended: list[str] = []
    assert run_all([tiny(), tiny()], tmp_path, devices=["cpu"], progress=lambda *x: ended.append(x[2])) == [folder] * 2
    assert (folder / RESULTS).stat().st_mtime_ns == before
    assert not ended


def test_two_protocols_of_one_training_are_both_scored(tmp_path: Path) -> None:
    """They share a folder."""
    configs = [tiny(data="shapes", protocol="cross-dataset", targets=(name,)) for name in ("digits", "letters")]
    first, second = run_all(configs, tmp_path, devices=["cpu"])
    assert first == second
    assert parts(first).keys() >= {"digits", "letters"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_is_named_and_does_not_stop_the_others(tmp_path: Path, jobs: int) -> None:
    """No such length scale: a cloud of one point has no median distance, which is seen as the run begins."""
    bad = tiny(inference="rebapl", inference_settings={"repulsion.reference": 1, "repulsion.space": "image"})
    with pytest.raises(UserError, match=r"1 of 2 runs failed(.|\n)*digits-coop-rebapl-s1"):
        run_all([bad, tiny()], tmp_path, devices=["cpu"], jobs=jobs)
    assert [path.parent.name[:15] for path in tmp_path.glob(f"*/{RESULTS}")] == ["digits-coop-mle"]


def test_no_job_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="jobs = 0"):
        run_all([tiny()], tmp_path, jobs=0)
