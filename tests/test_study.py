"""The study behind the preset `rebapl`: arithmetic, rule, rows; and what documents say of its records."""

from __future__ import annotations

import importlib.util
import math
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from rebapl.evaluation.scores import scores
from rebapl.evaluation.tasks import bound_to, part_labels, predict_part
from rebapl.files import read_json, write_json
from rebapl.posterior import load_posterior
from rebapl.reports.tables import Cell
from rebapl.runs.run import Job
from rebapl.sampling.settings import Inference

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def load_study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("study", ROOT / "tools" / "study.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["study"] = module = importlib.util.module_from_spec(spec)  # its named tuples look themselves up
    spec.loader.exec_module(module)
    return module


study = load_study()
RECORDS = read_json(ROOT / "docs" / "benchmarks" / "study.json", "a study")["records"]


def made_up(row: str, task: str, *hm: float, nll: float = 0.0) -> list[dict[str, Any]]:
    """A record per seed."""
    what = {"row": row, "task": task, "method": "maple"}
    return [{**what, "seed": seed, "hm": value, "nll": nll} for seed, value in enumerate(hm, start=1)]


def test_mean_and_its_error_from_the_spread_over_seeds() -> None:
    records = made_up("x", "digits", 10, 20, 30) + made_up("x", "shapes", 20, 20, 50)
    mean, error = study.mean_and_error(records, "hm")
    assert mean == pytest.approx((20 + 30) / 2)
    assert error == pytest.approx(math.sqrt(100 / 3 + 300 / 3) / 2)  # the two tasks' errors, of their mean
    assert math.isnan(study.mean_and_error(made_up("x", "digits", 10), "hm")[1])
    uneven = [*made_up("x", "digits", 10, 20, 30), *made_up("x", "shapes", 40)]
    assert study.mean_and_error(uneven, "hm")[0] == pytest.approx(30), "a task counts once, whatever its seeds"


def test_differences_are_of_what_both_have() -> None:
    records = [
        *made_up("x", "digits", 10, 20, 30),
        *made_up("y", "digits", 9, 18, 27),
        *made_up("x", "shapes", 90, 90, 90),  # y was not run on it
        *made_up("y", "eurosat", 50, 50, 50),
    ]
    mean, error = study.difference(records, "x", "y", "hm")  # 1, 2, 3
    assert mean == pytest.approx(2)
    assert error == pytest.approx(1 / math.sqrt(3))
    assert study.difference(records, "y", "x", "hm")[0] == pytest.approx(-2)


def test_the_rule_takes_the_lowest_nll_of_those_near_the_ensemble() -> None:
    records = [
        *made_up(study.ENSEMBLE, "digits", 80.0),
        *made_up("near", "digits", 79.8, nll=0.4),
        *made_up("better", "digits", 79.9, nll=0.3),
        *made_up("far", "digits", 79.7, nll=0.1),
        *made_up("farther", "digits", 70.0, nll=0.05),
    ]
    assert study.by_rule(records, ["farther", "near", "far", "better"]) == ["better", "near", "far", "farther"]
    assert study.by_rule(records, ["farther", "far"]) == ["far", "farther"]
    assert study.by_rule(records, ["near", "far", "farther"], None) == ["far", "near", "farther"]


def test_a_row_that_lacks_a_task_has_no_mean() -> None:
    records = [*made_up("x", "digits", 10), *made_up("x", "shapes", 20), *made_up("y", "digits", 30)]
    assert [line.split("|")[1].strip() for line in study.scores_table(records).splitlines()[2:]] == ["x"]


def test_what_is_known_is_not_run_again(tmp_path: Path) -> None:
    what = {"stage": "compare", "task": "digits", "method": "maple", "row": "mle", "seed": 1}
    known = {**what, "hm": 1.0, "nll": 2.0, "ece": 3.0}
    write_json(tmp_path / "known.json", {"records": [known]})
    asked = SimpleNamespace(records=tmp_path / "known.json", seconds=1, runs=tmp_path, root=None, device=None, jobs=1)
    run = study.Study(SimpleNamespace(**vars(asked), out=tmp_path))
    assert run.do([study.Wanted(what, [])])
    assert run.records == [known]


CHOSEN = "3 cold, published schedule + force"


def resolved(method: str, row: str, setting: Any) -> Inference | None:
    asked = SimpleNamespace(root=Path("data"), photo="mini")
    return study.config("digits", method, row, setting, 1, "selection", asked).resolved().training.inference


@pytest.mark.parametrize("method", study.METHODS)
def test_every_row_is_a_setting_of_its_own(method: str) -> None:
    rows = {**study.structure_rows(), **study.variation_rows(CHOSEN), **study.LONGER, **study.second_rows()}
    found = [resolved(method, row, setting) for row, setting in rows.items()]
    alike = [row for row, each in zip(rows, found, strict=True) if found.count(each) > 1]
    assert not alike


@pytest.mark.parametrize("method", study.METHODS)
def test_a_row_without_force_differs_by_its_force_only(method: str) -> None:
    for name, setting in study.STRUCTURES.items():
        plain = resolved(method, name, setting)
        repelled = resolved(method, name, study.with_force(setting))
        assert plain is not None
        assert repelled is not None
        assert repelled.repulsion is not None
        assert repelled.changed(repulsion=None, restart=plain.restart) == plain, name


def test_rows_of_the_third_round_have_settings_of_their_own_and_last_twice_as_long_at_equal_steps() -> None:
    asked = SimpleNamespace(root=Path("data"), photo="mini")
    chosen = "3 chains of 3 warm + force, Wasserstein, ε 0.1"
    forces, nulls = study.equal_rows(chosen, study.IMPULSES)
    rows = {**study.left_rows(chosen, study.IMPULSES), **forces, **nulls}
    epochs = []
    for longer in (1, 2):
        wanted = study.wanted("x", rows, ("digits",), {"": (1,)}, "selection", asked, longer)
        configs = [config for each in wanted for config in each.configs]
        assert len({config.hash() for config in configs}) == len(configs)
        epochs.append([config.resolved().training.inference.all_epochs for config in configs])
    assert epochs[1] == [2 * each for each in epochs[0]]


def test_runs_with_other_openings_answer_together(tmp_path: Path) -> None:
    """The scores of a row that is several runs are those of the mean of their probabilities."""
    asked = SimpleNamespace(
        records=None, seconds=1e9, runs=tmp_path, root=None, device="cpu", jobs=1, out=tmp_path, photo="mini"
    )
    row = {"two": study.Setting("mle", openings=("a photo of a", "a picture of a"))}
    (wanted, *_) = study.wanted("x", row, ("digits",), {"": (1,)}, "selection", asked)
    short = [config.changed(epochs=1, shots=1, test_images=30) for config in wanted.configs]
    run = study.Study(asked)
    assert run.do([study.Wanted(wanted.what, short)])
    (found,) = run.records
    parts = []
    for config in short:
        folder = Job.of(config, tmp_path).folder
        task = config.task()
        part = task.tests["base"]
        posterior = load_posterior(folder)
        parts.append(predict_part(bound_to(posterior, task, part), part).probabilities)
    assert not torch.allclose(*parts), "the openings differ"
    wanted_scores = scores(torch.stack(parts).mean(0), part_labels(part))
    assert found["base"] == pytest.approx(wanted_scores["accuracy"], abs=1e-4)
    assert found["tv base"] == pytest.approx((parts[0] - parts[1]).abs().sum(-1).mean().item() / 2, abs=1e-4)


def test_every_row_of_the_comparison_has_settings() -> None:
    learned = {
        row: resolved("maple", row, setting) for row, setting in study.compared_rows(CHOSEN, CHOSEN, True).items()
    }
    assert [row for row, inference in learned.items() if inference is None] == ["zero-shot"]


def stage(name: str) -> list[dict[str, Any]]:
    return [each for each in RECORDS if each["stage"] == name]


@cache
def on_the_page() -> dict[str, str]:
    """The tables that docs/benchmarks.md shows, made again from the records."""
    rounds = ("structures", "force", "short list", "second round", "second short list", "impulses", "left out")
    rounds = (*rounds, "equal steps")
    return {**study.compared_tables(stage("compare")), **{name: study.scores_table(stage(name)) for name in rounds}}


@pytest.mark.parametrize("name", on_the_page())
def test_the_page_has_the_tables_of_the_records(name: str) -> None:
    assert on_the_page()[name] in PAGE


def test_the_choice_follows_from_the_records_by_the_rule() -> None:
    structures = [name for name in study.structure_rows() if name.endswith("+ force")]
    first = stage("structures")
    best = study.by_rule(first, structures)[0]
    variations = list(study.variation_rows(best))
    short = study.by_rule([*first, *stage("force")], [*structures, *variations])[:3]
    ensemble = [each for each in first if each["row"] == study.ENSEMBLE]
    longer = study.by_rule([*ensemble, *stage("second round")], study.second_rows())[:3]
    last = [*stage("short list"), *stage("second short list")]
    chosen = study.by_rule(last, [*short, *longer], None)[0]
    forces, _ = study.equal_rows(chosen, study.IMPULSES)
    assert read_json(ROOT / "docs/benchmarks/chosen.json", "a choice") == {
        "chosen": chosen,
        "second short list": longer,
        "first choice": study.by_rule(stage("short list"), short)[0],
        "short list": short,
        "structure": best,
        "at equal steps": study.by_rule(stage("equal steps"), forces)[0],
        "preset": study.by_rule(stage("equal steps"), forces, None)[0],
    }


@pytest.mark.parametrize("method", study.METHODS)
def test_the_preset_is_what_was_chosen(method: str) -> None:
    chosen = read_json(ROOT / "docs/benchmarks/chosen.json", "a choice")["preset"]
    impulses = study.impulses_pay(RECORDS, chosen)
    asked = resolved(method, study.OURS, study.compared_rows(chosen, chosen, impulses)[study.OURS])
    assert resolved(method, study.OURS, study.Setting("rebapl")) == asked


IN_README = {
    "maximum likelihood, a third of the epochs": "mle",
    "maximum likelihood": "mle, 3× epochs",
    "cyclical SGHMC, three warm cycles": "csghmc, 3 warm cycles",
    "ensemble of three fresh starts": "ensemble",
    "rebapl without its force": "no force",
    "rebapl": "rebapl",
}


@pytest.mark.parametrize("label", IN_README)
def test_the_readme_has_the_averages_of_the_records(label: str) -> None:
    real = [each for each in stage("compare") if each["task"] in study.REAL and each["row"] == IN_README[label]]
    digits = {"hm": 2, "nll": 3, "ece": 1, "tempered_nll": 3}
    cells = [str(Cell(*study.mean_and_error(real, score), number)) for score, number in digits.items()]
    (row,) = [line for line in README.splitlines() if line.startswith(f"| {label} |")]
    assert [cell.strip(" *") for cell in row.split("|")[2:-1]] == cells
