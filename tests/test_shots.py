"""The table of heads and prompts by shots: its rule, and what the page and `learn` take from it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def shots() -> object:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import shots
    finally:
        sys.path.pop(0)
    return shots


def made_up(method: str, accuracy: float, nll: float) -> list[dict[str, str]]:
    what = {"task": "dtd", "method": method, "inference": "–", "seed": "1", "accuracy": str(accuracy), "nll": str(nll)}
    return [{**what, "shots": count} for count in ("4", "16")]


def test_the_rule_takes_the_lowest_nll_of_those_near_the_highest_accuracy(shots: object) -> None:
    rows = [*made_up("gda", 80.0, 0.5), *made_up("proker", 79.8, 0.4), *made_up("tip-adapter", 79.7, 0.1)]
    others = [row for row in made_up("gda", 0.0, 0.0) for row in [{**row, "task": "tiny60", "method": "lp++"}]]
    assert shots.chosen([*rows, *others]) == "proker"  # type: ignore[attr-defined]


def test_the_page_has_the_tables_of_the_rows_and_learn_takes_the_head_that_the_rule_names(shots: object) -> None:
    from rebapl.runs.learn_choice import HEAD

    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = shots.read(ROOT / "docs" / "benchmarks" / "shots.csv")  # type: ignore[attr-defined]
    for tasks in (("dtd", "scene15", "eurosat"), ("oxford_pets", "tiny60")):
        assert shots.table(rows, tasks) in page  # type: ignore[attr-defined]
    assert shots.chosen(rows) == f"{HEAD['method']} · {HEAD['inference']}"  # type: ignore[attr-defined]
