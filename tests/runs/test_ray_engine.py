"""Runs on a real Ray cluster of two machines with one core each: only lost work is done again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import small_jobs
from small_features import assert_same_features, embed, pictures, plan
from small_jobs import LONG, StruckJob, StruckShard, jobs, made, scores, tiny
from small_shards import answer_all, draw, rows_of, save_small, small_work
from tiny_suite import TINY

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.reproduce.targets import PAPER_TARGETS
from rebapl.runs.clusters import RayEngine, SlurmEngine
from rebapl.runs.engine import LocalEngine
from rebapl.runs.folder import CHECKPOINT, ERROR
from rebapl.runs.jobs import Event, Outcome, Retried, Started, Stepped
from rebapl.runs.run import Job, run_all
from rebapl.training.checkpoint import load_checkpoint

ROOM = 80 * 1024 * 1024
PATH = os.pathsep.join([str(Path(small_jobs.__file__).parent), *filter(None, sys.path)])
"""The path on which the processes of the cluster find modules."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ray cancels by it; in the background it may be ignored
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": ROOM}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATH)
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=ROOM)
    ray.init(cluster.address, log_to_driver=False)  # once, so that processes of the cluster serve all tests
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def engine(cluster: Any) -> RayEngine:
    return RayEngine(address=cluster.address, gpus=0)


def test_what_is_lost_is_done_again_and_the_results_are_those_of_the_local_engine(
    engine: RayEngine, tmp_path: Path
) -> None:
    """A worker is killed. A run with a wrong setting is not tried again and does not stop the others."""
    wanted = [StruckJob.of(tiny(epochs=4), tmp_path / "ray"), *jobs(tmp_path / "ray", 2)]
    wrong = Job.of(tiny(data="digit"), tmp_path / "ray")
    events: list[Event] = []
    found = {outcome.folder: outcome for outcome in engine.run([*wanted, wrong], events.append)}
    assert [(found[job.folder].state, found[job.folder].attempts) for job in wanted] == [("done", 2), ("done", 1)]
    assert (found[wrong.folder].state, found[wrong.folder].attempts) == ("failed", 1)
    (again,) = [event for event in events if isinstance(event, Retried)]
    assert (again.job, again.failure.kind) == (wanted[0], "worker died")
    assert not (wanted[0].folder / ERROR).exists()

    (here,) = jobs(tmp_path / "local", 1, epochs=4)
    assert [each.state for each in LocalEngine(["cpu"]).run([here])] == ["done"]
    assert made(wanted[0].folder) == made(here.folder)
    assert [outcome.attempts for outcome in engine.run(wanted)] == [0, 0]


def test_the_miniature_suite_is_the_same_on_every_engine(engine: RayEngine, tmp_path: Path) -> None:
    """One of its runs, made smaller: apart from times, the results are the same byte for byte."""
    configs = PAPER_TARGETS["table1"].runs(replace(TINY, methods=("coop",), epochs={"*": 1}, shots=1))
    assert [config.method for config in configs] == ["coop"]
    engines = {
        "local": LocalEngine(["cpu"]),
        "ray": engine,
        "slurm": SlurmEngine(tmp_path / "slurm", cluster="local", time="30"),
    }
    results = {
        name: [scores(folder) for folder in run_all(configs, tmp_path / name, engine=each)]
        for name, each in engines.items()
    }
    assert json.dumps(results["local"]) == json.dumps(results["ray"]) == json.dumps(results["slurm"])


def test_an_interruption_keeps_the_step_of_every_run(engine: RayEngine, tmp_path: Path) -> None:
    wanted = jobs(tmp_path, 1, 2, **{**LONG, "epochs": 2000})
    events: list[Event] = []

    def interrupt(event: Event) -> None:
        events.append(event)
        if isinstance(event, Stepped) and len({each.job.folder for each in events if isinstance(each, Stepped)}) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(engine.run(wanted, interrupt))
    assert [event.state for event in events if isinstance(event, Outcome)] == ["interrupted"] * 2
    for job in wanted:
        assert load_checkpoint(job.folder / CHECKPOINT)["loop"]["schedule"]["steps"] > 0


