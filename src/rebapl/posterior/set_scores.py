"""How strange a class would be for an image: the scores that prediction sets are made of, all of the probabilities p.

Let r(c) be the rank of class c by p, the likeliest first (of equal ones, the first in the order of the classes).

    probability    1 − p(c)                                                (Sadinle, Lei and Wasserman, 2019)
    aps            Σ of p over the classes of rank ≤ r(c)                  (Romano, Sesia and Candès, 2020)
    raps           the same + 0.1·max(0, r(c) − 2)                         (Angelopoulos et al., 2021)

The first makes the smallest sets, and its sets say little of how hard an image is. APS makes larger ones for images
that are hard, and RAPS holds these from becoming very large; its two numbers are ours. The published APS and RAPS draw
a random number for each image, so that a set keeps its level exactly. Ours do not, so that an image always gets the
same set: they keep at least the level.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PENALTY, FREE = 0.1, 2
"""What each class beyond the first two adds to the score of RAPS."""


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
