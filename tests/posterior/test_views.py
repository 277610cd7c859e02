"""Test-time augmentation: answers are means over views, which are the same for every image."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_run import CONFIG
from torch import Tensor

from rebapl.backbones import load_backbone
from rebapl.data.batches import LabelledImages
from rebapl.errors import UserError
from rebapl.evaluation.scores import scores
from rebapl.evaluation.tasks import evaluate, part_labels
from rebapl.posterior import load_posterior, save_posterior
from rebapl.posterior.views import LEAST, mean_over_views, several_views
from rebapl.runs.results import read_result
from rebapl.runs.run import evaluate_run, run
from rebapl.training.fit import fit


def test_a_mean_of_probabilities() -> None:
    logits = torch.randn(2, 3 * 4, 5, generator=torch.Generator().manual_seed(0))
    found = mean_over_views(logits, 3)
    plain = np.exp(logits.double().numpy())
    plain /= plain.sum(-1, keepdims=True)
    expected = (plain[:, :4] + plain[:, 4:8] + plain[:, 8:]) / 3
    assert found.exp().numpy() == pytest.approx(expected, rel=1e-5)


def test_the_first_view_is_the_image_and_the_others_are_enlarged_crops() -> None:
    rows = torch.arange(64, dtype=torch.uint8)[:, None].expand(64, 64)
    ramp = torch.stack([2 * rows, 2 * rows.T, torch.full_like(rows, 9)])[None]
    first, *others = several_views(ramp, 5)
    assert torch.equal(first, ramp)
    assert all(view.shape == ramp.shape and view.dtype == torch.uint8 for view in others)
    for view in others:
        # the ramps say which part of the picture is seen: height times width is a share of the area
        height, width = (int(channel.max()) - int(channel.min()) for channel in view[0, :2])
        assert LEAST - 0.06 <= height * width / 126**2 <= 1
        assert (view[0, 2] == 9).all()
    assert len({tuple(view.flatten().tolist()) for view in others}) == 4


def test_a_posterior_answers_with_the_mean_over_its_views(make: Any, views: Tensor) -> None:
    posterior = make("maple", 2)
    several = posterior.with_views(3)
    each = torch.stack([posterior.predict_views(view).per_sample for view in several_views(views, 3)])
    found = several.predict_views(views)
    torch.testing.assert_close(found.per_sample, each.mean(0), rtol=1e-4, atol=1e-6)
    alone = several.predict_views(views[1:2]).probabilities
    torch.testing.assert_close(alone, found.probabilities[1:2], rtol=1e-4, atol=1e-6)
    assert several.fingerprint != posterior.fingerprint
    assert several.with_views(3) is several
    chosen = posterior.fit_outside(views, "entropy", rate=0.5)
    assert (chosen.outside is None, chosen.with_views(3).outside) == (False, None)
    with pytest.raises(UserError, match="at least one view"):
        posterior.with_views(0)
    with pytest.raises(UserError, match="3 views of each image, and an exported one sees one"):
        several.export("x.onnx")


def test_what_was_chosen_for_one_view_does_not_stay_with_several(make: Any, views: Tensor) -> None:
    labels = torch.arange(len(views)) % 2
    fitted = make("coop", 2).with_temperature(2.0)
    fitted = fitted.fit_threshold(views, labels, coverage=0.9).fit_outside(views, "entropy", rate=0.9)
    several = fitted.with_views(2)
    assert (several.temperature, several.threshold, several.outside) == (None, None, None)
    assert fitted.with_views(1) is fitted


def test_a_method_on_frozen_features_is_scored_on_several_views_of_the_pixels(nano: Path) -> None:
    task = CONFIG.task()
    posterior = fit(task, load_backbone(nano), "coop", "mle", epochs=1).with_views(2)
    part = task.tests["base"]
    pixels = LabelledImages(part.dataset, part.items).views(posterior.learner.encoder.preprocessing)
    expected = scores(posterior.predict_views(pixels).probabilities, part_labels(part))
    assert evaluate(posterior, task, ["base"])["base"]["nll"] == pytest.approx(expected["nll"], rel=1e-5)


def test_the_number_of_views_is_kept_on_disk(make: Any, views: Tensor, tmp_path: Path) -> None:
    several = make("coop", 2).with_views(2)
    save_posterior(several, tmp_path / "posterior")
    again = load_posterior(tmp_path / "posterior", several.learner.encoder)
    assert again.views == 2
    assert torch.equal(again.predict_views(views).probabilities, several.predict_views(views).probabilities)


@pytest.mark.parametrize("method", ["maple", "coop"])  # with one view, features of an image suffice coop
def test_evaluating_with_views_scores_the_run_anew(tmp_path: Path, method: str) -> None:
    config = CONFIG.changed(method=method, inference="tta", inference_settings={})
    out = run(config, tmp_path / "run", device="cpu")
    before = read_result(out)
    assert (before.views, load_posterior(out).views) == (3, 3)
    one = evaluate_run(out, device="cpu", views=1)
    assert (one.views, load_posterior(out).views) == (1, 1)
    assert one.parts["base"].nll != before.parts["base"].nll
    assert json.loads((out / "config.json").read_text())["resolved"]["inference"]["views"] == 3
    back = evaluate_run(out, device="cpu", views=3)
    assert back.parts["base"] == before.parts["base"]
