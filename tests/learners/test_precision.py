"""Precision: bfloat16 agrees with float32, learnable parameters stay float32, and nobody uses float16."""

from typing import Any

import pytest
import small_clip
import torch
from methods import CASES, output_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rebapl.learners import METHODS

every_method = pytest.mark.parametrize("method", METHODS)


@every_method
def test_bfloat16_agrees_with_float32(build: Any, images: Tensor, labels: Tensor, method: str) -> None:
    half = small_clip.small_encoder(torch.bfloat16)
    exact, rough = (build(method, CASES[method].settings, **extra) for extra in ({}, {"backbone": half}))
    rough.load_state_dict(exact.state_dict())
    expected, output = output_of(exact, images), output_of(rough, images)
    assert (output.logits.softmax(-1) - expected.logits.softmax(-1)).abs().max() < CASES[method].bfloat16_tolerance
    for space in {"image", "text"} & (expected.per_image.keys() | expected.per_class.keys()):
        assert torch.cosine_similarity(output.cloud(space), expected.cloud(space)).min() > 0.999, space
    assert all(
        x.dtype == torch.float32 for x in (output.logits, *output.per_image.values(), *output.per_class.values())
    )
    if (loss := rough.loss(output, labels)).requires_grad:
        loss.backward()
        for name, parameter in rough.named_parameters():
            assert parameter.dtype == torch.float32, name
            if not parameter.requires_grad:
                continue
            assert parameter.grad is not None, name
            assert parameter.grad.dtype == torch.float32, name
            assert parameter.grad.isfinite().all(), name


@every_method
def test_autocast_to_bfloat16_agrees_with_float32(build: Any, images: Tensor, labels: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings)
    expected = output_of(learner, images)
    with torch.autocast("cpu", torch.bfloat16):
        output = output_of(learner, images)
        loss = learner.loss(output, labels)
    difference = (output.logits.float().softmax(-1) - expected.logits.softmax(-1)).abs().max()
    assert difference < CASES[method].bfloat16_tolerance
    if loss.requires_grad:
        loss.backward()
        learned = [p for p in learner.parameters() if p.requires_grad]
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in learned)


class NoFloat16(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            assert not isinstance(leaf, Tensor) or leaf.dtype != torch.float16, function
        return result


@every_method
def test_nothing_is_computed_in_float16(build: Any, images: Tensor, labels: Tensor, method: str) -> None:
    backbone = small_clip.small_encoder(torch.bfloat16)
    with NoFloat16():
        learner = build(method, CASES[method].settings, backbone=backbone)
        loss = learner.loss(learner(images), labels)
        if loss.requires_grad:
            loss.backward()
