"""The temperature compared with a grid, SciPy's prior and plain loops, and how a posterior keeps it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax
from scipy.stats import gamma
from sklearn.metrics import log_loss
from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior import load_posterior, save_posterior
from rebapl.posterior.temperature import PRIOR, fit_temperature, tempered


def overconfident(n: int = 400, classes: int = 5, factor: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels drawn from probabilities, and these probabilities sharpened by a factor that is the right temperature."""
    stream = torch.Generator().manual_seed(0)
    logits = torch.randn(n, classes, generator=stream)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=stream)[:, 0]
    return (factor * logits).softmax(-1), labels


def test_the_temperature_is_the_best_of_a_grid_and_undoes_the_sharpening() -> None:
    probabilities, labels = overconfident()
    found = fit_temperature(probabilities, labels)
    grid = np.geomspace(1, 10, 301)
    losses = [log_loss(labels, softmax(np.log(probabilities.double().numpy()) / t, axis=1)) for t in grid]
    assert found == pytest.approx(grid[int(np.argmin(losses))], rel=0.01)
    assert found == pytest.approx(3.0, rel=0.2)  # 400 labels: about two standard errors


def test_a_temperature_of_one_changes_nothing_and_a_high_one_levels() -> None:
    probabilities, _ = overconfident()
    torch.testing.assert_close(tempered(probabilities, 1.0), probabilities, atol=1e-6, rtol=1e-5)
    assert torch.equal(tempered(probabilities, 7.0).argmax(-1), probabilities.argmax(-1))
    torch.testing.assert_close(tempered(probabilities, 1e6), torch.full_like(probabilities, 0.2), atol=1e-4, rtol=0)
    assert tempered(torch.tensor([[1.0, 0.0]]), 2.0).isfinite().all()


def test_labels_and_images_must_match() -> None:
    with pytest.raises(UserError, match="0 labels for 3 images"):
        fit_temperature(torch.full((3, 2), 0.5), torch.tensor([], dtype=torch.long))


@pytest.mark.parametrize("prior", [0.5, 8.0, 100.0])
def test_the_prior_is_a_gamma_density_of_the_inverse_with_its_mode_at_one(prior: float) -> None:
    probabilities, labels = overconfident(30)
    grid = np.geomspace(0.1, 3, 2001)
    rows = np.log(probabilities.double().numpy())
    likelihood = [-30 * log_loss(labels, softmax(beta * rows, axis=1), labels=range(5)) for beta in grid]
    best = grid[int(np.argmax(likelihood + gamma.logpdf(grid, 1 + prior, scale=1 / prior)))]
    assert 1 / fit_temperature(probabilities, labels, prior) == pytest.approx(best, rel=0.003)
    assert grid[int(np.argmax(gamma.pdf(grid, 1 + prior, scale=1 / prior)))] == pytest.approx(1, rel=0.002)


def test_a_strong_prior_keeps_one_and_many_images_decide_all_the_same() -> None:
    assert fit_temperature(*overconfident(8), 1e6) == pytest.approx(1.0, abs=1e-3)
    found, plain = (fit_temperature(*overconfident(20_000), prior) for prior in (PRIOR, 0.0))
    assert found == pytest.approx(plain, rel=0.01)
    for prior in (-1.0, np.inf, np.nan):
        with pytest.raises(UserError, match="at least 0"):
            fit_temperature(*overconfident(8), prior)


def test_the_prior_helps_where_few_images_mislead() -> None:
    """Probabilities that are right, so that τ = 1 is best: the mean loss of a fit on 8 images, over 200 draws.

    If both fits were as good as each other, the prior would win in more than 135 of 200 draws less than once in 10⁶.
    """
    lost = {0.0: [], PRIOR: []}
    for draw in range(200):
        stream = torch.Generator().manual_seed(draw)
        truth = (2 * torch.randn(8, 5, generator=stream)).softmax(-1)
        labels = torch.multinomial(truth, 1, generator=stream)[:, 0]
        for prior, losses in lost.items():
            fitted = tempered(truth.double(), fit_temperature(truth, labels, prior))
            losses.append((truth * (truth.log() - fitted.log())).sum(-1).mean().item())
    assert (np.array(lost[0.0]) > np.array(lost[PRIOR])).sum() > 135
    assert np.mean(lost[PRIOR]) < 0.25 * np.mean(lost[0.0])


