"""Posteriors made by hand: a learner of any method, its parameters moved at random."""

from collections.abc import Callable

import pytest
import small_clip
import torch
from methods import CASES
from plain_heads import show
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners import build_learner
from rebapl.posterior import Posterior

NAMES = ["red cat", "dog", "big old tree", "house"]
Make = Callable[..., Posterior]


@pytest.fixture(scope="session")
def encoder() -> DualEncoder:
    return small_clip.small_encoder()


@pytest.fixture(scope="session")
def make(encoder: DualEncoder) -> Make:
    """`make(method, samples)`: a posterior with that number of samples around a learner's start."""

    def posterior(
        method: str = "coop", samples: int = 3, backbone: DualEncoder = encoder, settings: dict | None = None
    ) -> Posterior:
        settings = dict(CASES[method].settings if settings is None else settings)
        stream = torch.Generator().manual_seed(5)
        template = "a drawing of a {}."
        learner = build_learner(method, backbone, NAMES, template, torch.Generator().manual_seed(2), settings)
        show(learner)
        around = [
            {
                name: x.detach().cpu() + 0.2 * torch.randn(x.shape, generator=stream)
                for name, x in learner.named_parameters()
            }
            for _ in range(samples)
        ]
        return Posterior.of(learner.eval(), around, {"seed": 1, "data": "none"})

    return posterior


@pytest.fixture
def views() -> Tensor:
    return small_clip.random_views(7)
