"""SWAG: the Gaussian of a path against closed forms, and its place in the loop."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from rebapl.errors import UserError
from rebapl.sampling import Chain, Inference, preset
from rebapl.sampling.swag import GaussianPath

from .toy import ToyLearner, ToyRecipe, batches, data

DRAWS = 40_000


def path_of(snapshots: torch.Tensor) -> GaussianPath:
    """The Gaussian of snapshots (T, 3), held as two parameters."""
    path = GaussianPath(1, torch.Generator().manual_seed(1))
    for theta in snapshots:
        path.add({"a": theta[:2], "b": theta[2:].reshape(1, 1)})
    return path


def drawn(path: GaussianPath, count: int) -> np.ndarray:
    samples = [path.draw() for _ in range(count)]
    return torch.stack([torch.cat([each["a"], each["b"].flatten()]) for each in samples]).numpy()


def bound(covariance: np.ndarray, draws: int) -> np.ndarray:
    """Five standard errors of each entry of a covariance of normal draws: Var = (C_ii·C_jj + C_ij²)/draws."""
    variances = np.diag(covariance)
    return 5 * np.sqrt((np.outer(variances, variances) + covariance**2) / draws)


def test_draws_have_the_mean_and_the_covariance_of_the_formula() -> None:
    """Five standard errors of nine numbers: with other seeds, this fails by chance less than once in 10⁵ times."""
    snapshots = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    snapshots[:, 1] += 2 * snapshots[:, 0]
    theta = snapshots.numpy()
    running = np.cumsum(theta, 0) / np.arange(1, 7)[:, None]
    deviations = theta - running
    wanted = (np.diag(theta.var(0)) + deviations.T @ deviations / 5) / 2
    found = drawn(path_of(snapshots), DRAWS)
    assert (abs(np.cov(found.T, bias=True) - wanted) < bound(wanted, DRAWS)).all()
    assert (abs(found.mean(0) - theta.mean(0)) < 5 * np.sqrt(np.diag(wanted) / DRAWS)).all()


def test_a_gaussian_path_gives_its_gaussian_back() -> None:
    """Of T independent draws of N(μ, Σ) the expected covariance is ½·((T−1)/T·diag Σ + (T − H_T)/(T−1)·Σ).

    H_T is the T-th harmonic number, since the i-th deviation from the running mean has the covariance (1 − 1/i)·Σ.
    The path's own covariance is off by a few √(2/T); fails by chance about once in 10⁴ times, if the seed were another.
    """
    length, root = 1000, np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.5, 0.2, 0.3]])
    sigma, mean = root @ root.T, np.array([1.0, -2.0, 0.5])
    noise = torch.randn(length, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    path = path_of(torch.from_numpy(mean + noise.numpy() @ root.T))
    harmonic = sum(1 / i for i in range(1, length + 1))
    wanted = ((length - 1) / length * np.diag(np.diag(sigma)) + (length - harmonic) / (length - 1) * sigma) / 2
    found = drawn(path, 4000)
    assert (abs(np.cov(found.T) - wanted) < bound(sigma, length) + bound(wanted, 4000)).all()
    assert (abs(found.mean(0) - mean) < 5 * np.sqrt(np.diag(sigma) * (1 / length + 1 / 4000))).all()


def test_a_small_spread_far_from_zero_keeps_its_digits() -> None:
    """θ²̄ − θ̄² in float32 would be noise here, or negative."""
    steps = torch.tensor([0.0, 1.0, 2.0, 3.0])[:, None] * torch.ones(1, 3) * 2**-10
    path = path_of(100 + steps)
    assert (path.state["squares"]["a"] / path.count).tolist() == pytest.approx([1.25 * 2**-20] * 2, rel=1e-3)


def loop(inference: Inference) -> Chain:
    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return batches(step, inference.batch)

    return Chain(ToyLearner(), inference, batch, num_data=40, steps_per_epoch=5, seed=3, reference=data()[0])


def test_a_resumed_run_draws_the_same_samples() -> None:
    inference = preset("swag", ToyRecipe(lr=0.02, epochs=2, batch=8))
    assert (inference.all_epochs, inference.samples) == (6, 3)
    whole = loop(inference)
    wanted = list(whole.run())
    first = loop(inference)
    for _ in range(25):  # four snapshots are taken
        first.step()
    again = loop(inference)
    again.load_state_dict(first.state_dict())
    for one, other in zip(again.run(), wanted, strict=True):
        assert all(torch.equal(one.parameters[name], other.parameters[name]) for name in other.parameters)
    assert not any(torch.equal(a.parameters["image"], b.parameters["image"]) for a, b in pairwise(wanted))


def test_each_cold_cycle_has_a_gaussian_of_its_own() -> None:
    several = preset("swag", ToyRecipe(lr=0.02, epochs=2, batch=8), cycles=2, restart="cold", epochs=4)
    samples = list(loop(several).run())
    assert [sample.cycle for sample in samples] == [0, 0, 0, 1, 1, 1]
    means = [torch.stack([each.parameters["image"] for each in samples[i : i + 3]]).mean(0) for i in (0, 3)]
    within = (samples[0].parameters["image"] - samples[1].parameters["image"]).norm()
    assert (means[0] - means[1]).norm() > 3 * within
    assert math.isfinite(within)


def test_settings_that_do_not_fit_are_refused() -> None:
    recipe = ToyRecipe(lr=0.02, epochs=2, batch=8)
    with pytest.raises(UserError, match="swag is for sgd and adamw, and the sampler is sgld"):
        preset("sgld", recipe, swag={"samples": 2})
    with pytest.raises(UserError, match="does not go with averaging"):
        preset("swag", recipe, averaging={"mean": 1.0, "std": 1.0})
    with pytest.raises(UserError, match=r"snapshots is 1: it must be at least 2"):
        preset("swag", recipe, **{"swag.snapshots": 1})
