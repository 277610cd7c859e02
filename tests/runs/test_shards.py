"""A prediction in shards: one row per image, whatever is killed, and the rows of one file of answers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pandas
import pytest
from small_shards import BROKEN, draw, rows_of, save_small, small_shards

from rebapl.errors import UserError
from rebapl.posterior.answers import Asked
from rebapl.runs import shards as module
from rebapl.runs.answer_file import write_answers
from rebapl.runs.engine import Event, LocalEngine, Retried, Started, Stepped, Work, check_outcomes
from rebapl.runs.folder import load_trained
from rebapl.runs.shards import Shard, conclude


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("run") / "posterior")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return draw(tmp_path_factory.mktemp("images") / "drawn", 100)


@pytest.fixture(scope="module")
def expected(run: Path, files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> pandas.DataFrame:
    out = tmp_path_factory.mktemp("one") / "x.parquet"
    write_answers(load_trained(run, device="cpu"), files, out, Asked(), form="parquet", run=str(run))
    return pandas.read_parquet(out)


class KillsOnce:
    """Ends the process of the first shard with SIGKILL amid its images."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.process = shard, 0
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Started) and event.job == self.shard and event.attempt == 1:
            self.process = event.process
        elif isinstance(event, Stepped) and event.job == self.shard and self.process:
            os.kill(self.process, signal.SIGKILL)
            self.process = 0


def test_a_killed_worker_costs_its_shard_only(
    run: Path, files: list[Path], expected: pandas.DataFrame, tmp_path: Path
) -> None:
    """Two workers on two devices, three shards; an image is named twice."""
    out = tmp_path / "answers"
    shards = small_shards(run, [*files, files[0]], out, size=40)
    assert [shard.count for shard in shards] == [40, 40, 20]
    kills = KillsOnce(shards[0])
    outcomes = {outcome.job.name: outcome for outcome in LocalEngine(["cpu", "cpu:0"]).run(shards, kills)}
    assert [outcomes[shard.name].attempts for shard in shards] == [2, 1, 1]
    (again,) = [event for event in kills.events if isinstance(event, Retried)]
    assert again.failure.message.startswith("the process of the shard was ended by SIGKILL")
    assert {event.device for event in kills.events if isinstance(event, Started)} == {"cpu", "cpu:0"}
    written = conclude(out, shards)
    pandas.testing.assert_frame_equal(rows_of(out), expected, rtol=1e-5, atol=1e-6)
    assert len(pandas.read_parquet(out)) == len(expected), "the folder can be read as one table"
    assert [Path(name).name for name, _ in written.broken] == [BROKEN]
    assert sorted(path.name for path in out.iterdir()) == [
        ".images.jsonl",
        "_about.json",
        "shard-000000.parquet",
        "shard-000001.parquet",
        "shard-000002.parquet",
    ]
    about = json.loads((out / "_about.json").read_text())
    assert (about["images"], about["rows"], about["cannot_be_read"], about["shard"]) == (100, 100, 1, 40)


def test_only_what_is_missing_or_damaged_is_done(
    run: Path, files: list[Path], expected: pandas.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder, with paths as they were given there."""
    monkeypatch.chdir(files[0].parent)
    names, out, engine = [Path(file.name) for file in files[:9]], tmp_path / "answers", LocalEngine(["cpu"])
    shards = small_shards(run, names, out, size=3)
    next(iter(engine.run(shards)))
    assert [shard.is_done() for shard in shards] == [True, False, False]
    assert conclude(out, shards).rows == json.loads((out / "_about.json").read_text())["rows"] == 3
    again = small_shards(run, names, out, size=3)
    monkeypatch.chdir(tmp_path)
    assert [outcome.attempts for outcome in engine.run(again)] == [0, 1, 1]
    os.truncate(again[1].file, 300)
    assert [(outcome.job, outcome.attempts) for outcome in engine.run(again)] == [
        (again[0], 0),
        (again[2], 0),
        (again[1], 1),
    ]
    rows = rows_of(out)
    assert rows["image"].tolist() == [file.name for file in files[:9]]
    assert rows["entropy"].tolist() == pytest.approx(expected["entropy"][:9].tolist(), rel=1e-5, nan_ok=True)


def test_another_prediction_is_refused_with_what_differs(run: Path, files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "answers"
    small_shards(run, files[:4], out, size=2)
    other = load_trained(run, device="cpu").sample(0).save_pretrained(tmp_path / "other")
    for given, message in (
        ({"top": 2}, "was made with top = 3, not 2"),
        ({"size": 3}, "was made with shard = 2, not 3"),
        ({"run": Path(other)}, "holds answers of another run"),
        ({"files": files[:3]}, r"another list of images \(image 4: .*003.png; now there is none\)"),
        ({"files": [files[0], *files[2:5]]}, r"another list of images \(image 2: .*001.png; now .*002.png\)"),
    ):
        with pytest.raises(UserError, match=f"{message}.*: name another --out, or delete"):
            small_shards(**{"run": run, "files": files[:4], "out": out, "size": 2, **given})
    (out / module.IMAGES).write_text("no json\n")
    with pytest.raises(UserError, match=r"\.images\.jsonl cannot be read"):
        small_shards(run, files[:4], out, size=2)


def test_bad_input_is_not_tried_again(run: Path, files: list[Path], tmp_path: Path) -> None:
    """An image that cannot be read, where that is an error, stops its own shard only."""
    shards = small_shards(run, files[:4], tmp_path / "answers", size=2, strict=True)
    outcomes = list(LocalEngine(["cpu"]).run(shards))
    assert [(outcome.state, outcome.attempts) for outcome in outcomes] == [("done", 1), ("failed", 1)]
    with pytest.raises(
        UserError, match=rf"1 of 2 shards failed; the others are kept in {tmp_path}/answers, (.|\n)*003"
    ):
        check_outcomes(outcomes)


def test_a_run_that_has_changed_is_not_asked(run: Path, files: list[Path], tmp_path: Path) -> None:
    changed = load_trained(run, device="cpu").save_pretrained(tmp_path / "run")
    (shard,) = small_shards(Path(changed), files[:2], tmp_path / "answers", size=2)
    load_trained(run, device="cpu").sample(0).save_pretrained(changed)
    (outcome,) = LocalEngine(["cpu"]).run([Work.from_json(json.loads(json.dumps(shard.as_json())))])
    assert "has changed since the prediction began" in str(outcome.failure)
