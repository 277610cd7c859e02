"""What all step rules share: the target density, the prior, the estimate of the gradient noise, parameter groups.

Everything is in mean-loss units, so that learning rates mean what they mean in SGD:

    L(θ) = mean loss + ½·wd·‖θ−θ₀‖²,        target density ∝ exp(−N·L(θ)/T)

with N = `num_data`, T = `temperature` (1 is Bayes, 0 is optimisation) and the prior standard deviation 1/sqrt(N·wd).
Where the loss is not a negative log-likelihood, the target is a Gibbs posterior.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from rebapl.errors import UserError, unknown
from rebapl.sampling.mass_matrix import DECAY, FEWEST, inverse_mass_of_adamw, inverse_mass_of_gradients
from rebapl.sampling.settings import SCHEDULED, LangevinSettings

NOISE_DECAY = 0.99
NOISE_TRUST = 0.5  # V̂ is shrunk until the running mean has this share of its full weight, which takes 70 gradients
ESTIMATES = ("last_gradient", "noise_variance", "noise_weight", "second_moment", "moment_weight", "inverse_mass")
CUT_SHARE = 0.05  # warn if a larger share of coordinates than this gets no injected noise


def prior_decay(weight_decay: float, prior_std: float | None, num_data: int) -> float:
    """The prior as a decay in mean-loss units: wd, or 1/(N·std²).

    >>> prior_decay(0.0, prior_std=5.0, num_data=80)
    0.0005
    """
    return weight_decay if prior_std is None else 1.0 / (num_data * prior_std**2)


class Rule(torch.optim.Optimizer):
    """Base of the step rules: the gradient with the prior's pull, and the noise that mini-batches bring by themselves.

    The `settings` and their defaults are those of the sampler's settings class: `temperature`, `weight_decay`,
    `prior_std`, `center`, `gradient_noise`, `mass_matrix`, and for `SGHMC` also `momentum` and `integrator`. Noise is
    drawn from `generator`, or from torch's global stream.

    `gradient_noise` is None (gradient noise is ignored), a constant γ̂, or "estimate". The estimate V̂ of each coordinate
    is a running mean of ½(g_t − g_{t−1})², the variance of the mini-batch mean gradient. It uses differences of
    successive gradients, because a plain running variance would count the movement of θ as noise. The injected noise is
    reduced by the gradient noise, and never below zero.

    `mass_matrix="diagonal"` samples in coordinates in which gradients have one scale; see the module `mass_matrix`. It
    is estimated from the gradients of the steps at temperature 0, and frozen at the first step at a higher temperature,
    or earlier by `freeze_mass`.

    Steps work on lists of tensors with torch's foreach operations: one kernel for the whole list on a GPU.
    """

    settings: ClassVar[type[LangevinSettings]]
    """The class of the rule's settings: it has their defaults and checks the values of a parameter group."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        *,
        num_data: int,
        generator: torch.Generator | None = None,
        **settings: Any,
    ) -> None:
        self.generator = generator
        self._warned = False
        # how many coordinates had their noise cut at zero, and how many there were, summed over all steps so far …
        self._clamped: Tensor | None = None
        self._clamped_before: Tensor | None = None  # … and up to the last call of `acceptance`
        fields = self.settings.model_fields
        own = {name: fields[name].default for name in fields if name not in ("lr", *SCHEDULED)}
        for name in settings:
            if name not in own:
                raise unknown(f"setting of {type(self).__name__}", name, own)
        super().__init__(params, {**own, **settings, "lr": lr, "num_data": num_data})

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("generator", "_warned", "_clamped", "_clamped_before")}
        return {**super().__getstate__(), **own}

    def state_dict(self) -> dict[str, Any]:
        """Torch's own, with the counts of `acceptance`."""
        return {**super().state_dict(), "clamped": [self._clamped, self._clamped_before]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "clamped"})
        self._clamped, self._clamped_before = state_dict.get("clamped", (None, None))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. Values that the sampler's settings refuse are refused, except for a temperature of 0."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        values = {name: group[name] for name in self.settings.model_fields if name in group}
        allowed = {
            "lr": 0.0 if isinstance(group["lr"], Tensor) else group["lr"],  # reading a tensor would wait for the device
            "temperature": group["temperature"] or 1.0,
            "gradient_noise": group["gradient_noise"] or None,
        }
        self.settings(**{**values, **allowed})
        if not group["num_data"] >= 1:
            raise UserError(f"num_data is {group['num_data']}; it is the number of training examples, at least 1")
        for p in group["params"]:
            if p.dtype in (torch.float16, torch.bfloat16):
                raise UserError(
                    f"a parameter of shape {tuple(p.shape)} is {p.dtype}, too coarse to take small steps in: keep the "
                    "learned parameters in float32 (the frozen model may stay as it is)"
                )
            if group["center"] is not None:
                self.state[p]["center"] = p.detach().clone()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. Parameters without a gradient do not change: they get no noise and no decay.

        `closure`, if given, re-evaluates the model and returns the loss, and `step` returns this loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            if group["gradient_noise"] == "estimate":
                self._update_noise_estimate(params)
            self._move(group, params, self._preconditioned(group, params, self.gradients(group, params)))
        self.warn_if_clamped(wait=False)
        return loss

    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        raise NotImplementedError

    def restart(self, keep_momentum: bool = False) -> None:
        """Begin the estimates of the gradient noise and of the mass matrix anew, and set the momentum to zero."""
        for state in self.state.values():
            if "momentum_buffer" in state and not keep_momentum:
                state["momentum_buffer"].zero_()
            for name in ESTIMATES:
                state.pop(name, None)

    def gradients(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """∇L with the prior: g + wd·(θ−θ₀), in the shapes of `params`."""
        grads = [p.grad for p in params if p.grad is not None]
        wd = prior_decay(group["weight_decay"], group["prior_std"], group["num_data"])
        if wd == 0:
            return grads
        deviations: Any = params
        if group["center"] is not None:
            deviations = torch._foreach_sub(params, [self.state[p]["center"] for p in params])
        return list(torch._foreach_add(grads, deviations, alpha=wd))

    def _preconditioned(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """P·∇L once the mass matrix of a group is frozen. Until then ∇L, which is also used to estimate it."""
        if group["mass_matrix"] is None:
            return grads
        if not any("inverse_mass" in self.state[p] for p in group["params"]):
            if group["temperature"] == 0:
                self._update_second_moments(params, grads)
                return grads
            self.freeze_mass()
        return list(torch._foreach_mul(grads, [self.inverse_mass(p) for p in params]))

    def _update_second_moments(self, params: list[Tensor], grads: list[Tensor]) -> None:
        for p, g in zip(params, grads, strict=True):
            state = self.state[p]
            if "second_moment" not in state:
                state["second_moment"] = torch.zeros_like(p)
                state["moment_weight"] = torch.zeros((), dtype=p.dtype, device=p.device)
            state["second_moment"].lerp_(g.square(), 1 - DECAY)
            state["moment_weight"].lerp_(torch.ones_like(state["moment_weight"]), 1 - DECAY)

    def inverse_mass(self, p: Tensor) -> Tensor:
        """P of one parameter, in its shape; 1 if it had no gradient while P was estimated."""
        return self.state[p]["inverse_mass"] if "inverse_mass" in self.state[p] else torch.ones_like(p)

    @torch.no_grad()
    def freeze_mass(self, adamw: torch.optim.Optimizer | None = None) -> None:
        """Compute the mass matrix, which then stays fixed until `restart`.

        It is estimated from the second moments of `adamw`, an AdamW of the same parameters, or, without one, from the
        gradients of this rule's own steps at temperature 0.
        """
        groups = [group for group in self.param_groups if group["mass_matrix"] is not None]
        params = [p for group in groups for p in group["params"]]
        if params and adamw is None and not any("second_moment" in self.state[p] for p in params):
            raise UserError(
                "a mass matrix is estimated from steps at temperature 0: let some come before the sampling "
                "(`exploration` of a schedule), or call freeze_mass(adamw) with an AdamW that has made steps"
            )
        for group in groups:
            masses = (
                self._mass_of_own_steps(group["params"])
                if adamw is None
                else inverse_mass_of_adamw(adamw, group.get("momentum", 0.0))
            )
            for p in group["params"]:
                self.state[p]["inverse_mass"] = masses.get(p, torch.ones_like(p))

    def _mass_of_own_steps(self, params: list[Tensor]) -> dict[Tensor, Tensor]:
        """P for those of the parameters of a group that had enough gradients at temperature 0."""
        fewest = 1 - DECAY ** (FEWEST - 0.5)  # `moment_weight` is 1 − DECAY^gradients
        states = {p: self.state[p] for p in params if float(self.state[p].get("moment_weight", 0.0)) > fewest}
        moments = [state["second_moment"] / state["moment_weight"] for state in states.values()]
        return dict(zip(states, inverse_mass_of_gradients(moments), strict=True))

    def _update_noise_estimate(self, params: Iterable[Tensor]) -> None:
        for p in params:
            state = self.state[p]
            assert p.grad is not None
            if "last_gradient" not in state:
                state["last_gradient"] = p.grad.clone()
                state["noise_variance"] = torch.zeros_like(p)
                state["noise_weight"] = torch.zeros((), dtype=p.dtype, device=p.device)
                continue
            state["noise_variance"].lerp_((p.grad - state["last_gradient"]).square_().mul_(0.5), 1 - NOISE_DECAY)
            state["noise_weight"].lerp_(torch.ones_like(state["noise_weight"]), 1 - NOISE_DECAY)
            state["last_gradient"].copy_(p.grad)

    def gradient_variance(self, p: Tensor) -> Tensor:
        """V̂ of one parameter, in its shape. It is shrunk towards zero while it rests on few gradients."""
        state = self.state[p]
        return state["noise_variance"] / state["noise_weight"].clamp_min(NOISE_TRUST)

    def _add_noise(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        to: list[Tensor],
        variance: float,
        weight: float,
        scale: float | Tensor,
    ) -> None:
        """to ← to + scale·sqrt(max(0, variance − weight·s))·ε

        s is the variance that mini-batches add to the unit-mass momentum in one step: lr·N·V̂ if it is estimated, and
        2·γ̂·T for a constant γ̂. With a mass matrix, ε has the variance P, and P·V̂ takes the place of V̂.
        """
        noise = normal_like(to, self.generator)
        masses = None if group["mass_matrix"] is None else [self.inverse_mass(p) for p in params]
        if masses is not None:
            noise = list(torch._foreach_mul(noise, torch._foreach_sqrt(masses)))
        if group["gradient_noise"] == "estimate":
            for index, (x, p, eps) in enumerate(zip(to, params, noise, strict=True)):
                estimate = self.gradient_variance(p) if masses is None else masses[index] * self.gradient_variance(p)
                remaining = variance - weight * group["lr"] * group["num_data"] * estimate
                self._note_clamped(remaining)
                x.add_(eps * (remaining.clamp_min(0).sqrt() * scale))
            return
        remaining = variance - weight * 2 * (group["gradient_noise"] or 0.0) * group["temperature"]
        if remaining <= 0 < variance:
            self._warn()
        add_(to, noise, math.sqrt(max(remaining, 0.0)) * scale)

    def _note_clamped(self, remaining: Tensor) -> None:
        cut = (remaining <= 0).sum()
        counts = torch.stack([cut, torch.full_like(cut, remaining.numel())])
        self._clamped = counts if self._clamped is None else self._clamped.to(counts.device) + counts

    def acceptance(self) -> Tensor:
        """The share of coordinates, since the last call, where gradient noise left room for injected noise.

        It is 1 if no noise was to be injected (at temperature 0), and if gradient noise is not estimated.
        """
        if self._clamped is None:
            return torch.tensor(1.0)
        counts = self._clamped if self._clamped_before is None else self._clamped - self._clamped_before
        self._clamped_before = self._clamped
        return 1 - counts[0] / counts[1].clamp_min(1)

    def warn_if_clamped(self, wait: bool = True) -> None:
        """Warn, once, if the injected noise was cut at zero for many coordinates. Waits for a GPU only if `wait`."""
        if self._warned or self._clamped is None or (self._clamped.is_cuda and not wait):
            return
        if float(self._clamped[0]) > CUT_SHARE * float(self._clamped[1]):
            self._warn()

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "for some coordinates, the gradient noise of the mini-batches alone exceeds what the friction removes: "
                "they get no injected noise, and samples are hotter than `temperature`. Lower lr or momentum, or "
                "enlarge the batch.",
                stacklevel=2,
            )


def add_(xs: list[Tensor], ys: list[Tensor], scale: float | Tensor = 1.0) -> None:
    """x ← x + scale·y for each pair, where `scale` is a number or a 0-d tensor."""
    if isinstance(scale, Tensor):
        torch._foreach_add_(xs, torch._foreach_mul(ys, scale))
    else:
        torch._foreach_add_(xs, ys, alpha=scale)


def normal_like(xs: list[Tensor], generator: torch.Generator | None) -> list[Tensor]:
    """Standard normal noise in the shapes of `xs`, drawn with one call if all of them have one device and dtype."""
    kinds = {(x.device, x.dtype) for x in xs}
    if len(kinds) > 1:
        return [torch.randn(x.shape, device=x.device, dtype=x.dtype, generator=generator) for x in xs]
    (device, dtype) = next(iter(kinds))
    flat = torch.randn(sum(x.numel() for x in xs), device=device, dtype=dtype, generator=generator)
    return list(torch._utils._unflatten_dense_tensors(flat, xs))
