"""Have the chains (or cycles) of a run found the same density, and how many independent draws are theirs worth?

Both follow Vehtari, Gelman, Simpson, Carpenter & Bürkner, "Rank-normalization, folding, and localization", 2021. Each
chain is split into halves, so that a drift within a chain counts too, and draws are replaced by the normal scores of
their ranks, so that heavy tails do no harm:

    R̂   = sqrt(var⁺/W),  var⁺ = (n−1)/n·W + B/n       W within the half-chains, B between them, n draws in each;
                                                        the greater of that of the draws and of |draws − median|
    ESS  = m·n / τ,       τ = −1 + 2·Σ_t P_t            P_t = ρ_2t + ρ_2t+1, summed while positive and made monotone
                                                        (Geyer 1992), ρ_t the autocorrelation of all m half-chains

Values of R̂ above 1.01, or fewer than 100 effective draws per chain, say that a number computed from these draws is not
to be relied on yet. Few samples of a long run cannot show that it has converged, only that it has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy
import torch

from rebapl.errors import UserError
from rebapl.sampling.loop import Sample

FEWEST = 4
"""The least number of draws that a chain needs: two in each half."""


def split_r_hat(draws: Any) -> np.ndarray:
    """R̂ of draws (chains, draws) or (chains, draws, d): shape () or (d,); nan where nothing varies.

    >>> apart = np.array([[0.0, 1.0, 0.0, 1.0], [5.0, 6.0, 5.0, 6.0]])
    >>> bool(split_r_hat(apart) > 1.5)
    True
    """
    return _each(draws, lambda x: max(_r_hat(_scores(_halves(x))), _r_hat(_scores(_folded(_halves(x))))))


def effective_sample_size(draws: Any) -> np.ndarray:
    """The bulk effective sample size of draws (chains, draws) or (chains, draws, d): shape () or (d,).

    >>> independent = np.random.default_rng(0).normal(size=(4, 100))
    >>> bool(300 < effective_sample_size(independent) < 600)
    True
    """
    return _each(draws, lambda x: _ess(_scores(_halves(x))))


def draws_of(samples: Sequence[Sample], by: Literal["chain", "cycle"] = "chain") -> torch.Tensor:
    """The parameters of a run's samples as draws (chains, draws, d), or with its cycles in the place of chains.

    Cycles ask another question than chains: whether each restart comes back to the same density.
    """
    groups: dict[int, list[torch.Tensor]] = {}
    for sample in samples:
        values = torch.cat([p.flatten() for p in sample.parameters.values()])
        groups.setdefault(getattr(sample, by), []).append(values)
    if len({len(group) for group in groups.values()}) != 1:
        raise UserError(f"every {by} needs equally many samples, at least one: take them when the run is over")
    return torch.stack([torch.stack(group) for group in groups.values()])


def _each(draws: Any, one: Any) -> np.ndarray:
    given = draws.detach().cpu().numpy() if isinstance(draws, torch.Tensor) else draws
    x = np.asarray(given, dtype=np.float64)
    if x.ndim not in (2, 3) or x.shape[1] < FEWEST:
        raise UserError(
            f"draws have the shape (chains, draws) or (chains, draws, d) with at least {FEWEST} draws of each chain; "
            f"these have {x.shape}"
        )
    if not np.isfinite(x).all():
        raise UserError("some of these draws are not finite numbers: leave them out, or look at what went wrong there")
    return np.asarray(one(x)) if x.ndim == 2 else np.array([one(x[..., i]) for i in range(x.shape[2])])


def _halves(x: np.ndarray) -> np.ndarray:
    """(chains, draws) → (2·chains, draws // 2): the middle draw of an odd number is left out."""
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
        return float(x.size)  # as Stan and arviz have it: a constant is known exactly
    m, n = x.shape
    within, pooled = _pooled(x)
    rho = 1 - (within - _autocovariance(x).mean(axis=0)) / pooled
    rho[0] = 1.0
    pairs = (rho[:-1] + rho[1:])[::2][: max((n - 1) // 2, 1)]
    last = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs) - 1  # of it, only the first term counts
    kept = np.minimum.accumulate(pairs[:last])
    rest = rho[2 * last] if rho[2 * last] > 0 or pairs[last] >= 0 else 0.0
    tau = -1 + 2 * kept.sum() + rest
    return float(m * n / max(tau, 1 / np.log10(m * n)))


def _autocovariance(x: np.ndarray) -> np.ndarray:
    """Of each chain at every lag (m, n), by Fourier transforms."""
    n = x.shape[1]
    waves = np.fft.rfft(x - x.mean(axis=1, keepdims=True), n=2 * n, axis=1)
    return np.fft.irfft(np.abs(waves) ** 2, axis=1)[:, :n] / n
