"""What heads answer to new features, from the training features alone, against their papers' formulas in NumPy.

Nothing of the package's own formulas is used here: κ, α and the optimum of a convex loss come from SciPy's minimisers,
inverses and determinants from NumPy, and AdamW with its cosine is a loop in float64. Differences of probabilities are
below 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from plain import unit
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from rebapl.backbones import DualEncoder
from rebapl.learners import Learner, build_learner
from rebapl.sampling import Chain
from rebapl.training.resolution import resolve_training

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


def cache(s: float, t: Array, x: Array, y: Array) -> tuple[float, float, float]:
    """κ, α and β of Tip-Adapter, for which each image is scored without its own key."""
    values, tried = np.eye(C)[y], []
    for beta in (0.5, 1, 2, 3, 4, 5.5, 7):
        alike = np.exp(-beta * (1 - x @ x.T))
        np.fill_diagonal(alike, 0)
        counts = values.sum(0)
        tried.append((*blend(s * x @ t.T, alike @ values * counts / (counts - values), y), beta))
    kappa, alpha, _, beta = min(tried, key=lambda each: each[2])
    return kappa, alpha, beta


def tip_adapter(s: float, t: Array, x: Array, y: Array, new: Array) -> Array:
    kappa, alpha, beta = cache(s, t, x, y)
    return kappa * s * new @ t.T + alpha * np.exp(-beta * (1 - new @ x.T)) @ np.eye(C)[y]


def adamw(parameters: list[Array], gradients: Callable[..., list[Array]], lr: float, decay: float, steps: int) -> None:
    """Move the parameters by this number of steps; lr falls to 0 along half a cosine."""
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    for step in range(steps):
        now = lr * (1 + math.cos(math.pi * step / steps)) / 2
        for p, g, (first, second) in zip(parameters, gradients(*parameters), moments, strict=True):
            first += 0.1 * (g - first)
            second += 0.001 * (g**2 - second)
            corrected = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
            p -= now * (decay * p + corrected[0] / (np.sqrt(corrected[1]) + 1e-8))


def tip_adapter_f(s: float, t: Array, x: Array, y: Array, new: Array) -> Array:
    """Its keys after 20 steps of AdamW with lr 0.001 and weight decay 0.01, as published."""
    (kappa, alpha, beta), keys, values = cache(s, t, x, y), x.copy(), np.eye(C)[y]

    def gradients(keys: Array) -> list[Array]:
        alike = np.exp(-beta * (1 - x @ keys.T))
        off = softmax(kappa * s * x @ t.T + alpha * alike @ values, axis=1) - values
        return [beta * (alpha * off @ values.T / len(y) * alike).T @ x]

    adamw([keys], gradients, lr=0.001, decay=0.01, steps=20)
    return kappa * s * new @ t.T + alpha * np.exp(-beta * (1 - new @ keys.T)) @ values


def lp_plus(s: float, t: Array, x: Array, y: Array, new: Array) -> Array:
    """Prototypes, weighed without the own image, and 30 steps of AdamW with lr 0.001 on w and a."""
    rest = [[(y == c) & (np.arange(len(y)) != n) for c in range(C)] for n in range(len(y))]
    left_out = np.array([[x[n] @ x[each].mean(0) for each in row] for n, row in enumerate(rest)])
    kappa, share, _ = blend(s * x @ t.T, s * left_out, y)
    weight, text_weight = share * np.stack([x[y == c].mean(0) for c in range(C)]), np.full(C, kappa)

    def gradients(weight: Array, text_weight: Array) -> list[Array]:
        off = softmax(s * x @ (weight + text_weight[:, None] * t).T, axis=1) - np.eye(C)[y]
        return [s * off.T @ x / len(y), s * (off * (x @ t.T)).mean(0)]

    adamw([weight, text_weight], gradients, lr=0.001, decay=0.0, steps=30)
    return s * new @ (weight + text_weight[:, None] * t).T


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


def linear(
    s: float, t: Array, x: Array, y: Array, new: Array, *, constrained: bool = False, texts: bool = False
) -> Array:
    """The joint mode of κ ~ N(1, 1) and r ~ N(0, I) in the logits κ·s·x·t + s·x·(σ_c r_c).

    If `constrained`, σ_c is σ/√λ_c, where λ_c is the mean zero-shot probability of class c on its own images. With
    `texts`, each text is one more image of its class.
    """
    p = softmax(s * x @ t.T, axis=1)
    std = WIDTH / np.sqrt([p[y == c, c].mean() for c in range(C)]) if constrained else np.full(C, WIDTH)
    if texts:
        x, y = np.concatenate([x, t]), np.r_[y, np.arange(C)]
    zero_shot = s * x @ t.T

    def negative(at: Array) -> tuple[float, Array]:
        residual = at[1:].reshape(C, -1)
        logits = at[0] * zero_shot + s * x @ residual.T * std
        off = softmax(logits, axis=1) - np.eye(C)[y]
        loss = -log_softmax(logits, axis=1)[np.arange(len(y)), y].sum()
        loss += (residual**2).sum() / 2 + (at[0] - 1) ** 2 / 2
        return loss, np.r_[(off * zero_shot).sum() + at[0] - 1, (s * std[:, None] * (off.T @ x) + residual).ravel()]

    start = np.r_[1.0, np.zeros(C * x.shape[1])]
    found = minimize(negative, start, jac=True, options={"maxiter": 5000, "gtol": 1e-10})
    return found.x[0] * s * new @ t.T + s * new @ found.x[1:].reshape(C, -1).T * std


def trained(learner: Learner, method: str, x: torch.Tensor, y: torch.Tensor) -> None:
    """Train a head by its recipe, all images in each step. For the convex loss of `linear` in 500 steps.

    Heads that `see` has finished have no recipe.
    """
    epochs = 500 if method == "linear" else None
    resolved = resolve_training(method, None, protocol="few-shot", data="", shots=8, epochs=epochs)
    examples = learner.see(x, y)
    if resolved.inference is not None:
        inference = resolved.inference.changed(batch=len(examples[1]))
        chain = Chain(learner, inference, lambda _: examples, num_data=len(examples[1]), steps_per_epoch=1, seed=0)
        (sample,) = chain.run()
        learner.load_state_dict({**learner.state_dict(), **sample.parameters})


@pytest.mark.parametrize(
    ("method", "settings", "formula"),
    [
        ("gda", {}, gda),
        ("tip-adapter", {}, tip_adapter),
        ("tip-adapter-f", {}, tip_adapter_f),
        ("lp++", {}, lp_plus),
        ("proker", {}, proker),
        ("linear", {}, linear),
        ("linear", {"class_constraint": True}, partial(linear, constrained=True)),
        ("linear", {"texts_as_examples": True}, partial(linear, texts=True)),
        (
            "linear",
            {"class_constraint": True, "texts_as_examples": True},
            partial(linear, constrained=True, texts=True),
        ),
    ],
)
def test_a_head_answers_as_its_formula_does(
    encoder: DualEncoder, method: str, settings: dict[str, object], formula: Callable[..., Array]
) -> None:
    (x, y), (new, _) = features(encoder, 8, seed=0), features(encoder, 20, seed=1)
    given = {**settings, "prior": WIDTH} if method == "linear" else settings
    learner = build_learner(method, encoder, NAMES, "a photo of a {}.", torch.Generator().manual_seed(0), given)
    trained(learner, method, x, y)
    texts = learner.text_features.double().numpy()
    expected = formula(float(encoder.logit_scale), texts, x.double().numpy(), y.numpy(), new.double().numpy())
    with torch.no_grad():
        ours = learner(new).logits.double().softmax(-1).numpy()
    np.testing.assert_allclose(ours, softmax(expected, axis=1), atol=1e-5)
    assert np.ptp(ours[:, 0]) > 0.1
