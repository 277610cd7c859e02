"""Ours beside the paper's: with invented results whose difference from the paper's is known beforehand."""

import csv
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_folder import class_folders
from pages import blocks, run_code
from tiny_suite import TINY

from rebapl.backbones import load_backbone
from rebapl.errors import UserError
from rebapl.files import write_json
from rebapl.reports.tables import Table
from rebapl.reproduce.make import make_target, planned
from rebapl.reproduce.paper import quote
from rebapl.reproduce.paper_table import Context, MeasuredTarget, PaperTable, Product
from rebapl.reproduce.suites import MINI, PAPER, Suite, TableRow, named_suite
from rebapl.reproduce.targets import MAPLE, PAPER_TARGETS, PREFIXES
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import RESULTS, run_folder
from rebapl.score_columns import ScoreColumn
from rebapl.training import Training

SHIFT = 1.5


def invent(runs: Path, config: RunConfig, parts: dict[str, float]) -> None:
    results: dict[str, object] = {
        "parts": {name: {"accuracy": value, "nll": 1.0, "ece": 5.0, "images": 9} for name, value in parts.items()}
    }
    results |= {"seconds": {"training": 100.0}, "device": "a machine", "run": config.hash()}
    write_json(run_folder(config, runs) / RESULTS, results)


def table_of(output: Product) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(output.table.to_csv())))


def invented_base_novel(suite: Suite, runs: Path) -> None:
    """The paper's base and novel accuracies, with 1.5 points more, and a point more or less by seed."""
    for data in suite.data:
        for row in suite.rows():
            for seed in suite.seeds:
                base, novel = (quote("table1", row.label, part, data).value or 0.0 for part in ("base", "novel"))
                more = SHIFT + seed - 2
                invent(runs, suite.config(data, row, seed), {"base": base + more, "novel": novel + more})


def test_differences_deviations_gains_and_slips_of_the_first_table(tmp_path: Path) -> None:
    suite = replace(PAPER, methods=("promptsrc", "maple"))
    invented_base_novel(suite, tmp_path)
    output = PAPER_TARGETS["table1"].make(Context(suite, tmp_path))
    table = table_of(output)
    assert len(table) == 12 * 4, "eleven data sets and the average; two methods, ReBaPL and Δ"
    for row in table:
        if row["data set"] != "Average" and row["method"] != "Δ":
            assert float(row["base diff."]) == pytest.approx(SHIFT)
            assert float(row["novel diff."]) == pytest.approx(SHIFT)
            assert float(row["base ours std"]) == pytest.approx(1.0)
    gain = next(row for row in table if row["data set"] == "EuroSAT" and row["method"] == "Δ")
    assert float(gain["base ours"]) == pytest.approx(2.83)
    assert float(gain["novel paper"]) == pytest.approx(2.17)
    average = next(row for row in table if row["data set"] == "Average" and row["method"] == "MaPLe")
    assert float(average["base paper"]) == 82.03
    assert float(average["base diff."]) == pytest.approx(SHIFT, abs=0.15), "the paper's own average is slightly off"
    slip = next(row for row in table if row["data set"] == "SUN397" and row["method"] == "PromptSRC")
    assert "repeats its EuroSAT row" in slip["notes"]


def test_both_conventions_of_the_harmonic_mean(tmp_path: Path) -> None:
    suite = replace(PAPER, methods=("coop",), data=("dtd", "oxford_pets"), seeds=(2,))
    invented_base_novel(suite, tmp_path)
    pairs = [[quote("table1", "coop", part, data).value + SHIFT for part in ("base", "novel")] for data in suite.data]
    means = [sum(values) / 2 for values in zip(*pairs, strict=True)]
    expected = {
        "of-averages": 2 * means[0] * means[1] / sum(means),
        "average": sum(2 * base * novel / (base + novel) for base, novel in pairs) / 2,
    }
    assert abs(expected["average"] - expected["of-averages"]) > 0.5
    for convention, value in expected.items():
        output = PAPER_TARGETS["table1"].make(Context(suite, tmp_path, hm=convention))
        stored = output.data["scores"]["coop"]["average"][0]
        assert {name: stored[f"hm {name}"] for name in expected} == pytest.approx(expected), "both are stored"
        first = table_of(output)[0]
        assert first["data set"] == "Average"
        assert float(first["HM ours"]) == pytest.approx(value)
        assert "these data sets" in first["notes"], "the paper's average is of the same two"
        assert float(first["base diff."]) == pytest.approx(SHIFT)


