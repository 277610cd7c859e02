"""What must hold for every registered method. Its particulars stand in `tests/support/methods.py`."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import small_clip
import torch
from methods import CASES, output_of
from plain import Task
from torch import Tensor
from torch.utils._pytree import tree_leaves

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.learnable import call_at
from rebapl.learners import METHODS, Learner, Output, build_learner

every_method = pytest.mark.parametrize("method", METHODS)
sampled = [name for name, method in METHODS.items() if method.learner.recipe.epochs > 0]
learned = pytest.mark.parametrize("method", sampled)
NAMES = ["red cat", "dog", "big old tree", "house"]


def unbound(method: str, encoder: DualEncoder, **settings: object) -> Learner:
    return METHODS[method].learner(encoder, METHODS.find(method).settings({**CASES[method].settings, **settings}))


def near(given: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(given, expected, atol=tolerance, rtol=tolerance)


def same(given: Output, expected: Output, tolerance: float = 1e-5) -> None:
    near(given.logits, expected.logits, tolerance)
    for ours, theirs in ((given.per_image, expected.per_image), (given.per_class, expected.per_class)):
        assert ours.keys() == theirs.keys()
        for name, cloud in ours.items():
            near(cloud, theirs[name], tolerance)


@every_method
def test_logits_that_are_log_probabilities_or_have_an_extra_term_are_no_products(
    build: Any, images: Tensor, method: str
) -> None:
    learner = build(method, CASES[method].settings).eval()
    output = learner(images)
    normalised = bool((output.logits.logsumexp(-1).abs() < 1e-4).all())
    assert learner.logits_are_products == (not normalised and "extra" not in output.per_image)


@every_method
def test_has_an_entry_in_the_table(method: str) -> None:
    assert method in CASES, f"add '{method}' to CASES in tests/support/methods.py"


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((method, case.settings) for method, case in CASES.items()),
        ("vpt", {"text": None}),
        ("zero-shot", {"templates": "a bad photo of the {}."}),
        ("zero-shot", {"templates": "a bad photo of the {}.", "with_own": False}),
    ],
)
def test_says_whether_it_uses_the_template(build: Any, images: Tensor, method: str, settings: dict) -> None:
    learner = build(method, settings).eval()
    other = learner.bind(learner.class_names, "itap of the {} here.")
    differs = not torch.allclose(learner(images).logits, other(images).logits, atol=1e-6)
    assert learner.reads_template(learner.config) == differs


# Construction and settings


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
    assert METHODS.find(learner.method).settings(full) == learner.config, "all settings together are accepted as well"


@every_method
def test_unknown_settings_and_values_of_another_type_are_refused_in_one_line(build: Any, method: str) -> None:
    with pytest.raises(UserError, match="tokenz"):
        build(method, {"tokenz": 3})
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


OUT_OF_RANGE = {
    "app": [{"prior_weight": -1}, {"particle_share": 1.5}, {"tokens": 0}],
    "vamp": [{"samples": 0}, {"divergence": -1}, {"depth": 5}],
    "bpl": [{"samples": 0}, {"divergence": -1}, {"position": "below"}],
    "proda": [{"prompts": 0}, {"at_once": 0}, {"prompts": 4, "at_once": 5}, {"orthogonality": 2.0, "prompts": 1}],
    "mmrl++": [{"width": 0}, {"class_share": 1.2}, {"consistency": -1}, {"mix": 2.0}, {"rank": 0}],
    "mmrl": [{"layers": 0}, {"layers": 4}],
    "promptsrc": [{"text_weight": -1.0}, {"logits_weight": float("nan")}],
    "maple": [{"tokens": 0}, {"depth": 5}],
}
NO_EFFECT = {
    "mmrl++": {"layers": 1, "mix": 0.5},
    "promptsrc": {"templates": ["a {}."], "text_weight": 0.0, "logits_weight": 0.0},
    "proda": {"orthogonality": 2.0, "prompts": 1},
}


@pytest.mark.parametrize(
    ("method", "wrong"), [(method, each) for method in OUT_OF_RANGE for each in OUT_OF_RANGE[method]]
)
def test_settings_out_of_range_are_refused_by_name(build: Any, method: str, wrong: dict) -> None:
    with pytest.raises(UserError, match="|".join(wrong)):
        build(method, wrong)


@pytest.mark.parametrize("method", NO_EFFECT)
def test_settings_without_effect_are_refused(build: Any, method: str) -> None:
    with pytest.raises(UserError, match="has no effect"):
        build(method, NO_EFFECT[method])


# Parameters


@pytest.mark.parametrize(
    ("method", "settings", "count"),
    [(method, settings, count) for method, case in CASES.items() for settings, count in case.counts],
)
def test_parameter_count_on_vit_b16(vit_b16: DualEncoder, method: str, settings: dict, count: int) -> None:
    learner = build_learner(method, vit_b16, ["cat", "dog"], "a photo of a {}.", torch.Generator(), settings)
    assert sum(parameter.numel() for parameter in learner.parameters()) == count


@every_method
def test_only_its_own_parameters_learn(build: Any, method: str, encoder: DualEncoder) -> None:
    learner = build(method)
    theirs = {id(parameter) for parameter in encoder.model.parameters()}
    assert not any(parameter.requires_grad for parameter in encoder.model.parameters())
    for name, parameter in learner.named_parameters():
        assert id(parameter) not in theirs, name
        assert parameter.requires_grad or learner.learns_from_features, name
        assert parameter.dtype == torch.float32, name
    assert not list(learner.buffers())


@pytest.mark.parametrize(
    ("method", "start"),
    [(method, case.starts_as_zero_shot) for method, case in CASES.items() if case.starts_as_zero_shot],
)
def test_starts_as_zero_shot(encoder: DualEncoder, images: Tensor, method: str, start: tuple[dict, str]) -> None:
    settings, space = start
    arguments = encoder, ["red cat", "dog"], "a photo of a {}.", torch.Generator()
    learner = build_learner(method, *arguments, settings)
    near(learner(images).cloud(space), build_learner("zero-shot", *arguments)(images).cloud(space))


@every_method
def test_reset_follows_its_generator(build: Any, method: str) -> None:
    learner = build(method)

    def start(seed: int) -> list[Tensor]:
        learner.reset(torch.Generator().manual_seed(seed))
        return [parameter.detach().clone() for parameter in learner.parameters()]

    state = torch.get_rng_state()
    first, again, other = start(5), start(5), start(6)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(bool(a.isfinite().all()) for a in first)
    assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True)) != CASES[method].random_start


# Against the plain implementation


@pytest.mark.parametrize(
    ("method", "settings"),
    [(method, settings) for method, case in CASES.items() for settings in (case.settings, *case.options)],
)
def test_equals_the_plain_implementation(build: Any, plain_task: Task, method: str, settings: dict) -> None:
    learner = build(method, settings)
    parameters = {name: x.detach().clone().requires_grad_() for name, x in learner.named_parameters()}
    expected, expected_loss = CASES[method].plain(replace(plain_task, settings=settings), parameters)
    output = output_of(learner, plain_task.images)
    loss = learner.loss(output, plain_task.labels)
    near(output.logits, expected, 1e-4)
    near(loss, expected_loss, 1e-4)
    if method not in sampled:
        assert not loss.requires_grad, "closed forms have no gradients"
        return
    loss.backward()
    expected_loss.backward()
    for name, parameter in learner.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
        near(parameter.grad, parameters[name].grad, 1e-4)


@every_method
def test_the_last_layers_compute_only_what_is_read(
    build: Any, encoder: DualEncoder, images: Tensor, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above shows that the numbers are the same as with all positions."""
    asked: dict[str, set[int]] = {"vision": set(), "text": set()}
    for name, counts in asked.items():
        tower = getattr(encoder, name)

        def last(
            hidden: Tensor, positions: Tensor | None = None, whole: Any = tower.layers[-1], counts: set = counts
        ) -> Tensor:
            assert positions is not None, "all positions were computed"
            counts.add(positions.shape[1])
            return whole(hidden, positions)

        monkeypatch.setattr(tower, "layers", [*tower.layers[:-1], last])
    learner = build(method, CASES[method].settings)
    output_of(learner, images)
    output_of(learner.eval(), images)
    tokens = learner.config.tokens if method in ("mmrl", "mmrl++") else 0
    assert asked == {"vision": {1, 1 + tokens}, "text": {1}}


