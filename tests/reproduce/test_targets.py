"""Every target, made whole at its smallest: runs, tables, figures, the page; numbers are those of the stored runs."""

import csv
import itertools
import json
from dataclasses import replace
from pathlib import Path

import ot
import pytest
from PIL import Image
from tiny_suite import TINY
from torch import Tensor

from rebapl.data.batches import LabelledImages
from rebapl.errors import UserError
from rebapl.posterior import load_posterior
from rebapl.reproduce.make import make_target, page
from rebapl.reproduce.paper_table import Context
from rebapl.reproduce.suites import Suite, TableRow
from rebapl.reproduce.targets import PAPER_TARGETS, PREFIXES
from rebapl.repulsion import DISTANCES, Stored, register_distance
from rebapl.runs.folder import run_folder
from rebapl.runs.run import run


@pytest.fixture(scope="module")
def tiny(nano: Path) -> Suite:
    """The smallest suite, on a backbone that takes little time, with images enough to tell accuracies apart."""
    return replace(TINY, backbone=str(nano), test_images=40)


def made(names: str, folder: Path, suite: Suite) -> Context:
    context = Context(suite, folder / "runs", devices=["cpu"])
    for name in names.split():
        output = make_target(PAPER_TARGETS[name], context, folder / "out")
        record = json.loads((folder / "out" / f"{name}.json").read_text())
        assert record["target"] == name
        assert (folder / "out" / f"{name}.tex").exists()
        assert output.table.title in (folder / "out" / "README.md").read_text()
        for figure in output.figures:
            assert Image.open(folder / "out" / f"{figure}.png").size[0] > 500
            assert (folder / "out" / f"{figure}.pdf").stat().st_size > 1000
            assert f"({figure}.png)" in page(folder / "out")
    return context


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "out" / f"{name}.csv").open(encoding="utf-8")))


def stored(context: Context, label: str, protocol: str = "base-to-novel", score: str = "accuracy") -> dict[str, float]:
    """A score of every part in the results of the run of a row, read as a person would."""
    (row,) = [row for row in context.suite.rows() if row.label == label]
    folder = run_folder(context.suite.config("digits", row, 1, protocol), context.runs)
    parts = json.loads((folder / "results.json").read_text())["parts"]
    return {name: part[score] for name, part in parts.items()}


def mean_distance(context: Context, row: TableRow) -> float:
    """The mean W₂ between the samples of a run, from its stored samples and by POT's solver of optimal transport."""
    config = context.suite.config("digits", row, 1)
    posterior = load_posterior(run_folder(config, context.runs))
    part = config.task().tests["base"]
    views = LabelledImages(part.dataset, part.items).views(posterior.learner.encoder.preprocessing)
    (clouds,) = posterior.bind(part.class_names).passes.clouds(views, posterior.learner.repels_in)
    each = clouds.double().numpy()
    pairs = [ot.emd2([], [], ot.dist(one, other)) ** 0.5 for one, other in itertools.combinations(each, 2)]
    return sum(pairs) / len(pairs)


