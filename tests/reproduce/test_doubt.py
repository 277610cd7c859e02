"""The bench of doubt: its rows, what it reads from runs, and what an answer costs."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rebapl.backbones import load_backbone
from rebapl.evaluation.tasks import evaluate, fit_on_validation
from rebapl.files import read_json
from rebapl.learners import METHODS, build_learner
from rebapl.posterior import Posterior, load_posterior
from rebapl.reproduce import doubt
from rebapl.reproduce.doubt import DOUBT, HEADS, LONGER, OUTSIDE, RIVALS, STACKING, STOCHASTIC, image_passes, rivals
from rebapl.reproduce.make import make_target
from rebapl.reproduce.paper_table import Context
from rebapl.reproduce.suites import MINI, TableRow
from rebapl.runs.folder import run_folder
from rebapl.runs.results import read_result
from rebapl.sampling import PRESETS

SMALL = MINI.changed(data=["digits"], methods=["maple"], seeds=[1], epochs=1, shots=2, test_images=12)


def test_every_rival_has_a_method_and_an_inference_that_there_are() -> None:
    rows = rivals(MINI)
    assert {row.method for row in rows} <= {*METHODS}
    assert {row.inference for row in rows if row.inference} <= {*PRESETS}
    assert {"zero-shot", "linear", "gda", "maple", "bpl", "vamp"} <= {row.method for row in rows}
    assert len({row.label for row in rows}) == len(rows)
    assert {row.method for row in rivals(SMALL)} == {"maple"}


def test_the_tables_have_the_scores_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubt, "RIVALS", ("mle", "tta"))
    context = Context(SMALL, tmp_path / "runs", devices=["cpu"])
    table = replace(DOUBT, corruptions=("fog@3", "contrast@3"))
    made = {each.name: make_target(each, context, tmp_path / "out") for each in (table, OUTSIDE)}
    configs = DOUBT.runs(SMALL)
    assert len(configs) == 2
    for config, row in zip(configs, rivals(SMALL), strict=True):
        folder = run_folder(config, tmp_path / "runs")
        result = read_result(folder)
        (found,) = made["doubt"].data["scores"][row.label]["digits"]
        assert (found["accuracy"], found["nll"]) == (result.parts["base"].accuracy, result.parts["base"].nll)
        corrupted = [by["3"] for by in result.corruptions.values()]
        assert found["corrupted"] == pytest.approx(statistics.fmean(each.nll for each in corrupted))
        assert found["corrupted at"] == pytest.approx(statistics.fmean(each.tempered_nll or 0 for each in corrupted))
        assert result.corruptions.keys() == {"fog", "contrast"}
        assert found["near"] == result.outside["novel"]["max-probability"]["auroc"]
        assert found["other"] is None
        (outside,) = made["outside"].data["scores"][f"{row.label} · entropy"]["digits"]
        assert outside["far fpr95"] == result.outside["noise"]["entropy"]["fpr95"]
        cost = read_json(folder / doubt.COST, "cost")
        assert cost["passes"] == found["passes"] == result.views
        assert cost["risks"][-1] == pytest.approx(1 - result.parts["base"].accuracy / 100)
        assert 0 < cost["milliseconds"] < math.inf
        assert found["milliseconds"] == cost["milliseconds"]
        posterior = load_posterior(folder)
        assert cost["parameters"] == sum(p.numel() for p in posterior.learner.parameters())
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "The bench of doubt: trained classes of digits" in page
    assert (tmp_path / "out" / "doubt.png").exists()
    risk, sure = made["doubt"].figures["doubt"].axes
    assert [len(risk.lines), len(sure.lines)] == [2, 2 + 1]  # and the diagonal
    cost = read_json(run_folder(configs[0], tmp_path / "runs") / doubt.COST, "cost")
    np.testing.assert_allclose(risk.lines[0].get_xydata(), [[2 * i, 100 * r] for i, r in enumerate(cost["risks"])])
    reliability = np.reshape(cost["reliability"], (-1, 2))  # none, if no bin has five images
    np.testing.assert_allclose(sure.lines[0].get_xydata(), 100 * reliability)


def test_the_figure_has_two_plots_for_each_method_with_a_line_for_each_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heads and the variational methods, which have one or two rows, are in both."""
    rows = rivals(MINI)
    points = {row.label: [[0.1 * n, 0.01 * n]] * 2 for n, row in enumerate(rows)}

    def measured(_context: None, _config: None, row: TableRow) -> dict[str, Any]:
        return {"risks": [rows.index(row) / 100] * 51, "reliability": points[row.label]}

    monkeypatch.setattr(doubt, "measured", measured)
    figure = doubt.curves(SimpleNamespace(rows=rows, context=None, first_run=lambda _: None))  # type: ignore[arg-type]
    assert len(figure.subfigs) == 2
    shown = set()
    for panel, method in zip(figure.subfigs, ("maple", "mmrl"), strict=True):
        risk, sure = panel.axes
        here = [row for row in rows if row.method not in {"maple", "mmrl"} - {method}]
        assert len(here) == len(HEADS) + len(RIVALS) + len(STOCHASTIC)
        assert [round(line.get_ydata()[0]) for line in risk.lines] == [rows.index(row) for row in here]
        *own, diagonal = sure.lines
        for line, row in zip(own, here, strict=True):
            np.testing.assert_allclose(line.get_xydata(), 100 * np.array(points[row.label]))
        assert diagonal.get_xydata().tolist() == [[0, 0], [100, 100]]
        (legend,) = panel.legends
        assert [text.get_text() for text in legend.get_texts()] == [" · ".join(row.shown) for row in here]
        labels = {axes.get_xlabel() for axes in (risk, sure)} | {axes.get_ylabel() for axes in (risk, sure)}
        assert len(labels) == 4
        assert all("(%)" in label for label in labels)
        looks = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in risk.lines]
        assert len(set(looks)) == len(here)
        shown |= {row.label for row in here}
    assert shown == {row.label for row in rows}