# Class names


@every_method
def test_binding_shares_parameters_and_equals_building_anew(
    build: Any, images: Tensor, labels: Tensor, method: str
) -> None:
    learner = build(method, CASES[method].settings)
    before = output_of(learner, images)
    loss_before = learner.loss(before, labels)
    others = ["green fish", "car", "old house", "tree"]
    bound = learner.bind(others)
    assert bound.class_names == others
    assert bound.encoder is learner.encoder
    assert all(a is b for a, b in zip(bound.parameters(), learner.parameters(), strict=True))
    assert not {id(module) for module in bound.modules()} & {id(module) for module in learner.modules()}
    if learner.learns_from_features:  # what it learned is of the classes it was built for
        same(output_of(bound, images), zero_shot_output(learner, others, images, output_of(bound, images)))
    else:
        anew = build(method, CASES[method].settings, others)
        anew.load_state_dict(learner.state_dict())
        same_features(output_of(bound, images), output_of(anew, images))
    same(output_of(learner, images), before)
    near(learner.loss(before, labels), loss_before)
    assert not torch.allclose(output_of(bound, images).logits, before.logits, atol=1e-3)


def zero_shot_output(learner: Learner, names: list[str], images: Tensor, like: Output) -> Output:
    """The output of zero-shot, with the other clouds of `like` set to zero."""
    template = learner.template
    output = build_learner("zero-shot", learner.encoder, names, template, torch.Generator())(images)
    more = {name: torch.zeros_like(cloud) for name, cloud in like.per_image.items() if name not in output.per_image}
    return replace(output, per_image={**output.per_image, **more})