def test_base_to_novel_and_what_shares_its_runs(tiny: Suite, tmp_path: Path) -> None:
    context = made("table1 table4 diversity efficiency overfitting samples", tmp_path, tiny)
    table = {(row["data set"], row["method"]): row for row in rows(tmp_path, "table1") if row["method"] != "Δ"}
    assert len(table) == 2 * 9, "the average and one task, nine rows each"
    for label, name in (("mmrl + rebapl", "MMRL + ReBaPL"), ("zero-shot", "CLIP"), ("app", "APP")):
        accuracies = stored(context, label)
        row = table["digits", name]
        assert float(row["base ours"]) == accuracies["base"]
        assert float(row["novel ours"]) == accuracies["novel"]
        harmonic = 2 / (1 / accuracies["base"] + 1 / accuracies["novel"])
        assert float(row["HM ours"]) == pytest.approx(harmonic)
        assert row["base paper"] == ""
    assert float(table["Average", "MMRL"]["base paper"]) == 85.54
    deltas = [row for row in rows(tmp_path, "table1") if row["method"] == "Δ"]
    gain = stored(context, "maple + rebapl")["base"] - stored(context, "maple")["base"]
    assert float(deltas[2]["base ours"]) == pytest.approx(gain)

    ablation = {row["method"]: row for row in rows(tmp_path, "table4") if row["data set"] == "digits"}
    assert list(ablation) == ["MaPLe", *(f"+ ReBaPL ({kind})" for kind in ("no repulsion", "Wasserstein", "MMD"))]
    assert float(ablation["+ ReBaPL (Wasserstein)"]["base ours"]) == stored(context, "maple + rebapl")["base"]

    spread = {row["MaPLe + ReBaPL"]: float(row["mean Wasserstein-2"]) for row in rows(tmp_path, "diversity")}
    assert spread == {
        "with repulsion": pytest.approx(mean_distance(context, tiny.rebapl("maple"))),
        "without repulsion": pytest.approx(mean_distance(context, tiny.rebapl("maple", settings={"repulsion": None}))),
    }
    assert spread["with repulsion"] != pytest.approx(spread["without repulsion"], rel=1e-3), "two runs, not one"
    times = rows(tmp_path, "efficiency")
    assert [(row["epochs"], row["steps"]) for row in times] == [
        ("1", "5"),
        ("6", "30"),
        ("6 × 1", "30"),
        ("6 × 1", "30"),
    ]
    assert all(float(row["seconds"]) > 0 for row in times)
    assert [row["epochs"] for row in rows(tmp_path, "overfitting")] == ["1", "6", "6 × 1"]
    assert [row["K"] for row in rows(tmp_path, "samples")] == ["1", "2"]


def test_transfers_train_once_and_show_every_target(tiny: Suite, tmp_path: Path) -> None:
    context = made("table2 table3", tmp_path, tiny.changed(methods=["promptsrc", "maple"]))
    assert len(list(context.runs.iterdir())) == 3, "both tables from the same trainings"
    for name, target in (("table2", "letters"), ("table3", "shapes-rotated")):
        shown = {(row["data set"], row["method"]): row for row in rows(tmp_path, name)}
        table = {key: float(row["accuracy"]) for key, row in shown.items()}
        for label, method in (("promptsrc", "PromptSRC"), ("maple + rebapl", "MaPLe + ReBaPL")):
            protocol = "cross-dataset" if name == "table2" else "domain-generalization"
            accuracies = stored(context, label, protocol)
            assert table["digits", method] == accuracies["test"]
            assert table[target, method] == accuracies[target] == table["Average", method]
            for title, score in (("NLL", "nll"), ("ECE", "ece"), ("AURC", "aurc")):
                others = stored(context, label, protocol, score)
                assert float(shown["digits", method][title]) == others["test"]
                assert float(shown[target, method][title]) == others[target] == float(shown["Average", method][title])


def test_a_long_chain_answers_for_every_shorter_one(tiny: Suite, tmp_path: Path) -> None:
    context = made("cycles", tmp_path, tiny)
    long = tiny.config("digits", tiny.rebapl("maple", settings={"cycles": 3}), 1)
    table = {row["C"]: row for row in rows(tmp_path, "cycles")}
    for count in (1, 2, 3):
        alone = {"repulsion": None} if count == 1 else {}  # there is nothing yet to keep away from
        config = tiny.config("digits", tiny.rebapl("maple", settings={"cycles": count, **alone}), 1)
        short = run(config, runs=context.runs, device="cpu")
        parts = json.loads((short / "results.json").read_text())["parts"]
        detail = json.loads((run_folder(long, context.runs) / PREFIXES).read_text())["cycles"][str(count)]
        for name in ("base", "novel"):
            assert float(table[str(count)][name]) == parts[name]["accuracy"]
            assert detail[name]["nll"] == pytest.approx(parts[name]["nll"], rel=1e-5)
    assert list(table) == ["1", "2", "3", "MaPLe"]
    file = run_folder(long, context.runs) / "results.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "temperature": 1.5}))
    with pytest.raises(UserError, match="no longer answers as it was trained"):
        PAPER_TARGETS["cycles"].make(context)


def test_the_grid_of_strengths(tiny: Suite, tmp_path: Path) -> None:
    made("xi", tmp_path, tiny)
    table = rows(tmp_path, "xi")
    assert [(row["distance"], row["n"], row["ξ"]) for row in table[:4]] == [
        ("MMD", "4", "0.01"),
        ("MMD", "4", "0.1"),
        ("Wasserstein", "4", "0.01"),
        ("Wasserstein", "4", "0.1"),
    ]
    assert table[4]["distance"] == "MaPLe"


