"""Diagnostics of convergence: R̂ and the effective sample size.

R̂ shows whether the chains (or cycles) of a run have found the same density. The effective sample size (ESS) is the
number of independent draws that their draws are worth. Both follow Vehtari, Gelman, Simpson, Carpenter & Bürkner,
"Rank-normalization, folding, and localization", 2021. Each chain is split into halves, so that a drift within a chain
counts too, and draws are replaced by the normal scores of their ranks, so that heavy tails do no harm:

    R̂   = sqrt(var⁺/W),  var⁺ = (n−1)/n·W + B/n       W the variance within the half-chains, B between them, n draws
                                                        in each; R̂ is the greater of those of the draws and of
                                                        |draws − median|
    ESS  = m·n / τ,       τ = −1 + 2·Σ_t P_t            P_t = ρ_2t + ρ_2t+1, summed while positive and made monotone
                                                        (Geyer 1992), ρ_t the autocorrelation of all m half-chains

If R̂ is above 1.01, or there are fewer than 100 effective draws per chain, do not rely on numbers that are computed
from these draws. A few samples of a long run cannot show that it has converged, only that it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import scipy
import torch

from rebapl.errors import UserError
from rebapl.sampling.loop import Sample

FEWEST = 4
"""The least number of draws that a chain needs: two in each half."""


def split_r_hat(draws: Any) -> np.ndarray:
    """R̂ of draws (chains, draws) or (chains, draws, d), in the shape () or (d,); nan for draws that do not vary.

    >>> apart = np.array([[0.0, 1.0, 0.0, 1.0], [5.0, 6.0, 5.0, 6.0]])
    >>> bool(split_r_hat(apart) > 1.5)
    True
    """
    return _by_coordinate(draws, lambda x: max(_r_hat(_scores(_halves(x))), _r_hat(_scores(_folded(_halves(x))))))


def effective_sample_size(draws: Any) -> np.ndarray:
    """The bulk effective sample size of draws (chains, draws) or (chains, draws, d), in the shape () or (d,).

    >>> independent = np.random.default_rng(0).normal(size=(4, 100))
    >>> bool(300 < effective_sample_size(independent) < 600)
    True
    """
    return _by_coordinate(draws, lambda x: _ess(_scores(_halves(x))))


def draws_of(samples: Sequence[Sample], by: Literal["chain", "cycle"] = "chain") -> torch.Tensor:
    """The parameters of a run's samples as draws (chains, draws, d), or with its cycles in place of chains.

    Comparing cycles answers another question than comparing chains: whether each restart finds the same density.
    """
    groups: dict[int, list[torch.Tensor]] = {}
    for sample in samples:
        values = torch.cat([p.flatten() for p in sample.parameters.values()])
        groups.setdefault(getattr(sample, by), []).append(values)
    if len({len(group) for group in groups.values()}) != 1:
        raise UserError(f"every {by} needs equally many samples, at least one: take them when the run is over")
    return torch.stack([torch.stack(group) for group in groups.values()])


def _by_coordinate(draws: Any, statistic: Callable[[np.ndarray], float]) -> np.ndarray:
    """The statistic of draws (chains, draws), or of each of the d coordinates of draws (chains, draws, d)."""
    array = draws.detach().cpu().numpy() if isinstance(draws, torch.Tensor) else draws
    x = np.asarray(array, dtype=np.float64)
    if x.ndim not in (2, 3) or x.shape[1] < FEWEST:
        raise UserError(
            f"draws have the shape (chains, draws) or (chains, draws, d) with at least {FEWEST} draws of each chain; "
            f"these have {x.shape}"
        )
    if not np.isfinite(x).all():
        raise UserError("some of these draws are not finite numbers: leave them out, or look at what went wrong there")
    return np.asarray(statistic(x)) if x.ndim == 2 else np.array([statistic(x[..., i]) for i in range(x.shape[2])])


def _halves(x: np.ndarray) -> np.ndarray:
    """(chains, draws) → (2·chains, draws // 2). If the number of draws is odd, the middle draw is left out."""
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, -half:]])


def _folded(x: np.ndarray) -> np.ndarray:
    return np.abs(x - np.median(x))


def _scores(x: np.ndarray) -> np.ndarray:
    """The normal scores of the ranks among all draws."""
    return scipy.stats.norm.ppf((scipy.stats.rankdata(x).reshape(x.shape) - 0.375) / (x.size + 0.25))


def _pooled(x: np.ndarray) -> tuple[float, float]:
    """W and var⁺ of chains (m, n)."""
    within = x.var(axis=1, ddof=1).mean()
    n = x.shape[1]
    return within, within * (n - 1) / n + x.mean(axis=1).var(ddof=1)


def _r_hat(x: np.ndarray) -> float:
    within, pooled = _pooled(x)
    return float(np.sqrt(pooled / within)) if within > 0 else float("nan")


def _ess(x: np.ndarray) -> float:
    if np.ptp(x) == 0:
        return float(x.size)  # a constant is known exactly; Stan and arviz return the same
    m, n = x.shape
    within, pooled = _pooled(x)
    rho = 1 - (within - _autocovariance(x).mean(axis=0)) / pooled
    rho[0] = 1.0
    pairs = (rho[:-1] + rho[1:])[::2][: max((n - 1) // 2, 1)]
    last = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs) - 1
    monotone = np.minimum.accumulate(pairs[:last])
    rest = rho[2 * last] if rho[2 * last] > 0 or pairs[last] >= 0 else 0.0  # only the first term of the last pair
    tau = -1 + 2 * monotone.sum() + rest
    return float(m * n / max(tau, 1 / np.log10(m * n)))


def _autocovariance(x: np.ndarray) -> np.ndarray:
    """The autocovariance of each chain at every lag (m, n), by Fourier transforms."""
    n = x.shape[1]
    waves = np.fft.rfft(x - x.mean(axis=1, keepdims=True), n=2 * n, axis=1)
    return np.fft.irfft(np.abs(waves) ** 2, axis=1)[:, :n] / n
