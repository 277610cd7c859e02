"""Prediction sets: classes that an image may have, with the right class among them as often as a level promises.

This is conformal prediction with one of the `SET_SCORES` s(x, c) of the averaged probabilities. Let s_1 … s_n be the
scores of the right classes y_i of n held-out images. A class c is in the set of x if s(x, c) ≤ q_c. The likeliest
class is in every set, so that no set is empty; this can only put the right class into more sets. With weights w_ic of
the held-out images and v_c of the new one,

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

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior.prediction import Conformal, Prediction
from rebapl.posterior.set_scores import SET_SCORES, check_level


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
    if len(labels) != len(prediction):
        raise UserError(f"{len(labels)} labels for {len(prediction)} images: one label per image is needed")
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
    return replace(chosen, size=prediction.sets(chosen).sum(-1).double().mean().item())


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
    own_answers = (replace(each, by_fold=each.probabilities.expand(len(folds), -1, -1)) for each in predictions)
    size = sum(int(each.sets(chosen).sum()) for each in own_answers) / images
    return replace(chosen, size=size)


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
