"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from rebapl.sampling.rule import Rule, add_
from rebapl.sampling.settings import SGLDSettings


class SGLD(Rule):
    """θ ← θ − lr·∇L̃(θ) + sqrt(2·lr·T/N)·ε

    Welling & Teh, "Bayesian Learning via Stochastic Gradient Langevin Dynamics", 2011. Targets exp(−N·L(θ)/T) with
    L = mean loss + ½·wd·‖θ−θ₀‖² (see `Rule` for the arguments). On a quadratic of curvature λ of N·L the stationary
    variance is (T/λ)/(1 − αλ/2), with α = lr/N. With `gradient_noise` "estimate" the injected variance is
    2·lr·T/N − lr²·V̂. At temperature 0 the step is plain gradient descent.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> sampler = SGLD([weight], lr=0.1, num_data=50, generator=torch.Generator().manual_seed(0))
    >>> (weight**2).sum().backward()
    >>> sampler.step()
    """

    settings: ClassVar = SGLDSettings

    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        add_(params, grads, -group["lr"])
        if group["temperature"] > 0:
            h = (group["lr"] / group["num_data"]) ** 0.5
            self._add_noise(group, params, params, variance=2 * group["temperature"], weight=1.0, scale=h)
