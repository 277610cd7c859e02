"""What is special to APP: a prior network that learns beside the particle, and takes part in predictions."""

import pytest
import small_clip
import torch
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners import METHODS, Learner, build_learner
from rebapl.learners.registry import published
from rebapl.sampling import SVGD, Inference
from rebapl.training.resolution import resolve_training

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


def test_the_published_inference_moves_four_particles_and_one_network_on_vit_b16() -> None:
    """methods.md: 4·8,192 + 33,312 = 66,080."""
    resolved = resolve_training("app", None, protocol="base-to-novel", data="dtd", shots=16)
    learner = build_learner("app", small_clip.vit_b16_encoder(), NAMES, "a {}.", torch.Generator())
    assert resolved.inference is not None
    inference = resolved.inference.changed(batch=2)
    images, labels = torch.zeros(2, 3, 224, 224), torch.zeros(2, dtype=torch.long)
    run = SVGD(learner, inference, lambda _: (images, labels), num_data=2, steps_per_epoch=1)
    moved = [p for group in run.schedule.optimizer.param_groups for p in group["params"]]
    assert sum(p.numel() for p in moved) == 4 * 8_192 + 33_312 == 66_080
    assert len(run.particles) == 4


def test_what_the_particles_share_is_the_network_trained_by_itself(encoder: DualEncoder, images: Tensor) -> None:
    """One step of four particles moves the network as one step of SGD on its own loss does."""
    learner = build(encoder)
    network = {name: p for name, p in learner.named_parameters() if not name.startswith("context")}
    gradients = torch.autograd.grad(learner.prior_loss(learner(images), LABELS), list(network.values()))
    expected = {name: p.detach() - 0.1 * g for (name, p), g in zip(network.items(), gradients, strict=True)}
    sampler = {"kind": "svgd", "lr": 0.1, "particles": 4}
    inference = Inference(sampler=sampler, curve="constant", epochs=1, batch=len(images))
    (first, *_) = SVGD(learner, inference, lambda _: (images, LABELS), num_data=3, steps_per_epoch=1).run()
    for name, value in expected.items():
        torch.testing.assert_close(first.parameters[name], value)


@pytest.mark.parametrize("share", [0.7, 0.0])
def test_prediction_mixes_the_particle_with_each_images_own_prior(
    encoder: DualEncoder, images: Tensor, share: float
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


def test_published_settings() -> None:
    settings, recipe = published("app", "base-to-novel", "stanford_cars", 16)
    assert settings == {"prior_weight": 1 / 256}
    assert (recipe.lr, recipe.epochs, recipe.batch) == (0.002, 20, 32)
    settings, recipe = published("app", "few-shot", "dtd")
    assert settings == {}, "nobody said how many shots"
    assert (recipe.epochs, recipe.batch) == (40, 128)
    assert (recipe.inference, recipe.inference_settings) == ("svgd", {"sampler": {"particles": 4}})


@pytest.mark.parametrize("shots", [1, 2, 4, 8, 16])
def test_the_weight_of_the_prior_is_one_over_the_shots(shots: int) -> None:
    for protocol in ("few-shot", "base-to-novel"):
        assert published("app", protocol, "dtd", shots)[0] == {"prior_weight": 1 / shots}
        resolved = resolve_training("app", None, protocol=protocol, data="dtd", shots=shots)
        assert resolved.method_settings.plain()["prior_weight"] == 1 / shots


def test_published_settings_count_for_the_published_inference_alone() -> None:
    def particles(inference: str | None, **given: object) -> int:
        resolved = resolve_training(
            "app", inference, protocol="few-shot", data="dtd", shots=4, inference_settings=given
        ).inference
        assert resolved is not None
        return resolved.samples

    assert particles(None) == particles("svgd") == 4
    assert particles(None, **{"sampler.particles": 2}) == particles("svgd", sampler={"particles": 2}) == 2
    assert particles("mle") == 1
    coop = resolve_training("coop", "svgd", protocol="few-shot", data="dtd", shots=4).inference
    assert coop is not None
    assert coop.samples == 3


def test_every_other_method_was_published_with_maximum_likelihood() -> None:
    named = {name: method.learner.recipe.inference for name, method in METHODS.items()}
    assert {name for name, inference in named.items() if inference != "mle"} == {"app"}
