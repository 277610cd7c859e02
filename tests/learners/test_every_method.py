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
from rebapl.learners import METHODS, Output, build_learner
from rebapl.posterior.per_sample import at_sample

every_method = pytest.mark.parametrize("method", METHODS)
learned = pytest.mark.parametrize("method", [method for method in METHODS if method != "zero-shot"])


def near(given: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(given, expected, atol=tolerance, rtol=tolerance)


def same(given: Output, expected: Output, tolerance: float = 1e-5) -> None:
    near(given.logits, expected.logits, tolerance)
    for ours, theirs in ((given.per_image, expected.per_image), (given.per_class, expected.per_class)):
        assert ours.keys() == theirs.keys()
        for name, cloud in ours.items():
            near(cloud, theirs[name], tolerance)


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
        assert parameter.requires_grad, name
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

    first, again, other = start(5), start(5), start(6)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(bool(a.isfinite().all()) for a in first)
    assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True)) != CASES[method].random_start


@every_method
def test_building_and_resetting_leave_the_global_random_state_alone(build: Any, method: str) -> None:
    before = torch.get_rng_state()
    build(method).reset(torch.Generator().manual_seed(5))
    assert torch.equal(torch.get_rng_state(), before)


@every_method
def test_unknown_settings_are_refused(build: Any, method: str) -> None:
    with pytest.raises(UserError, match="tokenz"):
        build(method, {"tokenz": 3})


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
    if not parameters:
        return
    loss.backward()
    expected_loss.backward()
    for name, parameter in learner.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
        near(parameter.grad, parameters[name].grad, 1e-4)


@every_method
def test_the_last_layers_compute_only_what_is_read(
    build: Any, encoder: DualEncoder, images: Tensor, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the numbers are those of all positions, the test above says."""
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
    assert [p.data_ptr() for p in bound.parameters()] == [p.data_ptr() for p in learner.parameters()]
    anew = build(method, CASES[method].settings, others)
    anew.load_state_dict(learner.state_dict())
    same_features(output_of(bound, images), output_of(anew, images))
    same(output_of(learner, images), before)
    near(learner.loss(before, labels), loss_before)
    assert not torch.allclose(output_of(bound, images).logits, before.logits, atol=1e-3)


def same_features(given: Output, expected: Output) -> None:
    """The same but for the logits, which may be others for classes that were not trained on."""
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
def test_a_deep_copy_has_its_own_parameters_and_the_same_backbone(build: Any, method: str) -> None:
    learner = build(method, CASES[method].settings)
    other = copy.deepcopy(learner)
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
    """Else an optimizer moves each parameter by itself, and on a GPU that is a kernel for each."""
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
    found = torch.autograd.grad(cloud.square().sum() + cloud.sum(), list(learner.parameters()), allow_unused=True)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in found)


# What is computed once


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
        call = at_sample(learner, sample)
        shared = call("respond", frozen, call("encode_classes"))
        anew = build(method, CASES[method].settings).eval()
        anew.load_state_dict(sample)
        same(shared, anew(images))
