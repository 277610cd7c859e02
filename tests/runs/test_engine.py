"""Many runs: the same results on every engine, nothing is done twice, and a failure affects one run only."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_jobs import StruckJob, tiny

import rebapl
from rebapl import backbones
from rebapl.backbones import DualEncoder, load_backbone
from rebapl.errors import FailedError, UserError
from rebapl.files import NotWrittenError, alone_in
from rebapl.runs import engine as engine_module
from rebapl.runs.engine import Engine, LocalEngine
from rebapl.runs.folder import CHECKPOINT, ERROR, RESULTS, run_folder
from rebapl.runs.jobs import (
    Event,
    Outcome,
    Reached,
    Retried,
    Stepped,
    Work,
    check_outcomes,
    perform_text,
    read_progress,
)
from rebapl.runs.machine import forget_backbone, kept_backbone
from rebapl.runs.run import Job, run_all
from rebapl.sampling.diagnostics import NonFiniteError

CPU = LocalEngine(["cpu"])


def parts(folder: Path):
    return json.loads((folder / RESULTS).read_text())["parts"]


def test_processes_side_by_side_give_what_one_gives(tmp_path: Path) -> None:
    configs = [tiny(seed=seed) for seed in (1, 2)]
    events: list[Event] = []
    one = run_all(configs, tmp_path / "one", engine=CPU)
    two = run_all(configs, tmp_path / "two", engine=LocalEngine(["cpu", "cpu:0"]), on_event=events.append)
    assert [folder.name for folder in one] == [folder.name for folder in two]
    assert [parts(folder) for folder in one] == [parts(folder) for folder in two]
    assert len([event for event in events if isinstance(event, Outcome)]) == 2


# A cloud of one point has no median distance, which is seen only as the run begins.
ONE_POINT = {"repulsion.distance": "mmd", "repulsion.images": 1, "repulsion.space": "image"}
REFUSED = {"inference": "rebapl", "inference_settings": ONE_POINT}


def test_a_run_that_fails_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1 of 2 runs failed(.|\n)*digits-coop-rebapl-s1"):
        run_all([tiny(**REFUSED), tiny()], tmp_path, engine=CPU)
    assert [path.parent.name[:15] for path in tmp_path.glob(f"*/{RESULTS}")] == ["digits-coop-mle"]


def test_no_job_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="jobs is 0: it must be at least 1"):
        run_all([tiny()], tmp_path, engine=LocalEngine(["cpu"], 0))


def test_a_job_travels_as_json(tmp_path: Path) -> None:
    config = tiny(data="shapes", protocol="cross-dataset", targets=("digits",), inference_settings={"batch": 5})
    job = Job.of(config, tmp_path, root=tmp_path / "data", score=False)
    there = Work.from_json(json.loads(json.dumps(job.as_json())))
    assert there == job
    assert isinstance(there, Job)
    assert there.config == config
    assert run_folder(there.config, tmp_path) == job.folder


def test_a_killed_worker_costs_its_own_run_only(tmp_path: Path) -> None:
    """Five runs on two workers: one is killed once, one at every attempt, one is refused; the others are unaffected."""
    once_killed, always_killed = (StruckJob.of(tiny(seed=seed, epochs=4), tmp_path, deaths=seed) for seed in (1, 2))
    jobs = [once_killed, always_killed]
    jobs += [Job.of(config, tmp_path) for config in (tiny(seed=3, **REFUSED), tiny(seed=4), tiny(seed=5))]
    events: list[Event] = []
    outcomes = {outcome.folder: outcome for outcome in LocalEngine(["cpu"], 2).run(jobs, events.append)}
    once, always, refused, *others = (outcomes[job.folder] for job in jobs)

    assert [(other.state, other.attempts, other.failure) for other in others] == [("done", 1, None)] * 2
    assert (once.state, once.attempts, once.failure) == ("done", 2, None)
    assert [job.is_done() for job in jobs] == [True, False, False, True, True]
    assert not (once.folder / ERROR).exists()

    assert (always.state, always.attempts) == ("failed", 2)
    assert always.failure is not None
    assert (always.failure.kind, always.failure.traceback) == ("worker died", None)
    assert "SIGKILL" in (always.folder / ERROR).read_text()

    assert (refused.state, refused.attempts) == ("failed", 1)
    retried = [event.job for event in events if isinstance(event, Retried)]
    assert sorted(job.folder for job in retried) == sorted(job.folder for job in jobs[:2])
    with pytest.raises(UserError, match=r"2 of 5 runs failed(.|\n)*mle-s2(.|\n)*SIGKILL(.|\n)*rebapl-s3"):
        check_outcomes([outcomes[job.folder] for job in jobs])
    assert not multiprocessing.active_children()


def test_bad_input_is_not_tried_again_and_leaves_nothing(tmp_path: Path) -> None:
    events: list[Event] = []
    job = Job.of(tiny(data="digit"), tmp_path)
    (outcome,) = LocalEngine(["cpu"]).run([job], events.append)
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert outcome.failure is not None
    assert outcome.failure.kind == "bad input"
    assert "did you mean 'digits'" in outcome.failure.message
    assert not any(isinstance(event, Retried) for event in events)
    assert list(tmp_path.iterdir()) == []


def test_the_traceback_is_kept_and_named_until_the_run_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tiny(), tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr("rebapl.runs.run.Training.run", lambda *_, **__: 1 / 0)
        with pytest.raises(UserError, match=r"ZeroDivisionError: division by zero \(the traceback is in .*error.txt\)"):
            run_all([tiny(), tiny(seed=2)], tmp_path, engine=CPU)
    kept = (folder / ERROR).read_text()
    assert "Traceback (most recent call last)" in kept
    assert "1 / 0" in kept
    run_all([tiny(), tiny(seed=2)], tmp_path, engine=CPU)
    assert not (folder / ERROR).exists()


@pytest.mark.parametrize("error", [NonFiniteError(3, "loss", 2), NotWrittenError(Path("log.csv"), "the disk is full")])
def test_a_run_that_fails_after_it_has_begun_was_not_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: UserError
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rebapl.runs.run.Training.run", fails)
    job = Job.of(tiny(), tmp_path)
    (outcome,) = LocalEngine(["cpu"]).run([job])
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.traceback) == ("error", str(job.folder / ERROR))
    assert type(error).__name__ in (job.folder / ERROR).read_text()
    with pytest.raises(
        FailedError, match=rf"the run .* failed: .*{str(error)[:20]}.* \(the traceback is in .*error.txt"
    ):
        check_outcomes([outcome])


def test_a_run_on_which_another_process_works_gets_no_traceback(tmp_path: Path) -> None:
    (job,) = [Job.of(tiny(), tmp_path, wait=False)]
    with alone_in(job.folder):
        (outcome,) = LocalEngine(["cpu"]).run([job])
    assert outcome.failure is not None
    assert outcome.failure.kind == "bad input"
    assert "is at work on" in outcome.failure.message
    assert not job.folder.exists()


def test_too_little_memory_is_tried_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def too_large(*_: object, **__: object) -> None:
        tried.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("rebapl.runs.run.Training.run", too_large)
    (outcome,) = LocalEngine(["cpu"]).run([Job.of(tiny(), tmp_path)])
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.attempts, len(tried)) == ("out of memory", 2, 2)


def test_a_failure_writes_into_no_folder_but_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("important")
    (outcome,) = LocalEngine(["cpu"]).run([Job.of(tiny(), tmp_path, out=tmp_path / "thesis")])
    assert outcome.state == "failed"
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the backbones that are loaded."""
    names: list[str] = []

    def counted(name: str, *more: Any) -> DualEncoder:
        names.append(name)
        return load_backbone(name, *more)

    forget_backbone()
    monkeypatch.setattr("rebapl.runs.machine.load_backbone", counted)
    return names


