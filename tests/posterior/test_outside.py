"""Outside scores compared with plain computations, and the promise of their threshold by simulation."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import logsumexp, softmax
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior import load_posterior, save_posterior
from rebapl.posterior.outside import FEATURE_SCORES, NEIGHBOURS, OUTSIDE_SCORES, check_outside, choose_outside
from rebapl.posterior.prediction import Prediction
from rebapl.posterior.records import said


def clouds(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised features of three classes with their labels, and of other images."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.arange(24) % 3
    train = torch.randn(3, 8, generator=stream)[labels] + 0.3 * torch.randn(24, 8, generator=stream)
    others = torch.randn(11, 8, generator=stream)
    return torch.nn.functional.normalize(train, dim=-1), labels, torch.nn.functional.normalize(others, dim=-1)


def test_neighbours_are_those_of_scikit_learn() -> None:
    train, labels, others = clouds()
    score = FEATURE_SCORES["neighbours"]
    expected = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(train.numpy()).kneighbors(others.numpy())[0][:, -1]
    np.testing.assert_allclose(score.score(others, score.keep(train, labels)), expected, rtol=1e-5)
    two = score.score(others, score.keep(train[:2], labels[:2]))  # fewer images than neighbours: the farthest
    np.testing.assert_allclose(two, torch.cdist(others, train[:2]).amax(1), rtol=1e-5)


def test_mahalanobis_is_the_least_distance_to_a_class_in_the_shrunk_covariance() -> None:
    """By a loop with scikit-learn's estimate; a class without images, and the order of labels, make no difference."""
    train, labels, others = clouds()
    score = FEATURE_SCORES["mahalanobis"]
    means = [train[labels == label].double().mean(0).numpy() for label in range(3)]
    around = train.double().numpy() - np.stack(means)[labels]
    precision = np.linalg.inv(LedoitWolf(assume_centered=True).fit(around).covariance_)
    expected = [min((f - mean) @ precision @ (f - mean) for mean in means) for f in others.double().numpy()]
    for given in (labels, 7 - 2 * labels):
        np.testing.assert_allclose(score.score(others, score.keep(train, given)), expected, rtol=1e-4)
    with pytest.raises(UserError, match="two different training images"):
        score.keep(train[:3], labels[:3])
    line = score.keep(train[:2], torch.zeros(2, dtype=torch.long))  # which have a variance in one direction only
    assert bool(score.score(others, line).isfinite().all())
    assert score.score(train[:1], line) < score.score(others, line).min()


def test_energy_and_mcm_by_their_definitions(make: Any, views: Tensor) -> None:
    posterior = make("maple").with_weights([0.2, 0.3, 0.5]).with_temperature(3)
    logits = posterior.sample_logits(views).double().numpy()
    found = posterior.predict(views)
    weights = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(found.outside_score("energy"), -weights @ logsumexp(logits, axis=-1), rtol=1e-5)
    mean = np.tensordot(weights, logits, 1) / posterior.learner.encoder.logit_scale
    np.testing.assert_allclose(found.outside_score("mcm"), 1 - softmax(mean, axis=-1).max(-1), rtol=1e-4)
    assert torch.equal(found[2:4].outside_score("mcm"), found.outside_score("mcm")[2:4])
    with pytest.raises(UserError, match="unknown outside score of this prediction 'mahalanobis'"):
        found.outside_score("mahalanobis")


def test_energy_and_mcm_are_refused_where_logits_are_no_products(make: Any, views: Tensor) -> None:
    """The energy of log-probabilities is −log 1 for every image."""
    for posterior in (make("bpl"), make("vamp"), make("gda"), make("coop").with_views(2)):
        for by in ("energy", "mcm"):
            with pytest.raises(UserError, match=f"{by} needs logits that are scaled cosines.*take another score"):
                posterior.fit_outside(views, by, rate=0.5)
        assert posterior.predict_views(views).scores == {}
        assert posterior.fit_outside(views, "entropy", rate=0.5).outside is not None


