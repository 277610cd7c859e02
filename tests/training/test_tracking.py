"""Trackers receive the rows of the log and the scores; a tracker that fails does not harm the run."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import small_run
from typer.testing import CliRunner

from rebapl import fit, load_task
from rebapl.cli.commands import app
from rebapl.errors import UserError
from rebapl.runs.run import Job, cycle_jobs, evaluate_run
from rebapl.runs.run import run as do_run
from rebapl.training.log import TRACKERS, TrackedRun, check_trackers, read_log, register_tracker

CONFIG = small_run.CONFIG.changed(method="coop", test_images=10)


class Listener:
    """A tracker that stores everything it receives, and fails after `deaf_after` rows."""

    def __init__(self, deaf_after: int = 10**9) -> None:
        self.rows: list[tuple[int, Mapping[str, float]]] = []
        self.heard: Mapping[str, float] = {}
        self.closed = 0
        self.deaf_after = deaf_after

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if len(self.rows) >= self.deaf_after:
            raise ConnectionError("the server is gone")
        self.rows.append((step, values))

    def scores(self, values: Mapping[str, float]) -> None:
        self.heard = values

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """These runs are short: let every step have a row."""
    monkeypatch.setattr("rebapl.training.checkpoint.EVERY", 1)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRACKERS, "known", dict(TRACKERS.known))


@pytest.mark.usefixtures("registered")
def test_what_is_in_the_log_and_the_results_is_heard(tmp_path: Path) -> None:
    listener, opened = Listener(), []

    @register_tracker("listener")
    def listen(run: TrackedRun) -> Listener:
        opened.append(run)
        return listener

    out = tmp_path / "run"
    do_run(CONFIG, out, device="cpu", track=["listener"])
    rows = read_log(out / "log.csv")
    assert [{"step": float(step), **values} for step, values in listener.rows] == rows
    assert len(rows) > 1
    results = json.loads((out / "results.json").read_text())
    assert listener.heard["novel/nll"] == results["parts"]["novel"]["nll"]
    assert listener.heard["hm"] == results["base_to_novel"]["hm"]
    assert [(run.name, run.folder) for run in opened] == [("run", out)]
    assert opened[0].settings["method.name"] == "coop"
    assert opened[0].settings["inference.cycles"] == 2
    assert listener.closed == 1


@pytest.mark.usefixtures("registered")
def test_cycles_that_were_sampled_apart_are_heard_too(tmp_path: Path) -> None:
    heard = []
    for apart in (False, True):
        listener = Listener()
        register_tracker(f"listener {apart}")(lambda _, own=listener: own)
        config, out = CONFIG.changed(inference="ensemble"), tmp_path / str(apart)
        for job in cycle_jobs(Job.of(config, tmp_path, out=out)) if apart else ():
            job.do("cpu", None)
        do_run(config, out, device="cpu", score=False, track=[f"listener {apart}"])
        heard.append([(step, values["loss"]) for step, values in listener.rows])
    assert heard[0] == heard[1] != []


def test_a_tracker_is_handed_to_fit() -> None:
    listener = Listener()
    fit(load_task("digits", shots=2), "mini", "coop", epochs=1, tracker=listener)
    assert listener.rows[0][0] == 0
    assert "loss" in listener.rows[0][1]


def test_a_tracker_that_fails_does_not_end_fit() -> None:
    with pytest.warns(UserWarning, match="tracker 'Listener' is left out: ConnectionError: the server is gone"):
        posterior = fit(load_task("digits", shots=2), "mini", "coop", epochs=1, tracker=Listener(deaf_after=0))
    assert len(posterior.samples) == 1


def test_a_log_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "log.csv").mkdir()
    with pytest.raises(UserError, match=r"log\.csv cannot be read .*: delete it"):
        read_log(tmp_path / "log.csv")


@pytest.mark.usefixtures("registered")
def test_a_tracker_that_fails_is_left_out_with_a_warning(tmp_path: Path) -> None:
    good, bad = Listener(), Listener(deaf_after=1)
    register_tracker("good")(lambda _: good)
    register_tracker("bad")(lambda _: bad)
    with pytest.warns(UserWarning, match="tracker 'bad' is left out: ConnectionError: the server is gone") as warned:
        do_run(CONFIG, tmp_path / "run", score=False, device="cpu", track=["bad", "good"])
    assert len([each for each in warned if "tracker" in str(each.message)]) == 1
    assert len(good.rows) > len(bad.rows) == 1
    assert (good.closed, bad.closed) == (1, 0)


def test_trackers_that_cannot_be_used_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="unknown tracker 'tensorbord': did you mean 'tensorboard'"):
        do_run(CONFIG, tmp_path / "run", track=["tensorbord"])
    monkeypatch.setattr("rebapl.training.log.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'rebapl\[mlflow\]'"):
        check_trackers(["mlflow"])
    result = CliRunner().invoke(app, ["train", "--data", "digits", "--track", "mlflow", "--runs", str(tmp_path / "r")])
    assert isinstance(result.exception, UserError)
    assert not list(tmp_path.iterdir())


def test_a_job_takes_the_trackers_along(tmp_path: Path) -> None:
    job = Job.of(CONFIG, tmp_path, track=("tensorboard",))
    assert Job.from_json(json.loads(json.dumps(job.as_json()))) == job


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    do_run(CONFIG, out, device="cpu", track=["tensorboard"])
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    expected = [(int(row["step"]), row["loss"]) for row in read_log(out / "log.csv")]
    assert [(event.step, event.value) for event in events.Scalars("training/loss")] == [
        (step, pytest.approx(loss)) for step, loss in expected
    ]
    results = json.loads((out / "results.json").read_text())
    (accuracy,) = events.Scalars("scores/base/accuracy")
    assert accuracy.value == pytest.approx(results["parts"]["base"]["accuracy"])


def test_mlflow_keeps_a_run_in_its_file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "prompts")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    out = tmp_path / "run"
    do_run(CONFIG, out, score=False, device="cpu", track=["mlflow"])
    evaluate_run(out, device="cpu", track=["mlflow"])
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("prompts").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["inference.cycles"] == "2"
    results = json.loads((out / "results.json").read_text())
    assert run.data.metrics["novel/accuracy"] == results["parts"]["novel"]["accuracy"]
    history = client.get_metric_history(run.info.run_id, "training/loss")
    expected = [(int(row["step"]), row["loss"]) for row in read_log(out / "log.csv")]
    assert [(each.step, each.value) for each in history] == expected
