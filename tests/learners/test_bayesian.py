"""What is special to variational Bayesian prompts: divergence, mean of probabilities, where noise comes from."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
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


@either
def test_divergence_from_the_standard_normal(encoder: DualEncoder, images: Tensor, conditional: bool) -> None:
    labels = torch.tensor([0, 2, 1])

    def loss(weight: float) -> Tensor:
        learner = build(encoder, divergence=weight, conditional=conditional)
        learner.use_noise(torch.Generator().manual_seed(1))
        return learner.loss(learner(images), labels)

    output = build(encoder, conditional=conditional)(images)
    q = Normal(output.per_image["mean"], (0.5 * output.per_image["log_variance"]).exp())
    expected = kl_divergence(q, Normal(0.0, 1.0)).mean()
    assert expected > 0.01
    torch.testing.assert_close(loss(5.0) - loss(0.0), 5 * expected, atol=1e-5, rtol=1e-4)


@either
def test_logits_are_the_log_of_mean_probabilities(encoder: DualEncoder, images: Tensor, conditional: bool) -> None:
    learner = build(encoder, conditional=conditional, divergence=0.0)
    output = learner(images)
    torch.testing.assert_close(output.logits.exp().sum(-1), torch.ones(3))
    labels = torch.tensor([0, 2, 1])
    torch.testing.assert_close(learner.loss(output, labels), F.nll_loss(output.logits, labels))
    if not conditional:
        by_sample = 10 * torch.einsum("be,cle->lbc", output.per_image["image"], output.per_class["samples"])
        torch.testing.assert_close(output.logits.exp(), by_sample.softmax(-1).mean(0))


@either
def test_prediction_never_changes_and_training_always_does(
    encoder: DualEncoder, images: Tensor, conditional: bool
) -> None:
    learner = build(encoder, conditional=conditional)
    assert not torch.equal(learner(images).logits, learner(images).logits)
    learner.eval()
    assert torch.equal(learner(images).logits, learner(images).logits)
    whole = learner(images).logits
    one_by_one = torch.cat([learner(images[i : i + 1]).logits for i in range(3)])
    torch.testing.assert_close(one_by_one, whole, atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize("settings", [{"samples": 0}, {"divergence": -1}, {"position": "below"}], ids=str)
def test_settings_out_of_range_are_refused(encoder: DualEncoder, settings: dict) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        build(encoder, **settings)


def test_published_settings() -> None:
    settings, recipe = published("bpl", "base-to-novel", "eurosat")
    assert settings == {"samples": 20}
    assert (recipe.lr, recipe.epochs, recipe.batch) == (0.002, 60, 1)
    settings, recipe = published("bpl", "cross-dataset", "imagenet")
    assert settings == {}
    assert recipe.epochs == 10
