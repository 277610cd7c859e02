"""The backbones and the task of the shared suite."""

import pytest
import small_clip
import torch
from plain import PlainCLIP, Task
from plain_heads import show
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners import Learner, build_learner

NAMES = ["red cat", "dog", "big old tree", "house"]
TEMPLATE = "a drawing of a {}, a type of thing."


@pytest.fixture(scope="session")
def encoder() -> DualEncoder:
    return small_clip.small_encoder()


@pytest.fixture(scope="session")
def vit_b16() -> DualEncoder:
    return small_clip.vit_b16_encoder()


@pytest.fixture
def images() -> Tensor:
    return small_clip.random_images(3)


@pytest.fixture
def labels() -> Tensor:
    return torch.tensor([0, 3, 1])


@pytest.fixture
def build(encoder: DualEncoder):
    """`build(method, settings, …)`: a learner away from its starting point, so that no zero hides an error."""

    def make(
        method: str,
        settings: dict | None = None,
        names: list[str] = NAMES,
        backbone: DualEncoder = encoder,
        template: str = TEMPLATE,
    ) -> Learner:
        learner = build_learner(method, backbone, names, template, torch.Generator().manual_seed(2), settings)
        show(learner)
        stir(learner, seed=3)
        return learner

    return make


@pytest.fixture
def plain_task(encoder: DualEncoder, images: Tensor, labels: Tensor) -> Task:
    return Task(PlainCLIP(encoder), NAMES, TEMPLATE, images, labels)


@torch.no_grad()
def stir(learner: Learner, seed: int) -> None:
    """Move every parameter by N(0, 0.1²)."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in learner.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
