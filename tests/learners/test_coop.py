"""What is special to CoOp: contexts that belong to classes, and its published settings."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.learners.registry import published

with_contexts = pytest.mark.parametrize(
    ("method", "settings"), [("coop", {}), ("bpl", {"samples": 2}), ("app", {"tokens": 3})]
)


@with_contexts
def test_a_class_keeps_its_own_context(build: Any, images: Tensor, method: str, settings: dict) -> None:
    learner = build(method, {**settings, "class_specific": True}).eval()
    text = learner.encode_classes()["text"]
    chosen = [2, 0, 3]
    bound = learner.bind([learner.class_names[i] for i in chosen])
    torch.testing.assert_close(bound.encode_classes()["text"], text[chosen])
    back = bound.bind(learner.class_names)
    torch.testing.assert_close(back(images).logits, learner(images).logits)


@with_contexts
def test_two_classes_of_one_name_have_a_context_each(build: Any, method: str, settings: dict) -> None:
    learner = build(method, {**settings, "class_specific": True}, names=["dog", "cat", "dog"]).eval()
    text = learner.encode_classes()["text"]
    assert not torch.allclose(text[0], text[2])
    torch.testing.assert_close(learner.bind(["dog", "dog", "cat"]).encode_classes()["text"], text[[0, 2, 1]])


@with_contexts
def test_a_class_without_a_context_is_refused(build: Any, method: str, settings: dict) -> None:
    learner = build(method, {**settings, "class_specific": True})
    with pytest.raises(UserError, match=r"belongs to the 4 classes.*'fish' is none of them.*class_specific=False"):
        learner.bind(["fish", *learner.class_names[1:]])


def test_published_settings() -> None:
    for dataset, epochs in (("dtd", 200), ("imagenet", 50)):
        settings, recipe = published("coop", "base-to-novel", dataset)
        assert settings == {}
        assert (recipe.optimizer, recipe.lr, recipe.epochs, recipe.batch) == ("sgd", 0.002, epochs, 32)
        assert (recipe.momentum, recipe.weight_decay) == (0.9, 5e-4)
        assert (recipe.warmup_epochs, recipe.warmup_lr, recipe.crop_scale) == (1, 1e-5, (0.08, 1.0))
    for protocol in ("few-shot", "cross-dataset", "domain-generalization"):
        assert published("coop", protocol, "imagenet")[0] == {"init": None, "tokens": 16}
    recipe = published("cocoop", "base-to-novel", "dtd")[1]
    assert (recipe.lr, recipe.epochs, recipe.batch) == (0.002, 10, 1)