def test_a_posterior_answers_at_its_temperature_and_says_so(make: Any, views: Tensor, tmp_path: Path) -> None:
    plain, labels = make("maple"), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    posterior = plain.fit_temperature(views, labels)
    before, after = plain.predict(views), posterior.predict(views)
    tau = fit_temperature(before.probabilities, labels, PRIOR)
    assert (posterior.temperature.value, posterior.temperature.images) == (tau, 7)
    assert posterior.fit_temperature(views, labels).temperature.value == tau  # not on top of itself
    for given, found in ((before.probabilities, after.probabilities), (before.per_sample, after.per_sample)):
        expected = softmax(np.log(given.double().numpy()) / tau, axis=-1)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    assert after.temperature == after.to_dict()["temperature"] == posterior.temperature_for() == tau
    assert posterior.said_of_temperature() == f"temperature of the probabilities: {tau:.2f}, fitted on 7 images"
    assert before.to_dict()["temperature"] == 1
    assert plain.said_of_temperature() == ""
    again = load_posterior(save_posterior(posterior, tmp_path / "posterior"), posterior.learner.encoder)
    assert again.temperature == posterior.temperature
    assert torch.equal(again.predict(views).probabilities, after.probabilities)
    assert posterior.with_temperature(1).temperature is None
    assert torch.equal(posterior.with_temperature(1).predict(views).probabilities, before.probabilities)
    by_hand = plain.with_temperature(2)
    torch.testing.assert_close(by_hand.predict(views).probabilities, tempered(before.probabilities, 2.0))
    assert by_hand.said_of_temperature().endswith("given by hand")
    with pytest.raises(UserError, match="above 0"):
        plain.with_temperature(0)


def test_a_temperature_belongs_to_its_averaging_template_and_weights(make: Any, views: Tensor) -> None:
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    posterior = make("coop").fit_temperature(views, labels)
    assert posterior.predict(views, average="logits").temperature == 1
    assert posterior.predict(views, template="a photo of a {}.").temperature == 1
    assert posterior.bind(posterior.class_names, transfer=True).temperature is None
    assert posterior.sample(0).temperature is None
    assert posterior.with_weights(torch.tensor([0.1, 0.2, 0.7])).temperature is None
    chosen = posterior.fit_threshold(views, labels, coverage=0.5).fit_conformal(views, labels, level=0.5)
    assert chosen.temperature == posterior.temperature
    assert chosen.with_temperature(posterior.temperature.value).threshold is not None
    for other in (chosen.with_temperature(1), chosen.fit_temperature(views, labels, prior=1.0)):
        assert (other.threshold, other.conformal) == (None, None)


def test_a_prediction_at_another_temperature_has_no_choices_of_before(make: Any, views: Tensor) -> None:
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    posterior = make("coop").fit_threshold(views, labels, coverage=0.5).fit_conformal(views, labels, level=0.5)
    prediction = posterior.fit_outside(views, "entropy", rate=0.5).predict(views)
    assert prediction.tempered(1) is prediction
    softer = prediction.tempered(2)
    assert (softer.threshold, softer.conformal, softer.outside, softer.by_fold) == (None, None, None, None)
    for ask, message in (
        (softer.unsure, "no threshold was chosen"),
        (softer.sets, "no prediction sets"),
        (softer.none_of_these, "no threshold of 'none of these'"),
    ):
        with pytest.raises(UserError, match=message):
            ask()


