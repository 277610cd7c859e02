"""How strong the repulsion is: the coefficients c_s of the term Σ_s c_s·V_s over the remembered samples s.

The gradient of a sample's term has the norm c_s·|dV/dd|_s·‖∇d_s‖. With `usual`, the usual norm of the loss gradient
(a running mean, since a mini-batch that is already fitted has none), `slope` = ‖∇d_s‖, and B_s the greatest |dV/dd|:

    absolute     c_s = strength                                     inside the loss; a potential of its own
    fading       c_s = fraction·usual / (slope_s·B_s)               `fraction` of the loss gradient where |dV/dd| is
                                                                    greatest, and less in proportion elsewhere
    capped       c_s = min(strength, cap·usual / (slope_s·|dV/dd|)) absolute, with at most `cap` of the loss gradient
    normalised   c_s = fraction·usual / (slope_s·|dV/dd|)           always `fraction` of the loss gradient, however
                                                                    far apart the samples are already
    printed      θ ← θ − strength·∇ΣV after the step                the paper's rule as printed, outside the step size

Each remembered sample has its own coefficient. So a θ that is near one of many samples feels the whole force of that
sample, and the forces of samples on opposite sides cancel. With the inverse potential, a fading force falls to half of
its greatest size at d² ≈ 1.9·ε and to a tenth at d² ≈ 8.5·ε.

A relative force may have a `tolerance` δ, in nats: it then yields where it spoils the fit. With ℓ the running mean of
the loss and ℓ₁ what that was when the first cycle ended, all coefficients are times

    min(1, max(0, 1 − (ℓ − ℓ₁)/δ))

so a loss that has risen by δ leaves no force at all.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rebapl.settings import Settings


class Force(Settings):
    """A size of the force. `relative` ones measure the loss gradient; `outside` ones do not go through the step."""

    relative: ClassVar[bool] = False
    outside: ClassVar[bool] = False

    def coefficients(self, usual: Tensor, slope: Tensor, pull: Tensor, bound: Tensor) -> Tensor:
        """c (S,) from the usual norm (), ‖∇d‖ (S,), |dV/dd| (S,) and its greatest value (S,)."""
        raise NotImplementedError


class Absolute(Force):
    """strength·ΣV inside the loss. In both stages the chain targets the density tilted by exp(−N·strength·ΣV/T)."""

    kind: ClassVar[str] = "absolute"
    strength: float = Field(ge=0)

    def coefficients(self, usual: Tensor, slope: Tensor, pull: Tensor, bound: Tensor) -> Tensor:  # noqa: ARG002
        return torch.full_like(pull, self.strength)


class Printed(Absolute):
    """The paper's printed rule: θ moves by strength·F, F = −∇ΣV, beside the step, whatever the step size is."""

    kind: ClassVar[str] = "printed"
    outside: ClassVar[bool] = True


class Relative(Force):
    """Sizes that are measured against the loss gradient, and oftener as a cycle begins.

    That is done every `measure_every` steps; where the force acts at every k-th step only, it is so many of those.
    `tolerance` is the δ of the equation above; None: the force does not yield.
    """

    relative: ClassVar[bool] = True
    measure_every: int = Field(default=10, ge=1)
    tolerance: float | None = Field(default=None, gt=0)


class Fading(Relative):
    """`fraction` of the loss gradient's usual norm where |dV/dd| is greatest, and less in proportion elsewhere."""

    kind: ClassVar[str] = "fading"
    fraction: float = Field(default=1.0, ge=0)

    def coefficients(self, usual: Tensor, slope: Tensor, pull: Tensor, bound: Tensor) -> Tensor:  # noqa: ARG002
        return self.fraction * usual / (slope * bound)


class Normalised(Relative):
    """Always `fraction` of the loss gradient's usual norm."""

    kind: ClassVar[str] = "normalised"
    fraction: float = Field(default=1.0, ge=0)

    def coefficients(self, usual: Tensor, slope: Tensor, pull: Tensor, bound: Tensor) -> Tensor:  # noqa: ARG002
        return self.fraction * usual / (slope * pull)


class Capped(Relative):
    """strength·ΣV, each sample's gradient at most `cap` times the loss gradient's usual norm."""

    kind: ClassVar[str] = "capped"
    strength: float = Field(ge=0)
    cap: float = Field(default=1.0, ge=0)

    def coefficients(self, usual: Tensor, slope: Tensor, pull: Tensor, bound: Tensor) -> Tensor:  # noqa: ARG002
        return (self.cap * usual / (slope * pull)).clamp(max=self.strength)


FORCES: dict[str, type[Force]] = {each.kind: each for each in (Fading, Absolute, Capped, Normalised, Printed)}