@pytest.mark.parametrize(("name", "protocol"), [("table2", "cross-dataset"), ("table3", "domain-generalization")])
def test_transfers_beside_the_paper(tmp_path: Path, name: str, protocol: str) -> None:
    suite = replace(PAPER, seeds=(1,))
    targets = suite.cross if name == "table2" else suite.shifted
    for row in suite.rows(["promptsrc", "maple", "mmrl"]):
        parts = {target: quote(name, row.label, "accuracy", target).value + SHIFT for target in targets}
        parts["test"] = quote(name, row.label, "accuracy", "imagenet").value + SHIFT
        invent(tmp_path, suite.config("imagenet", row, 1, protocol), parts)
    table = table_of(PAPER_TARGETS[name].make(Context(suite, tmp_path)))
    assert len(table) == (len(targets) + 2) * 7
    for row in table:
        if row["method"] == "Δ":
            assert float(row["accuracy diff."]) == pytest.approx(0.0, abs=0.02)
        else:
            assert float(row["accuracy diff."]) == pytest.approx(SHIFT, abs=0.02)


def test_times_beside_the_paper(tmp_path: Path) -> None:
    suite = replace(PAPER, seeds=(1,))
    for config in PAPER_TARGETS["efficiency"].runs(suite):
        invent(tmp_path, config, {"base": 1.0, "novel": 1.0})
    output = PAPER_TARGETS["efficiency"].make(Context(suite, tmp_path))
    table = table_of(output)
    as_many = table[-3]
    assert (as_many["epochs"], as_many["batch"], as_many["seconds paper"]) == ("15", "1", "640")
    assert as_many["steps"] == table[-1]["steps"]
    assert table[-1]["seconds paper"] == "654"
    assert any("cannot be reconciled with its 10m54s" in note for note in output.table.notes)


def invented_averages(suite: Suite, runs: Path, gain: float) -> None:
    """MaPLe as in the paper, and ReBaPL on it better by `gain` points in both parts."""
    for data in suite.data:
        for row in suite.rows():
            more = gain if "rebapl" in row.label else 0.0
            for seed in suite.seeds_of(row):
                invent(runs, suite.config(data, row, seed), {"base": 80.0 + more, "novel": 70.0 + more})


@pytest.mark.parametrize("gain", [-1.0, 1.0])
def test_a_page_says_where_a_result_is_opposite_to_the_paper_s(tmp_path: Path, gain: float) -> None:
    suite = MINI.changed(methods=["maple"])
    invented_averages(suite, tmp_path / "runs", gain)
    make_target(PAPER_TARGETS["table1"], Context(suite, tmp_path / "runs"), tmp_path / "out")
    shown = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    if gain > 0:
        assert "Opposite" not in shown
        return
    _, said = shown.split("**Opposite to the paper:**\n\n")
    assert said.splitlines() == [
        "- MaPLe + ReBaPL minus MaPLe, average base: -1.00 here, +1.25 in the paper.",
        "- MaPLe + ReBaPL minus MaPLe, average novel: -1.00 here, +1.05 in the paper.",
        "- MaPLe + ReBaPL minus MaPLe, average HM: -1.00 here, +1.15 in the paper.",
    ]


COUNTS = {"red": 9, "green": 4, "blue": 5, "grey": 6}


@pytest.mark.parametrize("name", ["table1", "table4", "cycles"])
def test_own_photos_are_not_compared_with_the_papers_data(tmp_path: Path, name: str) -> None:
    """Results that are opposite to the paper's, on one or two data sets of which the paper knows nothing."""
    photos = [str(class_folders(tmp_path / name, **COUNTS)) for name in ("photos", "more")]
    suite = named_suite("photo", None, "mini", photos[: 1 if name == "cycles" else 2]).changed(methods=["maple"])
    suite = replace(suite, cycles=(1, 10), seeds=(1,))
    target, runs = PAPER_TARGETS[name], tmp_path / "runs"
    for index, config in enumerate(target.runs(suite)):
        accuracies = dict.fromkeys(("base", "novel"), 50.0 - index)
        invent(runs, config, accuracies)
        by_cycles = {str(count): {part: {"accuracy": 30.0 - count} for part in accuracies} for count in suite.cycles}
        write_json(run_folder(config, runs) / PREFIXES, {"cycles": by_cycles})
    output = target.make(Context(suite, runs))
    table = table_of(output)
    assert output.opposite == []
    assert not any("diff" in column for column in table[0])
    papers = {row.get("data set"): row["HM paper"] for row in table if "HM paper" in row}
    if name == "cycles":
        assert papers == {}
    else:
        assert papers.pop("Average"), "to look at"
        assert set(papers.values()) == {""}
        assert any("to look at, not to compare with" in note for note in output.table.notes)


