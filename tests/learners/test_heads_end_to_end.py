"""What heads answer to new features, from the training features alone, against their papers' formulas in NumPy.

Nothing of the package's own formulas is used here: κ and α come from SciPy's bounded minimiser, inverses and
determinants from NumPy. Differences of probabilities are below 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from plain import unit
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from rebapl.backbones import DualEncoder
from rebapl.learners import Learner, build_learner

NAMES = ["red cat", "dog", "big old tree"]
C, WIDTH = len(NAMES), 0.05
"""The number of classes, and the standard deviation of the linear head's prior."""

Array = np.ndarray


def features(encoder: DualEncoder, per_class: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    centres = unit(torch.randn(C, encoder.joint_width, generator=torch.Generator().manual_seed(9)))
    labels = torch.arange(C).repeat(per_class)
    noise = torch.randn(len(labels), encoder.joint_width, generator=torch.Generator().manual_seed(seed))
    return unit(centres[labels] + 0.8 * noise), labels


def blend(zero_shot: Array, extra: Array, y: Array) -> tuple[float, float, float]:
    """κ, α and the least of mean cross-entropy + ((κ−1)² + (ρα)²)/2N."""
    own, more = (part - part.mean(1, keepdims=True) for part in (zero_shot, extra))
    ratio = np.sqrt((more**2).mean() / (own**2).mean())

    def loss(at: Array) -> float:
        fit = -log_softmax(at[0] * own + at[1] * more / ratio, axis=1)[np.arange(len(y)), y].mean()
        return float(fit + ((at[0] - 1) ** 2 + at[1] ** 2) / (2 * len(y)))

    tight = {"ftol": 1e-16, "gtol": 1e-11}
    found = [minimize(loss, start, bounds=[(0, None)] * 2, options=tight) for start in ((1.0, 0.1), (0.3, 1.0))]
    best = min(found, key=lambda each: each.fun)
    return best.x[0], best.x[1] / ratio, best.fun


def discriminant(x: Array, y: Array) -> tuple[Array, Array]:
    """w_c = P μ_c and b_c = log π_c − ½ μ_cᵀ P μ_c, with P = e·((N−1)Σ̂ + tr(Σ̂) I)⁻¹."""
    means = np.stack([x[y == c].mean(0) for c in range(C)])
    covariance = np.cov(np.concatenate([x[y == c] - means[c] for c in range(C)]).T)
    shrunk = (len(x) - 1) * covariance + np.trace(covariance) * np.eye(x.shape[1])
    weight = means @ (x.shape[1] * np.linalg.inv(shrunk))
    bias = np.log(np.bincount(y) / len(y)) - np.array([w @ m for w, m in zip(weight, means, strict=True)]) / 2
    return weight, bias


def gda(s: float, t: Array, x: Array, y: Array, new: Array) -> Array:
    part = np.array([np.sum(y[:n] == y[n]) % 5 for n in range(len(y))])
    held_out = np.zeros((len(y), C))
    for fold in range(5):
        weight, bias = discriminant(x[part != fold], y[part != fold])
        held_out[part == fold] = x[part == fold] @ (weight - weight.mean(0)).T + bias - bias.mean()
    kappa, alpha, _ = blend(s * x @ t.T, held_out, y)
    weight, bias = discriminant(x, y)
    return kappa * s * new @ t.T + alpha * (new @ weight.T + bias)


def tip_adapter(s: float, t: Array, x: Array, y: Array, new: Array) -> Array:
    values, tried = np.eye(C)[y], []
    for beta in (0.5, 1, 2, 3, 4, 5.5, 7):
        alike = np.exp(-beta * (1 - x @ x.T))
        np.fill_diagonal(alike, 0)
        counts = values.sum(0)
        tried.append((*blend(s * x @ t.T, alike @ values * counts / (counts - values), y), beta))
    kappa, alpha, _, beta = min(tried, key=lambda each: each[2])
    return kappa * s * new @ t.T + alpha * np.exp(-beta * (1 - new @ x.T)) @ values


def proker(s: float, t: Array, x: Array, y: Array, new: Array) -> Array:
    zero_shot, tried = s * x @ t.T, []
    wrong = np.eye(C)[y] - softmax(zero_shot, axis=1)
    for beta in (0.5, 1, 2, 3, 4, 5.5, 7):
        between = np.exp(-beta * (1 - x @ x.T))
        for ridge in (0.01, 0.1, 1.0, 10.0):
            left_out = np.zeros_like(wrong)
            for n in range(len(y)):
                rest = np.delete(np.arange(len(y)), n)
                solved = np.linalg.solve(between[np.ix_(rest, rest)] + ridge * np.eye(len(rest)), wrong[rest])
                left_out[n] = between[n, rest] @ solved
            tried.append((*blend(zero_shot, left_out, y), beta, ridge))
    kappa, alpha, _, beta, ridge = min(tried, key=lambda each: each[2])
    between = np.exp(-beta * (1 - x @ x.T))
    solved = np.linalg.solve(between + ridge * np.eye(len(y)), wrong)
    return kappa * s * new @ t.T + alpha * np.exp(-beta * (1 - new @ x.T)) @ solved


def linear(s: float, t: Array, x: Array, y: Array, new: Array) -> Array:
    """The joint mode of κ ~ N(1, 1) and r ~ N(0, I) in the logits κ·s·x·t + s·σ·x·r."""
    zero_shot = s * x @ t.T

    def negative(at: Array) -> tuple[float, Array]:
        residual = at[1:].reshape(C, -1)
        logits = at[0] * zero_shot + s * WIDTH * x @ residual.T
        off = softmax(logits, axis=1) - np.eye(C)[y]
        loss = -log_softmax(logits, axis=1)[np.arange(len(y)), y].sum()
        loss += (residual**2).sum() / 2 + (at[0] - 1) ** 2 / 2
        return loss, np.r_[(off * zero_shot).sum() + at[0] - 1, (s * WIDTH * off.T @ x + residual).ravel()]

    start = np.r_[1.0, np.zeros(C * x.shape[1])]
    found = minimize(negative, start, jac=True, options={"maxiter": 5000, "gtol": 1e-10})
    return found.x[0] * s * new @ t.T + s * WIDTH * new @ found.x[1:].reshape(C, -1).T


def trained(learner: Learner, x: torch.Tensor, y: torch.Tensor) -> None:
    """Minimise the loss of a linear head, which is convex, by 500 steps of Adam with a cosine. Other heads are done."""
    if not hasattr(learner, "residual"):
        return
    optimizer = torch.optim.Adam([learner.residual], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    for _ in range(500):
        optimizer.zero_grad()
        learner.loss(learner(x), y).backward()
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    ("method", "settings", "formula"),
    [("gda", {}, gda), ("tip-adapter", {}, tip_adapter), ("proker", {}, proker), ("linear", {"prior": WIDTH}, linear)],
)
def test_a_head_answers_as_its_formula_does(
    encoder: DualEncoder, method: str, settings: dict[str, float], formula: Callable[..., Array]
) -> None:
    (x, y), (new, _) = features(encoder, 8, seed=0), features(encoder, 20, seed=1)
    learner = build_learner(method, encoder, NAMES, "a photo of a {}.", torch.Generator().manual_seed(0), settings)
    learner.see(x, y)
    trained(learner, x, y)
    texts = learner.text_features.double().numpy()
    expected = formula(float(encoder.logit_scale), texts, x.double().numpy(), y.numpy(), new.double().numpy())
    with torch.no_grad():
        ours = learner(new).logits.double().softmax(-1).numpy()
    np.testing.assert_allclose(ours, softmax(expected, axis=1), atol=1e-5)
    assert np.ptp(ours[:, 0]) > 0.1
