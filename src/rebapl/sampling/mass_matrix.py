"""A diagonal mass matrix brings coordinates whose gradients differ by orders of magnitude to one scale.

With a constant diagonal P > 0, sampling φ = P^(−1/2)·θ by a step rule samples θ from the same density. For SGHMC:

    p ← p − h·N·P^(1/2)·∇L̃(θ);  θ ← θ + ½h·P^(1/2)·p;  p ← (1−η)·p + sqrt(T·(1−(1−η)²))·ε;  θ ← θ + ½h·P^(1/2)·p

and for SGLD: θ ← θ − lr·P·∇L̃(θ) + sqrt(2·lr·T·P/N)·ε. P is the inverse of the mass. On a quadratic of curvatures λ_i
of N·L the stationary variance is T/λ_i for every P (exactly so for "kdod"; for the other integrators their formulas
hold with P_i·λ_i in place of λ). The step is stable for α·P_i·λ_i < 4 ("kdod"). The more alike the P_i·λ_i are, the
faster the slowest direction relaxes.

P must not depend on θ or its gradient while samples are taken, or the target would be another density. So it is
estimated at temperature 0, in the burn-in or while exploring, and frozen from then on, as Stan does after its warm-up.
With v̂ a running mean of squared gradients and ε' = `DAMPING`·mean √v̂ (after AdamW, at least its own ε), which bounds P
where there is hardly any gradient:

    after AdamW     P_i = (1−momentum)/(√v̂_i + ε')     a step without noise is as long as AdamW's at the same lr
    after SGD       P_i = c/(√v̂_i + ε')                c such that Σ P_i²·v̂_i = Σ v̂_i: as long as SGD's at the same lr

P is 1 for a parameter with fewer than `FEWEST` gradients. They are too few to estimate it: where they happened to be
small, the first large gradient would throw θ far. It is also 1 for all parameters if every gradient was zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rebapl.errors import UserError

DECAY = 0.999
"""The weight of the old value in the running mean of squared gradients at each step, as in Adam."""

DAMPING = 0.01
"""The share of the mean √v̂ that is added to each √v̂."""

FEWEST = 10
"""The least number of gradients from which a mass matrix is estimated."""


def inverse_mass_of_gradients(second_moments: Sequence[Tensor], damping: float = DAMPING) -> list[Tensor]:
    """P from the second moments v̂ of the gradients. A step is as long as without P, and similar in all directions.

    >>> (p,) = inverse_mass_of_gradients([torch.tensor([1.0, 1e-4])], damping=1e-6)
    >>> (p / p[0]).round()
    tensor([  1., 100.])
    """
    if not any(v.any() for v in second_moments):
        return [torch.ones_like(v) for v in second_moments]
    scales = _scales(second_moments, damping)
    before = torch.stack([v.sum() for v in second_moments]).sum()
    after = torch.stack([(v / s.square()).sum() for v, s in zip(second_moments, scales, strict=True)]).sum()
    factor = (before / after.clamp_min(torch.finfo(after.dtype).tiny)).sqrt()
    return [factor / s for s in scales]


def inverse_mass_of_adamw(
    optimizer: torch.optim.Optimizer, momentum: float = 0.0, damping: float = DAMPING
) -> dict[Tensor, Tensor]:
    """P for each parameter of an AdamW (or Adam) that has had a gradient; 1 after fewer than `FEWEST` of them.

    `momentum` is the momentum of the sampler that will use P.
    """
    groups = [group for group in optimizer.param_groups if "betas" in group]
    if not groups:
        raise UserError(
            f"a mass matrix is estimated from the second moments of AdamW, and {type(optimizer).__name__} has none: "
            "let the steps before the sampling be made by AdamW, or by the sampler itself at temperature 0"
        )
    moments: dict[Tensor, Tensor] = {}
    for group in groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            if "exp_avg_sq" in state:
                moments[p] = state["exp_avg_sq"] / (1 - group["betas"][1] ** state["step"].to(p))
    if not moments:
        raise UserError("a mass matrix is estimated from AdamW's second moments, and this AdamW has made no step yet")
    enough = {p: v for p, v in moments.items() if float(optimizer.state[p]["step"]) >= FEWEST}
    if not enough or not any(v.any() for v in enough.values()):
        return {p: torch.ones_like(p) for p in moments}
    scales = _scales(list(enough.values()), damping, least=max(group["eps"] for group in groups))
    masses = {p: (1 - momentum) / scale for p, scale in zip(enough, scales, strict=True)}
    return {p: masses.get(p, torch.ones_like(p)) for p in moments}


def _scales(second_moments: Sequence[Tensor], damping: float, least: float = 0.0) -> list[Tensor]:
    """√v̂ + the larger of damping·mean √v̂ and `least`, never zero."""
    roots = [v.sqrt() for v in second_moments]
    count = sum(root.numel() for root in roots)
    mean = torch.stack([root.sum() for root in roots]).sum() / count
    added = (damping * mean).clamp_min(max(least, torch.finfo(mean.dtype).tiny ** 0.5))
    return [root + added for root in roots]
