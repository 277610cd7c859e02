"""The study behind the preset `rebapl`: arithmetic, rule, rows; and what documents say of its records."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import study
from rebapl.files import read_json, write_json
from rebapl.reports.tables import Cell
from rebapl.sampling.settings import Inference

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


RECORDS = read_json(ROOT / "docs" / "benchmarks" / "choice.json", "a study")["records"]


def made_up(row: str, task: str, *accuracy: float, nll: float = 0.0, method: str = "mmrl") -> list[dict[str, Any]]:
    """A record per seed."""
    what = {"stage": "choice", "protocol": "few-shot@16", "row": row, "task": task, "method": method}
    return [{**what, "seed": seed, "accuracy": value, "nll": nll} for seed, value in enumerate(accuracy, start=1)]


def test_a_mean_has_errors_over_seeds_and_over_cells() -> None:
    found = study.mean(made_up("x", "digits", 10, 20, 30) + made_up("x", "dtd", 20, 20, 50), "accuracy")
    assert found.value == pytest.approx((20 + 30) / 2)
    assert found.over_seeds == pytest.approx(math.sqrt(100 / 3 + 300 / 3) / 2)  # the two cells' errors, of their mean
    assert found.over_cells == pytest.approx(math.sqrt(50) / math.sqrt(2))
    alone = study.mean(made_up("x", "digits", 10), "accuracy")
    assert math.isnan(alone.over_seeds)
    assert math.isnan(alone.over_cells)
    uneven = [*made_up("x", "digits", 10, 20, 30), *made_up("x", "dtd", 40)]
    assert study.mean(uneven, "accuracy").value == pytest.approx(30), "a cell counts once, whatever its seeds"


def test_differences_are_of_what_both_have() -> None:
    records = [
        *made_up("x", "digits", 10, 20, 30),
        *made_up("y", "digits", 9, 18, 27),
        *made_up("x", "dtd", 90, 90, 90),  # y was not run on it
        *made_up("y", "eurosat", 50, 50, 50),
    ]
    found = study.difference(records, "x", "y", "accuracy")  # 1, 2, 3
    assert (found.value, found.over_seeds) == (pytest.approx(2), pytest.approx(1 / math.sqrt(3)))
    assert study.difference(records, "y", "x", "accuracy").value == pytest.approx(-2)


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


def test_the_second_choice_is_among_rows_that_have_all_of_its_cells() -> None:
    first, second, third = list(study.SECOND)[:3]
    records = [
        *made_up(study.ENSEMBLE, "digits", 80.0),
        *made_up(first, "digits", 79.9, nll=0.4),
        *made_up(second, "digits", 79.9, nll=0.3),
        *made_up(third, "digits", 81.0, nll=0.1),
        *({**each, "stage": "second"} for row in (study.ENSEMBLE, first, second) for each in made_up(row, "dtd", 50.0)),
    ]
    assert study.by_second_rule(records) == [second, first], "the third lacks a cell"


@pytest.mark.parametrize(("accuracy", "nll", "too"), [(81.0, 0.3, True), (79.0, 0.3, False), (81.0, 0.5, False)])
def test_recipes_with_sgd_have_the_mass_matrix_if_it_is_better_in_both(accuracy: float, nll: float, too: bool) -> None:
    records = [
        *made_up("before", "dtd", 80.0, nll=0.4, method="maple"),
        *made_up("mass matrix", "dtd", accuracy, nll=nll, method="maple"),
        *made_up("mass matrix", "dtd", 0.0, nll=9.0),  # another method has no say
    ]
    assert study.sgd_has_it_too(records) == too


def test_a_row_that_lacks_a_cell_has_no_mean() -> None:
    records = [*made_up("x", "digits", 10), *made_up("x", "dtd", 20), *made_up("y", "digits", 30)]
    assert [line.split("|")[1].strip() for line in study.scores_table(records).splitlines()[2:]] == ["x"]


def test_what_is_known_is_not_run_again(tmp_path: Path) -> None:
    known = {**made_up("mle", "digits", 50.0)[0], "ece": 3.0}
    write_json(tmp_path / "known.json", {"records": [known]})
    asked = SimpleNamespace(
        records=tmp_path / "known.json", seconds=1, runs=tmp_path, root=tmp_path, device=None, jobs=1, out=tmp_path
    )
    run = study.Study(asked)
    assert run.do([study.Wanted(known, SimpleNamespace())])
    assert run.records == [known]


def resolved(method: str, row: str, setting: Any) -> Inference | None:
    config = study.config("digits", method, row, setting, study.NOVEL, 1, Path("data"), "mini")
    return config.resolved().training.inference


@pytest.mark.parametrize("method", study.METHODS)
def test_every_row_is_a_setting_of_its_own(method: str) -> None:
    rows = {**study.CANDIDATES, **study.SECOND}
    candidates = {row: resolved(method, row, study.candidate_for(row, method)) for row in rows}
    found = list(candidates.values())
    assert not [row for row, each in candidates.items() if found.count(each) > 1]
    reported = {row: resolved(method, row, each) for row, each in study.reported("before", method, False).items()}
    assert [row for row, inference in reported.items() if inference is None] == ["zero-shot"]
    learned = [each for each in reported.values() if each is not None]
    assert all(learned.count(each) == 1 for each in learned)


@pytest.mark.parametrize("method", study.METHODS)
def test_a_row_without_force_differs_by_its_force_only(method: str) -> None:
    for name in {**study.CANDIDATES, **study.SECOND}:
        repelled = resolved(method, name, study.candidate_for(name, method))
        plain = resolved(method, name, study.without_force(study.candidate_for(name, method)))
        assert plain is not None
        assert repelled is not None
        assert repelled.repulsion is not None
        assert repelled.changed(repulsion=None, restart=plain.restart) == plain, name


def test_candidates_train_for_as_many_epochs_as_the_ensemble() -> None:
    for method in study.METHODS:
        epochs = [
            inference.all_epochs
            for row in {**study.CANDIDATES, **study.SECOND}
            if (inference := resolved(method, row, study.candidate_for(row, method))) is not None
        ]
        ensemble = resolved(method, study.ENSEMBLE, study.Setting("ensemble"))
        assert ensemble is not None
        assert max(epochs) <= ensemble.all_epochs
        assert min(epochs) >= 0.9 * ensemble.all_epochs


def choice() -> tuple[str, bool]:
    return study.by_second_rule(RECORDS)[0], study.sgd_has_it_too(study.first_choice(RECORDS))


@pytest.mark.parametrize("method", study.METHODS)
def test_the_preset_is_what_the_rule_takes_from_the_records(method: str) -> None:
    chosen, sgd_too = choice()
    row = study.reported(chosen, method, sgd_too)[study.OURS]
    assert resolved(method, study.OURS, study.Setting("rebapl")) == resolved(method, study.OURS, row)
    assert f"*{chosen}*" in PAGE


def test_nothing_that_only_reports_had_a_part_in_the_choice() -> None:
    assert not {each["task"] for each in study.of(RECORDS, stage=("choice", "second"))} & {*study.REPORT_ONLY}


@cache
def on_the_page() -> dict[str, str]:
    """The tables that docs/benchmarks.md shows, made again from the records."""
    return {
        "choice": study.scores_table(study.first_choice(RECORDS)),
        "second choice": study.scores_table(study.second_choice(RECORDS)),
        **{name: text for name, text in study.choice_by_method(RECORDS).items() if name.startswith("first")},
        **study.report_tables(RECORDS),
    }


@pytest.mark.parametrize("name", [each for each in on_the_page() if not each.startswith("development")])
def test_the_page_has_the_tables_of_the_records(name: str) -> None:
    assert on_the_page()[name] in PAGE


def test_the_page_has_both_means_of_the_times() -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| at most 1.1 times the ensemble's time")]
    for protocol in (study.NOVEL, study.SIXTEEN, study.FOUR):
        for ratio in study.seconds_ratio(RECORDS, protocol):
            assert f"{ratio:.2f}" in row


IN_README = {
    "maximum likelihood": "mle",
    "maximum likelihood, three times the epochs": "mle, 3× epochs",
    "cyclical SGHMC, three warm cycles": "csghmc",
    "ensemble of three fresh starts": "ensemble",
    "rebapl without its force": "no force",
    "rebapl": "rebapl",
}


@pytest.mark.parametrize("label", IN_README)
def test_the_readme_has_the_averages_of_the_records(label: str) -> None:
    own = study.of(RECORDS, stage="report", task=study.REPORT_ONLY, row=IN_README[label], protocol=str(study.NOVEL))
    digits = {"accuracy": 2, "nll": 3, "ece": 1, "tempered_nll": 3}
    cells = [str(Cell(study.mean(own, score).value, None, number)) for score, number in digits.items()]
    (row,) = [line for line in README.splitlines() if line.startswith(f"| {label} |")]
    assert [cell.strip(" *") for cell in row.split("|")[2:-1]] == cells