def of_scores(scores: np.ndarray) -> Prediction:
    """A prediction whose uncertainties are 1 − these numbers, which lie between 0.5 and 1."""
    sure = torch.tensor(np.stack([scores, 1 - scores], axis=1))
    return Prediction(["a", "b"], [str(n) for n in range(len(scores))], sure, sure[None].float(), torch.ones(1))


@pytest.mark.parametrize(("images", "rate", "digits"), [(20, 0.05, 9), (19, 0.05, 9), (9, 0.1, 1), (150, 0.2, 2)])
def test_false_alarms_are_as_rare_as_promised(images: int, rate: float, digits: int) -> None:
    """Over 1 000 draws of held-out images, with 50 new ones each, rounded to few digits in some cases, so with ties.

    Without ties the share of false alarms is 1 − k/(n + 1) on average, and the counts are beta-binomial. It lies beyond
    five standard errors in fewer than one of 10⁶ runs. With ties it is at most that.
    """
    draws, new = 1000, 50
    stream, alarms = np.random.default_rng(1), 0.0
    for _ in range(draws):
        drawn = of_scores((0.5 + stream.random(images + new) / 2).round(digits))
        chosen = choose_outside(drawn[:images], "max-probability", rate)
        fresh = drawn[images:].uncertainty() > chosen.value
        alarms += fresh.double().mean().item() / draws
    k = math.ceil(round((images + 1) * (1 - rate), 9))
    a, b = images + 1 - k, k
    variance = a * b * (a + b + new) / (new * (a + b) ** 2 * (a + b + 1))
    error = math.sqrt(variance / draws)
    assert a / (a + b) <= rate
    assert alarms <= a / (a + b) + 5 * error
    if digits == 9:
        assert alarms >= a / (a + b) - 5 * error


@pytest.mark.parametrize("by", FEATURE_SCORES)
@pytest.mark.parametrize(("images", "rate", "digits"), [(19, 0.05, 9), (9, 0.1, 0), (150, 0.2, 9)])
def test_false_alarms_by_features_are_as_rare_as_promised(by: str, images: int, rate: float, digits: int) -> None:
    """As above, with features of three classes, which are compared with those of a few training images.

    These images stay the same in all draws, as a bank does. Features are rounded to whole numbers in one case, so that
    some images have equal features, and so equal scores. A share five standard errors away is found with fewer than one
    of 10⁵ seeds.
    """
    draws, new, train = 500, 50, 12
    stream, shares, tied = np.random.default_rng(2), [], 0
    centres = stream.normal(0, 2, (3, 4))

    def features(count: int) -> tuple[Tensor, Tensor]:
        labels = stream.integers(3, size=count)
        around = centres[labels] + stream.normal(0, 1 + labels[:, None], (count, 4))
        return torch.tensor(around.round(digits)).float(), torch.tensor(labels)

    score = FEATURE_SCORES[by]
    bank = score.keep(*features(train))
    for _ in range(draws):
        values = score.score(features(images + new)[0], bank)
        tied += len(values.unique()) < len(values)
        drawn = replace(of_scores(np.full(images + new, 0.7)), scores={by: values})
        chosen = choose_outside(drawn[:images], by, rate)
        fresh = replace(drawn[images:], outside=chosen).none_of_these()
        shares.append(fresh.double().mean().item())
    expected = (images + 1 - math.ceil(round((images + 1) * (1 - rate), 9))) / (images + 1)
    error = np.std(shares) / math.sqrt(draws)
    assert expected <= rate
    assert np.mean(shares) <= expected + 5 * error
    if digits == 9:
        assert np.mean(shares) >= expected - 5 * error
    else:
        assert tied > draws / 4


