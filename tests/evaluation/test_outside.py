"""Scores of telling outside images apart, compared with brute force and scikit-learn's curves."""

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_curve, roc_curve

from rebapl.errors import UserError
from rebapl.evaluation.outside import all_outside_scores, outside_scores
from rebapl.posterior import UNCERTAINTIES
from rebapl.posterior.prediction import Prediction, averaged


def uncertainties(decimals: int) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    inside, outside = torch.rand(73, generator=stream), torch.rand(41, generator=stream) + 0.3
    return inside.round(decimals=decimals), outside.round(decimals=decimals)


@pytest.mark.parametrize("decimals", [6, 1])
def test_auroc_counts_pairs(decimals: int) -> None:
    inside, outside = uncertainties(decimals)
    pairs = [1.0 if b > a else 0.5 if b == a else 0.0 for a in inside.tolist() for b in outside.tolist()]
    assert outside_scores(inside, outside)["auroc"] == pytest.approx(100 * np.mean(pairs))


@pytest.mark.parametrize("decimals", [6, 1])
@pytest.mark.parametrize("count", [73, 20, 19, 1])
def test_fpr95_equals_the_curve(decimals: int, count: int) -> None:
    inside, outside = uncertainties(decimals)
    inside = inside[:count]
    truth = [1] * len(inside) + [0] * len(outside)  # the inside is what is to be recognised
    false, true, _ = roc_curve(truth, [*(-inside).tolist(), *(-outside).tolist()], drop_intermediate=False)
    expected = false[np.flatnonzero(true >= 0.95 - 1e-12)[0]]
    assert outside_scores(inside, outside)["fpr95"] == pytest.approx(100 * expected)


@pytest.mark.parametrize("decimals", [6, 1])
def test_aupr_is_the_sum_of_precisions_over_steps_of_recall(decimals: int) -> None:
    """By its definition, threshold by threshold, and by scikit-learn's curve."""
    inside, outside = uncertainties(decimals)
    total, before = 0.0, 0.0
    for threshold in sorted({*inside.tolist(), *outside.tolist()}, reverse=True):
        found, false = int((outside >= threshold).sum()), int((inside >= threshold).sum())
        total += (found / len(outside) - before) * found / (found + false)
        before = found / len(outside)
    assert outside_scores(inside, outside)["aupr"] == pytest.approx(100 * total)
    truth = [0] * len(inside) + [1] * len(outside)
    precision, recall, _ = precision_recall_curve(truth, [*inside.tolist(), *outside.tolist()])
    assert total == pytest.approx(-np.sum(np.diff(recall) * precision[:-1]))


def test_perfect_and_useless() -> None:
    assert outside_scores(torch.zeros(5), torch.ones(4)) == {"auroc": 100.0, "fpr95": 0.0, "aupr": 100.0}
    useless = outside_scores(torch.ones(5), torch.ones(4))
    assert useless == {"auroc": 50.0, "fpr95": 100.0, "aupr": pytest.approx(400 / 9)}
    with pytest.raises(UserError, match="both kinds"):
        outside_scores(torch.ones(5), torch.ones(0))


def test_every_uncertainty_is_scored_among_the_same_classes() -> None:
    stream = torch.Generator().manual_seed(1)

    def prediction(scale: float, names: list[str]) -> Prediction:
        logits = scale * torch.randn(3, 20, len(names), generator=stream)
        weights = torch.full((3,), 1 / 3)
        return Prediction(names, ["x"] * 20, *averaged(logits, weights), weights)

    sure, unsure = prediction(20.0, ["a", "b"]), prediction(0.1, ["a", "b"])
    found = all_outside_scores(sure, unsure)
    assert found.keys() == UNCERTAINTIES.keys()
    assert found["entropy"]["auroc"] > 70
    assert found["entropy"] == outside_scores(sure.predictive_entropy, unsure.predictive_entropy)
    with pytest.raises(UserError, match="same class names"):
        all_outside_scores(sure, prediction(1.0, ["a", "c"]))