def test_what_is_measured_with_a_clock(tiny: Suite, tmp_path: Path) -> None:
    made("overhead latency", tmp_path, tiny)
    table = rows(tmp_path, "overhead")
    assert {row["distance"] for row in table} >= {"MMD", "Wasserstein", "Sinkhorn"}
    assert {row["alone paper"] for row in table if (row["distance"], row["n"]) == ("MMD", "2")} == {"0.381"}
    assert all(float(row["alone ours"]) > 0 for row in table)
    assert [row["C"] for row in rows(tmp_path, "latency")] == ["MaPLe", "1", "3"]


def test_distances_from_outside_are_timed_and_drawn(
    tiny: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mean_shift(x: Tensor, stored: Stored) -> Tensor:
        return (x.mean(0) - stored.cloud.mean(1)).square().sum(-1)

    monkeypatch.setattr(DISTANCES, "known", dict(DISTANCES.known))
    for name in ("mean-shift", "another"):
        register_distance(name)(mean_shift)
    context = Context(tiny, tmp_path, devices=["cpu"])
    product = PAPER_TARGETS["overhead"].make(context)
    assert {row[0] for row in product.table.rows} >= {"MMD", "mean-shift", "another"}
    (axes,) = product.figures["overhead"].axes
    ours = {bars.get_label(): bars.lines[0] for bars in axes.containers if "paper" not in str(bars.get_label())}
    assert len(ours) == len(DISTANCES)
    assert {"MMD", "mean-shift", "another"} <= ours.keys()
    assert len({(line.get_color(), line.get_marker()) for line in ours.values()}) == len(ours)


def test_the_settings_beside_the_paper_s(tiny: Suite, tmp_path: Path) -> None:
    made("settings", tmp_path, tiny)
    table = {(row["method"], row["setting"]): row for row in rows(tmp_path, "settings")}
    strength = table["MaPLe", "strength, ξ"]
    assert (strength["paper"], strength["rebapl-paper"]) == ("0.001", "0.001 (paper)")
    assert strength["rebapl-authors"] == "0.75 (authors' code)"
    assert strength["rebapl"] == "–", "its force has a fraction"
    for (method, setting), row in table.items():
        if row["paper"] != "–":
            assert row["rebapl-paper"] == f"{row['paper']} (paper)", (method, setting)
    assert table["MMRL", "distance"]["paper"] == "wasserstein"
    assert table["MaPLe", "lr, α"]["rebapl"] == "0.0035 (recipe)"


def test_plug_and_play_is_the_difference_of_stored_runs(tiny: Suite, tmp_path: Path) -> None:
    suite = tiny.changed(methods=["vpt", "app"])
    context = Context(suite, tmp_path / "runs", devices=["cpu"])
    make_target(PAPER_TARGETS["plug-and-play"], context, tmp_path / "out")
    table = rows(tmp_path, "plug-and-play")
    assert [row["method"] for row in table] == ["APP", "app + rebapl", "Δ", "vpt", "vpt + rebapl", "Δ"]
    for row, method in ((table[2], "app"), (table[5], "vpt")):
        before, after = (
            json.loads((run_folder(suite.config("digits", each, 1), context.runs) / "results.json").read_text())
            for each in (TableRow(method, method, "mle"), suite.rebapl(method))
        )
        for part in ("base", "novel"):
            gain = after["parts"][part]["accuracy"] - before["parts"][part]["accuracy"]
            assert float(row[part]) == pytest.approx(gain)
        for score in ("nll", "ece"):
            means = [sum(each["parts"][part][score] for part in ("base", "novel")) / 2 for each in (before, after)]
            assert float(row[score.upper()]) == pytest.approx(means[1] - means[0])
    assert "APP was published with svgd" in (tmp_path / "out" / "README.md").read_text()


def test_finished_work_is_not_done_again(tiny: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = replace(tiny, methods=("zero-shot",))
    context = Context(suite, tmp_path / "runs", devices=["cpu"])
    first = make_target(PAPER_TARGETS["table1"], context, tmp_path / "out").table
    monkeypatch.setattr("rebapl.runs.run.Job._train", lambda *_, **__: pytest.fail("trained again"))
    assert make_target(PAPER_TARGETS["table1"], context, tmp_path / "out").table == first
