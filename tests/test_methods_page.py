"""docs/methods.md says of every method and preset what the code and the records say."""

import csv
from pathlib import Path

import pytest
from methods import CASES

from rebapl.files import read_json
from rebapl.learners import METHODS, published
from rebapl.sampling import PRESETS

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").splitlines()
IN_TABLES = {"zero-shot": "CLIP", "coop": "CoOp", "cocoop": "CoCoOp", "app": "APP", "promptsrc": "PromptSRC"}
IN_TABLES |= {"maple": "MaPLe", "mmrl": "MMRL"}
"""The names of the methods that the first table of the miniature suite has."""


def cells(name: str) -> list[str]:
    (line,) = [line for line in LINES if line.startswith(f"| `{name}` ")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def recipe_of(method: str) -> str:
    if method == "zero-shot":
        return "–"
    _, recipe = published(method, "base-to-novel", "digits", 16)
    optimizer = {"sgd": "SGD", "adamw": "AdamW"}[recipe.optimizer]
    return f"{optimizer}, {recipe.lr:g}, {recipe.epochs}, {recipe.batch}"


def miniature(name: str) -> str:
    with (ROOT / "docs/mini-suite/table1.csv").open(encoding="utf-8") as file:
        (row,) = [row for row in csv.DictReader(file) if (row["data set"], row["method"]) == ("Average", name)]
    return f"{float(row['HM ours']):.1f} ± {float(row['HM ours std']):.1f}"


def test_the_page_names_each_method_and_preset_once() -> None:
    named = [line.split("`")[1] for line in LINES if line.startswith("| `")]
    assert named == [*CASES, *PRESETS]
    assert set(CASES) == set(METHODS)


@pytest.mark.parametrize("method", CASES)
def test_the_row_of_a_method(method: str) -> None:
    _, _, parameters, recipe, ours = cells(method)
    assert parameters == f"{CASES[method].counts[0][1]:,}".replace(",", " ")
    assert recipe == recipe_of(method)
    assert ours == (miniature(IN_TABLES[method]) if method in IN_TABLES else "–")


@pytest.mark.parametrize("name", PRESETS)
def test_the_row_of_a_preset_is_that_of_the_benchmarks(name: str) -> None:
    """The means over the five real tasks, by MaPLe and MMRL and three seeds: all or nothing."""
    records = read_json(ROOT / "docs/benchmarks/study.json", "a study")["records"]
    row = {"csghmc": "csghmc, 3 warm cycles"}.get(name, name)
    real = ("dtd", "scene15", "eurosat", "oxford_pets", "caltech101")
    found = [each for each in records if (each["stage"], each["row"]) == ("compare", row) and each["task"] in real]
    if len(found) != len(real) * 2 * 3:
        assert cells(name)[2:] == ["–"] * 3
        return
    hm, nll, ece = (sum(each[score] for each in found) / len(found) for score in ("hm", "nll", "ece"))
    assert cells(name)[2:] == [f"{hm:.2f}", f"{nll:.3f}", f"{ece:.1f}"]