def test_a_backbone_is_loaded_once_for_all_runs_of_this_process(tmp_path: Path, loads: list[str]) -> None:
    run_all([tiny(seed=1), tiny(seed=2)], tmp_path, engine=LocalEngine(["cpu"]))
    assert loads == ["mini"]


def test_a_changed_backbone_is_loaded_again(clip_copy: Path, loads: list[str]) -> None:
    first = kept_backbone(str(clip_copy), "cpu")
    assert kept_backbone(str(clip_copy), "cpu") is first
    os.utime(clip_copy / "config.json", (1, 1))
    assert kept_backbone(str(clip_copy), "cpu") is not first
    assert kept_backbone("mini", "cpu") is not first
    assert len(loads) == 3


def test_weights_that_a_link_does_not_lead_to_are_named(clip_copy: Path) -> None:
    """As in the cache of the hub after its blobs were removed."""
    (clip_copy / "model.safetensors").unlink()
    (clip_copy / "model.safetensors").symlink_to("nowhere")
    assert tiny(backbone=str(clip_copy)).hash()
    with pytest.raises(UserError, match=r"the weights of backbone .* cannot be read"):
        kept_backbone(str(clip_copy), "cpu")


@pytest.fixture
def clip_copy(tmp_path: Path) -> Path:
    """The embedded backbone as a local folder."""
    return Path(shutil.copytree(Path(backbones.__file__).parent / "mini", tmp_path / "copy"))


@pytest.mark.parametrize("jobs_at_once", [1, 2])
def test_an_interruption_ends_the_workers_and_is_reported(tmp_path: Path, jobs_at_once: int) -> None:
    events: list[Event] = []

    def interrupt(event: Event) -> None:
        events.append(event)
        if isinstance(event, Stepped):
            raise KeyboardInterrupt

    jobs = [Job.of(tiny(seed=seed, epochs=40), tmp_path) for seed in (1, 2)]
    with pytest.raises(KeyboardInterrupt):
        list(LocalEngine(["cpu"], jobs_at_once).run(jobs, interrupt))
    states = [event.state for event in events if isinstance(event, Outcome)]
    assert states == ["interrupted"] * jobs_at_once
    assert not multiprocessing.active_children()
    assert not any(job.is_done() for job in jobs)
    assert any((job.folder / CHECKPOINT).exists() for job in jobs), "the very step is kept"


