"""Runs as SLURM jobs. The real submitit submits them to local processes that stand in for SLURM."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import fake_slurm
import pytest
import small_jobs
from small_features import assert_same_features, embed, pictures, plan
from small_jobs import LONG, StruckJob, jobs, made, tiny

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.runs import clusters
from rebapl.runs.clusters import SlurmEngine, minutes
from rebapl.runs.engine import LocalEngine
from rebapl.runs.folder import CHECKPOINT
from rebapl.runs.jobs import Event, Stepped
from rebapl.runs.run import Job, cycle_jobs
from rebapl.training.checkpoint import load_checkpoint


def test_bad_input_comes_back_and_is_not_tried_again(tmp_path: Path) -> None:
    """With submitit's local executor. Its results for good input are compared in `test_ray_engine.py`."""
    wrong = Job.of(tiny(data="digit"), tmp_path / "runs")
    (outcome,) = SlurmEngine(tmp_path / "runs", cluster="local", time="10").run([wrong])
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert "did you mean 'digits'" in str(outcome.failure)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".slurm"]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = fake_slurm.install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(small_jobs.__file__).parent), *filter(None, sys.path)]))
    return folder


def interrupt(event: Event) -> None:
    """Raise an interruption during the training of a job."""
    if isinstance(event, Stepped):
        raise KeyboardInterrupt


def test_a_job_whose_time_is_over_keeps_its_step_and_is_queued_again(slurm: Path, tmp_path: Path) -> None:
    """SLURM sends SIGUSR2 before the end, as submitit asks it to."""
    wanted = StruckJob.of(tiny(epochs=4), tmp_path / "runs", signal=signal.SIGUSR2)
    engine = SlurmEngine(tmp_path / "runs", partition="gpu", time="2:00:00", cpus=1)
    events: list[Event] = []
    (outcome,) = engine.run([wanted], events.append)
    assert (outcome.state, outcome.attempts) == ("done", 1)
    assert len(list((slurm / "jobs").glob("*.requeued"))) == 1
    (script,) = [path.read_text() for path in (slurm / "jobs").glob("*.sh")]
    for word in ("--partition=gpu", "--time=120", "--cpus-per-task=1", "--signal=USR2@"):
        assert word in script
    steps = [event.done for event in events if isinstance(event, Stepped)]
    assert steps == sorted(steps), "it never went back"
    here = jobs(tmp_path / "here", 1, epochs=4)
    assert [outcome.state for outcome in LocalEngine(["cpu"]).run(here)] == ["done"]
    assert made(wanted.folder) == made(here[0].folder)


def test_a_driver_that_dies_leaves_its_jobs_and_the_next_one_takes_them_up(slurm: Path, tmp_path: Path) -> None:
    wanted = StruckJob.of(tiny(epochs=4), tmp_path / "runs", waits=True)
    driver = SlurmEngine(tmp_path / "runs")
    driver.cancel = lambda _: None  # type: ignore[method-assign]  # a driver that is killed cancels nothing
    with pytest.raises(KeyboardInterrupt):
        list(driver.run([wanted], interrupt))
    (tmp_path / "runs" / "go").touch()
    (outcome,) = SlurmEngine(tmp_path / "runs").run([wanted])
    assert outcome.state == "done"
    assert len(list((slurm / "jobs").glob("*.sh"))) == 1, "no second job was made"


def test_an_interrupted_driver_cancels_its_jobs_after_they_have_kept_their_step(slurm: Path, tmp_path: Path) -> None:
    wanted = jobs(tmp_path / "runs", 1, **{**LONG, "epochs": 5000})
    with pytest.raises(KeyboardInterrupt):
        list(SlurmEngine(tmp_path / "runs").run(wanted, interrupt))
    kept = wanted[0].folder / CHECKPOINT
    until = time.monotonic() + 600
    while not kept.exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert load_checkpoint(kept)["loop"]["schedule"]["steps"] > 0
    os.kill(fake_slurm.process(slurm), signal.SIGKILL)  # as SLURM does a while after


