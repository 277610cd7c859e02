"""How many of the surest answers may be given while at most a share r of them, the risk, is wrong.

The held-out images are sorted, the surest first, and W_j of the j surest are answered wrongly. Let R_j be the share of
wrong answers among all images, held out or new, that are at least as sure as the j-th. A choice with a promise keeps

    P(R_j > r for the chosen j) ≤ δ = 1 − confidence

over the draw of the held-out images, if new images are drawn in the same way. The bound is the binomial tail of Geifman
and El-Yaniv (Selective classification for deep neural networks, 2017): if R_j > r, the probability of W_j errors or
fewer is at most

    p_j = Σ_{i ≤ W_j} C(j, i) r^i (1 − r)^(j−i)

Many j are tried. Instead of dividing δ among them, they are tested in a fixed order (Angelopoulos et al., Learn then
test, 2021): upwards from `first_tested`, each at the whole δ, until p_j > δ. A choice can only be wrong if the first j
with R_j > r passes its test, and that happens with probability δ at most. This assumes that R_j does not fall as less
sure images are added: then the j-th image, too, is wrong with probability R_j or more. It also assumes that the order
of the images does not depend on the held-out ones, which holds only approximately if a temperature or weights were
fitted on them before.

Without a promise (confidence 0), as many images are answered as W_j ≤ r·j allows. This risk was measured on the images
that it was chosen on, so new images have more wrong answers more often than fewer. The estimate (W_j + 1)/(j + 1)
allows for this; see `expected_risk`.
"""

from __future__ import annotations

import math

import scipy
import torch
from torch import Tensor

from rebapl.errors import UserError

CONFIDENCE = 0.9
"""A promised risk is kept in at least nine of ten cases."""

FROM = 0.15
"""The tests begin with at least this share of the images. Otherwise a single wrong answer among the very surest, for
example because of a wrong label, would end them."""


def answered_within(
    uncertainty: Tensor, wrong: Tensor, risk: float, confidence: float = CONFIDENCE, most: int | None = None
) -> int:
    """The number of N images, at most `most`, that may be answered within the risk; 0 if none may be.

    uncertainty (N,), and booleans (N,) for which answers are wrong. Images of equal uncertainty are answered together
    or not at all.

    >>> doubt, wrong = torch.linspace(0, 1, 100), torch.arange(100) >= 80
    >>> [answered_within(doubt, wrong, 0.05, confidence) for confidence in (0, 0.9, 0.95)]
    [84, 81, 80]
    """
    ordered, order = uncertainty.sort()
    counts = torch.arange(1, len(wrong) + 1)
    errors = wrong[order].long().cumsum(0)
    possible = torch.cat([ordered[1:] > ordered[:-1], torch.tensor([True])])
    if most is not None:
        possible &= counts <= most
    if confidence == 0:
        good = possible & (errors <= risk * counts + 1e-9)
    else:
        possible &= counts >= first_tested(risk, confidence, len(wrong))
        unlikely = torch.from_numpy(scipy.special.bdtr(errors.numpy(), counts.numpy(), risk)) <= 1 - confidence
        good = possible & (unlikely | ~possible).long().cumprod(0).bool()
    return int(counts[good].max()) if bool(good.any()) else 0


def first_tested(risk: float, confidence: float, images: int) -> int:
    """The number of answers that is tested first: the fewest that allow a promise if none is wrong, (1 − r)^j ≤ δ.

    It is at least the share `FROM` of the images. It is more than `images` if these are too few for a promise.

    >>> first_tested(0.05, 0.9, 100), first_tested(0.05, 0.9, 1000), first_tested(0.0, 0.9, 100)
    (45, 150, 101)
    """
    fewest = images + 1 if risk == 0 else math.ceil(math.log(1 - confidence) / math.log(1 - risk) - 1e-9)
    return max(fewest, math.ceil(FROM * images - 1e-9))


def expected_risk(wrong: int, answered: int) -> float:
    """The share of wrong answers to expect on new images, if `wrong` of `answered` answers were wrong on held-out ones.

    >>> expected_risk(0, 19), expected_risk(1, 39)
    (0.05, 0.05)
    """
    return (wrong + 1) / (answered + 1)


def check_labels(labels: Tensor, images: int) -> None:
    """Refuse labels (N,) of held-out images that are not one for each of these images, or none at all."""
    if len(labels) != images or images == 0:
        raise UserError(f"{len(labels)} labels for {images} images: one label per image is needed, and at least one")


def check_risk(risk: float, confidence: float) -> None:
    """Refuse a risk or a confidence that is out of range."""
    if not 0 <= risk < 1:
        raise UserError(f"risk = {risk}: the share of wrong answers allowed is at least 0 and below 1")
    if not 0 <= confidence < 1:
        raise UserError(f"confidence = {confidence}: it is at least 0, which promises nothing, and below 1")


def check_promise(risk: float, confidence: float, images: int) -> None:
    """Refuse a risk that cannot be promised with this number of images, even if all of their answers are right."""
    check_risk(risk, confidence)
    if confidence > 0 and (needed := first_tested(risk, confidence, images)) > images:
        why = "no number of images can" if risk == 0 else f"that takes {needed} right answers or more"
        raise UserError(
            f"a risk of {risk:g} cannot be promised at confidence {confidence:g} with {images} images: {why}. Allow "
            "more risk or less confidence, choose by coverage, or give confidence=0, which keeps the risk on these "
            "images and promises nothing"
        )
