"""The potential V between two samples, and how strong the force from it is: the coefficients c_s of Σ_s c_s·V_s.

V is a function of a squared distance, large when two samples are alike:

    inverse:  V = 1/(d²+ε)       |dV/dd| = 2d/(d²+ε)²  ≤  (9/8√3)·ε^(−3/2) ≈ 0.65·ε^(−3/2), at d² = ε/3
    log:      V = −log(d²+ε)     |dV/dd| = 2d/(d²+ε)   ≤  ε^(−1/2),                        at d² = ε

The inverse one is the paper's. ε is relative: ε = `epsilon`·s, where s is the squared distance between the stored
sample's cloud and that of the model before anything was learned, on the same images. So ε means the same whatever the
distance and the scale of the features. Wasserstein and paired distances give the same s for many images as for few; the
others give a larger one for few images (MMD 2.8 times as much for 8). A fixed small ε would give a force of
ε^(−3/2) just off a stored sample, which is where a warm restart begins.

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

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rebapl.settings import Settings


class Potential(Settings):
    """`epsilon` in units of s; `scale` puts a number in the place of s (1 makes `epsilon` absolute)."""

    epsilon: float = Field(default=0.3, gt=0)
    scale: float | None = Field(default=None, gt=0)

    def value(self, squared: Tensor, epsilon: Tensor) -> Tensor:
        """V of d²."""
        raise NotImplementedError

    def slope(self, squared: Tensor, epsilon: Tensor) -> Tensor:
        """|dV/dd| of d²."""
        raise NotImplementedError

    def bound(self, epsilon: Tensor) -> Tensor:
        """The greatest |dV/dd| at any distance."""
        raise NotImplementedError


class Inverse(Potential):
    """V = 1/(d²+ε).

    >>> Inverse().bound(torch.tensor(1.0))
    tensor(0.6495)
    """

    kind: ClassVar[str] = "inverse"

    def value(self, squared: Tensor, epsilon: Tensor) -> Tensor:
        return 1 / (squared + epsilon)

    def slope(self, squared: Tensor, epsilon: Tensor) -> Tensor:
        return 2 * squared.sqrt() / (squared + epsilon).square()

    def bound(self, epsilon: Tensor) -> Tensor:
        return 9 / (8 * math.sqrt(3)) * epsilon**-1.5


class Log(Potential):
    """V = −log(d²+ε)."""

    kind: ClassVar[str] = "log"

    def value(self, squared: Tensor, epsilon: Tensor) -> Tensor:
        return -torch.log(squared + epsilon)

    def slope(self, squared: Tensor, epsilon: Tensor) -> Tensor:
        return 2 * squared.sqrt() / (squared + epsilon)

    def bound(self, epsilon: Tensor) -> Tensor:
        return epsilon**-0.5


POTENTIALS: dict[str, type[Potential]] = {each.kind: each for each in (Inverse, Log)}


class Force(Settings):
    """A size of the force. `relative` ones measure the loss gradient; `outside` ones do not go through the step."""

    relative: ClassVar[bool] = False
    outside: ClassVar[bool] = False


class Absolute(Force):
    """strength·ΣV inside the loss. In both stages the chain targets the density tilted by exp(−N·strength·ΣV/T).

    Where AdamW moves θ, the term's gradient goes beside its step, times the learning rate, as its weight decay does.
    """

    kind: ClassVar[str] = "absolute"
    strength: float = Field(ge=0)


class Printed(Absolute):
    """The paper's printed rule: θ moves by strength·F, F = −∇ΣV, beside the step, whatever the step size is."""

    kind: ClassVar[str] = "printed"
    outside: ClassVar[bool] = True


class Relative(Force):
    """Forces that are scaled by the usual norm of the loss gradient.

    Norms are measured again every `measure_every` evaluations of the force, and more often early in a cycle.
    `tolerance` is the δ of the equation above; None: the force does not yield.
    """

    relative: ClassVar[bool] = True
    measure_every: int = Field(default=10, ge=1)
    tolerance: float | None = Field(default=None, gt=0)

    def coefficients(self, usual: Tensor, slope: Tensor, pull: Tensor, bound: Tensor) -> Tensor:
        """c (S,) from the usual norm (), ‖∇d‖ (S,), |dV/dd| (S,) and its greatest value (S,)."""
        raise NotImplementedError


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
