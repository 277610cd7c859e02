"""A prediction in shards has one row per image, also if processes are killed, with the rows of a single file."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path

import pandas
import pytest
from small_shards import BROKEN, answer_all, draw, maker_of, rows_of, save_small, small_work

from rebapl.errors import UserError
from rebapl.files import import_parquet
from rebapl.posterior import load_posterior, save_posterior
from rebapl.runs.answer_shards import entries_of
from rebapl.runs.engine import LocalEngine
from rebapl.runs.jobs import Event, Retried, Started, Stepped, Work, check_outcomes
from rebapl.runs.shards import IMAGES, Place, Shard, plan_shards, work_on


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("run") / "posterior")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return draw(tmp_path_factory.mktemp("images") / "drawn", 100)


@pytest.fixture(scope="module")
def expected(run: Path, files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> pandas.DataFrame:
    out = tmp_path_factory.mktemp("one") / "x.parquet"
    answer_all(run, files, out)
    return pandas.read_parquet(out)


class KillsOnce:
    """Kills the process of the first shard with SIGKILL while it works on the images."""

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
    work = small_work(run, [*files, files[0]], out, size=40)
    shards = work.shards
    assert [shard.count for shard in shards] == [40, 40, 20]
    kills = KillsOnce(shards[0])
    outcomes = {outcome.job.name: outcome for outcome in LocalEngine(["cpu", "cpu:0"]).run(shards, kills)}
    assert [outcomes[shard.name].attempts for shard in shards] == [2, 1, 1]
    (again,) = [event for event in kills.events if isinstance(event, Retried)]
    assert again.failure.message.startswith("the process of the shard was ended by SIGKILL")
    assert {event.device for event in kills.events if isinstance(event, Started)} == {"cpu", "cpu:0"}
    work.conclude()
    pandas.testing.assert_frame_equal(rows_of(out), expected, rtol=1e-5, atol=1e-6)
    assert len(pandas.read_parquet(out)) == len(expected), "the folder can be read as one table"
    assert (work.rows, [Path(name).name for name, _ in work.not_read]) == (100, [BROKEN])
    assert sorted(path.name for path in out.iterdir()) == [
        ".images.jsonl",
        ".shard-000000.json",
        ".shard-000001.json",
        ".shard-000002.json",
        "_about.json",
        "shard-000000.parquet",
        "shard-000001.parquet",
        "shard-000002.parquet",
    ]
    about = json.loads((out / "_about.json").read_text())
    assert (about["rows"], about["cannot_be_read"]) == (100, 1)


def test_only_what_is_missing_or_damaged_is_done(
    run: Path, files: list[Path], expected: pandas.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second command runs in another folder, with the same paths as the first."""
    monkeypatch.chdir(files[0].parent)
    names, out, engine = [Path(file.name) for file in files[:9]], tmp_path / "answers", LocalEngine(["cpu"])
    work = small_work(run, names, out, size=3)
    next(iter(engine.run(work.shards)))
    work.look()
    assert work.missing == work.shards[1:]
    work.conclude()
    assert json.loads((out / "_about.json").read_text())["rows"] == 3
    again = small_work(run, names, out, size=3).shards
    monkeypatch.chdir(tmp_path)
    assert [outcome.attempts for outcome in engine.run(again)] == [0, 1, 1]
    os.truncate(again[1].files[0], 300)
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
    small_work(run, files[:4], out, size=2)
    other = save_posterior(load_posterior(run).sample(0), tmp_path / "other")
    for given, message in (({"top": 2}, "was made with top = 3, not 2"), ({"run": other}, "answers of another run")):
        with pytest.raises(UserError, match=f"{message}.*: name another --out, or delete"):
            small_work(**{"run": run, "files": files[:4], "out": out, "size": 2, **given})
    (out / IMAGES).write_text((out / IMAGES).read_text().replace("002", "007"))
    with pytest.raises(UserError, match=r"\.images\.jsonl cannot be read \(its checksum differs\)"):
        small_work(run, files[:4], out, size=2)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_stopped_work_goes_on_with_one_row_per_image(
    run: Path, files: list[Path], expected: pandas.DataFrame, tmp_path: Path, form: str
) -> None:
    out = tmp_path / f"x.{form}"
    work = small_work(run, files[:70], out, size=32)
    stream = work_on(work.shards, maker_of(run, work.place))
    next(stream), next(stream)  # the first shard is written when the second portion is asked for
    stream.close()
    assert [shard.is_done() for shard in work.shards] == [True, False, False]
    assert not out.exists()
    answer_all(run, files[:80] * 2, out, size=5)
    frame = read(out)
    assert frame["image"].tolist() == [str(file) for file in files[:80]]
    assert frame["error"].notna().tolist() == [file.name == BROKEN for file in files[:80]]
    assert frame["entropy"].tolist() == pytest.approx(expected["entropy"][:80].tolist(), rel=1e-4, nan_ok=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, f"{out.name}.about.json"]
    answer_all(run, files, out)
    assert read(out)["image"].tolist() == [str(file) for file in files], "new images are added"


def read(out: Path) -> pandas.DataFrame:
    kind = {".csv": pandas.read_csv, ".parquet": pandas.read_parquet}
    return pandas.read_json(out, lines=True) if out.suffix == ".jsonl" else kind[out.suffix](out)


