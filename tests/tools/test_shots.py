"""The table of heads and prompts by shots: its rule, and what the page and `learn` take from it."""

from pathlib import Path

import shots
from rebapl.runs.learn_choice import HEAD

DOCS = Path(__file__).parents[2] / "docs"


def made_up(method: str, accuracy: float, nll: float, task: str = "dtd") -> list[dict[str, str]]:
    what = {"task": task, "method": method, "inference": "–", "seed": "1", "accuracy": str(accuracy), "nll": str(nll)}
    return [{**what, "shots": count} for count in ("4", "16")]


def test_the_rule_takes_the_lowest_nll_of_those_near_the_highest_accuracy() -> None:
    rows = [*made_up("gda", 80.0, 0.5), *made_up("proker", 79.8, 0.4), *made_up("tip-adapter", 79.7, 0.1)]
    reported = made_up("gda", 0.0, 9.0, task="tiny60")  # has no part in choosing
    assert shots.chosen([*rows, *reported]) == "proker"
    assert shots.chosen([*rows, *made_up("proker", 0.0, 9.0)]) == "gda"


def test_the_page_has_the_tables_of_the_rows_and_learn_takes_the_head_that_the_rule_names() -> None:
    page, rows = (DOCS / "benchmarks.md").read_text(encoding="utf-8"), shots.read(DOCS / "benchmarks" / "shots.csv")
    for tasks in shots.TABLES.values():
        assert shots.table(rows, tasks) in page
    assert shots.chosen(rows) == f"{HEAD['method']} · {HEAD['inference']}"
    assert len({tuple(row[name] for name in shots.FIELDS[:5]) for row in rows}) == len(rows), "each run counts once"


def test_a_task_counts_once_however_many_seeds_it_has() -> None:
    """Prompts have two seeds on some tasks and one on others."""
    rows = [*made_up("gda", 80.0, 0.5), *made_up("gda", 90.0, 0.5), *made_up("gda", 40.0, 0.5, task="caltech101")]
    assert shots.mean(rows, "accuracy") == (85 + 40) / 2
