"""Tables of what is in a folder of runs, from results written by hand."""

import csv
import io
import json
import shutil
import statistics
from pathlib import Path

import pytest

from rebapl.cli.progress import print_table
from rebapl.errors import UserError
from rebapl.reports.results import corruption_table, long_list, result_tables
from rebapl.reports.tables import Cell, Table
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import find_runs, run_folder
from rebapl.runs.results import RunResult

CONFIG = RunConfig("digits", "maple", "rebapl", backbone="mini")


def store(runs: Path, config: RunConfig, seconds: float = 3.0, **accuracy: float) -> Path:
    """A finished run whose parts have these accuracies."""
    out = run_folder(config, runs)
    (out / "posterior").mkdir(parents=True, exist_ok=True)
    asked = {**config.plain(), "resolved": config.resolved().settings}
    (out / "config.json").write_text(json.dumps(asked))
    scores = {
        name: {
            "accuracy": value,
            "nll": value / 100,
            "ece": 5.0,
            "aurc": value / 10,
            "images": 9,
            "per_sample": [{"accuracy": value - 1, "nll": 1.0, "ece": 5.0}],
        }
        for name, value in accuracy.items()
    }
    protocols = {config.protocol: list(accuracy)}
    results = {"parts": scores, "protocols": protocols, "seconds": {"training": seconds}}
    (out / "results.json").write_text(json.dumps(results))
    return out


def tables(*folders: Path) -> list[Table]:
    return result_tables(find_runs(folders).runs)


def numbers(row) -> list[float | None]:
    return [cell.value for cell in row if isinstance(cell, Cell)]


def test_seeds_are_averaged_and_data_sets_too(tmp_path: Path) -> None:
    for seed, base, novel in ((1, 80.0, 60.0), (2, 82.0, 64.0)):
        store(tmp_path, CONFIG.changed(seed=seed), base=base, novel=novel)
        store(tmp_path, CONFIG.changed(seed=seed, data="shapes"), base=base - 10, novel=novel)
    (table,) = tables(tmp_path)
    digits, shapes, average = table.rows
    assert [row[0] for row in table.rows] == ["digits", "shapes", "average"]
    assert digits[-1] == "1, 2"
    base, novel, hm, nll, ece, seconds = (cell for cell in digits if isinstance(cell, Cell))
    assert (base.value, base.std) == (81.0, pytest.approx(statistics.stdev([80, 82])))
    assert hm.value == pytest.approx((2 * 80 * 60 / 140 + 2 * 82 * 64 / 146) / 2)
    assert (novel.value, nll.value, ece.value, seconds.value) == (62.0, pytest.approx(0.715), 5.0, 3.0)
    assert numbers(shapes)[0] == 71.0
    assert numbers(average)[:2] == [76.0, 62.0]
    per_seed = [2 * 75 * 60 / 135, 2 * 77 * 64 / 141]
    deviation = average[5].std if isinstance(average[5], Cell) else None
    assert numbers(average)[2] == pytest.approx(statistics.fmean(per_seed))
    assert deviation == pytest.approx(statistics.stdev(per_seed))
    (other,) = result_tables(find_runs([tmp_path]).runs, "average")
    of_each = [2 * 80 * 60 / 140, 2 * 70 * 60 / 130, 2 * 82 * 64 / 146, 2 * 72 * 64 / 136]
    assert numbers(other.rows[-1])[2] == pytest.approx(statistics.fmean(of_each))


def test_a_temperature_is_a_setting_of_the_scores(tmp_path: Path) -> None:
    store(tmp_path, CONFIG, base=80.0, novel=60.0)
    out = store(tmp_path, CONFIG.changed(seed=2), base=80.0, novel=60.0)
    results = json.loads((out / "results.json").read_text())
    (out / "results.json").write_text(json.dumps({**results, "temperature": 1.5}))
    (table,) = tables(tmp_path)
    assert [row[-1] for row in table.rows] == ["1", "2"]
    assert "a temperature" in str(table.rows[1])


def test_a_copy_of_a_run_is_no_second_seed(tmp_path: Path) -> None:
    out = store(tmp_path, CONFIG, base=80.0, novel=60.0)
    shutil.copytree(out, tmp_path / "copy")
    (table,) = tables(tmp_path)
    assert len(table.rows) == 2
    assert [row[-1] for row in table.rows] == ["1", "1"]
    assert all(cell.std is None for row in table.rows for cell in row if isinstance(cell, Cell))
    assert any(f"run={name}" in str(row) for row in table.rows for name in ("copy", out.name))


