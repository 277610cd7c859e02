"""Scores of parts: in portions, and on other data sets with the settings that are published for these."""

import dataclasses
from typing import Any

import pytest
import torch

from rebapl.backbones import DualEncoder
from rebapl.data.dataset import Dataset
from rebapl.data.task import Part, Task, load_task
from rebapl.errors import UserError
from rebapl.evaluation import SCORES
from rebapl.evaluation import tasks as scoring
from rebapl.evaluation.tasks import (
    bound_to,
    diversity_on_test,
    evaluate,
    part_views,
    predict_part,
    target_settings,
)
from rebapl.posterior import per_sample
from rebapl.posterior.temperature import PRIOR, fit_temperature
from rebapl.training.fit import fit


def named(dataset: Dataset, name: str) -> Dataset:
    return dataclasses.replace(dataset, name=name)


def imagenet_like() -> Task:
    """Trained on drawn images named ImageNet, tested on other drawn images named EuroSAT."""
    task = load_task("digits", shots=2, protocol="cross-dataset", targets=["shapes"], test_images=20)
    source, shapes = named(task.dataset, "imagenet"), task.tests["shapes"]
    target = Part(shapes.class_names, shapes.items, named(shapes.dataset, "eurosat"))
    own = {name: dataclasses.replace(getattr(task, name), dataset=source) for name in ("train", "val")}
    tests = {"test": dataclasses.replace(task.tests["test"], dataset=source), "eurosat": target}
    return dataclasses.replace(task, dataset=source, tests=tests, **own)


def test_mmrl_plus_predicts_a_target_with_the_target_s_mix(encoder: DualEncoder) -> None:
    task = imagenet_like()
    posterior = fit(task, encoder, "mmrl++", epochs=1)
    assert posterior.learner.config.mix == 0.9  # type: ignore[attr-defined]
    bound = bound_to(posterior, task, task.tests["eurosat"])
    assert bound.learner.config.mix == 0.3  # type: ignore[attr-defined]
    assert bound.learner.transfer
    assert not bound_to(posterior, task, task.tests["test"]).learner.transfer
    scores = evaluate(posterior, task)
    assert scores["eurosat"]["target_settings"] == {"mix": 0.3}
    assert "target_settings" not in scores["test"]
    # the samples are those trained: by hand, the same parameters in a learner of that mix
    views = part_views(posterior, task.tests["eurosat"])
    other = fit(task, encoder, "mmrl++", epochs=1, method_settings={"mix": 0.3}).learner
    other.load_state_dict({name: stack[0] for name, stack in posterior.samples.items()}, strict=False)
    part = task.tests["eurosat"]
    with torch.no_grad():
        images = encoder.preprocessing.normalize(views)
        expected = other.bind(part.class_names, part.dataset.template, transfer=True)(images).logits.softmax(-1)
    torch.testing.assert_close(predict_part(bound, part).probabilities, expected, rtol=1e-4, atol=1e-5)


def test_a_setting_that_was_given_stays_on_every_target() -> None:
    arguments = ("cross-dataset", "imagenet", "eurosat")
    assert target_settings("mmrl++", {"mix": 0.9, "consistency": 0.1}, *arguments) == {"mix": 0.3}
    assert target_settings("mmrl++", {"mix": 0.5, "consistency": 0.1}, *arguments) == {}
    assert target_settings("maple", {}, *arguments) == {}
    assert target_settings("mmrl++", {"mix": 0.9}, "few-shot", "imagenet", "eurosat") == {}


