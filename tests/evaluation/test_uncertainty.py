"""What a run says about its uncertainty: weights and threshold from validation images, outside images, diversity."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from small_run import CONFIG

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.data.batches import LabelledImages
from rebapl.data.task import Task, load_task
from rebapl.errors import UserError
from rebapl.evaluation import Diversity, tasks
from rebapl.evaluation.outside import outside_scores
from rebapl.evaluation.tasks import diversity_on_test, fit_on_validation, part_labels, score_outside
from rebapl.posterior import Posterior, load_posterior
from rebapl.reports.figures import diversity_figure
from rebapl.runs.config import RunConfig
from rebapl.runs.run import evaluate_run, run
from rebapl.training.fit import fit


@pytest.fixture(scope="module")
def config(nano: Path) -> RunConfig:
    return CONFIG.changed(backbone=str(nano))


@pytest.fixture(scope="module")
def encoder(nano: Path) -> DualEncoder:
    return load_backbone(nano)


@pytest.fixture(scope="module")
def task(config: RunConfig) -> Task:
    return config.task()


@pytest.fixture(scope="module")
def posterior(encoder: DualEncoder, task: Task) -> Posterior:
    return fit(task, encoder, "maple", "ensemble", epochs=1, inference_settings={"cycles": 2})


def test_weights_make_the_validation_images_more_likely(posterior: Posterior, task: Task) -> None:
    data = LabelledImages(task.dataset, task.val.items)
    views = data.views(posterior.learner.encoder.preprocessing)
    fitted = fit_on_validation(posterior, task, {"weights": {}, "threshold": {"coverage": 0.5}})
    before, after = (
        each.predict_views(views).probabilities.gather(1, data.labels[:, None]).log().mean()
        for each in (posterior, fitted)
    )
    assert after >= before - 1e-6
    assert fitted.weights.sum().item() == pytest.approx(1, abs=1e-5)
    assert fitted.threshold is not None
    assert fitted.threshold.images == len(data)
    assert torch.equal(posterior.weights, torch.full((2,), 0.5))  # the given one stays


def test_validation_images_are_read_in_portions(
    posterior: Posterior, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kinds of fits, with the choices that fits on all views at once make."""
    original, sizes = tasks.part_views, []

    def counted(*arguments: Any) -> torch.Tensor:
        views = original(*arguments)
        sizes.append(len(views))
        return views

    monkeypatch.setattr(tasks, "part_views", counted)
    monkeypatch.setattr(tasks, "CHUNK", 3)
    images = len(task.val.items)
    assert images > 3
    fits = {
        "weights": {},
        "temperature": {},
        "threshold": {"coverage": 0.5},
        "conformal": {"level": 0.6},
        "outside": {"by": "neighbours", "rate": 0.4},
    }
    fitted = fit_on_validation(posterior, task, fits)
    assert max(sizes) == 3
    assert sum(sizes) == len(fits) * images
    views, labels = original(posterior, task.val), part_labels(task.val)
    train = (original(posterior, task.train), part_labels(task.train))
    whole = posterior.fit_weights(views, labels).fit_temperature(views, labels)
    whole = whole.fit_threshold(views, labels, coverage=0.5).fit_conformal(views, labels, 0.6)
    whole = whole.fit_outside(views, "neighbours", 0.4, train)
    torch.testing.assert_close(fitted.weights, whole.weights, atol=1e-4, rtol=0)
    assert fitted.temperature.value == pytest.approx(whole.temperature.value, rel=1e-3)
    for name in ("threshold", "outside"):
        found, expected = getattr(fitted, name), getattr(whole, name)
        assert (found.value, found.images) == (pytest.approx(expected.value, rel=1e-3), images)
    assert fitted.conformal.quantile == pytest.approx(whole.conformal.quantile, rel=1e-3)


def test_outside_images_are_predicted_among_the_trained_classes(posterior: Posterior, task: Task) -> None:
    found = score_outside(posterior, task, ["novel"])["novel"]
    inside, outside = (
        posterior.bind(task.train.class_names).predict_views(
            LabelledImages(task.dataset, task.tests[part].items).views(posterior.learner.encoder.preprocessing)
        )
        for part in ("base", "novel")
    )
    assert found["entropy"] == outside_scores(inside.predictive_entropy, outside.predictive_entropy)
    assert found["mutual-information"] == outside_scores(inside.mutual_information, outside.mutual_information)


def test_another_data_set_can_be_the_outside(encoder: DualEncoder) -> None:
    digits = load_task("digits", protocol="few-shot", test_images=40)
    found = score_outside(fit(digits, encoder, "zero-shot"), digits, ["letters", "shapes"])
    assert found.keys() == {"letters", "shapes"}
    assert all(0 <= scores["max-probability"]["auroc"] <= 100 for scores in found.values())


@pytest.mark.parametrize("outside", ["base", "digits"])
def test_the_inside_is_no_outside(posterior: Posterior, task: Task, outside: str) -> None:
    with pytest.raises(UserError, match="is no outside"):
        score_outside(posterior, task, [outside])


def test_an_unknown_outside_is_refused(posterior: Posterior, task: Task) -> None:
    with pytest.raises(UserError, match="did you mean 'letters'"):
        score_outside(posterior, task, ["novel", "leters"])


def test_without_validation_images_nothing_is_fitted(posterior: Posterior, task: Task) -> None:
    bare = dataclasses.replace(task, val=dataclasses.replace(task.val, items=[]))
    with pytest.raises(UserError, match="no validation images"):
        fit_on_validation(posterior, bare, {"weights": {}})


def test_the_heat_map_is_drawn(posterior: Posterior, task: Task, tmp_path: Path) -> None:
    record = diversity_on_test(posterior, task).as_json()
    assert record["space"] == "image"
    assert record["mean_distance"] == pytest.approx(record["distance"][0][1])
    path = diversity_figure(Diversity(**json.loads(json.dumps(record))), tmp_path / "d" / "diversity.png")
    with Image.open(path) as image:
        assert image.width > 800


def test_a_run_is_evaluated_with_what_was_fitted_and_keeps_it(config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(config, out, device="cpu", score=False)
    plain = evaluate_run(out, device="cpu")
    assert len(plain.parts["base"].per_sample) == 2
    assert plain.diversity.effective_by_weights == pytest.approx(2)
    fitted = evaluate_run(
        out,
        device="cpu",
        config=config.changed(outside=("novel",)),
        fits={"threshold": {"risk": 0.9, "confidence": 0, "by": "entropy"}, "weights": {}},
    )
    assert fitted.outside["novel"].keys() >= {"entropy", "mutual-information"}
    loaded = load_posterior(out)
    assert loaded.threshold is not None
    assert loaded.threshold.by == "entropy"
    assert fitted.diversity.effective_by_weights == pytest.approx(1 / loaded.weights.square().sum().item(), 1e-4)
    again = evaluate_run(out, device="cpu")
    assert again.parts == fitted.parts
    assert torch.equal(load_posterior(out / "posterior").weights, loaded.weights)
    assert load_posterior(out, config.backbone_name).class_names == loaded.class_names


def test_what_is_no_trained_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run or posterior"):
        load_posterior(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a posterior"):
        load_posterior(tmp_path)
    (tmp_path / "config.json").write_text('{"data": "digits", "backbone": "mini"}')
    with pytest.raises(UserError, match="not trained yet"):
        load_posterior(tmp_path)
