"""Where a stochastic learner draws from: the loop's stream while it trains, a fixed one when it predicts."""

from __future__ import annotations

import torch

from rebapl.learners.base import Learner
from rebapl.randomness import generator


def noise_of(learner: Learner) -> torch.Generator:
    """In training mode the stream that the loop gave, or without one a stream of its own that goes on from call to
    call; in evaluation mode a stream that starts anew each time, so that predictions do not change."""
    if not learner.training:
        return generator(0, "prediction", type(learner).__name__)
    if learner.noise is None:
        learner.noise = generator(0, "training", type(learner).__name__)
    return learner.noise
