"""The bench of doubt: its rows, what it reads from runs, and what an answer costs."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rebapl.backbones import load_backbone
from rebapl.evaluation.tasks import evaluate, fit_on_validation
from rebapl.files import read_json
from rebapl.learners import METHODS, build_learner
from rebapl.posterior import Posterior, load_posterior
from rebapl.reproduce import doubt
from rebapl.reproduce.doubt import DOUBT, LONGER, OUTSIDE, STACKING, image_passes, rivals
from rebapl.reproduce.make import make_target
from rebapl.reproduce.paper_table import Context
from rebapl.reproduce.suites import MINI
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
        posterior = load_posterior(folder)
        assert cost["parameters"] == sum(p.numel() for p in posterior.learner.parameters())
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "The bench of doubt: trained classes of digits" in page
    assert (tmp_path / "out" / "doubt.png").exists()


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