@pytest.mark.parametrize(("method", "further"), [("maple", False), ("coop", True)])
def test_other_class_names_are_scaled_by_the_distances_of_their_texts(
    make: Any, views: Tensor, method: str, further: bool
) -> None:
    """Against plain loops. Names that the temperature was fitted with count as unmoved; no answers become surer."""
    posterior = make(method).with_weights([0.2, 0.3, 0.5]).with_temperature(1.5)
    names, asked = posterior.class_names, ["green fish", "dog", "car"]
    assert posterior.bind(names[::-1]).temperature_for() == 1.5

    def mean_distance(fitted: Tensor, others: Tensor) -> float:
        found = [sorted(float((text - each).norm()) for each in fitted) for text in others[[0, 2]]]
        return sum(sum(distances[:10]) / len(distances[:10]) for distances in found) / 3

    def texts(bound: Any, index: int) -> Tensor:
        return bound.passes.clouds(views[:1], "text")[0][index]

    frozen = [posterior.learner.bind(each).frozen_cloud("text", None) for each in (names, asked)]
    bound, logs = posterior.bind(asked), []
    for index in range(3):
        logs.append(mean_distance(*frozen) - mean_distance(texts(posterior, index), texts(bound, index)))
    factor = np.exp(np.dot([0.2, 0.3, 0.5], logs))
    assert (factor < 1) == further
    assert bound.temperature_for() == pytest.approx(1.5 / min(1, factor), rel=1e-5)
    assert bound.predict(views).temperature == bound.temperature_for()
    assert (f"{1.5 / factor:.2f} for these class names" in bound.said_of_temperature()) == further
    assert make("cocoop").with_temperature(1.5).bind(asked).temperature_for() == 1.5  # every image has its own texts
    assert make("zero-shot", 1).with_temperature(1.5).bind(asked).temperature_for() == pytest.approx(1.5)
    head = make("tip-adapter", 1)  # a number in front of its texts says how sure they are, not where they are
    assert head.learner.text_weight.item() != 1
    assert head.with_temperature(1.5).bind(["green fish", "car"]).temperature_for() == pytest.approx(1.5)


def test_a_temperature_by_hand_is_that_of_the_names_bound_to(make: Any) -> None:
    posterior = make("coop").with_weights([0.2, 0.3, 0.5]).with_temperature(2.0)
    assert posterior.with_temperature(2.0) is posterior
    bound = posterior.bind(["green fish", "dog", "car"])
    assert bound.temperature_for() > 2
    assert bound.with_temperature(2.0).temperature_for() == 2
    plain = make("coop")
    assert plain.with_temperature(1.0) is plain
    assert posterior.with_temperature(1.0).temperature is None


def test_an_answer_that_is_no_number_is_refused(make: Any, views: Tensor) -> None:
    posterior = make("coop")
    next(iter(posterior.samples.values()))[1].fill_(float("nan"))
    with pytest.raises(UserError, match="the answer to image 0 is no number"):
        posterior.predict_views(views)


def test_exports_are_at_the_temperature(make: Any, views: Tensor, tmp_path: Path) -> None:
    posterior = make("coop", 2).with_temperature(1.7)
    scale = posterior.learner.encoder.logit_scale
    assert load_file(posterior.export(tmp_path / "a.safetensors"))["logit_scale"].item() == pytest.approx(scale / 1.7)
    posterior.export(tmp_path / "a.npy")
    about = json.loads((tmp_path / "a.json").read_text())
    assert (about["logit_scale"], about["temperature"]) == (pytest.approx(scale / 1.7), 1.7)
    program = torch.export.load(posterior.export(tmp_path / "a.pt2")).module()
    together, each = program(posterior.learner.encoder.preprocessing.normalize(views))
    expected = posterior.predict(views)
    torch.testing.assert_close(together, expected.probabilities, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(each, expected.per_sample, atol=1e-5, rtol=1e-4)
