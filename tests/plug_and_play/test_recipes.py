"""The recipes of docs/plug-and-play.md, run as they stand there."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pages import blocks, run_code

from rebapl.data.catalogue import DATASETS
from rebapl.errors import UserError
from rebapl.learners import METHODS, published
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.repulsion import DISTANCES
from rebapl.sampling import PRESETS

PAGE = "docs/plug-and-play.md"


def run(heading: str, count: int = 3) -> dict[str, Any]:
    """The names that the first blocks below a heading of the page leave; each recipe has three."""
    found = blocks(PAGE, heading)
    assert len(found) == 3, heading
    return run_code("\n".join(found[:count]), PAGE)


@pytest.fixture(scope="module")
def learner_recipe() -> Iterator[dict[str, Any]]:
    before = dict(METHODS)
    yield run("A learner of your own")
    METHODS.known.clear()
    METHODS.known.update(before)


class TestALearnerOfYourOwn:
    def test_every_cycle_gives_another_sample(self, learner_recipe: dict[str, Any]) -> None:
        shifts = learner_recipe["posterior"].samples["shift"]
        assert list(learner_recipe["posterior"].samples) == ["shift"]
        assert len(shifts) == 4  # two chains of two cycles
        assert torch.pdist(shifts).min() > 1e-3

    def test_samples_fit_the_data_better_than_the_start(self, learner_recipe: dict[str, Any]) -> None:
        learner, posterior = learner_recipe["learner"], learner_recipe["posterior"]
        images, labels = learner_recipe["images"], learner_recipe["labels"]
        with torch.no_grad():
            learner.reset(torch.Generator().manual_seed(0))
            before = learner.loss(learner(images), labels)
            for shift in posterior.samples["shift"]:
                learner.shift.copy_(shift)
                assert learner.loss(learner(images), labels) < before

    def test_it_is_known_by_name_with_its_settings_and_recipe(self, learner_recipe: dict[str, Any]) -> None:
        assert learner_recipe["learner"].method == "feature-shift"
        assert METHODS["feature-shift"].learner is learner_recipe["FeatureShift"]
        settings, recipe = published("feature-shift", "few-shot", "digits")
        assert (settings, recipe.lr, recipe.epochs) == ({}, 0.01, 5)
        with pytest.raises(UserError, match=r"method\.smoothing is 2: it must be below 1"):
            METHODS.find("feature-shift").settings({"smoothing": 2})

    def test_a_posterior_of_it_is_saved_and_loaded(self, learner_recipe: dict[str, Any], tmp_path: Path) -> None:
        learner, views = learner_recipe["learner"], learner_recipe["views"][:4]
        about = {"method": learner.method, "method_settings": learner.config.plain(), "seed": 1, "data": "digits"}
        samples = [{"shift": shift} for shift in learner_recipe["posterior"].samples["shift"]]
        posterior = Posterior.of(learner, samples, {**about, "inference": {"name": "rebapl"}})
        loaded = load_posterior(save_posterior(posterior, tmp_path / "own"), learner_recipe["encoder"])
        assert type(loaded.learner) is learner_recipe["FeatureShift"]
        assert torch.equal(loaded.predict_views(views).probabilities, posterior.predict_views(views).probabilities)


@pytest.fixture(scope="module")
def named_recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    before = dict(DISTANCES.known), dict(PRESETS.known), dict(DATASETS.known)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("named"))
        yield run("A distance, a preset and a data set of your own")
    for known, old in zip((DISTANCES.known, PRESETS.known, DATASETS.known), before, strict=True):
        known.clear()
        known.update(old)


class TestADistanceAPresetAndADataSetOfYourOwn:
    def test_all_three_are_used_by_name(self, named_recipe: dict[str, Any]) -> None:
        posterior = named_recipe["posterior"]
        assert (posterior.about["data"], posterior.class_names) == ("colours", ["red", "green", "blue", "yellow"])
        assert len(posterior) == 2
        assert posterior.about["inference"]["name"] == "short-rebapl"
        assert posterior.about["inference"]["repulsion"]["distance"] == {"kind": "mean-shift"}

    def test_the_distance_is_that_between_the_means(self, named_recipe: dict[str, Any]) -> None:
        x, clouds = torch.randn(5, 3), torch.randn(2, 4, 3)
        stored = SimpleNamespace(cloud=clouds)
        expected = [(x.mean(0) - cloud.mean(0)).norm() ** 2 for cloud in clouds]
        torch.testing.assert_close(named_recipe["mean_shift"](x, stored), torch.stack(expected))


def run_prompt_recipe(count: int) -> dict[str, Any]:
    """The first `count` blocks of the second recipe; the language model and its sentences are the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return run("A model outside this package", count)


@pytest.fixture(scope="module")
def prompt_recipe() -> dict[str, Any]:
    pytest.importorskip("peft", reason="the recipe for soft prompts of language models needs peft")
    return run_prompt_recipe(3)


class TestAModelOutsideThisPackage:
    def test_only_the_prompt_is_sampled(self, prompt_recipe: dict[str, Any]) -> None:
        (prompt,) = prompt_recipe["prompt"]
        assert prompt.shape == (4, 32)
        assert all(p.grad is None for p in prompt_recipe["language_model"].parameters())

    def test_every_cycle_gives_another_sample(self, prompt_recipe: dict[str, Any]) -> None:
        samples = torch.stack([sample for (sample,) in prompt_recipe["samples"]]).flatten(1)
        assert len(samples) == 3
        assert samples.isfinite().all()
        assert torch.pdist(samples).min() > 0.1

    def test_samples_fit_the_data_better_than_the_start(self, prompt_recipe: dict[str, Any]) -> None:
        start = run_prompt_recipe(1)
        data, model = start["data"], start["model"]
        with torch.no_grad():
            before = model(input_ids=data, labels=data).loss
            for (sample,) in prompt_recipe["samples"]:
                start["prompt"][0].copy_(sample)
                assert model(input_ids=data, labels=data).loss < before - 1

    def test_prediction_averages_the_samples(self, prompt_recipe: dict[str, Any]) -> None:
        found = prompt_recipe["next_token"](prompt_recipe["data"])
        assert found.shape == (40, 20)
        torch.testing.assert_close(found.sum(1), torch.ones(40))
        assert found[:, :5].sum(1).mean() > 0.4, "the five words of the data; a quarter would be chance"
        with torch.no_grad():
            last = prompt_recipe["model"](input_ids=prompt_recipe["data"]).logits[:, -1].softmax(-1)
        assert not torch.allclose(found, last, atol=1e-4), "the last sample alone is not the average"
