"""The repulsive potential V of a squared distance, large when two samples are alike.

    inverse:  V = 1/(d²+ε)       |dV/dd| = 2d/(d²+ε)²  ≤  (9/8√3)·ε^(−3/2) ≈ 0.65·ε^(−3/2), at d² = ε/3
    log:      V = −log(d²+ε)     |dV/dd| = 2d/(d²+ε)   ≤  ε^(−1/2),                        at d² = ε

The inverse one is the paper's. ε is relative: ε = `epsilon`·s, where s is the squared distance between the stored
sample's cloud and that of the model before anything was learned, on the same images. So ε means the same whatever the
distance, the features' scale and the number of images. A fixed small ε would give a force of ε^(−3/2) just off a
stored sample, which is where a warm restart begins.
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
