"""The base class: its constructor, binding, and what of it each learner has to itself."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.learners import METHODS, Learner

NAMES = ["red cat", "dog", "big old tree", "house"]


def test_the_base_constructor_calls_nothing_of_a_subclass(encoder: DualEncoder) -> None:
    class Strict(Learner):
        def __getattribute__(self, name: str) -> Any:
            if name in {"prepare_text", "adopt", "reset", "sentences", "frozen", "encode_classes"}:
                pytest.fail(f"{name} was called before the subclass was ready")
            return super().__getattribute__(name)

    Strict(encoder, METHODS.find("coop").settings())


def test_modes_and_hooks_are_each_learners_own(build: Any, images: Tensor) -> None:
    learner = build("mmrl++", {"width": 24})
    bound = learner.bind(learner.class_names).eval()
    assert learner.training
    assert all(module.training for module in learner.modules())
    bound.register_forward_hook(lambda *_: pytest.fail("the hook of another learner ran"))
    learner(images)


def test_tied_modules_stay_tied() -> None:
    from rebapl.learners.base import _sharing_tensors

    tied = nn.Linear(2, 2)
    twin = _sharing_tensors(nn.ModuleDict({"a": tied, "b": tied}), {})
    assert twin["a"] is twin["b"] is not tied
    assert twin["a"].weight is tied.weight


def test_classes_are_adopted_by_the_first_bind_only(encoder: DualEncoder) -> None:
    learner = METHODS["coop"].learner(encoder, METHODS.find("coop").settings({"class_specific": True}))
    assert not list(learner.parameters())
    with pytest.raises(UserError, match="before reset"):
        learner.reset(torch.Generator())
    first = learner.bind(["cat", "dog", "fish"])
    assert first.context.shape[0] == 3
    assert first.bind(["dog"]).context is first.context
    assert learner.bind(["car", "tree"]).context.shape[0] == 2, "a fresh learner adopts whatever it is bound to first"


def test_class_specific_contexts_come_where_shared_ones_do(encoder: DualEncoder) -> None:
    """The order of parameters decides which random numbers each gets."""
    for method in ("bpl", "app"):
        orders = [
            [
                name
                for name, _ in METHODS[method]
                .learner(encoder, METHODS.find(method).settings({"class_specific": specific}))
                .bind(NAMES)
                .named_parameters()
            ]
            for specific in (False, True)
        ]
        assert orders[0] == orders[1]


def test_lists_are_taken_where_a_sequence_is_wanted(build: Any) -> None:
    """YAML and JSON have no tuples."""
    assert build("zero-shot", {"templates": ["a {}.", "the {}."]}).config.templates == ("a {}.", "the {}.")
    assert build("promptsrc", {"templates": ["a {}."]}).config.templates == ("a {}.",)