@pytest.mark.parametrize("by", OUTSIDE_SCORES)
def test_every_score_can_say_none_of_these_and_is_kept(make: Any, views: Tensor, tmp_path: Path, by: str) -> None:
    posterior, train = make("coop"), (views[:4], torch.tensor([0, 0, 1, 1]))
    fitted = posterior.fit_outside(views, by, rate=0.5, train=train)
    prediction = fitted.predict(views)
    assert fitted.outside.value == prediction.outside_score(by).sort().values[3]  # the ⌈8 · 0.5⌉-th smallest of seven
    assert 1 <= prediction.none_of_these().sum() <= 3 or by == "disagreement"  # which has ties here
    strange = [record["outside"] for record in prediction.records()]
    assert strange == prediction.none_of_these().tolist()
    assert [record["answer"] is None for record in prediction.records()] == strange
    assert {record["outside"] for record in prediction.records(abstain=False)} == {None}
    assert {record["outside"] for record in posterior.predict(views).records()} == {None}
    folder = save_posterior(fitted, tmp_path / "posterior")
    assert (len(load_file(folder / "samples.safetensors")) > 1) == (by in FEATURE_SCORES)
    again = load_posterior(folder, posterior.learner.encoder)
    assert again.outside == fitted.outside
    assert torch.equal(again.predict(views).none_of_these(), prediction.none_of_these())
    portions = [(["a"] * 3, views[:3]), (["b"] * 4, views[3:])]
    pieces = torch.cat([each.outside_score(by) for each in again.predict_portions(portions)])
    torch.testing.assert_close(pieces, prediction.outside_score(by), rtol=1e-3, atol=1e-5)
    for other in (
        again.predict(views, class_names=["green fish", "car"]),
        again.predict(views, average="logits"),
        again.predict(views, template="a photo of a {}."),
        again.with_temperature(2).predict(views),
        again.with_weights([0.2, 0.3, 0.5]).predict(views),
    ):
        assert other.outside is None
    save_posterior(again.with_temperature(2), folder)
    assert load_file(folder / "samples.safetensors").keys() == {"context"}


def test_image_features_are_the_frozen_ones_in_any_portion_and_stored_ones_stay(make: Any, views: Tensor) -> None:
    posterior = make("maple")
    encoder = posterior.learner.encoder
    found = posterior.image_features(views)
    torch.testing.assert_close(found, encoder.image_features(encoder.preprocessing.normalize(views)), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(7))
    assert torch.equal(posterior.image_features(found), found)
    assert posterior.image_features(views[:0]).shape == (0, found.shape[1])


def test_none_of_these_comes_before_i_dont_know(make: Any, views: Tensor) -> None:
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    posterior = make("coop").fit_threshold(views, labels, coverage=0.5).fit_outside(views, "max-probability", rate=0.3)
    prediction = posterior.predict(views)
    order = prediction.uncertainty().argsort().tolist()
    words = [said(prediction[index].records()[0]) for index in order]
    assert words[4:] == ["I don't know", "I don't know", "none of these"]
    assert set(words[:4]) <= set(posterior.class_names)
    assert "none of these" in repr(prediction[order[-1]])
    with pytest.raises(UserError, match="no threshold of 'none of these'"):
        make("coop").predict(views).none_of_these()


@pytest.mark.parametrize(
    ("by", "rate", "images", "message"),
    [
        ("magic", 0.1, 50, "unknown outside score 'magic'"),
        ("mcm", 0.0, 50, "above 0 and below 1"),
        ("mcm", math.nan, 50, "above 0 and below 1"),
        ("mcm", 0.05, 18, "needs at least 19 held-out images, and there are 18"),
    ],
)
def test_what_cannot_be_promised_is_refused(by: str, rate: float, images: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_outside(by, rate, images)
    check_outside("mcm", 0.05, 19)


def test_scores_of_features_need_training_images(make: Any, views: Tensor) -> None:
    with pytest.raises(UserError, match="give train="):
        make("coop").fit_outside(views, "neighbours", rate=0.5)
