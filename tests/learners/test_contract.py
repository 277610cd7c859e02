"""What the base class promises: construction, binding, noise, and settings that are refused in one line."""

import copy
from typing import Any

import pytest
import torch
from methods import CASES
from torch import Tensor, nn

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.learners import METHODS, Learner, Output, build_learner, resolve_method

every_method = pytest.mark.parametrize("method", METHODS)
learned = pytest.mark.parametrize("method", [method for method in METHODS if method != "zero-shot"])
NAMES = ["red cat", "dog", "big old tree", "house"]


def unbound(method: str, encoder: DualEncoder, **settings: object) -> Learner:
    return METHODS[method].learner(encoder, resolve_method(method, {**CASES[method].settings, **settings}))


def moved(parameter: Tensor) -> Tensor:
    """A step in a random direction: norms would hide one that is the same everywhere."""
    return 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))


# Construction


@every_method
def test_constructing_encodes_no_text_and_binding_does(encoder: DualEncoder, method: str) -> None:
    """The constructor knows no class names, so all of the text waits for `bind`."""
    learner = unbound(method, encoder)
    with pytest.raises(UserError, match=r"no class names yet: call learner\.bind\(class_names\)"):
        learner(torch.zeros(1, 3, 32, 32))
    with pytest.raises(UserError, match="no class names yet"):
        _ = learner.class_names
    bound = learner.bind(NAMES)
    assert (bound.class_names, bound.template) == (NAMES, "a photo of a {}.")
    with pytest.raises(UserError, match="no class names yet"):
        learner.sentences()


def test_the_base_constructor_calls_nothing_of_a_subclass(encoder: DualEncoder) -> None:
    class Strict(Learner):
        def __getattribute__(self, name: str) -> Any:
            if name in {"prepare_text", "adopt", "reset", "sentences", "frozen", "encode_classes"}:
                pytest.fail(f"{name} was called before the subclass was ready")
            return super().__getattribute__(name)

    Strict(encoder, resolve_method("coop"))


@every_method
def test_building_by_name_is_constructing_binding_and_resetting(
    encoder: DualEncoder, images: Tensor, method: str
) -> None:
    template, settings = "a drawing of a {}.", CASES[method].settings
    built = build_learner(method, encoder, NAMES, template, torch.Generator().manual_seed(5), settings).eval()
    by_hand = unbound(method, encoder).bind(NAMES, template).eval()
    by_hand.reset(torch.Generator().manual_seed(5))
    assert [name for name, _ in built.named_parameters()] == [name for name, _ in by_hand.named_parameters()]
    assert torch.equal(built(images).logits, by_hand(images).logits)


@every_method
def test_a_learner_knows_its_method_and_all_of_its_settings(build: Any, method: str) -> None:
    learner = build(method, CASES[method].settings)
    assert learner.method == method
    full = learner.config.plain()
    assert full.keys() == METHODS[method].config.model_fields.keys()
    assert resolve_method(learner.method, full) == learner.config, "all settings together are accepted as well"


def test_an_unregistered_subclass_has_no_method(encoder: DualEncoder) -> None:
    class Own(METHODS["coop"].learner):  # type: ignore[name-defined]
        pass

    assert Own(encoder, resolve_method("coop")).method is None


# Binding


@learned
def test_assigning_a_parameter_on_a_bound_learner_leaves_the_original(build: Any, images: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings).eval()
    before = learner(images).logits
    bound = learner.bind(learner.class_names)
    for name, parameter in list(bound.named_parameters()):
        owner, _, last = name.rpartition(".")
        setattr(bound.get_submodule(owner), last, nn.Parameter(parameter.detach() + moved(parameter)))
    assert torch.equal(learner(images).logits, before)
    assert not torch.allclose(bound(images).logits, before, atol=1e-3)


@learned
def test_optimising_in_place_changes_both(build: Any, images: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings).eval()
    bound = learner.bind(learner.class_names)
    before = learner(images).logits
    with torch.no_grad():
        for parameter in bound.parameters():
            parameter += moved(parameter)
    assert torch.equal(learner(images).logits, bound(images).logits)
    assert not torch.allclose(learner(images).logits, before, atol=1e-3)


@every_method
def test_binding_copies_no_parameter_and_no_backbone(build: Any, method: str) -> None:
    learner = build(method, CASES[method].settings)
    bound = learner.bind(["fish", *learner.class_names])
    assert bound.encoder is learner.encoder
    assert all(a is b for a, b in zip(bound.parameters(), learner.parameters(), strict=True))
    assert not {id(module) for module in bound.modules()} & {id(module) for module in learner.modules()}


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
    learner = unbound("coop", encoder, class_specific=True)
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
            [name for name, _ in unbound(method, encoder, class_specific=specific).bind(NAMES).named_parameters()]
            for specific in (False, True)
        ]
        assert orders[0] == orders[1]


# Noise and repulsion


@every_method
def test_training_draws_from_the_stream_that_was_given(build: Any, images: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings)

    def logits(seed: int) -> Tensor:
        learner.use_noise(torch.Generator().manual_seed(seed))
        return learner(images).logits

    assert torch.equal(logits(1), logits(1))
    assert torch.equal(logits(1), logits(2)) != (method in ("proda", "bpl"))


@learned
@pytest.mark.parametrize("conditional", [False, True])
def test_says_whether_its_space_has_a_row_per_image(build: Any, images: Tensor, method: str, conditional: bool) -> None:
    if conditional and method != "bpl":
        return
    learner = build(method, {**CASES[method].settings, **({"conditional": True} if conditional else {})})
    output: Output = learner(images)
    assert (learner.repels_in in output.per_image) == learner.repels_per_image
    assert (learner.repels_in in output.per_class) != learner.repels_per_image


# Settings


@every_method
def test_values_of_another_type_are_refused_in_one_line(build: Any, method: str) -> None:
    for name, field in METHODS[method].config.model_fields.items():
        for wrong in ({"a": 1}, object(), [3.5]):
            with pytest.raises(UserError, match=rf"^method\.{name}") as refusal:
                build(method, {name: wrong})
            assert "\n" not in str(refusal.value)
        kinds = getattr(field.annotation, "__args__", (field.annotation,))
        if int in kinds and str not in kinds:
            for wrong in ("abc", 2.5, True):
                with pytest.raises(UserError, match=rf"method\.{name} is .*: it must be a whole number"):
                    build(method, {name: wrong})


def test_lists_are_taken_where_a_sequence_is_wanted(build: Any) -> None:
    """YAML and JSON have no tuples."""
    assert build("zero-shot", {"templates": ["a {}.", "the {}."]}).config.templates == ("a {}.", "the {}.")
    assert build("promptsrc", {"templates": ["a {}."]}).config.templates == ("a {}.",)


def test_a_deep_copy_keeps_its_classes(build: Any, images: Tensor) -> None:
    learner = build("mmrl", {"width": 24}).eval()
    assert torch.equal(copy.deepcopy(learner)(images).logits, learner(images).logits)
