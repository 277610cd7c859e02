"""When to answer "I don't know": a threshold on an uncertainty, chosen on validation images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior.prediction import Prediction, Threshold


def choose_threshold(
    prediction: Prediction,
    labels: Tensor,
    *,
    risk: float | None = None,
    coverage: float | None = None,
    by: str = "max-probability",
) -> Threshold:
    """Choose a threshold on the uncertainty `by`, on validation images with labels (N,) that nothing was trained on.

    With `risk`, it is the threshold that answers most images while at most that share of the answers is wrong. With
    `coverage`, it is the lowest threshold that answers at least that share of the images. Images of equal uncertainty
    are answered together or not at all.
    """
    if (risk is None) == (coverage is None):
        raise UserError("choose a threshold by either risk or coverage: give one of them")
    if len(labels) != len(prediction) or len(labels) == 0:
        raise UserError(f"{len(labels)} labels for {len(prediction)} images: as many are needed, and at least one")
    uncertainty, order = prediction.uncertainty(by).sort()
    wrong = (prediction.labels != labels)[order].double().cumsum(0)
    answered = torch.arange(1, len(labels) + 1)
    risks = wrong / answered
    possible = torch.cat([uncertainty[1:] > uncertainty[:-1], torch.tensor([True])])
    if coverage is not None:
        if not 0 < coverage <= 1:
            raise UserError(f"coverage = {coverage}: the share of images to answer is above 0 and at most 1")
        index = int((possible & (answered >= math.ceil(coverage * len(labels) - 1e-9))).int().argmax())
    else:
        index = _within_risk(risks, possible, float(risk or 0))
    return Threshold(
        by=by,
        value=float(uncertainty[index]),
        average=prediction.average,
        class_names=tuple(prediction.class_names),
        risk=float(risks[index]),
        coverage=float(answered[index]) / len(labels),
        images=len(labels),
    )


def _within_risk(risks: Tensor, possible: Tensor, risk: float) -> int:
    if not 0 <= risk < 1:
        raise UserError(f"risk = {risk}: the share of wrong answers allowed is at least 0 and below 1")
    good = possible & (risks <= risk)
    if not bool(good.any()):
        lowest = float(risks[possible].min())
        raise UserError(
            f"no threshold keeps the risk at {risk:g} on these {len(risks)} images: the lowest reached is "
            f"{lowest:.3f}; allow that much, or choose by coverage"
        )
    return int(good.nonzero().max())
