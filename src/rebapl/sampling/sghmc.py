"""Stochastic gradient Hamiltonian Monte Carlo, with four integrators: orders of its drift, gradient and noise."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from rebapl.sampling.rule import Rule, add_, normal_like
from rebapl.sampling.settings import SGHMCSettings


class SGHMC(Rule):
    """p ← p − h·N·∇L̃(θ);  θ ← θ + ½h·p;  p ← (1−η)·p + sqrt(T·(1−(1−η)²))·ε;  θ ← θ + ½h·p

    Chen, Fox & Guestrin, "Stochastic Gradient Hamiltonian Monte Carlo", 2014. Targets exp(−N·L(θ)/T) with
    L = mean loss + ½·wd·‖θ−θ₀‖² (see `Rule`, also for the arguments). Friction η = 1 − momentum,
    h = sqrt(lr/N), p of unit mass.

    Settings with their defaults: `momentum` 0.9, `temperature` 1, `integrator` "kdod", and the prior as `weight_decay`
    or `prior_std`.

    The integrators, on a quadratic of curvature λ of N·L, with α = lr/N:

    * "kdod" (kick, half drift, Ornstein–Uhlenbeck, half drift), the equation above: stationary variance T/λ exactly,
      stable for αλ < 4; p² averages T exactly.
    * "symplectic": p ← (1−η)·p − h·N·∇L̃ + sqrt(2(η−γ̂)T)·ε; θ ← θ + h·p. Variance (T/λ)/(1 − αλ/(2(2−η))),
      stable for αλ < 2(2−η); p² averages 2T/(2−η−αλ/2).
    * "printed", as the ReBaPL paper prints the step: θ moves by the old p. Variance
      (T/λ)·2η(2−η+αλ)/((η−αλ)(4−2η+αλ)), which is infinite at αλ = η.
    * "authors", as in the paper's released code: the symplectic order, with temperature·sqrt(2·lr·momentum)/N·ε added
      to torch's momentum buffer. Its true temperature is lr²·momentum·temperature²/(N·η).

    At temperature 0 the step is exactly that of torch.optim.SGD with momentum, for any schedule of lr (except for
    "printed", which keeps its order). The state is torch's momentum buffer v, with p = −sqrt(lr·N)·v. While sampling, v
    is multiplied by sqrt(lr_old/lr_new) when lr changes, so that p stays the same ("authors" does not do this, like
    their code). With a mass matrix, v is P^(1/2) times that of unit mass, and the step at temperature 0 is that of SGD
    on the gradient P·∇L.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> sampler = SGHMC([weight], lr=0.1, num_data=50, generator=torch.Generator().manual_seed(0))
    >>> (weight**2).sum().backward()
    >>> sampler.step()
    """

    settings: ClassVar = SGHMCSettings

    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        lr, momentum, order = group["lr"], group["momentum"], group["integrator"]
        sampling = group["temperature"] > 0
        if sampling and not isinstance(lr, Tensor) and lr == 0:
            return  # p stays the same, and θ does not move
        for p in params:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        if sampling and order != "authors":
            self._keep_momentum(group)
        if sampling and order == "kdod":
            add_(buffers, grads)
            add_(params, buffers, -0.5 * lr)
            torch._foreach_mul_(buffers, momentum)
            self._refresh(group, params, buffers)
            add_(params, buffers, -0.5 * lr)
        else:
            if order == "printed":
                add_(params, buffers, -lr)
            torch._foreach_mul_(buffers, momentum)
            add_(buffers, grads)
            if sampling:
                self._refresh(group, params, buffers)
            if order != "printed":
                add_(params, buffers, -lr)
        group["momentum_lr"] = lr.clone() if isinstance(lr, Tensor) else lr

    def _keep_momentum(self, group: dict[str, Any]) -> None:
        """v ← v·sqrt(lr_old/lr_new), so that p stays the same at the new lr, also where this step has no gradient."""
        old, new = group.get("momentum_lr"), group["lr"]
        if old is not None and (isinstance(new, Tensor) or old != new):
            torch._foreach_mul_([buffer for _, buffer in self._momenta(group)], (old / new) ** 0.5)

    def _momenta(self, group: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
        """The parameters of a group that have had a gradient, each with its momentum buffer."""
        states = ((p, self.state[p]) for p in group["params"])
        return [(p, state["momentum_buffer"]) for p, state in states if "momentum_buffer" in state]

    def _refresh(self, group: dict[str, Any], params: list[Tensor], buffers: list[Tensor]) -> None:
        """The injected noise, in units of v."""
        lr, T, momentum = group["lr"], group["temperature"], group["momentum"]
        friction = 1 - momentum
        if group["integrator"] == "authors":
            amplitude = T * (2 * momentum) ** 0.5 / group["num_data"]
            noise = normal_like(buffers, self.generator)
            add_(buffers, noise, amplitude * lr**0.5)
            return
        kdod = group["integrator"] == "kdod"
        variance = T * (1 - momentum**2) if kdod else 2 * friction * T
        weight = (1 - friction / 2) ** 2 if kdod else 1.0
        self._add_noise(group, params, buffers, variance, weight, scale=(lr * group["num_data"]) ** -0.5)

    def kinetic_temperature(self) -> Tensor:
        """Mean p² over all coordinates that moved, corrected by (2−η)/2 for integrators other than "kdod".

        It equals T at equilibrium for small steps. It is a 0-d tensor, and computing it does not wait for the device.
        """
        sums, count = [], 0
        for group in self.param_groups:
            correction = 1.0 if group["integrator"] == "kdod" else (1 + group["momentum"]) / 2
            for p, buffer in self._momenta(group):
                squares = buffer.float().square()
                if group["mass_matrix"] is not None:
                    squares = squares / self.inverse_mass(p)
                sums.append(squares.sum() * (correction * group["momentum_lr"] * group["num_data"]))
                count += p.numel()
        if not sums:
            return torch.tensor(math.nan)
        return torch.stack([s.to(sums[0].device) for s in sums]).sum() / count