def test_a_driver_that_is_killed_is_started_again_and_goes_on(cluster: Any, engine: RayEngine, tmp_path: Path) -> None:
    """A second process continues the work of the first driver. Python files in its working folder are not run."""
    wanted = jobs(tmp_path, 1, 2, 3, epochs=20)
    for name in ("torch", "numpy", "json", "rebapl"):
        (tmp_path / f"{name}.py").write_text(f'open({str(tmp_path / "EXECUTED")!r}, "w")\n')
    code = (
        "import os, sys; sys.path.pop(0); from pathlib import Path; from small_jobs import jobs\n"
        "from rebapl.runs.clusters import RayEngine\n"
        "os.chdir(sys.argv[1])\n"
        f"engine = RayEngine(address={cluster.address!r}, gpus=0)\n"
        "for outcome in engine.run(jobs(Path(sys.argv[1]), 1, 2, 3, epochs=20)): print(outcome.state, flush=True)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PATH},
    )
    assert driver.stdout is not None
    assert driver.stdout.readline().strip() == "done"
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert not (tmp_path / "EXECUTED").exists()
    before = {job.folder for job in wanted if job.is_done()}
    assert before
    outcomes = list(engine.run(wanted))
    assert [outcome.state for outcome in outcomes] == ["done"] * 3
    assert all(outcome.attempts == 0 for outcome in outcomes if outcome.folder in before)


def test_a_prediction_in_shards_survives_its_worker_and_goes_on(
    engine: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are relative to the working folder of the driver; the workers have another one."""
    files, run, out = draw(tmp_path / "drawn", 60), save_small(tmp_path / "run"), tmp_path / "answers"
    monkeypatch.chdir(tmp_path)
    names = [file.relative_to(tmp_path) for file in files]
    work = small_work(run, names, Path("answers"), size=40)
    shards = work.shards
    struck = StruckShard(**vars(shards[0]))
    outcomes = {outcome.job.name: outcome for outcome in engine.run([struck, *shards[1:]])}
    assert [outcomes[shard.name].attempts for shard in shards] == [2, 1]
    work.conclude()
    rows, whole = rows_of(out), tmp_path / "x.parquet"
    answer_all(run, names, whole)
    pandas.testing.assert_frame_equal(rows, pandas.read_parquet(whole), rtol=1e-5, atol=1e-6)
    shards[1].files[0].unlink()
    assert [outcome.attempts for outcome in engine.run(small_work(run, names, out, size=40).shards)] == [0, 1]
    pandas.testing.assert_frame_equal(rows_of(out), rows, rtol=1e-5, atol=1e-6)


def test_features_in_shards_are_those_of_this_process(engine: RayEngine, mini: DualEncoder, tmp_path: Path) -> None:
    """A stored shard that is damaged is done again, and no other one."""
    images, one, out = pictures(tmp_path / "pets", cat=5, dog=4), tmp_path / "one", tmp_path / "out"
    work, _ = plan(mini, [images], out)
    assert [outcome.attempts for outcome in engine.run(work.shards)] == [1, 1]
    work.conclude()
    assert_same_features(out, embed(mini, [images], one))
    work.shards[1].files[0].write_bytes(b"damaged")
    assert [outcome.attempts for outcome in engine.run(plan(mini, [images], out)[0].shards)] == [0, 1]
    assert_same_features(out, one)


def test_what_no_machine_has_is_refused(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no machine of this Ray cluster has 1 CPUs and 4 GPUs.*the largest has 1 and 0"
    ):
        list(RayEngine(address=cluster.address, gpus=4).run(jobs(tmp_path, 1)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [{"cpus": 0}, {"gpus": -1}, {"gpus": 1.5}, {"cpus": "many"}])
def test_impossible_shares_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"[cg]pus is"):
        RayEngine(**given)


def test_a_run_travels_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text has full paths, and the environment variable with the folder of the data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REBAPL_DATA", "data")
    (job,) = jobs(Path("runs"), 1)
    text = RayEngine(cpus=2).text(job)
    assert str(tmp_path / "runs") in text
    assert str(tmp_path / "data") in text
    assert '"threads": 2' in text


def test_a_run_whose_machine_is_removed_goes_on_on_another(cluster: Any, engine: RayEngine, tmp_path: Path) -> None:
    """The last test of this cluster, which has one machine less after it."""
    last = StruckJob.of(tiny(seed=3, epochs=4), tmp_path, waits=True)

    def remove(event: Event) -> None:
        if isinstance(event, Started) and event.attempt == 1:
            node = next(each for each in cluster.worker_nodes if _is_on(event.process, each))
            cluster.remove_node(node)

    (outcome,) = engine.run([last], remove)
    assert (outcome.state, outcome.attempts) == ("done", 2)


def _is_on(process: int, node: Any) -> bool:
    """Whether a process is a child of a node's raylet."""
    raylet = node.all_processes["raylet"][0].process.pid
    return f" {raylet} " in Path(f"/proc/{process}/stat").read_text()
