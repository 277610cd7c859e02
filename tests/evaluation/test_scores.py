"""Scores against brute force and another library."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from rebapl.evaluation import base_novel_scores
from rebapl.evaluation.scores import calibration_error, scores
from rebapl.numbers import harmonic_mean


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


def test_certain_predictions_belong_to_the_last_bin() -> None:
    # one of five certain ones wrong, and five right at 0.95: together a gap of 0.9 − 0.975
    probabilities = torch.tensor([[1.0, 0.0]] * 5 + [[0.95, 0.05]] * 5)
    result = scores(probabilities, torch.tensor([0, 0, 0, 0, 1] + [0] * 5))
    assert result["ece"] == pytest.approx(7.5, abs=1e-3)


def test_an_average_that_rounding_takes_above_one_is_still_a_probability() -> None:
    probabilities, labels = random_predictions()
    probabilities[0] = torch.nn.functional.one_hot(torch.tensor(0), 7)
    expected = brute_force_ece(probabilities.numpy(), labels.numpy())
    probabilities[0, 0] += torch.finfo(torch.float32).eps  # as ten samples of weight 0.1 that are all certain
    assert scores(probabilities, labels)["ece"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("right", [True, False])
def test_certainty_that_is_always_right_or_always_wrong(right: bool) -> None:
    result = scores(torch.tensor([[1.0, 0.0]] * 20), torch.full((20,), 0 if right else 1))
    wrong = 0.0 if right else 100.0
    for name, expected in {"accuracy": 100 - wrong, "ece": wrong, "adaptive_ece": wrong, "aurc": wrong}.items():
        assert result[name] == pytest.approx(expected, abs=1e-4), name
    assert result["brier"] == (0.0 if right else 2.0)


def test_one_class_is_always_right() -> None:
    result = scores(torch.ones(5, 1), torch.zeros(5, dtype=torch.long))
    assert (result["accuracy"], result["nll"], result["brier"]) == (100.0, 0.0, 0.0)
    assert result["ece"] == pytest.approx(0.0, abs=1e-4)


def test_an_impossible_event_costs_a_finite_amount() -> None:
    result = scores(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert result["nll"] == pytest.approx(15.94, abs=0.01)


def test_harmonic_mean() -> None:
    assert harmonic_mean(82.0, 75.0) == pytest.approx(2 / (1 / 82 + 1 / 75))
    assert harmonic_mean(0.0, 0.0) == 0.0


def test_base_novel_row() -> None:
    row = base_novel_scores({"accuracy": 80, "nll": 0.4, "ece": 2}, {"accuracy": 60, "nll": 0.8, "ece": 6})
    assert row == {"base": 80, "novel": 60, "hm": pytest.approx(68.571, abs=1e-3), "nll": pytest.approx(0.6), "ece": 4}


def test_the_calibration_error_is_that_of_torchmetrics() -> None:
    from torchmetrics.functional.classification import binary_calibration_error

    generator = torch.Generator().manual_seed(0)
    for count in (1, 7, 500):
        confidence = torch.rand(count, generator=generator)
        right = torch.rand(count, generator=generator) < confidence
        expected = binary_calibration_error(confidence, right.int(), n_bins=15).item()
        assert calibration_error(confidence, right) == pytest.approx(expected, abs=1e-6)