def test_several_runs_are_one_array(slurm: Path, tmp_path: Path) -> None:
    wanted = jobs(tmp_path / "runs", 1, 2)
    outcomes = list(SlurmEngine(tmp_path / "runs").run(wanted))
    assert [(outcome.state, outcome.attempts) for outcome in outcomes] == [("done", 1)] * 2
    assert len({path.name.partition("_")[0] for path in (slurm / "jobs").glob("*_*.sh")}) == 1
    assert len(list((slurm / "jobs").glob("*_*.sh"))) == 2
    assert not [path.name for path in (tmp_path / "runs" / ".slurm").iterdir() if path.suffix in (".json", ".answer")]


@pytest.mark.usefixtures("slurm")
def test_cycles_of_two_runs_do_not_take_each_others_answers(tmp_path: Path) -> None:
    apart = {"inference": "ensemble", "inference_settings": {"cycles": 2}}
    cycles = [cycle for job in jobs(tmp_path / "runs", 1, 2, **apart) for cycle in cycle_jobs(job)]
    outcomes = list(SlurmEngine(tmp_path / "runs").run(cycles))
    assert [(outcome.state, outcome.attempts) for outcome in outcomes] == [("done", 1)] * 4


def test_features_in_shards_are_those_of_this_process(slurm: Path, mini: DualEncoder, tmp_path: Path) -> None:
    """Two shards are one array, and what is finished is not submitted again."""
    images, out = pictures(tmp_path / "pets", cat=5, dog=4), tmp_path / "out"
    work, _ = plan(mini, [images], out)
    assert [(outcome.state, outcome.attempts) for outcome in SlurmEngine(out).run(work.shards)] == [("done", 1)] * 2
    work.conclude()
    assert_same_features(out, embed(mini, [images], tmp_path / "one"))
    assert [outcome.attempts for outcome in SlurmEngine(out).run(plan(mini, [images], out)[0].shards)] == [0, 0]
    assert len(list((slurm / "jobs").glob("*_*.sh"))) == 2


@pytest.mark.usefixtures("slurm")
def test_files_in_the_working_folder_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitit in a SLURM job does not run them. The job starts in the folder in which sbatch was called."""
    (tmp_path / "evil").mkdir()
    for name in ("torch", "numpy", "submitit", "json", "rebapl"):
        (tmp_path / "evil" / f"{name}.py").write_text(f'open({str(tmp_path / "EXECUTED")!r}, "w")\n')
    monkeypatch.chdir(tmp_path / "evil")
    (outcome,) = SlurmEngine(tmp_path / "runs").run(jobs(tmp_path / "runs", 1))
    assert outcome.state == "done"
    assert not (tmp_path / "EXECUTED").exists()


def test_a_job_that_slurm_does_not_know_is_given_up(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "UNKNOWN_SECONDS", 0.2)
    monkeypatch.setattr(SlurmEngine, "look_seconds", 0.1)
    (slurm / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 4711\n")
    (slurm / "sacct").write_text("#!/bin/sh\necho 'JobID|State|NodeList'\n")
    (outcome,) = SlurmEngine(tmp_path / "runs").run(jobs(tmp_path / "runs", 1))
    assert (outcome.state, outcome.attempts) == ("failed", 2)
    assert "job 4711 ended as UNKNOWN" in str(outcome.failure)


def test_jobs_that_sbatch_refuses_are_one_line(slurm: Path, tmp_path: Path) -> None:
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: nowhere' >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"SLURM does not take the jobs .*invalid partition") as refused:
        list(SlurmEngine(tmp_path / "runs", partition="nowhere").run(jobs(tmp_path / "runs", 1)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"time": "two hours"}, "time is 'two hours'"),
        ({"time": "0"}, "time is '0'"),
        ({"gpus": 0.25}, "gpus is 0.25: it must be a whole number"),
    ],
)
def test_what_slurm_cannot_do_is_refused(tmp_path: Path, given: dict, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        SlurmEngine(tmp_path, **given)


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="there is no SLURM on this machine"):
        list(SlurmEngine(tmp_path).run(jobs(tmp_path, 1)))


def test_times_as_slurm_writes_them() -> None:
    assert [minutes(time) for time in ("30", "1:30:00", "0:59:59", "2-00:00:00")] == [30, 90, 60, 2880]
