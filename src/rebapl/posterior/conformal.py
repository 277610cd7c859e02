"""Prediction sets: classes that an image may have, with the right class among them as often as a level promises.

This is conformal prediction. A score s(x, c) measures how strange the class c would be for the image x. All scores are
computed from the averaged probabilities p. Let r(c) be the rank of class c by p, the likeliest class first (equal ones
in the order of the classes).

    probability    1 − p(c)                                                (Sadinle, Lei and Wasserman, 2019)
    aps            Σ of p over the classes of rank ≤ r(c)                  (Romano, Sesia and Candès, 2020)
    raps           the same + 0.1·max(0, r(c) − 2)                         (Angelopoulos et al., 2021)

The first makes the smallest sets, but their sizes tell little about how hard an image is. APS makes larger sets for
hard images, and RAPS keeps these from becoming very large; its two numbers are ours. The published APS and RAPS draw a
random number for each image, so that a set keeps its level exactly. Ours do not, so that an image always gets the same
set; they keep at least the level.

**Sets.** Let s_1 … s_n be the scores of the right classes y_i of n held-out images. A class c is in the set of x if
s(x, c) ≤ q_c. The likeliest class is in every set, so that no set is empty; this can only put the right class into more
sets. With weights w_ic of the held-out images and v_c of the new one,

    q_c = the smallest s with  Σ_i w_ic·[s_i ≤ s] ≥ level·(Σ_i w_ic + v_c),        ∞ if there is none

    kind            w_ic             v_c     the right class is in the set with probability ≥ level
    all classes     1                1       over all images: q is the ⌈(n + 1)·level⌉-th smallest score
    by class        [y_i = c]        1       over the images of each class (Vovk, 2012)
    ratios          r(y_i)           r(c)    over new images of which each class c is r(c) times as frequent as in the
                                             held-out images and looks the same (Podkopaev and Ramdas, 2021)

Each promise is over the draw of the held-out images and one new image. It holds for any number of held-out images, with
ties and however wrong the probabilities are, if nothing was trained or fitted on the held-out images.

**Folds.** With K trainings that each held out a part (a fold) of the images, `cross_conformal_sets` compares each
held-out image with a new image by the training that held it out (Vovk, 2015; CV+ of Barber et al., 2021). k(i) is the
training that held out image i, and α = 1 − level. The set

    set(x) = {c : #{i : s_i < s_k(i)(x, c)} < level·(n + 1)}

holds the right class with probability ≥ 1 − 2α − min(2(1 − 1/K)/(n/K + 1), (1 − K/n)/(K + 1)), whatever the trainings
do, and with one training (K = 1) with probability ≥ 1 − α. In practice the probability is near 1 − α for any K. The
second term of the minimum is proven for folds of equal size only, so other folds have the first term alone. Every new
image needs the answers of all K trainings, so the posterior that `rebapl learn --set-level` makes keeps these trainings
as its `folds`. Comparing the scores of folds with those of one training on all images would promise nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import pydantic
import torch
from torch import Tensor

from rebapl.errors import UserError, unknown
from rebapl.posterior.selective import check_labels

if TYPE_CHECKING:
    from rebapl.posterior.prediction import Prediction

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


class HoldsFor:
    """A choice made on held-out images. It holds only for the averaging and the class names that it was made with."""

    __pydantic_config__ = pydantic.ConfigDict(allow_inf_nan=False, extra="forbid")  # checks choices read from a file
    average: str
    class_names: tuple[str, ...]

    def suits(self, class_names: Sequence[str], average: str) -> bool:
        """Whether it was chosen for this averaging and these class names."""
        return (self.average, self.class_names) == (average, tuple(class_names))


@dataclass(frozen=True)
class Conformal(HoldsFor):
    """Prediction sets of a level: the classes whose `score` is at most the `quantile`, and always the likeliest class.

    The quantile is one number, or one for each class; None puts a class into every set. It was chosen on `images`
    held-out images, whose sets have `size` classes on average; see `rebapl.posterior.conformal`.

    If several trainings held out a part of the images each, `folds` has the scores of the right classes of each part,
    and there is no quantile: a new image is compared with each part by the training that held it out.
    """

    level: Annotated[float, pydantic.Field(gt=0, lt=1)]
    quantile: float | tuple[float | None, ...] | None
    average: str
    class_names: tuple[str, ...]
    images: int
    size: float
    score: Annotated[str, pydantic.AfterValidator(check_set_score)] = "probability"
    folds: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if (self.quantile is None) != bool(self.folds):
            raise UserError("prediction sets have a quantile, or the scores of folds")
        if isinstance(self.quantile, tuple) and len(self.quantile) != len(self.class_names):
            raise UserError(f"{len(self.quantile)} quantiles for {len(self.class_names)} classes: one each is needed")

    @property
    def promised(self) -> float:
        """The lowest probability that the right class of an image like the held-out ones is in its set."""
        folds, images = len(self.folds), self.images
        if folds < 2:
            return self.level
        loss = 2 * (1 - 1 / folds) / (images / folds + 1)
        if len(set(map(len, self.folds))) == 1:  # the other bound is proven for folds of equal size only
            loss = min(loss, (1 - folds / images) / (folds + 1))
        return max(0.0, 1 - 2 * (1 - self.level) - loss)

    def sets(self, probabilities: Tensor, by_fold: Tensor | None = None) -> Tensor:
        """Booleans (N, C): the classes in the set of each image, from its averaged probabilities (N, C).

        If the images are compared by folds, `by_fold` (K, N, C) has the probabilities by the training of each fold.
        """
        likeliest = torch.zeros_like(probabilities, dtype=torch.bool)
        likeliest.scatter_(1, probabilities.argmax(-1, keepdim=True), True)
        score = SET_SCORES[self.score]
        if self.folds:
            if by_fold is None:
                raise UserError("these sets compare images by the trainings of folds: predict with their posterior")
            held_out = torch.tensor([value for fold in self.folds for value in fold], dtype=torch.float64)
            folds = torch.tensor([number for number, fold in enumerate(self.folds) for _ in fold])
            new = torch.stack([score(each).double() for each in by_fold])
            return cross_conformal_sets(held_out, folds, new, self.level) | likeliest
        quantiles = self.quantile if isinstance(self.quantile, tuple) else (self.quantile,)
        limits = torch.tensor([math.inf if limit is None else limit for limit in quantiles], dtype=torch.float64)
        return (score(probabilities).double() <= limits) | likeliest


def choose_conformal(
    prediction: Prediction,
    labels: Tensor,
    level: float = 0.9,
    *,
    score: str = "probability",
    by_class: bool = False,
    ratios: Sequence[float] | None = None,
) -> Conformal:
    """Choose prediction sets of a level on held-out images with labels (N,) that nothing was trained or fitted on.

    `by_class` keeps the level for each class. A class with too few held-out images is then in every set. `ratios` (C,)
    has, for each class, its share of the new images divided by its share of the held-out images.
    """
    check_labels(labels, len(prediction))
    check_level(level, len(labels), score)
    if by_class and ratios is not None:
        raise UserError("sets that keep the level for each class keep it at any ratios: give by_class or ratios")
    scores = SET_SCORES[score](prediction.probabilities).gather(1, labels[:, None])[:, 0].double()
    classes = range(len(prediction.class_names))
    limits: list[float | None]
    if by_class:
        limits = [_limit(scores, (labels == label).double(), 1.0, level) for label in classes]
    elif ratios is not None:
        by_label = _checked_ratios(ratios, len(classes))
        limits = [_limit(scores, by_label[labels], by_label[label].item(), level) for label in classes]
    else:
        limits = [_limit(scores, torch.ones_like(scores), 1.0, level)]
    if all(limit is None for limit in limits):
        raise UserError(f"with {len(labels)} held-out images every set of level {level:g} would hold all classes")
    quantile = limits[0] if len(limits) == 1 and limits[0] is not None else tuple(limits)
    names = tuple(prediction.class_names)
    chosen = Conformal(level, quantile, prediction.average, names, images=len(labels), size=0.0, score=score)
    return replace(chosen, size=chosen.sets(prediction.probabilities).sum(-1).double().mean().item())


def choose_cross_conformal(
    predictions: Sequence[Prediction], labels: Sequence[Tensor], level: float = 0.9, *, score: str = "probability"
) -> Conformal:
    """Choose sets by several trainings, each of which held out a part of the images.

    `predictions` has the prediction of each training for the part that it held out, and `labels` the labels (n_k,) of
    these images. The probabilities must have no temperature that was fitted on these images.
    """
    images, first = sum(map(len, labels)), predictions[0]
    check_level(level, images, score)
    folds = tuple(
        tuple(SET_SCORES[score](each.probabilities).gather(1, own[:, None])[:, 0].double().tolist())
        for each, own in zip(predictions, labels, strict=True)
    )
    names = tuple(first.class_names)
    chosen = Conformal(level, None, first.average, names, images=images, size=0.0, score=score, folds=folds)
    # Only the training that did not see a held-out image has an answer for it, so this answer stands for all trainings.
    own_answers = ((each.probabilities, each.probabilities.expand(len(folds), -1, -1)) for each in predictions)
    return replace(chosen, size=sum(int(chosen.sets(*answers).sum()) for answers in own_answers) / images)


def _limit(scores: Tensor, weights: Tensor, own: float, level: float) -> float | None:
    """q_c for scores (n,) with weights w (n,) and v_c = `own`; None for ∞, which puts the class into every set."""
    ordered, order = scores.sort()
    reached = weights[order].cumsum(0) >= (level - 1e-12) * (weights.sum() + own)  # a sum may be rounded down
    return ordered[int(reached.int().argmax())].item() if bool(reached.any()) else None


def _checked_ratios(ratios: Sequence[float], classes: int) -> Tensor:
    values = torch.as_tensor(ratios, dtype=torch.float64)
    if values.shape != (classes,) or not bool((values.isfinite() & (values >= 0)).all()) or not bool(values.any()):
        raise UserError(f"ratios are one number for each of the {classes} classes, at least 0 and not all 0")
    return values