@pytest.mark.parametrize("step", ["sha256", "replace", "rmtree"])
def test_a_kill_while_shards_are_joined_costs_and_doubles_no_row(
    run: Path, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    out = tmp_path / "x.jsonl"
    answer_all(run, files[:2], out)
    work, replace = small_work(run, files[:5], out, size=3), Path.replace
    list(work_on(work.shards, maker_of(run, work.place)))
    work.look()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def killed_at_the_end(path: Path, target: Path) -> Path:
        return killed() if target == out else replace(path, target)

    with monkeypatch.context() as patch:
        where = {"sha256": "rebapl.runs.shards.sha256", "rmtree": "rebapl.runs.shards.shutil.rmtree"}
        patch.setattr(where[step], killed) if step in where else patch.setattr(Path, "replace", killed_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            work.conclude()
    answer_all(run, files[:5], out)
    assert read(out)["image"].tolist() == [str(file) for file in files[:5]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.jsonl", "x.jsonl.about.json"]


def test_a_process_that_is_killed_while_it_joins_shards_leaves_no_file_beside_the_result(
    run: Path, files: list[Path], tmp_path: Path
) -> None:
    work = small_work(run, files[:2], tmp_path / "x.csv", size=2)
    list(work_on(work.shards, maker_of(run, work.place)))

    def killed_while_it_joins() -> None:
        shutil.copyfileobj = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        work.conclude()

    process = multiprocessing.get_context("fork").Process(target=killed_while_it_joins)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv.about.json", "x.csv.shards"]
    answer_all(run, files[:2], tmp_path / "x.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.csv.about.json"]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_every_flipped_bit_makes_a_shard_undone(run: Path, files: list[Path], tmp_path: Path, form: str) -> None:
    work = small_work(run, files[2:4], tmp_path / f"x.{form}", size=2)
    (shard,) = work.shards
    list(work_on([shard], maker_of(run, work.place)))
    assert shard.is_done()
    for path in (shard.files[0], shard.kept_in / ".shard-000000.json"):
        content = path.read_bytes()
        left = []
        for place in range(0, 8 * len(content), 97):
            changed = bytearray(content)
            changed[place // 8] ^= 1 << place % 8
            path.write_bytes(changed)
            left += [place] if shard.is_done() else []
        path.write_bytes(content)
        assert all(bytes([content[place // 8]]).isspace() for place in left), (
            "only the layout of the checksum may change"
        )
    assert shard.is_done()


def test_files_that_are_not_its_own_are_refused(run: Path, files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    out.write_text("my,own\n1,2\n")
    with pytest.raises(UserError, match=r"no x\.csv\.about\.json says that it is answers: name another --out, or del"):
        answer_all(run, files[:1], out)
    assert out.read_text() == "my,own\n1,2\n"
    out.unlink()
    answer_all(run, files[:1], out)
    out.write_text(out.read_text().replace("image", "picture"))
    with pytest.raises(UserError, match=r"x.csv was changed since it was written: name another --out"):
        answer_all(run, files[:2], out)


def test_formulas_are_escaped_for_spreadsheets(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [Path(name) for name in ("=1+1.png", "a.png", "'b.png")]
    place = Place(tmp_path / "x.csv", "csv-escaped", joined=True)
    maker = maker_of(run, place)
    for _ in range(2):
        work = plan_shards(place, maker, entries_of(names), 2)
        list(work_on(work.missing, maker))
        work.conclude()
        assert pandas.read_csv("x.csv")["image"].tolist() == ["'=1+1.png", "a.png", "''b.png"]


def test_without_pyarrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'rebapl\[parquet\]'"):
        import_parquet()


def test_a_shard_reads_its_own_line_of_the_list_only(run: Path, files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "answers"
    work = small_work(run, files[:6], out, size=2)
    lines = (out / IMAGES).read_text().splitlines(keepends=True)
    (out / IMAGES).write_text("damaged\n" + lines[1] + "damaged\n")
    work.shards[1].do("cpu", None)
    assert rows_of(out)["image"].tolist() == [str(file) for file in files[2:4]]


def test_finished_shards_are_read_once_by_a_command(
    run: Path, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_all(run, files[:4], tmp_path / "answers", size=2)
    read, looked_at = Shard.not_read, []
    monkeypatch.setattr(Shard, "not_read", lambda shard: (looked_at.append(shard.name), read(shard))[1])
    answer_all(run, files[:4], tmp_path / "answers", size=2)
    assert looked_at == ["shard-000000", "shard-000001"]


def test_bad_input_is_not_tried_again(run: Path, files: list[Path], tmp_path: Path) -> None:
    """If an unreadable image is an error, it stops its own shard only."""
    shards = small_work(run, files[:4], tmp_path / "answers", size=2, strict=True).shards
    outcomes = list(LocalEngine(["cpu"]).run(shards))
    assert [(outcome.state, outcome.attempts) for outcome in outcomes] == [("done", 1), ("failed", 1)]
    with pytest.raises(
        UserError, match=rf"1 of 2 shards failed; the others are kept in {tmp_path}/answers, (.|\n)*003"
    ):
        check_outcomes(outcomes)


def test_a_run_that_has_changed_is_not_asked(run: Path, files: list[Path], tmp_path: Path) -> None:
    changed = save_posterior(load_posterior(run), tmp_path / "run")
    (shard,) = small_work(Path(changed), files[:2], tmp_path / "answers", size=2).shards
    save_posterior(load_posterior(run).sample(0), changed)
    (outcome,) = LocalEngine(["cpu"]).run([Work.from_json(json.loads(json.dumps(shard.as_json())))])
    assert "has changed since the prediction began" in str(outcome.failure)