def test_portions_change_nothing(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("digits", shots=2, test_images=20)
    posterior = fit(task, encoder, "vpt", "ensemble", epochs=1, inference_settings={"cycles": 2})
    whole = evaluate(posterior, task)
    monkeypatch.setattr(scoring, "CHUNK", 7)
    portions = evaluate(posterior, task)
    assert portions["base"]["images"] == whole["base"]["images"] == 20
    assert portions["novel"]["accuracy"] == whole["novel"]["accuracy"]
    assert portions["novel"]["nll"] == pytest.approx(whole["novel"]["nll"], rel=1e-5)
    assert list(evaluate(posterior, task, ["novel"])) == ["novel"]
    assert whole.novel.accuracy == whole.to_dict()["novel"]["accuracy"]
    assert len(repr(whole).splitlines()) == 4, "a head, two parts and the harmonic mean"


def test_scores_at_a_temperature_are_fitted_without_a_prior(encoder: DualEncoder) -> None:
    """Otherwise posteriors that are compared at τ would be held near 1 by the number of their validation images."""
    task = load_task("digits", shots=2, seed=1, test_images=10)
    posterior = fit(task, encoder, method="zero-shot")
    validation = scoring.predict_part(posterior, task.val).probabilities
    labels = scoring.part_labels(task.val)
    part = evaluate(posterior, task, ["base"]).base
    assert part.temperature == fit_temperature(validation, labels) != fit_temperature(validation, labels, PRIOR)


def test_a_new_score_is_one_entry(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("digits", shots=2, test_images=20)
    monkeypatch.setitem(SCORES, "right", lambda probabilities, labels: probabilities.gather(1, labels[:, None]).mean())
    scored = evaluate(fit(task, encoder, "zero-shot"), task, ["base"])["base"]
    assert scored["right"] == scored["per_sample"][0]["right"] > 0


def test_a_task_without_test_images_is_told(encoder: DualEncoder) -> None:
    task = load_task("digits", shots=2, test_images=20)
    posterior = fit(task, encoder, "vpt", "ensemble", epochs=1, inference_settings={"cycles": 2})
    with pytest.raises(UserError, match="no test images to compare samples on"):
        diversity_on_test(posterior, dataclasses.replace(task, tests={}))


def test_the_texts_of_all_parts_of_the_same_names_are_encoded_once(
    encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task("digits", shots=2, test_images=20)

    def written(part: Part) -> Part:
        """With the underscores that names in published lists have; texts have spaces instead."""
        return dataclasses.replace(part, class_names=[f"the_{name}" for name in part.class_names])

    tests = {name: written(part) for name, part in task.tests.items()}
    task = dataclasses.replace(task, train=written(task.train), val=written(task.val), tests=tests)
    posterior = fit(task, encoder, "vpt", "ensemble", epochs=1, inference_settings={"cycles": 2})
    encoded: list[list[str]] = []
    original = per_sample.encode_classes

    def counted(learner: Any, samples: Any) -> Any:
        encoded.append(learner.class_names)
        return original(learner, samples)

    monkeypatch.setattr(per_sample, "encode_classes", counted)
    diversity_on_test(posterior, task)
    evaluate(posterior, task)
    assert [names[0] for names in encoded] == ["the zero", "the five"]


def test_scores_average_what_the_inference_says(encoder: DualEncoder) -> None:
    task = load_task("digits", shots=2, test_images=20)
    posterior = fit(task, encoder, "vpt", "ensemble", epochs=1, inference_settings={"cycles": 2})
    about = {**posterior.about, "inference": {**posterior.about["inference"], "average": "logits"}}
    logits = dataclasses.replace(posterior, about=about)
    part = task.tests["base"]
    expected = posterior.sample_logits(part_views(posterior, part)).mean(0).softmax(-1)
    torch.testing.assert_close(predict_part(logits, part).probabilities, expected, atol=1e-6, rtol=1e-5)


def test_a_target_is_predicted_among_its_own_names_in_its_own_template(encoder: DualEncoder) -> None:
    task = load_task("digits", shots=2, protocol="cross-dataset", targets=["shapes"], test_images=60)
    transferred = evaluate(fit(task, encoder, "zero-shot"), task)["shapes"]
    there = load_task("shapes", shots=2, protocol="few-shot", test_images=60)
    own = evaluate(fit(there, encoder, "zero-shot"), there)["test"]
    assert transferred["accuracy"] == own["accuracy"]
    assert transferred["nll"] == pytest.approx(own["nll"], rel=1e-6)
