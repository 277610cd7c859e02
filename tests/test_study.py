"""The study behind the preset `rebapl`: its arithmetic, and that the documents say what its records say."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rebapl.files import read_json
from rebapl.learners import published
from rebapl.sampling import Inference, preset

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def load_study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("study", ROOT / "tools" / "study.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["study"] = module = importlib.util.module_from_spec(spec)  # its named tuples look themselves up
    spec.loader.exec_module(module)
    return module


study = load_study()
COMPARED = read_json(ROOT / "docs" / "benchmarks" / "compare.json", "a study")["records"]
CHOICE = read_json(ROOT / "docs" / "benchmarks" / "choose.json", "a study")["records"]
CHOSEN = read_json(ROOT / "docs" / "benchmarks" / "chosen.json", "a choice")


def made_up(setting: str, task: str, *hm: float, nll: float = 0.0) -> list[dict[str, Any]]:
    """A record per seed."""
    what = {"setting": setting, "task": task, "method": "maple"}
    return [{**what, "seed": seed, "hm": value, "nll": nll} for seed, value in enumerate(hm, start=1)]


def test_mean_and_its_error_over_seeds() -> None:
    records = made_up("x", "digits", 10, 20, 30) + made_up("x", "shapes", 20, 20, 50)
    mean, error = study.mean_and_error(records, "hm")  # the seeds' means are 15, 20, 40
    assert mean == pytest.approx(25)
    assert error == pytest.approx(math.sqrt((100 + 25 + 225) / 2 / 3))
    assert math.isnan(study.mean_and_error(made_up("x", "digits", 10), "hm")[1])


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


def test_the_best_has_the_highest_mean_less_its_nll_and_was_run_on_every_task() -> None:
    a = [each for task in study.TASKS for each in made_up("a", task, 80, 80, nll=0.5)]
    b = [each for task in study.TASKS for each in made_up("b", task, 82, 82, nll=0.53)]
    part = made_up("part", study.TASKS[0], 99, 99)
    assert study.worth(a) == pytest.approx(0.8 - 0.5)
    assert study.best([*a, *b, *part], ["a", "b", "part"]) == "a"  # 0.30 against 0.29
    assert study.best([*a, *b, *part], ["b", "part"]) == "b"
    assert study.best(part, ["part"]) is None


@pytest.mark.parametrize("task", [None, *study.TASKS])
def test_the_document_has_the_tables_of_the_comparison(task: str | None) -> None:
    own = [each for each in COMPARED if task in (None, each["task"])]
    assert study.scores_table(own) in DOCUMENT
    assert study.differences_table(own) in DOCUMENT


def test_the_document_has_the_table_of_the_choice() -> None:
    assert study.choice_table(CHOICE) in DOCUMENT


IN_README = {
    "zero-shot": "zero-shot",
    "maximum likelihood": "mle, 3× epochs",
    "snapshot ensemble": "snapshot",
    "ensemble of fresh starts": "ensemble",
    "cyclical SGHMC": "csghmc",
    "rebapl without its force": "no repulsion",
    "rebapl": study.OURS,
    "rebapl, Wasserstein": "rebapl (Wasserstein)",
}


@pytest.mark.parametrize("label", IN_README)
def test_the_readme_has_the_averages(label: str) -> None:
    cells = []
    for method in study.METHODS:
        like = "maple" if label == "zero-shot" else method  # which learns nothing: the same for all
        own = [each for each in COMPARED if (each["setting"], each["method"]) == (IN_README[label], like)]
        if own:
            mean, error = study.mean_and_error(own, "hm")
            cells += [f"{mean:.1f} ± {error:.1f}", f"{study.mean_and_error(own, 'nll')[0]:.3f}".lstrip("0")]
    (row,) = [line for line in README.splitlines() if line.startswith(f"| {label} |")]
    assert [cell.strip(" *") for cell in row.split("|")[2:-1] if cell.strip()] == cells


def test_the_chosen_settings_are_the_best_of_the_records() -> None:
    assert {metric: study.best(CHOICE, study.repelled(metric)) for metric in study.METRICS} == CHOSEN


def resolved(method: str, inference: str, changes: dict[str, Any]) -> Inference:
    return preset(inference, published(method, "base-to-novel", "digits")[1], method, **changes)


@pytest.mark.parametrize("method", study.METHODS)
def test_the_preset_is_what_was_chosen(method: str) -> None:
    ours = resolved(method, "rebapl", {})
    assert resolved(method, "rebapl", study.SETTINGS[CHOSEN["mmd"]].changes) == ours
    ran = study.compared("maple", {metric: study.SETTINGS[CHOSEN[metric]].changes for metric in study.METRICS})
    assert resolved(method, "rebapl", ran[study.OURS].changes) == ours
    (told,) = re.findall(r"`(repulsion\.metric=wasserstein[^`]*)`", DOCUMENT)
    words = dict(word.split("=") for word in told.split())
    changes = {**words, "repulsion.epsilon": float(words["repulsion.epsilon"])}
    assert resolved(method, "rebapl", changes) == resolved(method, "rebapl", ran["rebapl (Wasserstein)"].changes)


def test_every_row_of_the_choice_is_a_setting_of_its_own() -> None:
    found = [(resolved("maple", each.inference, dict(each.changes)), each.epochs) for each in study.SETTINGS.values()]
    assert all(found.count(each) == 1 for each in found)
