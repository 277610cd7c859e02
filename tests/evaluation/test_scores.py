"""Scores against brute force and another library."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from rebapl.evaluation import base_novel_scores, harmonic_mean, scores


def random_predictions(n: int = 400, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    probabilities = (2 * torch.randn(n, classes, generator=stream)).softmax(-1)
    return probabilities, torch.randint(classes, (n,), generator=stream)


def brute_force_ece(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    total = 0.0
    for low, high in zip(np.arange(bins) / bins, np.arange(1, bins + 1) / bins, strict=True):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return 100 * total


def test_accuracy_and_likelihood_equal_scikit_learn() -> None:
    probabilities, labels = random_predictions()
    ours, exact = scores(probabilities, labels), probabilities.double()
    assert ours["accuracy"] == pytest.approx(100 * accuracy_score(labels, probabilities.argmax(-1)))
    assert ours["nll"] == pytest.approx(
        log_loss(labels, exact / exact.sum(-1, keepdim=True), labels=range(7)), rel=1e-5
    )


def test_calibration_error_equals_brute_force() -> None:
    probabilities, labels = random_predictions()
    assert scores(probabilities, labels)["ece"] == pytest.approx(
        brute_force_ece(probabilities.numpy(), labels.numpy()), abs=1e-4
    )


def test_an_impossible_event_costs_a_finite_amount() -> None:
    result = scores(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert result["nll"] == pytest.approx(15.94, abs=0.01)


def test_harmonic_mean() -> None:
    assert harmonic_mean(82.0, 75.0) == pytest.approx(2 / (1 / 82 + 1 / 75))
    assert harmonic_mean(0.0, 0.0) == 0.0


def test_base_novel_row() -> None:
    row = base_novel_scores({"accuracy": 80, "nll": 0.4, "ece": 2}, {"accuracy": 60, "nll": 0.8, "ece": 6})
    assert row == {"base": 80, "novel": 60, "hm": pytest.approx(68.571, abs=1e-3), "nll": pytest.approx(0.6), "ece": 4}
