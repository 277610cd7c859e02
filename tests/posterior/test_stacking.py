"""Stacking weights against a grid and against a general solver."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from rebapl.errors import UserError
from rebapl.numbers import effective_samples
from rebapl.posterior import has_collapsed, load_posterior, save_posterior
from rebapl.posterior.fitting import expectation_maximisation, stacking_weights


def held_out(samples: int, seed: int = 0, images: int = 60) -> tuple[Tensor, Tensor]:
    """Samples of different quality: each predicts the labels with an accuracy of its own."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (images,), generator=stream)
    logits = 1.5 * torch.randn(samples, images, 4, generator=stream)
    logits += torch.linspace(0.5, 1.5, samples)[:, None, None] * torch.nn.functional.one_hot(labels, 4)
    return logits.log_softmax(-1), labels


def likelihood(weights: np.ndarray, log_probabilities: Tensor, labels: Tensor) -> float:
    p = log_probabilities.double().exp().numpy()[:, np.arange(len(labels)), labels.numpy()]
    return float(np.log(weights @ p).mean())


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_three_weights_equal_a_general_solver(seed: int) -> None:
    data = held_out(3, seed)
    solved = minimize(
        lambda w: -likelihood(np.maximum(w, 1e-12), *data),
        np.full(3, 1 / 3),
        method="SLSQP",
        bounds=[(0, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-12},
    )
    weights = stacking_weights(*data, prior=0)
    assert likelihood(weights.double().numpy(), *data) == pytest.approx(-solved.fun, abs=1e-6)
    np.testing.assert_allclose(weights.numpy(), solved.x, atol=5e-3)


def test_every_step_raises_the_likelihood() -> None:
    log_probabilities, labels = held_out(5)
    right = log_probabilities.double().gather(2, labels.expand(5, -1)[..., None])[..., 0]
    steps = list(expectation_maximisation(right, prior=0))
    assert len(steps) > 10
    found = [likelihood(weights.numpy(), log_probabilities, labels) for weights in steps]
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(found))
    assert found[-1] > found[0] + 1e-3
    assert all(found[-1] - after <= np.log(5) / step for step, after in enumerate(found) if step)
    for weights in steps:
        assert weights.min() >= 0
        assert weights.sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("prior", [0.5, 1.0, 10.0])
def test_the_prior_counts_as_more_images_that_one_sample_alone_explains(prior: float) -> None:
    """Against a general solver of the stated objective."""
    data = held_out(4, images=12)

    def lacks(weights: np.ndarray) -> float:
        weights = np.maximum(weights, 1e-12)
        return -likelihood(weights, *data) - prior / 12 * float(np.log(weights).sum())

    solved = minimize(
        lacks,
        np.full(4, 1 / 4),
        method="SLSQP",
        bounds=[(1e-9, 1)] * 4,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-13},
    )
    weights = stacking_weights(*data, prior=prior)
    assert lacks(weights.double().numpy()) <= solved.fun + 2e-7
    np.testing.assert_allclose(weights.numpy(), solved.x, atol=2e-3)


def test_a_few_images_do_not_give_one_sample_all_the_weight() -> None:
    """One of three samples is right and sure of 12 images: EM's fixed point is (12 + α) : α : α."""
    probabilities = torch.tensor([[1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9], [1e-9, 1 - 1e-9]], dtype=torch.double)
    images = probabilities.log()[:, None].expand(3, 12, 2)
    weights = stacking_weights(images, torch.zeros(12, dtype=torch.long))
    torch.testing.assert_close(weights, torch.tensor([13.0, 1.0, 1.0]) / 15, atol=1e-5, rtol=0)
    assert has_collapsed(weights)
    assert effective_samples(weights) == pytest.approx(225 / 171)
    assert not has_collapsed(torch.tensor([0.5, 0.3, 0.2]))
    assert not has_collapsed(torch.tensor([1.0, 0.0]))
    with pytest.raises(UserError, match="prior = -1"):
        stacking_weights(images, torch.zeros(12, dtype=torch.long), prior=-1)


def test_weights_that_were_replaced_are_kept_on_disk(make: Any, views: Tensor, tmp_path: Path) -> None:
    posterior = make("coop")
    fitted = posterior.fit_weights(views, torch.zeros(7, dtype=torch.long))
    save_posterior(fitted, tmp_path / "p")
    read = load_posterior(tmp_path / "p", encoder=posterior.learner.encoder)
    (earlier,) = read.earlier_weights
    assert earlier.weights == tuple(posterior.weights.tolist())
    assert earlier.replaced_by == "stacking on 7 images, prior 1"
    assert json.loads((tmp_path / "p" / "posterior.json").read_text())["earlier_weights"][0]["replaced_at"]
    undone = read.with_uniform_weights()
    assert torch.equal(undone.weights, posterior.weights)
    assert [each.replaced_by for each in undone.earlier_weights] == [earlier.replaced_by, "uniform weights"]
    assert undone.with_uniform_weights() is undone


def test_samples_that_are_alike_stay_uniform_and_impossible_images_say_nothing() -> None:
    alike = torch.tensor([[[0.7, 0.3]]]).log().expand(3, 2, 2).clone()
    torch.testing.assert_close(stacking_weights(alike, torch.tensor([0, 1])), torch.full((3,), 1 / 3))
    alike[:, 1, 1] = -torch.inf
    torch.testing.assert_close(stacking_weights(alike, torch.tensor([0, 1])), torch.full((3,), 1 / 3))
    alike[:, 0, 0] = -torch.inf
    torch.testing.assert_close(stacking_weights(alike, torch.tensor([0, 1])), torch.full((3,), 1 / 3))


def test_likelihoods_too_small_for_a_float_still_count() -> None:
    log_probabilities = torch.tensor([[[-2000.0, 0.0]], [[-1000.0, 0.0]]])
    assert stacking_weights(log_probabilities, torch.tensor([0]), prior=0)[1].item() == pytest.approx(1, abs=1e-4)


def test_no_labels_are_refused() -> None:
    with pytest.raises(UserError, match="at least one image"):
        stacking_weights(torch.zeros(2, 0, 3), torch.zeros(0, dtype=torch.long))
    with pytest.raises(UserError, match="at least one image"):
        stacking_weights(torch.zeros(2, 5, 3), torch.zeros(4, dtype=torch.long))


def test_a_posterior_is_weighted_by_what_it_was_not_trained_on(make: Any, views: Tensor) -> None:
    posterior = make("maple")
    labels = posterior.sample_logits(views)[1].argmax(-1)  # the second sample knows everything
    fitted = posterior.fit_threshold(views, labels, coverage=0.5).fit_weights(views, labels)
    assert fitted.weights.argmax() == 1
    assert fitted.threshold is None
    before, after = (
        each.predict_views(views).probabilities[torch.arange(7), labels].log().mean() for each in (posterior, fitted)
    )
    assert after > before


@pytest.mark.parametrize(
    "weights", [[0.5, 0.5, 0.5], [1.5, -0.5, 0.0], [float("nan"), 0.5, 0.5], [], [[0.5, 0.5, 0.0]]]
)
def test_weights_that_are_none_are_refused(make: Any, weights: list) -> None:
    with pytest.raises(UserError, match="weights"):
        make("coop").with_weights(torch.tensor(weights))
    with pytest.raises(UserError, match="2 weights for 3 samples"):
        make("coop").with_weights(torch.tensor([0.5, 0.5]))
