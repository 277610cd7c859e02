"""What is special to ProDA: positions of the class name, and few prompts at once."""

import pytest
import torch
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners import Learner, build_learner
from rebapl.learners.registry import published

NAMES = ["red cat", "dog", "big old tree"]


def build(encoder: DualEncoder, **settings: object) -> Learner:
    generator = torch.Generator().manual_seed(3)
    learner = build_learner("proda", encoder, NAMES, "a {}.", generator, {"prompts": 4, "tokens": 3, **settings})
    with torch.no_grad():
        learner.context.mul_(20)
    return learner


@pytest.mark.parametrize(("prompts", "expected"), [(1, "e"), (2, "ee"), (4, "fmee"), (6, "fmeeee"), (8, "ffmmeeee")])
def test_where_the_class_name_stands(encoder: DualEncoder, prompts: int, expected: str) -> None:
    learner = build(encoder, prompts=prompts)
    assert "".join("fme"[position] for position in learner.positions.tolist()) == expected


def test_training_takes_a_random_few_and_prediction_all(encoder: DualEncoder) -> None:
    learner = build(encoder, prompts=8, at_once=2)

    def chosen(seed: int) -> Tensor:
        learner.use_noise(torch.Generator().manual_seed(seed))
        features = learner.encode_classes()["prompts"]
        assert features.shape[1] == 2
        return features

    assert torch.equal(chosen(1), chosen(1))
    assert not torch.equal(chosen(1), chosen(2))
    learner.noise = None
    assert not torch.equal(learner.encode_classes()["prompts"], learner.encode_classes()["prompts"])
    assert learner.eval().encode_classes()["prompts"].shape[1] == 8


def test_published_recipe() -> None:
    settings, recipe = published("proda", "base-to-novel", "dtd")
    assert settings == {}
    assert (recipe.lr, recipe.epochs, recipe.batch) == (0.001, 100, 20)