def test_jobs_that_were_started_are_ended_when_the_next_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = engine_module._LocalJob.started, list[Work]()

    def start_one(job: Work, device: str, text: str) -> engine_module._LocalJob:
        started.append(job)
        if len(started) > 1:
            raise OSError("no more processes")
        return start(job, device, text)

    monkeypatch.setattr(engine_module._LocalJob, "started", start_one)
    with pytest.raises(OSError, match="no more processes"):
        list(LocalEngine(["cpu"], 2).run([Job.of(tiny(seed=seed, epochs=40), tmp_path) for seed in (1, 2)]))
    assert not multiprocessing.active_children()


def test_a_process_whose_driver_is_gone_ends_and_keeps_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(is_alive=lambda: False))
    job, threads = Job.of(tiny(epochs=40), tmp_path), torch.get_num_threads()
    try:
        with pytest.raises(SystemExit):
            perform_text(LocalEngine(["cpu"]).text(job))
    finally:
        torch.set_num_threads(threads)
    assert (job.folder / CHECKPOINT).exists()
    assert read_progress(job.folder) is None


class _Silent(Engine[int]):
    """An engine whose jobs report one step of progress and no more."""

    def submit(self, jobs: Sequence[tuple[Work, str]]) -> list[int]:
        self.looks = 0
        return list(range(len(jobs)))

    def wait(self, handles: Sequence[int], seconds: float) -> list[tuple[int, None]]:  # noqa: ARG002
        self.looks += 1
        return [(handle, None) for handle in handles if self.looks > 3]

    def reached(self, handle: int, job: Work) -> Reached:  # noqa: ARG002
        return Reached(1, 10, 0.5, 7, "node7")

    def cancel(self, handles: Sequence[int]) -> None:
        raise AssertionError(handles)


def test_the_time_in_a_queue_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock moves by an hour with each look, and the job starts at the second one."""
    now = [0.0]
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: now[0])

    class Queued(_Silent):
        def wait(self, handles: Sequence[int], seconds: float) -> list[tuple[int, None]]:
            now[0] += 3600
            return super().wait(handles, seconds)

        def reached(self, handle: int, job: Work) -> Reached | None:
            return super().reached(handle, job) if self.looks > 1 else None

    (outcome,) = Queued().run([Job.of(tiny(), tmp_path)])
    assert outcome.seconds == 2 * 3600


def test_a_job_that_makes_no_progress_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "STALLED_SECONDS", -1.0)
    events: list[Event] = []
    list(_Silent().run([Job.of(tiny(), tmp_path)], events.append))
    assert [type(event).__name__ for event in events] == ["Started", "Stepped", "Stalled", "Stalled", "Outcome"]


EVIL = 'from pathlib import Path; Path("{0}/EXECUTED").touch(); raise SystemExit(7)\n'


def test_files_in_the_working_folder_are_not_run(tmp_path: Path) -> None:
    """Neither the server of workers nor a worker runs them. The path of the command itself has no such folder."""
    for name in ("torch", "numpy", "rebapl", "signal", "multiprocessing", "random", "json"):
        (tmp_path / f"{name}.py").write_text(EVIL.format(tmp_path))
    words = "train --data digits --shots 1 --epochs 1 test_images=5 --seeds 1,2 --jobs 2 --device cpu -q".split()
    code = f"import sys; sys.path[0] = {str(Path(rebapl.__file__).parents[1])!r}; sys.argv = ['rebapl', *{words!r}]\n"
    start = "import os; os.chdir(sys.argv.pop()); from rebapl.cli import main; main()"
    command = [sys.executable, "-c", code.replace("\n", f"; sys.argv.append({str(tmp_path)!r})\n") + start]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(os.__file__).parent)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "EXECUTED").exists()
    assert len(list(tmp_path.glob("runs/*/posterior"))) == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_goes_on_with_the_threads_that_it_began_with(tmp_path: Path, threads: int) -> None:
    """The last digits of a sum depend on how it is split among threads."""
    (job,) = [Job.of(tiny(epochs=2), tmp_path, score=False)]
    used: list[int] = []

    def stop(*_: object) -> None:
        used.append(torch.get_num_threads())
        raise KeyboardInterrupt

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with pytest.raises(KeyboardInterrupt):
            job.do("cpu", stop)
        torch.set_num_threads(3 - threads)
        job.do("cpu", lambda *_: used.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 3 - threads
    finally:
        torch.set_num_threads(before)
    assert set(used) == {threads}
    assert json.loads((job.folder / "environment.json").read_text())["threads"] == threads
