"""Brier, adaptive calibration error and risk–coverage against brute force and scikit-learn."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss

from rebapl.evaluation.scores import (
    adaptive_calibration_error,
    area_under_risk_coverage,
    brier,
    reliability,
    risk_by_coverage,
    scores,
)


def random_predictions(n: int = 200, classes: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, classes, generator=stream)
    labels = torch.distributions.Categorical(logits=logits).probs.multinomial(1, generator=stream)[:, 0]
    return (1.5 * logits).softmax(-1), labels


def test_brier_equals_scikit_learn() -> None:
    probabilities, labels = random_predictions()
    exact = probabilities.double() / probabilities.double().sum(-1, keepdim=True)
    expected = brier_score_loss(labels, exact, labels=range(6), scale_by_half=False)
    assert brier(probabilities, labels) == pytest.approx(expected, abs=1e-6)
    assert scores(probabilities, labels)["brier"] == brier(probabilities, labels)


@pytest.mark.parametrize("n", [200, 15, 7, 1])
def test_adaptive_calibration_error_equals_brute_force(n: int) -> None:
    probabilities, labels = random_predictions(n)
    confidence, right = probabilities.amax(-1).numpy(), (probabilities.argmax(-1) == labels).numpy()
    order = np.argsort(confidence, kind="stable")
    total = 0.0
    for part in np.array_split(order, 15):  # as equal in number as they can be
        if len(part):
            total += len(part) / n * abs(right[part].mean() - confidence[part].mean())
    ours = adaptive_calibration_error(torch.from_numpy(confidence), torch.from_numpy(right))
    assert ours == pytest.approx(total, abs=1e-6)
    assert scores(probabilities, labels)["adaptive_ece"] == pytest.approx(100 * total, abs=1e-4)


def test_adaptive_calibration_error_does_not_depend_on_the_order_of_ties() -> None:
    right = torch.tensor([True] * 30 + [False] * 15)  # as in a list sorted by class
    equally_sure = torch.full((45,), 2 / 3)
    assert adaptive_calibration_error(equally_sure, right) == pytest.approx(0, abs=1e-6)
    assert adaptive_calibration_error(equally_sure + 0.1, right) == pytest.approx(0.1, abs=1e-6)


def brute_aurc(uncertainty: list[float], right: list[bool]) -> float:
    """The mean over all orders of images of equal uncertainty."""
    found = []
    for order in itertools.permutations(range(len(right))):
        if all(uncertainty[a] <= uncertainty[b] for a, b in itertools.pairwise(order)):
            errors = [not right[index] for index in order]
            found.append(np.mean([sum(errors[:k]) / k for k in range(1, len(errors) + 1)]))
    return float(np.mean(found))


@pytest.mark.parametrize("uncertainty", [[0.1, 0.5, 0.3, 0.2, 0.9, 0.7], [0.1, 0.3, 0.3, 0.3, 0.9, 0.9], [0.5] * 6])
@pytest.mark.parametrize("right", [[True, False, True, False, True, True], [False] * 6, [True] * 6])
def test_risk_coverage_equals_brute_force_over_all_orders(uncertainty: list[float], right: list[bool]) -> None:
    ours = area_under_risk_coverage(torch.tensor(uncertainty), torch.tensor(right))
    assert ours == pytest.approx(brute_aurc(uncertainty, right), abs=1e-9)


def test_a_useful_uncertainty_has_less_risk_than_a_useless_one() -> None:
    probabilities, labels = random_predictions()
    right = probabilities.argmax(-1) == labels
    useless = area_under_risk_coverage(torch.zeros(200), right)
    assert useless == pytest.approx(1 - right.double().mean().item())
    assert scores(probabilities, labels)["aurc"] < 100 * useless


def test_the_bins_of_a_reliability_diagram_add_up_to_the_calibration_error() -> None:
    probabilities, labels = random_predictions()
    confidence, right = probabilities.amax(-1), probabilities.argmax(-1) == labels
    bins = reliability(confidence, right)
    assert sum(each.images for each in bins) == 200
    for each in bins:
        inside = (confidence * 15).long() == int(each.confidence * 15)
        assert each.accuracy == pytest.approx(right[inside].double().mean().item())
    total = sum(each.images / 200 * abs(each.accuracy - each.confidence) for each in bins)
    assert total == pytest.approx(scores(probabilities, labels)["ece"] / 100, abs=1e-6)


def test_the_risk_at_each_coverage_is_the_share_of_errors_among_the_surest() -> None:
    probabilities, labels = random_predictions()
    uncertainty, right = 1 - probabilities.amax(-1), probabilities.argmax(-1) == labels
    order = np.argsort(uncertainty.numpy())
    expected = [1 - right.numpy()[order[:count]].mean() for count in range(1, 201)]
    assert risk_by_coverage(uncertainty, right).tolist() == pytest.approx(expected, abs=1e-9)
