"""What is special to variational Bayesian prompts: how they start, and CoOp as the limit without variance."""

import pytest
import torch
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners import Learner, build_learner
from rebapl.learners.registry import published

NAMES = ["red cat", "dog", "big old tree"]
either = pytest.mark.parametrize("conditional", [False, True], ids=["free", "conditional"])


def build(encoder: DualEncoder, **settings: object) -> Learner:
    learner = build_learner(
        "bpl", encoder, NAMES, "a {}.", torch.Generator().manual_seed(3), {"samples": 3, **settings}
    )
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return learner


def test_without_variance_it_is_coop_with_a_shifted_context(encoder: DualEncoder, images: Tensor) -> None:
    learner = build(encoder)
    coop = build_learner("coop", encoder, NAMES, "a {}.", torch.Generator())
    with torch.no_grad():
        learner.log_variance.fill_(-100.0)
        coop.context.copy_(learner.context + learner.mean)
    torch.testing.assert_close(learner(images).logits, coop(images).logits.log_softmax(-1), atol=1e-5, rtol=1e-5)


def test_starts_as_the_authors_do(encoder: DualEncoder) -> None:
    learner = build_learner("bpl", encoder, NAMES, "a {}.", torch.Generator().manual_seed(3))
    assert learner.mean.abs().max() == 0
    assert 0 <= learner.log_variance.min() < 0.2 < 0.8 < learner.log_variance.max() <= 1


def test_published_settings() -> None:
    settings, recipe = published("bpl", "base-to-novel", "eurosat")
    assert settings == {"samples": 20}
    assert (recipe.lr, recipe.epochs, recipe.batch) == (0.002, 60, 1)
    settings, recipe = published("bpl", "cross-dataset", "imagenet")
    assert settings == {}
    assert recipe.epochs == 10
