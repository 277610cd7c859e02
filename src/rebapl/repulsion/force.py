"""The potential V between two samples, and the strength of its force: the coefficients c_s of Σ_s c_s·V_s.

V is a function of the squared distance d², and large if two samples are similar:

    inverse:  V = 1/(d²+ε)       |dV/dd| = 2d/(d²+ε)²  ≤  (9/8√3)·ε^(−3/2) ≈ 0.65·ε^(−3/2), at d² = ε/3
    log:      V = −log(d²+ε)     |dV/dd| = 2d/(d²+ε)   ≤  ε^(−1/2),                        at d² = ε

The paper uses the inverse potential. ε is relative: ε = `epsilon`·s, where s is the squared distance between the stored
sample's cloud and the cloud of the model before learning, on the same images. So `epsilon` means the same for every
distance and every scale of the features. With Wasserstein and paired distances, s is the same for few images as for
many; with the others it is larger for few images (docs/sampling.md has an example). A fixed small ε would cause a force
of ε^(−3/2) close to a stored sample, which is where a warm restart begins.

The gradient of a sample's term has the norm c_s·|dV/dd|_s·‖∇d_s‖. `usual` is the usual norm of the loss gradient (a
running mean, because the gradient vanishes on a mini-batch that is already fitted), `slope_s` = ‖∇d_s‖, and B_s is the
greatest |dV/dd|:

    absolute     c_s = strength                                     inside the loss: a potential of its own
    fading       c_s = fraction·usual / (slope_s·B_s)               `fraction` of the loss gradient where |dV/dd| is
                                                                    greatest, and less in proportion elsewhere
    capped       c_s = min(strength, cap·usual / (slope_s·|dV/dd|)) absolute, but at most `cap` of the loss gradient
    normalised   c_s = fraction·usual / (slope_s·|dV/dd|)           always `fraction` of the loss gradient, however
                                                                    far apart the samples are already
    printed      θ ← θ − strength·∇ΣV after the step                the paper's rule as printed, outside the step size

Each remembered sample has its own coefficient. So if θ is near one of many samples, that sample's force has its full
size, and the forces of samples on opposite sides cancel. With the inverse potential, a fading force falls to half of
its greatest size at d² ≈ 1.9·ε and to a tenth at d² ≈ 8.5·ε.

A relative force may have a `tolerance` δ, in nats: it then becomes weaker if it worsens the fit. With the running mean
ℓ of the loss, and its value ℓ₁ at the end of the first cycle, all coefficients are multiplied by

    min(1, max(0, 1 − (ℓ − ℓ₁)/δ))

so that there is no force left when the loss has risen by δ.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rebapl.settings import Settings


class Potential(Settings):
    """`epsilon` is in units of s. `scale` is a number that replaces s (1 makes `epsilon` absolute)."""

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


POTENTIALS: dict[str, type[Potential]] = {potential.kind: potential for potential in (Inverse, Log)}


class Force(Settings):
    """A rule for the size of the force.

    `relative`: it is measured against the loss gradient. `outside`: the force does not go through the optimizer's step.
    """

    relative: ClassVar[bool] = False
    outside: ClassVar[bool] = False


class Absolute(Force):
    """strength·ΣV inside the loss. In both stages the chain targets the density tilted by exp(−N·strength·ΣV/T).

    If AdamW moves θ, the term's gradient is not part of its step but is added to θ separately, times the learning rate,
    as AdamW's weight decay is.
    """

    kind: ClassVar[str] = "absolute"
    strength: float = Field(ge=0)


class Printed(Absolute):
    """The rule as printed in the paper: after the step θ moves by strength·F, F = −∇ΣV, whatever the step size is."""

    kind: ClassVar[str] = "printed"
    outside: ClassVar[bool] = True


class Relative(Force):
    """A force that is scaled by the usual norm of the loss gradient.

    The norms are measured again every `measure_every` evaluations of the force, and more often early in a cycle.
    `tolerance` is the δ of the equation above; with None, the force does not depend on the loss.
    """

    relative: ClassVar[bool] = True
    measure_every: int = Field(default=10, ge=1)
    tolerance: float | None = Field(default=None, gt=0)

    def coefficients(self, usual: Tensor, slope: Tensor, pull: Tensor, bound: Tensor) -> Tensor:
        """c (S,) from the usual norm (), ‖∇d‖ (S,), |dV/dd| (S,) and its greatest value (S,)."""
        raise NotImplementedError


class Fading(Relative):
    """`fraction` of the loss gradient's usual norm where |dV/dd| is greatest, and proportionally less elsewhere."""

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
    """strength·ΣV, with each sample's gradient limited to `cap` times the loss gradient's usual norm."""

    kind: ClassVar[str] = "capped"
    strength: float = Field(ge=0)
    cap: float = Field(default=1.0, ge=0)

    def coefficients(self, usual: Tensor, slope: Tensor, pull: Tensor, bound: Tensor) -> Tensor:  # noqa: ARG002
        return (self.cap * usual / (slope * pull)).clamp(max=self.strength)


FORCES: dict[str, type[Force]] = {force.kind: force for force in (Fading, Absolute, Capped, Normalised, Printed)}