def test_steps_are_of_the_images_that_there_are(tmp_path: Path) -> None:
    """The classes have 9, 4, 5 and 6 images, and the task asks for 16 of each."""
    photos = str(class_folders(tmp_path / "photos", **COUNTS))
    suite = replace(named_suite("photo", None, "mini", [photos]), shots=16, seeds=(1,))
    for row, described in zip(
        (MAPLE, suite.rebapl("maple")), PAPER_TARGETS["efficiency"].rows(suite)[::4], strict=False
    ):
        config = suite.config(photos, row, 1)
        training = Training(config.task(), load_backbone("mini"), config.resolved().training, 1)
        assert training.loop is not None
        assert len(config.task().train.items) < 2 * 9
        assert described.words[-1] == str(training.loop.steps_in_all)


def test_distances_between_samples_need_several(tmp_path: Path) -> None:
    """This is said before anything is trained."""
    suite = MINI.changed(inference="mle")
    with pytest.raises(UserError, match="mle keeps one sample"):
        PAPER_TARGETS["diversity"].runs(suite)
    states, (remark,) = planned([PAPER_TARGETS["diversity"]], suite, tmp_path)
    assert (states, remark) == (
        [],
        "diversity is left out: mle keeps one sample: there are no distances between samples.",
    )


def test_a_page_of_two_suites_names_both_commands(tmp_path: Path) -> None:
    for suite, name in ((MINI, "settings"), (replace(MINI, name="other"), "toy")):
        target = MeasuredTarget(name, "what", lambda _: Product(Table("A table", ["a"], [["b"]])))
        make_target(target, Context(suite, tmp_path), tmp_path / "out")
    shown = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Made by `rebapl reproduce all --suite mini` and `rebapl reproduce all --suite other`; files" in shown


def test_zero_shot_is_one_run_without_a_deviation(tmp_path: Path) -> None:
    suite = MINI.changed(methods=["zero-shot", "maple"])
    invented_averages(suite, tmp_path, 1.0)
    assert Counter(config.method for config in PAPER_TARGETS["table1"].runs(suite)) == {"zero-shot": 3, "maple": 12}
    output = PAPER_TARGETS["table1"].make(Context(suite, tmp_path))
    clip, maple, *_ = table_of(output)
    assert (clip["base ours"], clip["base ours std"], maple["base ours std"]) == ("80.0", "", "0.0")
    assert any("Nothing is random in CLIP: one run." in note for note in output.table.notes)


def test_the_paper_s_latency_of_maple_stands_beside_that_of_rebapl(tmp_path: Path) -> None:
    suite = replace(TINY, compared=True)
    table = table_of(PAPER_TARGETS["latency"].make(Context(suite, tmp_path, devices=["cpu"])))
    beside = [(row["C"], row["spread paper"]) for row in table]
    assert beside == [("MaPLe", "242.33"), ("1", "242.39"), ("3", "276.5")]


@pytest.mark.parametrize("others", [[], ["latency"]])
def test_a_table_of_one_s_own_stands_in_the_page_of_its_folder(tmp_path: Path, others: list[str]) -> None:
    own = PaperTable(
        "own",
        "a count of mine",
        "Mine",
        ("row",),
        lambda _: [TableRow("first")],
        scores={"count": ScoreColumn("count", 0)},
        measure=lambda *_: [{"count": 3.0}],
    )
    context = Context(TINY, tmp_path, devices=["cpu"])
    for target in (own, *(PAPER_TARGETS[name] for name in others)):
        make_target(target, context, tmp_path / "out")
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "## own: a count of mine" in page
    assert [line[3:].split(":")[0] for line in page.splitlines() if line.startswith("## ")] == [*others, "own"]


def test_one_device_leaves_the_column_of_several_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebapl.reproduce.timing.cores", lambda: 1)
    product = PAPER_TARGETS["latency"].make(Context(TINY, tmp_path, devices=["cpu"]))
    assert {row["spread"] for row in table_of(product)} == {""}
    (axes,) = product.figures["latency"].axes
    assert [bars.get_label() for bars in axes.containers] == ["one device"]
    assert any("One device is here" in note for note in product.table.notes)


def test_a_table_of_one_s_own_is_one_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of the page: its runs, then its table, a section for each data set and one for the average."""
    (block,) = blocks("docs/reproduce.md")
    names = run_code(block, "docs/reproduce.md")
    assert "letters maple rebapl 2" in capsys.readouterr().out
    table = names["table"]
    for config in table.runs(MINI):
        temperature = config.inference_settings["sampler.temperature"]
        invent(tmp_path, config, {"base": 80.0 + temperature, "novel": 60.0 + config.seed})
    made = table_of(table.make(Context(MINI, tmp_path)))
    assert [(row["data set"], row["T"]) for row in made] == [
        (data, temperature) for data in ("Average", *MINI.data) for temperature in ("0.1", "1.0")
    ]
    assert [float(row["base"]) for row in made[:2]] == pytest.approx([80.1, 81.0])
    assert {float(row["novel"]) for row in made} == {61.5}
    assert "HM" in made[0]