def test_runs_that_were_scored_in_another_way_are_not_averaged_with_others(tmp_path: Path) -> None:
    """With fitted weights, or on another split file of a target."""
    cross = CONFIG.changed(protocol="cross-dataset", targets=("eurosat",))
    for config, seed, change in (
        (CONFIG, 1, {"weights": [0.5, 0.5]}),
        (CONFIG, 2, {"weights": [0.9, 0.1]}),
        (cross, 1, {}),
        (cross, 2, {"split": "few.json"}),
    ):
        parts = {"base": 60.0, "novel": 60.0} if config is CONFIG else {"test": 90.0, "eurosat": 50.0}
        path = store(tmp_path, config.changed(seed=seed), **parts) / "results.json"
        results = json.loads(path.read_text())
        (results["parts"]["eurosat"] if "split" in change else results).update(change)
        path.write_text(json.dumps(results))
    words = [[(row[3], row[-1]) for row in table.rows] for table in tables(tmp_path)]
    assert words == [[("", "1"), ("fitted weights", "2")], [("", "1"), ("eurosat=few.json", "2")]]
    assert "fitted weights" in long_list(find_runs([tmp_path]).runs)


def test_an_average_is_over_the_seeds_that_all_data_sets_have(tmp_path: Path) -> None:
    for data, seed in (("digits", 1), ("digits", 2), ("shapes", 2), ("shapes", 3)):
        store(tmp_path, CONFIG.changed(seed=seed, data=data), base=60.0 + seed, novel=60.0)
    (table,) = tables(tmp_path)
    assert (table.rows[-1][0], table.rows[-1][-1]) == ("average", "2")
    assert numbers(table.rows[-1])[0] == 62.0


def test_runs_that_differ_in_a_setting_are_not_averaged_and_say_so(tmp_path: Path) -> None:
    store(tmp_path, CONFIG, base=80.0, novel=60.0)
    other = CONFIG.changed(inference_settings={"repulsion": {"distance": "energy"}}, shots=4)
    store(tmp_path, other, base=70.0, novel=60.0)
    (table,) = tables(tmp_path)
    assert len(table.rows) == 2
    assert sorted(str(row[3]) for row in table.rows) == ["16 shots", "4 shots, repulsion.distance=energy"]
    assert "mini" in table.notes[0]


def test_runs_that_read_alike_are_told_apart(tmp_path: Path) -> None:
    """As when a preset's value changes between two versions."""
    store(tmp_path, CONFIG, base=80.0, novel=60.0)
    out = store(tmp_path, CONFIG.changed(inference_settings={"sampler.temperature": 0.5}), base=70.0, novel=60.0)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "inference_settings": {}}))
    (table,) = tables(tmp_path)
    assert {str(row[3]) for row in table.rows} in (
        {"", "inference.sampler.temperature=0.5"},
        {"", "inference.sampler.temperature=0.03"},
    )


def test_every_one_of_three_runs_that_read_alike_has_words_of_its_own(tmp_path: Path) -> None:
    """The second and the third differ from the first in the same setting, with the same value."""
    changes = ({}, {"sampler.lr": 0.25}, {"sampler.lr": 0.25, "sampler.temperature": 0.5})
    for base, change in zip((60.0, 70.0, 80.0), changes, strict=True):
        out = store(tmp_path, CONFIG.changed(inference_settings=change), base=base, novel=60.0)
        config = json.loads((out / "config.json").read_text())
        (out / "config.json").write_text(json.dumps({**config, "inference_settings": {}}))
    runs = sorted(find_runs([tmp_path]).runs, key=lambda run: run.result.parts["base"].accuracy)
    (table,) = result_tables(runs)
    lr = "inference.sampler.lr=0.25"
    assert [row[3] for row in table.rows] == ["", lr, f"{lr}, inference.sampler.temperature=0.5"]