def same_features(given: Output, expected: Output) -> None:
    """Compare everything but the logits, which may differ for classes that are no classes of training."""
    same(replace(given, logits=expected.logits), expected)


@every_method
def test_rebinding_forgets_the_text_computed_before(build: Any, images: Tensor, labels: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings)
    output = output_of(learner, images)
    loss = learner.loss(output, labels)  # whatever a loss caches is cached now
    back = learner.bind(["green fish", "car", "old house", "tree"]).bind(learner.class_names)
    same(output_of(back, images), output)
    near(back.loss(output_of(back, images), labels), loss)
    shuffled = learner.bind([learner.class_names[i] for i in (1, 0, 3, 2)])
    near(shuffled.loss(output_of(shuffled, images), torch.tensor([1, 2, 0])), loss)


@every_method
def test_permuting_classes_permutes_logits(build: Any, images: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings).eval()
    order = [2, 0, 3, 1]
    permuted = learner.bind([learner.class_names[i] for i in order])
    near(permuted(images).logits, learner(images).logits[:, order])


@every_method
def test_other_braces_in_the_template_stay(build: Any, images: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings, template="a {colour} drawing of a {}.")
    assert learner.sentences()[1] == "a {colour} drawing of a dog."
    assert learner(images).logits.isfinite().all()


@every_method
def test_a_deep_copy_has_its_own_parameters_and_the_same_backbone(build: Any, images: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings).eval()
    other = copy.deepcopy(learner)
    assert torch.equal(other(images).logits, learner(images).logits)
    assert other.encoder is learner.encoder
    assert not {id(p) for p in other.parameters()} & {id(p) for p in learner.parameters()}


# Batches and modes


@every_method
@pytest.mark.parametrize("training", [True, False])
def test_a_batch_equals_its_images_one_by_one(build: Any, images: Tensor, method: str, training: bool) -> None:
    learner = build(method, CASES[method].settings).train(training)
    batch = output_of(learner, images)
    for row in range(len(images)):
        same(output_of(learner, images[row : row + 1]), batch.rows(slice(row, row + 1)))


@every_method
def test_reference_images_in_the_same_pass_change_no_loss(
    build: Any, images: Tensor, labels: Tensor, method: str
) -> None:
    learner = build(method, CASES[method].settings)
    together = output_of(learner, images).rows(slice(0, 2))
    alone = output_of(learner, images[:2])
    near(learner.loss(together, labels[:2]), learner.loss(alone, labels[:2]))