def test_a_stacked_ensemble_is_the_same_run_with_fitted_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "RIVALS", ("ensemble", STACKING))
    monkeypatch.setattr(doubt, "CORRUPTIONS", ("fog@3",))
    suite = MINI.changed(data=["digits", "shapes"], methods=["coop"], seeds=[1], epochs=2, shots=2, test_images=12)
    table = replace(DOUBT, corruptions=("fog@3",))
    (config,) = table.runs(suite)
    assert config.outside == ("novel", "noise", "shapes")
    scores = make_target(table, Context(suite, tmp_path / "runs", devices=["cpu"]), tmp_path / "out").data["scores"]
    (plain,), (stacked,) = (scores[f"coop · {name}"]["digits"] for name in ("ensemble", STACKING))
    posterior = load_posterior(run_folder(config, tmp_path / "runs"))
    fitted = fit_on_validation(posterior, config.task(), {"weights": {}})
    assert fitted.weights.tolist() != posterior.weights.tolist()
    expected = evaluate(fitted, config.task(), ["base"]).base
    assert (stacked["nll"], stacked["tempered_nll"]) == pytest.approx((expected.nll, expected.tempered_nll))
    assert stacked["nll"] != plain["nll"]
    assert stacked["passes"] == plain["passes"] == 1
    assert isinstance(stacked["other"], float)


def test_training_as_long_has_the_epochs_of_the_ensemble() -> None:
    suite = MINI.changed(data=["digits"], methods=["mmrl"])
    epochs = {
        row.words[1]: config.resolved().training.inference.all_epochs  # type: ignore[union-attr]
        for row in rivals(suite)
        for config in [suite.config("digits", row, 1)]
    }
    assert epochs[LONGER] == epochs["ensemble"] == epochs[STACKING] == 3 * epochs["mle"]


@pytest.mark.parametrize(("method", "each"), [("maple", 3), ("coop", 1)])
def test_samples_that_leave_the_image_tower_alone_share_one_pass(method: str, each: int) -> None:
    mini, stream = load_backbone("mini"), torch.Generator().manual_seed(0)
    learner = build_learner(method, mini, ["cat", "dog"], None, stream).eval()
    posterior = Posterior.of(learner, [dict(learner.named_parameters())] * 3)
    assert image_passes(posterior) == each
    assert image_passes(posterior.with_views(2)) == 2 * each
