"""From a task to a posterior and its scores, on the embedded backbone."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.data.task import Task, load_task
from rebapl.errors import UserError
from rebapl.evaluation.tasks import evaluate
from rebapl.learners import METHODS, Learner, build_learner, published
from rebapl.posterior import load_posterior, save_posterior
from rebapl.sampling import PRESETS, Chain
from rebapl.sampling.presets import preset_values
from rebapl.training import ResolvedTraining, Training, fit, resolve_training


@pytest.fixture(scope="module")
def small(nano: Path) -> DualEncoder:
    """A small backbone, for tests that do not depend on how well a task is learned."""
    return load_backbone(nano)


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("digits", shots=2, seed=1, test_images=20)


def resolve(method: str, inference: str, task: Task, **settings: Any) -> ResolvedTraining:
    return resolve_training(
        method, inference, protocol=task.protocol, data=task.dataset.name, shots=task.shots, **settings
    )


def repels_in_both(method: str) -> bool:
    """The released code compares image and text features together.

    A method without common text has not both, and where only a cache of images learns, neither changes.
    """
    return method not in ("cocoop", "vamp", "tip-adapter-f")


def quick(method: str, inference: str) -> dict[str, Any]:
    """Settings with which an inference of this kind takes little time."""
    per_image = METHODS.find(method).learner.repels_per_image
    values = preset_values(inference, published(method, "base-to-novel", "digits")[1], method, per_image)
    settings: dict[str, Any] = {"batch": 5}
    if "cycles" in values and values["cycles"].value > 1:
        settings["cycles"] = 2
    if "chains" in values:
        settings["chains"] = 1
    if "averaging.mean" in values:
        settings["averaging"] = None
    if "sampler.samples_per_cycle" in values:
        settings["sampler.samples_per_cycle"] = 1
    if any(name.startswith("repulsion.") for name in values) and values["repulsion.images"].value is not None:
        settings["repulsion"] = {"images": 4, "pool": 6}
    return settings


@pytest.mark.parametrize("inference", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_under_every_inference_saves_loads_and_predicts_the_same(
    small: DualEncoder, task: Task, tmp_path: Path, method: str, inference: str
) -> None:
    if METHODS.find(method).learner.recipe.epochs == 0:  # most of an inference would do nothing
        with pytest.raises(UserError, match="learns nothing"):
            fit(task, small, method, inference, epochs=1)
        if inference not in ("mle", "tta", *(["laplace"] if method in ("gda", "proker") else [])):
            with pytest.raises(UserError, match=f"so '{inference}' would do nothing"):
                fit(task, small, method, inference)
            return
        posterior = fit(task, small, method, inference)
    else:
        settings = quick(method, inference)
        if inference == "rebapl-authors" and not repels_in_both(method):
            with pytest.raises(UserError, match=r"both|do not depend on the learned parameters"):
                fit(task, small, method, inference, epochs=1, inference_settings=settings)
            return
        posterior = fit(task, small, method, inference, epochs=1, inference_settings=settings)
    views = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = posterior.predict_views(views).probabilities
    save_posterior(posterior, tmp_path / "posterior")
    again = load_posterior(tmp_path / "posterior", small)
    assert torch.equal(again.predict_views(views).probabilities, expected)
    assert torch.allclose(expected.sum(-1), torch.ones(3), atol=1e-5)


def test_a_resumed_training_equals_an_uninterrupted_one(
    small: DualEncoder, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"inference_settings": {"cycles": 2, "repulsion": {"images": 4, "pool": 6}}, "epochs": 3}
    whole = fit(task, small, "maple", "rebapl", **settings)
    monkeypatch.setattr("rebapl.training.checkpoint.CHECKPOINT_SECONDS", 0)
    step, stops = Chain.step, 7

    def interrupted(chain: Chain) -> object:
        if chain.schedule.steps == stops:
            raise KeyboardInterrupt
        return step(chain)

    monkeypatch.setattr(Chain, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(task, small, "maple", "rebapl", checkpoint=tmp_path / "c", **settings)
    monkeypatch.setattr(Chain, "step", step)
    sketches = dataclasses.replace(task, dataset=dataclasses.replace(task.dataset, template="a sketch of a {}."))
    with pytest.raises(UserError, match="settings"):  # of other texts
        fit(sketches, small, "maple", "rebapl", checkpoint=tmp_path / "c", **settings)
    resumed = Training(task, small, resolve("maple", "rebapl", task, **settings), task.seed)
    seen: list[int] = []
    posterior = resumed.run(tmp_path / "c", lambda done, *_: seen.append(done))
    assert seen[0] == stops + 1
    for name, stack in whole.samples.items():
        assert torch.equal(posterior.samples[name], stack)


def test_a_cycle_too_short_for_swag_is_named_by_it(encoder: DualEncoder) -> None:
    with pytest.raises(UserError, match="swag has no step for a snapshot in cycles of 3 steps"):
        fit(load_task("digits", shots=1), encoder, "coop", "swag", epochs=1)


def test_the_same_seed_gives_the_same_and_another_does_not(small: DualEncoder, task: Task) -> None:
    first, again, other = (fit(task, small, "vpt", epochs=1, seed=seed).samples for seed in (1, 1, 2))
    name = next(iter(first))
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_zero_shot_needs_no_training_and_scores_far_above_chance(encoder: DualEncoder) -> None:
    """531 images: at a true 35 % the score is below 25 % with probability under 1e-6."""
    whole = load_task("digits", protocol="few-shot")
    posterior = fit(whole, encoder, "zero-shot", "none")
    result = evaluate(posterior, whole)["test"]
    assert len(posterior) == 1
    assert result["images"] == 531
    assert result["accuracy"] > 35


def test_sixteen_shots_beat_zero_shot_on_base_classes(encoder: DualEncoder) -> None:
    digits = load_task("digits", shots=16, seed=1)
    learned = evaluate(fit(digits, encoder, "maple", "mle", epochs=2), digits, ["base"])["base"]
    plain = evaluate(fit(digits, encoder, "zero-shot"), digits, ["base"])["base"]
    assert learned["accuracy"] > plain["accuracy"] + 4
    assert learned["nll"] < plain["nll"]


@pytest.mark.parametrize("data", ["shapes", "letters", "shapes-rotated"])
def test_zero_shot_leaves_room_on_drawn_tasks(encoder: DualEncoder, data: str) -> None:
    drawn = load_task(data, protocol="few-shot", test_images=130)
    accuracy = evaluate(fit(drawn, encoder, "zero-shot"), drawn)["test"]["accuracy"]
    low, high = {"shapes": (50, 90), "letters": (40, 85), "shapes-rotated": (20, 80)}[data]
    assert low < accuracy < high


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "cop"}, "did you mean 'coop'"),
        ({"inference": "mel"}, "did you mean 'mle'"),
        ({"method": "coop", "method_settings": {"token": 4}}, "did you mean 'tokens'"),
        ({"method": "maple", "method_settings": {"depth": 9}}, "5 layers"),
        ({"inference_settings": {"sampler.lrr": 1}}, r"inference\.sampler\.lrr: .* did you mean 'lr'"),
        ({"epochs": 0}, "epochs is 0"),
    ],
)
def test_bad_settings_are_refused_before_any_work(
    encoder: DualEncoder, task: Task, arguments: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Training] = []
    monkeypatch.setattr(Training, "run", lambda self, *_: trained.append(self))
    with pytest.raises(UserError, match=message):
        fit(task, encoder, **arguments)
    assert not trained


def test_what_a_setting_makes_of_a_method_decides_whether_images_are_compared(encoder: DualEncoder, task: Task) -> None:
    """BPL has a text per image only where its distribution is conditional on the image."""
    for conditional, images in ((False, None), (True, 32)):
        chosen = resolve("bpl", "rebapl", task, epochs=1, method_settings={"conditional": conditional})
        assert chosen.inference is not None
        assert chosen.inference.repulsion is not None
        assert chosen.inference.repulsion.images == images
        training = Training(task, encoder, chosen, task.seed)
        assert training.learner.repels_per_image == conditional


def test_a_learner_as_an_object_is_resolved_as_by_name(encoder: DualEncoder, task: Task) -> None:
    def learner(method: str) -> Learner[Any]:
        generator = torch.Generator().manual_seed(0)
        return build_learner(method, encoder, task.train.class_names, task.dataset.template, generator)

    with pytest.raises(UserError, match=r"^inference\.sampler\.lrr: "):
        fit(task, encoder, learner("coop"), inference_settings={"sampler.lrr": 1})
    with pytest.raises(UserError, match="learns nothing"):
        fit(task, encoder, learner("zero-shot"), epochs=1)


def test_the_released_code_compares_augmented_views_and_averages_logits(small: DualEncoder, task: Task) -> None:
    settings = {"epochs": 1, "inference_settings": {"cycles": 2, "repulsion": {"images": 6, "pool": 6}, "batch": 5}}
    run = Training(task, small, resolve("maple", "rebapl-authors", task, **settings), task.seed)
    chain = run.loop
    assert isinstance(chain, Chain)
    pool = chain.reference.images
    assert pool is not None
    assert torch.equal(pool, torch.cat([chain.batches(step)[0] for step in range(2)])[:6])
    posterior = run.run()
    views = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(
        posterior.predict_views(views).probabilities, posterior.sample_logits(views).mean(0).softmax(-1), atol=1e-6
    )
    explicit = posterior.predict_views(views, average="probabilities").probabilities
    assert torch.allclose(explicit, posterior.sample_logits(views).softmax(-1).mean(0), atol=1e-6)