def test_a_run_that_lacks_a_part_has_dashes_and_costs_no_other_run_its_row(tmp_path: Path) -> None:
    store(tmp_path, CONFIG, base=80.0)
    store(tmp_path, CONFIG.changed(data="shapes"), base=70.0, novel=60.0)
    cross = CONFIG.changed(protocol="cross-dataset", targets=("shapes",))
    store(tmp_path, cross, test=90.0, shapes=50.0)
    store(tmp_path, cross.changed(method="coop"), test=80.0)
    halves, transfers = tables(tmp_path)
    assert [numbers(row)[0] for row in halves.rows] == [None, 70.0]
    by_method = {row[1]: numbers(row)[:3] for row in transfers.rows}
    assert by_method == {"maple": [90.0, 50.0, 50.0], "coop": [80.0, None, None]}


def test_corruptions_that_lack_a_score_have_a_dash() -> None:
    fog = {"1": {"accuracy": 80.0, "nll": 1.0, "ece": 2.0}, "2": {"accuracy": 60.0, "nll": 3.0, "ece": 4.0}}
    (row,) = corruption_table(RunResult(parts={}, corruptions={"fog": fog})).rows
    assert numbers(row) == [80.0, 60.0, None, None, None, 70.0, 2.0, 3.0, None]


def test_transfers_have_a_column_per_target_and_their_average(tmp_path: Path) -> None:
    cross = CONFIG.changed(protocol="cross-dataset", targets=("shapes", "letters"))
    store(tmp_path, cross, test=90.0, shapes=50.0, letters=40.0)
    few = CONFIG.changed(protocol="few-shot", method="coop")
    store(tmp_path, few, test=88.0)
    first, second = tables(tmp_path)
    assert first.title == "few-shot, all classes, accuracy, ECE and AURC in %"
    assert numbers(first.rows[0]) == [88.0, 0.88, 5.0, 8.8, 3.0]
    targets = ["source ↑", "shapes ↑", "letters ↑", "average ↑"]
    assert second.columns[3:10] == [*targets, "NLL ↓", "ECE ↓", "AURC ↓"]
    assert numbers(second.rows[0])[:7] == [90.0, 50.0, 40.0, 45.0, pytest.approx(0.45), 5.0, 4.5]


def test_unfinished_runs_are_named(tmp_path: Path) -> None:
    scored, unscored, untrained = (store(tmp_path, CONFIG.changed(seed=n), test=1.0) for n in (1, 2, 3))
    (unscored / "results.json").unlink()
    (untrained / "results.json").unlink()
    (untrained / "posterior").rmdir()
    (tmp_path / "notes.txt").write_text("mine")
    found = find_runs([tmp_path])
    assert [run.folder for run in found.runs] == [scored]
    assert (found.unscored, found.untrained) == ([unscored], [untrained])
    assert [run.folder for run in find_runs([scored]).runs] == [scored]
    with pytest.raises(UserError, match="is not a folder of runs"):
        find_runs([tmp_path / "nowhere"])


def test_the_long_list_is_unrounded_with_every_sample(tmp_path: Path) -> None:
    store(tmp_path, CONFIG, seconds=1 / 3, base=200 / 3, novel=60.0)
    rows = list(csv.DictReader(io.StringIO(long_list(find_runs([tmp_path]).runs))))
    assert [(row["part"], row["sample"]) for row in rows] == [
        ("base", "all"),
        ("base", "1"),
        ("novel", "all"),
        ("novel", "1"),
    ]
    assert float(rows[0]["accuracy"]) == 200 / 3
    assert float(rows[1]["accuracy"]) == 200 / 3 - 1
    assert (rows[0]["protocol"], rows[0]["seed"], rows[1]["images"]) == ("base-to-novel", "1", "9")
    assert float(rows[0]["training_seconds"]) == 1 / 3


def test_the_long_list_names_the_backbone_that_a_run_takes_by_itself(tmp_path: Path) -> None:
    store(tmp_path, CONFIG.changed(backbone=None), base=80.0, novel=60.0)
    rows = csv.DictReader(io.StringIO(long_list(find_runs([tmp_path]).runs)))
    assert {row["backbone"] for row in rows} == {"mini"}


def test_many_seeds_leave_room_for_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seeds that follow each other are written as a range; where they do not, the table is as wide as it must be."""
    for seed in [*range(1, 61), *range(100, 300, 2)]:
        store(tmp_path, CONFIG.changed(seed=seed), base=80.0, novel=60.0)
    (table,) = tables(tmp_path)
    assert str(table.rows[0][-1]).startswith("1–60, 100, 102, ")
    print_table(table)
    row = next(line for line in capsys.readouterr().out.splitlines() if "digits" in line)
    assert "80.00 ± 0.00" in row
    assert row.endswith("296, 298 │")