@every_method
def test_modes_differ_only_where_the_method_says(build: Any, images: Tensor, method: str) -> None:
    case = CASES[method]
    learner = build(method, case.settings)
    training, evaluating = learner.train()(images), learner.eval()(images)
    assert training.per_image.keys() - evaluating.per_image.keys() == case.training_clouds
    if not case.noisy_training:
        kept = {name: cloud for name, cloud in training.per_image.items() if name not in case.training_clouds}
        same(replace(training, per_image=kept), evaluating)
    same(learner.eval()(images), evaluating)


@learned
def test_gradients_lie_in_memory_as_parameters_do(build: Any, images: Tensor, labels: Tensor, method: str) -> None:
    """Otherwise an optimizer moves each parameter separately, which on a GPU takes a kernel for each."""
    learner = build(method).train()
    parameters = [p for p in learner.parameters() if p.requires_grad]
    loss = learner.loss(learner(images), labels)
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        assert gradient is None or gradient.stride() == p.stride()


@learned
def test_repels_where_its_parameters_act(build: Any, images: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings)
    assert learner.repels_in is not None
    cloud = learner(images).cloud(learner.repels_in)
    assert cloud.dim() == 2
    parameters = [p for p in learner.parameters() if p.requires_grad]
    found = torch.autograd.grad(cloud.square().sum() + cloud.sum(), parameters, allow_unused=True)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in found)


@every_method
def test_training_draws_from_the_stream_that_was_given(build: Any, images: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings)

    def logits(seed: int) -> Tensor:
        learner.use_noise(torch.Generator().manual_seed(seed))
        return learner(images).logits

    assert torch.equal(logits(1), logits(1))
    assert torch.equal(logits(1), logits(2)) != (method in ("proda", "bpl", "vamp"))


@learned
@pytest.mark.parametrize("conditional", [False, True])
def test_says_whether_its_space_has_a_row_per_image(build: Any, images: Tensor, method: str, conditional: bool) -> None:
    if conditional and method != "bpl":
        return
    learner = build(method, {**CASES[method].settings, **({"conditional": True} if conditional else {})})
    output: Output = learner(images)
    assert (learner.repels_in in output.per_image) == learner.repels_per_image
    assert (learner.repels_in in output.per_class) != learner.repels_per_image


# What is computed once


@pytest.mark.parametrize("method", ["cocoop", "proda", "bpl", "vamp", "app"])
def test_passes_over_few_sequences_change_nothing(
    build: Any, images: Tensor, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = build(method, CASES[method].settings).eval()
    whole = learner(images)
    for sequences in (1, 5, 8):
        monkeypatch.setattr("rebapl.learners.base.SEQUENCES", sequences)
        same(learner(images), whole)


@every_method
def test_cutting_text_changes_nothing(build: Any, images: Tensor, method: str) -> None:
    full = small_clip.small_encoder(tokenizer=small_clip.Untruncated)
    assert full.tokenize([["a cat"]]).ids.shape == (1, small_clip.LIMIT)
    cut, uncut = (build(method, CASES[method].settings, **extra) for extra in ({}, {"backbone": full}))
    same(output_of(cut, images), output_of(uncut, images))


@every_method
def test_samples_share_what_is_frozen(build: Any, images: Tensor, method: str) -> None:
    learner = build(method, CASES[method].settings).eval()
    frozen = learner.frozen(images)
    assert not any(
        leaf.requires_grad
        for leaf in tree_leaves(vars(frozen) if hasattr(frozen, "layer") else frozen)
        if isinstance(leaf, Tensor)
    )
    for seed in (7, 8):
        generator = torch.Generator().manual_seed(seed)
        sample = {
            name: x.detach() + 0.1 * torch.randn(x.shape, generator=generator) for name, x in learner.named_parameters()
        }
        shared = call_at(learner, sample, lambda it: it.respond(frozen, it.encode_classes()))
        anew = build(method, CASES[method].settings).eval()
        anew.shape_like({name: value.shape for name, value in sample.items()})
        anew.load_state_dict(sample)
        same(shared, anew(images))
