"""What all heads share: they learn from the frozen features of images, and classes without images keep their text.

A head has parameters for the T classes that it was built for. Bound to other class names, a class that was trained on
keeps what was learned of it, wherever it stands now, and every other class has its text feature alone. The logits are

    κ·s·x·t_c + g_c(x),

with the zero-shot logits s·x·t_c, which one number κ makes less sure or surer, and g_c(x), what the images of the
class say (`extra`). For classes without images, κ is 1 and g is 0.

κ has a prior, N(1, 1), and so has the weight of g where it has one; see `blended`. Many images do not feel it. A few
images of classes that are easy to tell apart would be answered rightly however sure the logits are, and the greatest
likelihood alone would make them endlessly sure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rebapl.learners.base import Output, TextLearner, rows_of
from rebapl.learners.templates import mean_features
from rebapl.settings import Settings


class NothingToSet(Settings):
    """The settings of a head that has none."""


class Head(TextLearner):
    """A learner on frozen features. A subclass makes its parameters in `adopt`, after `super().adopt(…)`."""

    repels_in: ClassVar[str | None] = None
    learns_from_features = True
    logits_are_products = False
    owners: Sequence[str] = ()
    """The classes that it was built for, in the order of its parameters."""

    def adopt(self, class_names: Sequence[str]) -> None:
        self.owners = tuple(class_names)
        self.text_weight = self.found(1)  # κ
        nn.init.ones_(self.text_weight)

    def found(self, *shape: int) -> nn.Parameter:
        """A parameter of that shape that `see` fills in, zero until then, and that no sampler moves."""
        return nn.Parameter(torch.zeros(shape, device=self.encoder.device), requires_grad=False)

    def prepare_text(self) -> None:
        self.text_features = mean_features(self.encoder, self.class_names, self.template, normalised=True)
        rows, device = rows_of(self.owners, self.class_names), self.encoder.device
        self.rows = torch.tensor([row or 0 for row in rows], device=device)
        self.trained = torch.tensor([float(row is not None) for row in rows], device=device)
        """1 for the bound classes that were trained on and 0 for the others (C,)."""

    def placed(self, learned: Tensor) -> Tensor:
        """What was learned of each class (…, T) for the classes bound to (…, C); 0 for those not trained on."""
        return learned[..., self.rows] * self.trained

    def reset(self, generator: torch.Generator) -> None:  # noqa: ARG002
        """Nothing is drawn: what `see` finds stays, and all else starts at zero."""
        for parameter in self.parameters():
            if parameter.requires_grad:
                nn.init.zeros_(parameter)

    @property
    def kappa(self) -> Tensor:
        """κ (C, 1) of the classes bound to: 1 for those not trained on."""
        return (1 + (self.text_weight - 1) * self.trained)[:, None]

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.kappa * self.text_features}

    def extra(self, features: Tensor) -> Tensor:
        """g (B, T): what the images of the classes say of features (B, e)."""
        return features.new_zeros(len(features), len(self.owners))

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        extra = self.placed(self.extra(frozen))
        return Output(self.encoder.logits(frozen, classes["text"]) + extra, {"image": frozen, "extra": extra}, classes)


@torch.no_grad()
def blended(zero_shot: Tensor, extra: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """κ and α ≥ 0 with the least loss, and that loss: of logits κ·zero_shot + α·extra (N, C),

        mean cross-entropy + ((κ − 1)² + (ρ·α)²) / 2N.

    ρ is how far the extra logits of an image lie apart, in terms of how far those of zero-shot do (the ratio of their
    standard deviations over classes), so that ρ·α has the same prior of width 1 as κ. The `extra` logits of an image
    must not have been learned from that image. κ and ρ·α are found by Newton's method: the problem is convex. One of
    them that would fall below 0 stays there while the other moves.
    """
    parts = torch.stack([zero_shot, extra]).double()
    parts -= parts.mean(-1, keepdim=True)
    start = weights = torch.tensor([1.0, 0.0], dtype=torch.float64, device=parts.device)
    apart = parts.square().mean((1, 2)).sqrt()
    ratio = apart[1] / apart[0].clamp(min=1e-6) if apart[1] > 0 else torch.ones_like(apart[1])  # ρ
    parts[1] /= ratio
    precision, identity = 1 / len(labels), torch.eye(2, dtype=torch.float64, device=parts.device)

    def loss(weights: Tensor) -> Tensor:
        prior = precision * (weights - start).square().sum() / 2
        return F.cross_entropy(torch.einsum("k,knc->nc", weights, parts), labels) + prior

    least = loss(weights)
    for _ in range(100):
        p = torch.einsum("k,knc->nc", weights, parts).softmax(-1)
        mean = torch.einsum("nc,knc->kn", p, parts)
        own = parts[:, torch.arange(len(labels), device=labels.device), labels]
        gradient = (mean - own).mean(-1) + precision * (weights - start)
        hessian = (torch.einsum("nc,knc,lnc->kln", p, parts, parts) - mean[:, None] * mean[None]).mean(-1)
        free = ((weights > 0) | (gradient < 0)).double()
        hessian = (hessian + precision * identity) * free[:, None] * free + (1 - free).diag()
        step, size = torch.linalg.solve(hessian, free * gradient), 1.0
        while size > 1e-6 and loss((weights - size * step).clamp(min=0)) > least:
            size /= 2
        moved = (weights - size * step).clamp(min=0)
        if size <= 1e-6 or (moved - weights).abs().max() < 1e-8 * weights.abs().max():
            break
        weights, least = moved, loss(moved)
    return weights[0].item(), (weights[1] / ratio).item(), least.item()
