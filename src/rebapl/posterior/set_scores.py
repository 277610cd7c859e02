"""The scores behind prediction sets, which measure how strange a class would be for an image, and the ranks they need.

All scores are computed from the probabilities p. Let r(c) be the rank of class c by p, the likeliest class first (equal
ones in the order of the classes).

    probability    1 − p(c)                                                (Sadinle, Lei and Wasserman, 2019)
    aps            Σ of p over the classes of rank ≤ r(c)                  (Romano, Sesia and Candès, 2020)
    raps           the same + 0.1·max(0, r(c) − 2)                         (Angelopoulos et al., 2021)

The first makes the smallest sets, but their sizes tell little about how hard an image is. APS makes larger sets for
hard images, and RAPS keeps these from becoming very large; its two numbers are ours. The published APS and RAPS draw a
random number for each image, so that a set keeps its level exactly. Ours do not, so that an image always gets the same
set; they keep at least the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rebapl.errors import UserError, unknown

PENALTY, FREE = 0.1, 2
"""RAPS adds `PENALTY` to the score for each class beyond the `FREE` likeliest."""


def aps(probabilities: Tensor) -> Tensor:
    """Scores (N, C) of probabilities (N, C).

    >>> aps(torch.tensor([[0.25, 0.5, 0.25]]))
    tensor([[0.7500, 0.5000, 1.0000]])
    """
    order = probabilities.argsort(dim=-1, descending=True, stable=True)
    return torch.empty_like(probabilities).scatter_(-1, order, probabilities.gather(-1, order).cumsum(-1))


def raps(probabilities: Tensor) -> Tensor:
    """Scores (N, C) of probabilities (N, C).

    >>> raps(torch.tensor([[0.25, 0.5, 0.25]]))
    tensor([[0.7500, 0.5000, 1.1000]])
    """
    order = probabilities.argsort(dim=-1, descending=True, stable=True)
    beyond = (order.argsort(dim=-1) + 1 - FREE).clamp_min(0)
    return aps(probabilities) + PENALTY * beyond


SET_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "probability": lambda probabilities: 1 - probabilities,
    "aps": aps,
    "raps": raps,
}


def check_set_score(score: str) -> str:
    """Refuse a name that is not in `SET_SCORES`."""
    if score not in SET_SCORES:
        raise unknown("score of prediction sets", score, SET_SCORES)
    return score


def check_level(level: float, images: int, score: str = "probability") -> None:
    """Refuse a level that is not between 0 and 1 or needs more held-out images than these, and an unknown score."""
    check_set_score(score)
    if not 0 < level < 1:
        raise UserError(f"level = {level}: the share of images whose set holds their class is above 0 and below 1")
    if rank_of(level, images) > images:
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise UserError(
            f"prediction sets of level {level:g} need at least {needed} held-out images, and there are {images}: with "
            "fewer, every set would hold all classes; choose a lower level"
        )


def rank_of(level: float, images: int) -> int:
    """⌈(n + 1)·level⌉; a product that is a whole number except for rounding counts as whole."""
    return math.ceil((images + 1) * level - 1e-9)


def cross_conformal_sets(scores: Tensor, folds: Tensor, new: Tensor, level: float = 0.9) -> Tensor:
    """Booleans (N, C): the classes in the sets of N new images, by K trainings that each held out a fold.

    `scores` (n,) has the score of the right class of each held-out image, by the training that held this image out.
    `folds` (n,) has the number of this training, from 0. `new` (K, N, C) has the scores of the new images by each
    training.

    >>> cross_conformal_sets(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 0, 1]), torch.full((2, 1, 2), 0.25), 0.5)
    tensor([[False, False]])
    """
    if len(scores) != len(folds) or not len(scores) or int(folds.max()) >= len(new) or int(folds.min()) < 0:
        raise UserError(f"{len(scores)} scores in {len(folds)} folds of {len(new)} trainings do not fit together")
    check_level(level, len(scores))
    below = torch.zeros(new.shape[1:], dtype=torch.long, device=new.device)
    for fold in folds.unique().tolist():
        ordered = scores[folds == fold].sort().values.to(new.dtype)
        below += torch.searchsorted(ordered, new[fold].contiguous())  # the number of scores strictly below the new one
    return below < level * (len(scores) + 1) - 1e-9
