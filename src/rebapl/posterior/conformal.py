"""Prediction sets hold the classes that an image may have, so that the right one is among them as often as the level
says. This is split conformal prediction with the score s(x, c) = 1 − p(c|x) of the averaged probabilities. Let s_1 …
s_n be the scores of the right classes of n held-out images, and k = ⌈(n + 1)·level⌉:

    q = the k-th smallest of s_1 … s_n,        set(x) = {c : 1 − p(c|x) ≤ q} ∪ {argmax_c p(c|x)}

If a new image is drawn as the held-out ones were, its class is in its set with probability ≥ level, over the draw of
all n + 1 images, however wrong the probabilities are. (n + 1 and not n: the new image counts as well.) The likeliest
class is always in the set, so that no set is empty; this can only make the probability larger. (Sadinle, Lei and
Wasserman, Least ambiguous set-valued classifiers with bounded error levels, 2019.)
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior.prediction import Conformal, Prediction


def choose_conformal(prediction: Prediction, labels: Tensor, level: float = 0.9) -> Conformal:
    """Choose prediction sets of a level on held-out images with labels (N,) that nothing was trained or fitted on."""
    if len(labels) != len(prediction):
        raise UserError(f"{len(labels)} labels for {len(prediction)} images: as many are needed")
    check_level(level, len(labels))
    scores = 1 - prediction.probabilities.gather(1, labels[:, None])[:, 0]
    quantile = scores.sort().values[rank_of(level, len(labels)) - 1]
    chosen = Conformal(
        level, float(quantile), prediction.average, tuple(prediction.class_names), images=len(labels), size=0.0
    )
    return replace(chosen, size=prediction.sets(chosen).sum(-1).double().mean().item())


def check_level(level: float, images: int) -> None:
    """Refuse a level that is none, or that so few held-out images cannot promise."""
    if not 0 < level < 1:
        raise UserError(f"level = {level}: the share of images whose set holds their class is above 0 and below 1")
    if rank_of(level, images) > images:
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise UserError(
            f"prediction sets of level {level:g} need at least {needed} held-out images, and there are {images}: with "
            "fewer, every set would hold all classes; choose a lower level"
        )


def rank_of(level: float, images: int) -> int:
    """⌈(n + 1)·level⌉, where a product that is whole but for rounding counts as whole."""
    return math.ceil((images + 1) * level - 1e-9)
