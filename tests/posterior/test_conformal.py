"""Prediction sets: the quantile in closed form, how often sets hold the right class, and where they belong."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior import Prediction
from rebapl.posterior.conformal import check_level, choose_conformal

CLASSES = ["cat", "dog", "emu", "fox"]


def prediction_of(probabilities: Tensor) -> Prediction:
    names = [str(number) for number in range(len(probabilities))]
    return Prediction(CLASSES[: probabilities.shape[1]], names, probabilities, probabilities[None], torch.ones(1))


def drawn(images: int, seed: int) -> tuple[Prediction, Tensor]:
    """Images whose classes are drawn from true probabilities. The predicted probabilities are wrong: far too sure."""
    stream = np.random.default_rng(seed)
    true = stream.dirichlet(np.ones(4), images)
    labels = (stream.random((images, 1)) > true.cumsum(1)).sum(1).clip(max=3)
    wrong = true**3 * np.array([1.0, 1.0, 1.0, 0.2])
    return prediction_of(torch.tensor(wrong / wrong.sum(1, keepdims=True))), torch.tensor(labels)


@pytest.mark.parametrize(("images", "level", "rank"), [(9, 0.9, 9), (19, 0.9, 18), (20, 0.9, 19), (99, 0.95, 95)])
def test_the_quantile_is_an_order_statistic(images: int, level: float, rank: int) -> None:
    """The ⌈(n + 1)·level⌉-th smallest of 1 − p of the right class, also by NumPy's inverse of the distribution."""
    prediction, labels = drawn(images, seed=1)
    scores = 1 - prediction.probabilities.numpy()[range(images), labels]
    found = choose_conformal(prediction, labels, level)
    assert rank == math.ceil(round((images + 1) * level, 9))
    assert found.quantile == sorted(scores)[rank - 1]
    assert found.quantile == np.quantile(scores, (rank - 0.5) / images, method="inverted_cdf")
    assert (found.level, found.images) == (level, images)
    sizes = [max(1, sum(1 - p <= found.quantile)) for p in prediction.probabilities.numpy()]
    assert found.size == pytest.approx(np.mean(sizes))


def test_sets_hold_the_right_class_as_often_as_promised_however_wrong_the_probabilities() -> None:
    """With n = 20 images and a level of 0.9, the 19th of 20 scores: a new score is below it with probability 19/21.

    Over 400 draws of 20 images, with 50 new ones each, the share has the mean and variance of beta-binomial counts. It
    is beyond 5 standard errors in fewer than 1 of 10⁶ seeds; without the + 1 in ⌈(n + 1)·level⌉ it would be 13 below.
    """
    draws, n, new = 400, 20, 50
    below = held = 0.0
    for seed in range(draws):
        prediction, labels = drawn(n + new, seed)
        chosen = choose_conformal(prediction[:n], labels[:n], 0.9)
        fresh, truth = prediction[n:], labels[n:, None]
        below += (1 - fresh.probabilities.gather(1, truth) <= chosen.quantile).double().mean().item() / draws
        held += fresh.sets(chosen).gather(1, truth).double().mean().item() / draws
    a, b = 19, 2
    variance = a * b * (a + b + new) / (new * (a + b) ** 2 * (a + b + 1))
    error = math.sqrt(variance / draws)
    assert below == pytest.approx(a / (a + b), abs=5 * error)
    assert held >= below
    assert held > 0.9 - 5 * error


def test_a_set_has_the_likely_classes_and_always_the_likeliest() -> None:
    prediction = prediction_of(torch.tensor([[0.6, 0.3, 0.1], [0.34, 0.33, 0.33], [0.0, 0.05, 0.95]]))
    calibration = prediction_of(torch.tensor([[0.7, 0.2, 0.1]] * 9))
    chosen = choose_conformal(calibration, torch.tensor([0] * 8 + [1]), 0.8)  # the 8th of 9 scores: 1 − 0.7
    assert chosen.quantile == pytest.approx(0.3)
    assert chosen.size == 1
    assert prediction.sets(chosen).tolist() == [[True, False, False], [True, False, False], [False, False, True]]
    wider = choose_conformal(calibration, torch.tensor([0] * 8 + [1]), 0.9)  # the 9th: 1 − 0.2
    shown = dataclasses.replace(prediction, conformal=wider)
    assert [each["set"] for each in shown.records()] == [["cat", "dog"], ["cat", "dog", "emu"], ["emu"]]
    assert shown.to_pandas()["set"].tolist() == ["cat; dog", "cat; dog; emu", "emu"]
    assert shown.to_dict()["conformal"] == {"level": 0.9, "score": "probability", "quantile": wider.quantile}
    assert prediction.records()[0]["set"] is None
    assert prediction.to_dict()["conformal"] is None
    with pytest.raises(UserError, match="no prediction sets were fitted"):
        prediction.sets()


@pytest.mark.parametrize(
    ("level", "images", "message"),
    [
        (0.0, 50, "above 0 and below 1"),
        (1.0, 50, "above 0 and below 1"),
        (math.nan, 50, "above 0 and below 1"),
        (0.9, 8, "level 0.9 need at least 9 held-out images, and there are 8"),
        (0.95, 18, "at least 19 held-out images"),
        (0.5, 0, "at least 1 held-out images"),
    ],
)
def test_levels_that_cannot_be_kept_are_refused(level: float, images: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_level(level, images)
    if message.startswith("at least 19"):
        check_level(level, 19)


def test_as_many_labels_as_images() -> None:
    prediction, labels = drawn(20, seed=1)
    with pytest.raises(UserError, match="19 labels for 20 images"):
        choose_conformal(prediction, labels[1:])


def test_sets_belong_to_their_class_names_averaging_template_and_weights(make: Any, views: Tensor) -> None:
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    posterior = make("coop").fit_conformal(views, labels, level=0.5)
    assert posterior.predict(views).sets().any(1).all()
    for prediction in (
        posterior.predict(views, average="logits"),
        posterior.predict(views, class_names=["green fish", "car"]),
        posterior.predict(views, template="a photo of a {}."),
        posterior.bind(posterior.class_names, transfer=True).predict(views),
        posterior.sample(0).predict(views),
        posterior.with_weights(torch.tensor([0.1, 0.2, 0.7])).predict(views),
    ):
        assert prediction.conformal is None
    back = posterior.bind(["green fish", "car"]).bind(posterior.class_names)
    assert back.predict(views).conformal == posterior.conformal
