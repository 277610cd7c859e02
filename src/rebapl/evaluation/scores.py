"""Scores of predicted probabilities."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

ECE_BINS = 15


def scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Top-1 accuracy in percent, mean negative log-likelihood in nats, expected calibration error in percent.

    probabilities (N, C) in float32, labels (N,).

    >>> scores(torch.tensor([[0.8, 0.2], [0.4, 0.6]]), torch.tensor([0, 0]))["accuracy"]
    50.0
    """
    right = probabilities.argmax(-1) == labels
    # The floor is float32's smallest step from 0: an impossible event costs about 16 nats, not infinity.
    likelihood = probabilities.gather(1, labels[:, None]).clamp_min(torch.finfo(torch.float32).eps)
    ece = multiclass_calibration_error(probabilities, labels, probabilities.shape[1], n_bins=ECE_BINS)
    return {
        "accuracy": 100 * right.double().mean().item(),
        "nll": -likelihood.double().log().mean().item(),
        "ece": 100 * ece.item(),
    }


def harmonic_mean(base: float, novel: float) -> float:
    """2·b·n / (b + n), 0 where both are.

    >>> harmonic_mean(60.0, 30.0)
    40.0
    """
    return 2 * base * novel / (base + novel) if base + novel else 0.0


def base_novel_scores(base: Mapping[str, float], novel: Mapping[str, float]) -> dict[str, float]:
    """One row of the base-to-novel table: both accuracies, their harmonic mean, mean NLL and ECE of the two."""
    return {
        "base": base["accuracy"],
        "novel": novel["accuracy"],
        "hm": harmonic_mean(base["accuracy"], novel["accuracy"]),
        "nll": (base["nll"] + novel["nll"]) / 2,
        "ece": (base["ece"] + novel["ece"]) / 2,
    }
