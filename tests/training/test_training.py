"""From a task to a posterior and its scores, on the embedded backbone."""

from pathlib import Path

import pytest
import torch

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.data.task import Task, load_task
from rebapl.errors import UserError
from rebapl.evaluation.tasks import evaluate
from rebapl.learners import METHODS
from rebapl.posterior import load_posterior, save_posterior
from rebapl.sampling import PRESETS, Chain
from rebapl.training import fit as training
from rebapl.training.fit import Training, fit


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_backbone("mini")


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("digits", shots=2, seed=1, test_images=20)


def repels_in_both(method: str) -> bool:
    """The released code compares image and text features together, which a method without common text has not."""
    return method != "cocoop"


@pytest.mark.parametrize("inference", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_under_every_inference_saves_loads_and_predicts_the_same(
    encoder: DualEncoder, task: Task, tmp_path: Path, method: str, inference: str
) -> None:
    cycles = {} if inference in ("mle", "sgld", "sghmc", "svgd") else {"cycles": 2}
    settings = {"batch": 5, "averaging": None, "samples_per_cycle": 1, **cycles}
    if PRESETS[inference].keys() & {"repulsion.metric", "repulsion.reference"}:
        settings["repulsion"] = {"reference": 4, "pool": 6}
    if inference == "rebapl-authors" and not repels_in_both(method):
        with pytest.raises(UserError, match="both"):
            fit(task, encoder, method, inference, epochs=1, inference_settings=settings)
        return
    posterior = fit(task, encoder, method, inference, epochs=1, inference_settings=settings)
    views = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = posterior.probabilities(views)
    save_posterior(posterior, tmp_path / "posterior")
    again = load_posterior(tmp_path / "posterior", encoder)
    assert torch.equal(again.probabilities(views), expected)
    assert torch.allclose(expected.sum(-1), torch.ones(3), atol=1e-5)


def test_a_resumed_training_equals_an_uninterrupted_one(
    encoder: DualEncoder, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"inference_settings": {"cycles": 2, "repulsion": {"reference": 4, "pool": 6}}, "epochs": 3}
    whole = fit(task, encoder, "maple", "rebapl", **settings)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    step, stops = Chain.step, 7

    def interrupted(chain: Chain) -> object:
        if chain.steps_done == stops:
            raise KeyboardInterrupt
        return step(chain)

    monkeypatch.setattr(Chain, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(task, encoder, "maple", "rebapl", checkpoint=tmp_path / "c", **settings)
    monkeypatch.setattr(Chain, "step", step)
    resumed = Training(task, encoder, "maple", "rebapl", **settings)
    seen: list[int] = []
    posterior = resumed.run(tmp_path / "c", lambda done, *_: seen.append(done))
    assert seen[0] == stops + 1
    for name, stack in whole.samples.items():
        assert torch.equal(posterior.samples[name], stack)


def test_the_same_seed_gives_the_same_and_another_does_not(encoder: DualEncoder, task: Task) -> None:
    first, again, other = (fit(task, encoder, "vpt", epochs=1, seed=seed).samples for seed in (1, 1, 2))
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
    drawn = load_task(data, protocol="few-shot", test_images=260)
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
        ({"inference_settings": {"lrr": 1}}, "did you mean 'lr'"),
        ({"epochs": 0}, "epochs is 0"),
    ],
)
def test_bad_settings_are_refused_before_any_work(
    encoder: DualEncoder, task: Task, arguments: dict, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Training(task, encoder, **arguments)


def test_the_released_code_compares_augmented_views_and_averages_logits(encoder: DualEncoder, task: Task) -> None:
    settings = {"epochs": 1, "inference_settings": {"cycles": 2, "repulsion.pool": 6, "batch": 5}}
    run = Training(task, encoder, "maple", "rebapl-authors", **settings)
    chain = run.chain
    assert isinstance(chain, Chain)
    pool = chain.reference.pool
    assert pool is not None
    assert torch.equal(pool, torch.cat([chain.batches(step)[0] for step in range(2)])[:6])
    posterior = run.run()
    views = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(posterior.probabilities(views), posterior.sample_logits(views).mean(0).softmax(-1), atol=1e-6)
    explicit = posterior.predict_views(views, average="probabilities").probabilities
    assert torch.allclose(explicit, posterior.sample_logits(views).softmax(-1).mean(0), atol=1e-6)
