"""VaMP: what its networks may give."""

from typing import Any

import torch
from torch import Tensor


def test_networks_with_large_weights_have_finite_answers_and_losses(build: Any, images: Tensor, labels: Tensor) -> None:
    """Without a bound, exp(log σ²) of networks drawn by Laplace's approximation is infinite."""
    learner = build("vamp", {"samples": 2})
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.mul_(1000)
    output = learner.eval()(images)
    assert output.logits.isfinite().all()
    assert learner.loss(output, labels).isfinite()
