"""What is special to APP: a prior network that learns beside the particle, and takes part in predictions."""

import pytest
import small_clip
import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.learners import Learner, build_learner
from rebapl.learners.registry import published

NAMES = ["red cat", "dog", "big old tree"]
LABELS = torch.tensor([0, 2, 1])


def build(encoder: DualEncoder, **settings: object) -> Learner:
    return build_learner("app", encoder, NAMES, "a {}.", torch.Generator().manual_seed(3), {"tokens": 4, **settings})


def test_four_particles_and_one_network_have_the_published_size() -> None:
    """131,648 is counted on CLIP RN50, whose joint space is 1024 wide: 4·16·512 + (1024·64 + 64) + (64·512 + 512)."""
    encoder = small_clip.vit_b16_encoder()
    encoder.joint_width = 1024
    learner = build_learner("app", encoder, NAMES, "a {}.", torch.Generator())
    particle = learner.context.numel()
    network = sum(x.numel() for x in learner.parameters()) - particle
    assert (particle, network, 4 * particle + network) == (8_192, 98_880, 131_648)


def test_particle_and_network_learn_from_their_own_terms(encoder: DualEncoder, images: Tensor) -> None:
    learner = build(encoder)
    output = learner(images)
    network = [*learner.squeeze.parameters(), *learner.expand.parameters()]
    assert torch.autograd.grad(learner.prior_loss(output, LABELS), learner.context, allow_unused=True) == (None,)
    particle_loss = learner.particle_loss(output, LABELS)
    assert all(
        gradient is None
        for gradient in torch.autograd.grad(particle_loss, network, allow_unused=True, retain_graph=True)
    )
    (whole,) = torch.autograd.grad(learner.loss(output, LABELS), learner.context, retain_graph=True)
    (own,) = torch.autograd.grad(particle_loss, learner.context)
    torch.testing.assert_close(whole, own)


def test_the_particles_loss(encoder: DualEncoder, images: Tensor) -> None:
    learner = build(encoder, prior_weight=3.0)
    output = learner(images)
    prior = learner.expand(F.relu(learner.squeeze(output.per_image["image"])))
    distance = sum((learner.context[:, d].mean() - prior[:, d].mean()) ** 2 for d in range(prior.shape[1]))
    expected = F.cross_entropy(10 * output.per_image["image"] @ output.per_class["text"].T, LABELS) + 3 * distance
    torch.testing.assert_close(learner.particle_loss(output, LABELS), expected)


@pytest.mark.parametrize("share", [0.7, 0.0])
def test_prediction_mixes_the_particle_with_each_images_own_prior(
    encoder: DualEncoder, images: Tensor, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = build(encoder, particle_share=share)
    particle = learner(images).logits
    coop = build_learner("coop", encoder, NAMES, "a {}.", torch.Generator(), {"init": None, "tokens": 4})
    rows = []
    for image, prior in zip(images, learner(images).per_image["prior"], strict=True):
        with torch.no_grad():
            coop.context.copy_(prior.expand(4, -1))
        rows.append(coop(image[None]).logits)
    learner.eval()
    expected = share * particle + (1 - share) * torch.cat(rows)
    torch.testing.assert_close(learner(images).logits, expected, atol=1e-5, rtol=1e-5)
    monkeypatch.setattr("rebapl.learners.app.SEQUENCES", 5)
    torch.testing.assert_close(learner(images).logits, expected, atol=1e-5, rtol=1e-5)


def test_the_loss_is_the_same_in_both_modes(encoder: DualEncoder, images: Tensor) -> None:
    learner = build(encoder)
    training = learner.loss(learner(images), LABELS)
    learner.eval()
    torch.testing.assert_close(learner.loss(learner(images), LABELS), training)


@pytest.mark.parametrize("settings", [{"prior_weight": -1}, {"particle_share": 1.5}, {"tokens": 0}], ids=str)
def test_settings_out_of_range_are_refused(encoder: DualEncoder, settings: dict) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        build(encoder, **settings)


def test_published_settings() -> None:
    settings, recipe = published("app", "base-to-novel", "stanford_cars")
    assert settings == {"prior_weight": 1 / 256}
    assert (recipe.lr, recipe.epochs, recipe.batch) == (0.002, 20, 32)
    settings, recipe = published("app", "few-shot", "dtd")
    assert settings == {}
    assert (recipe.epochs, recipe.batch) == (40, 128)
