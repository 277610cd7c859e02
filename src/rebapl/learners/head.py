"""The part that all heads share: they learn from the frozen features of images; classes without images keep their text.

A head has parameters for the T classes that it was built for. When it is bound to other class names, each class of
training keeps its parameters, whatever its place in the new list, and every other class has its text feature alone. The
logits of the classes of training are

    z_c = κ·s·x·t_c + g_c(x),

where one number κ makes the zero-shot logits s·x·t_c more or less confident, and g_c(x) is the part that was learned
from the images of the class (`extra`). Classes without images have their zero-shot logits.

In a list with classes of both kinds, the two kinds of logits cannot be compared: κ and g may move all z_c of an image
together, which changes no answer among the classes of training. So the texts decide how probable it is that an image
has one of the classes of training, T, and the head decides which of these:

    p(c | x) = p_zero-shot(T | x) · softmax_T(z)_c   for c in T,      p(c | x) = p_zero-shot(c | x)   for all others.

This adds log Σ_T exp(s·x·t_c) − log Σ_T exp z_c to the z_c.

κ has a prior, N(1, 1), and so has the weight of g, if g has one; see `blended`. With many images the priors make little
difference. A few images of classes that are easy to tell apart are answered correctly at any level of confidence; then
maximum likelihood alone would let the confidence grow without limit.
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
    owners: Sequence[str] = ()
    """The classes that it was built for, in the order of its parameters."""
    mixed = False
    """Whether it is bound to classes of training together with other classes."""

    @property
    def logits_are_products(self) -> bool:
        return type(self).extra is Head.extra and not self.mixed

    def adopt(self, class_names: Sequence[str]) -> None:
        self.owners = tuple(class_names)
        self.text_weight = self.fixed(1)  # κ
        nn.init.ones_(self.text_weight)

    def fixed(self, *shape: int) -> nn.Parameter:
        """A parameter of this shape that no sampler moves. It is zero until `see` sets it."""
        return nn.Parameter(torch.zeros(shape, device=self.encoder.device), requires_grad=False)

    def prepare_text(self) -> None:
        self.text_features = mean_features(self.encoder, self.class_names, self.template, normalised=True)
        rows, device = rows_of(self.owners, self.class_names), self.encoder.device
        self.rows = torch.tensor([row or 0 for row in rows], device=device)
        self.trained = torch.tensor([float(row is not None) for row in rows], device=device)
        """(C,): 1 for the bound classes that are classes of training, and 0 for the others."""
        self.mixed = 0 < sum(row is not None for row in rows) < len(rows)

    def placed(self, learned: Tensor) -> Tensor:
        """The values `learned` of the classes of training (…, T), for the bound classes (…, C); 0 for other classes."""
        return learned[..., self.rows] * self.trained

    def reset(self, generator: torch.Generator) -> None:  # noqa: ARG002
        """Draw nothing: the values that `see` has set stay, and all others start at zero."""
        for parameter in self.parameters():
            if parameter.requires_grad:
                nn.init.zeros_(parameter)

    @property
    def kappa(self) -> Tensor:
        """κ (C, 1) of the bound classes: 1 for those that are no classes of training."""
        return (1 + (self.text_weight - 1) * self.trained)[:, None]

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.kappa * self.text_features}

    def extra(self, features: Tensor) -> Tensor | None:  # noqa: ARG002
        """g (B, T) of features (B, e): the part of the logits that was learned from images; None if it is none."""
        return None

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        logits, extra, per_image = self.encoder.logits(frozen, classes["text"]), self.extra(frozen), {"image": frozen}
        if extra is not None:
            per_image["extra"] = self.placed(extra)
            logits = logits + per_image["extra"]
        return Output(self._beside_others(frozen, logits) if self.mixed else logits, per_image, classes)

    def _beside_others(self, features: Tensor, logits: Tensor) -> Tensor:
        """Logits (B, C) in which those of the classes of training are shifted as the module's docstring says."""
        others = self.trained == 0
        texts, own = (
            each.masked_fill(others, -torch.inf).logsumexp(-1, keepdim=True)
            for each in (self.encoder.logits(features, self.text_features), logits)
        )
        return logits + (texts - own) * self.trained


@torch.no_grad()
def blended(zero_shot: Tensor, extra: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """κ ≥ 0 and α ≥ 0 that minimise this loss of the logits κ·zero_shot + α·extra (N, C), and the loss there:

        mean cross-entropy + ((κ − 1)² + (ρ·α)²) / 2N.

    ρ is the spread over classes (the standard deviation) of the extra logits, divided by that of the zero-shot logits.
    So ρ·α has the same prior of width 1 as κ. The `extra` logits of an image must not have been learned from that
    image. Newton's method finds κ and ρ·α, since the problem is convex. If one of them would fall below 0, it stays at
    0 while the other moves.
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
