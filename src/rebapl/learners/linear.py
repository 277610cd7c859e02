"""A linear head on frozen features, pulled to the text features: logistic regression, TaskRes, CLAP, cross-modal.

The logits of a normalised feature x are s·x·w_c with the backbone's scale s (and its bias, if it has one), and

    w_c = κ t_c + σ_c r_c,   r_c ~ N(0, I),   so that   w_c ~ N(κ t_c, σ_c² I),

with the text feature t_c of the class, or 0 in its place if `start` is "zero". The r_c are the parameters. Their prior
is a part of the mean loss, cross-entropy + ‖r‖²/2N, so that exp(−N·loss) is the density of the posterior, which has one
mode. One number κ ~ N(1, 1) for all classes corrects how confident the texts are; it is fixed at the joint mode of κ
and r.

* Scaled residuals of the text features are TaskRes (Yu et al., Task Residual for Tuning Vision-Language Models, 2023).
  There w is normalised again, and the scale α is 0.5 or searched on validation images, with weight decay on r. Here w
  is not normalised, which keeps the loss convex and its curvature exact.
* `prior` is σ, or "evidence": then σ maximises the marginal likelihood of the training images, by Laplace's
  approximation (see `log_evidence`), over seven values from ¼/s to 16/s and the peak of the parabola through the best.
* `class_constraint` holds a class closer to its text the better zero-shot is on its training images: σ_c = σ/√λ_c,
  where λ_c is the mean zero-shot probability of the class on its own images. This is the penalty λ_c‖w_c − t_c‖² of
  CLAP (Silva-Rodríguez et al., A Closer Look at the Few-Shot Adaptation of Large Vision-Language Models, 2024).
* `texts_as_examples` adds the text features to the training images, each as one more image of its class (Lin et al.,
  Multimodality Helps Unimodality, 2023, who draw as many texts as images).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from rebapl.learners.base import Output
from rebapl.learners.head import Head
from rebapl.learners.registry import register
from rebapl.settings import Settings

WIDTHS = tuple(2.0**power for power in range(-2, 5))
"""The values of s·σ that are tried: how far the prior lets the logits move, in nats."""

EXACT = 3000
"""The largest N·C at which the determinant of the evidence is computed exactly."""


class LinearConfig(Settings):
    """`prior` is the standard deviation σ of a weight around its centre, or the way to choose it."""

    start: Literal["text", "zero"] = "text"
    prior: Literal["evidence"] | Annotated[float, Field(gt=0)] = "evidence"
    class_constraint: bool = False
    texts_as_examples: bool = False


@register("linear", LinearConfig)
class Linear(Head):
    config: LinearConfig
    repels_in = "text"
    repels_per_image = False
    prior_precision = 1.0
    """The precision of the residuals' prior, which is a part of the loss."""

    examples = 1
    """N, the number of examples over which the loss is a mean."""

    def adopt(self, class_names: Sequence[str]) -> None:
        super().adopt(class_names)
        shape = (len(class_names), self.encoder.joint_width)
        self.residual = nn.Parameter(torch.zeros(shape, device=self.encoder.device))
        self.prior_std = self.fixed(len(class_names), 1)

    def prepare_text(self) -> None:
        super().prepare_text()
        own = self.trained[:, None] if self.config.start == "zero" else 0.0
        self.base = self.text_features * (1.0 - own)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.kappa * self.base + self.trained[:, None] * (self.prior_std * self.residual)[self.rows]}

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        return super().loss(output, labels) + self.residual.square().sum() / (2 * self.examples)

    def linear_inputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """a (B, d) and g (C,) such that the logits are g_c · a · r_c plus a part that does not depend on r."""
        return self.encoder.logit_scale * self.frozen(images), self.prior_std[:, 0]

    @torch.no_grad()
    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scale = torch.ones_like(self.prior_std)
        if self.config.class_constraint:
            probabilities = self.encoder.logits(features, self.text_features).softmax(-1)
            own = F.one_hot(labels, len(self.owners)).to(probabilities)
            scale = (((own * probabilities).sum(0) / own.sum(0).clamp(min=1)).clamp(min=1e-3) ** -0.5)[:, None]
        if self.config.texts_as_examples:
            features = torch.cat([features, self.text_features])
            labels = torch.cat([labels, torch.arange(len(self.owners), device=labels.device)])
        self.examples = len(labels)
        inputs, offset = self.encoder.logit_scale * features, self.encoder.logits(features, self.base)
        std, start = self.config.prior, torch.zeros_like(self.residual, dtype=torch.float64)
        if std == "evidence":
            std = best_width(inputs, offset, labels, scale) / float(self.encoder.logit_scale)
        self.prior_std.copy_(std * scale)
        kappa = mode(inputs.double(), offset.double(), labels, self.prior_std.double(), start)[1]  # float32 ends early
        self.text_weight.fill_(kappa)
        return features, labels


def mode(
    inputs: Tensor, offset: Tensor, labels: Tensor, std: Tensor, start: Tensor, weight: float = 1.0
) -> tuple[Tensor, float]:
    """The r (C, d) and κ that minimise Σ_n cross-entropy(κ·offset_n + (std·r) inputs_n, label_n) + ½‖r‖² + ½(κ−1)²."""
    residual, kappa = start.clone().requires_grad_(), offset.new_full((1,), weight).requires_grad_()
    optimizer = torch.optim.LBFGS([residual, kappa], max_iter=50, tolerance_grad=1e-5, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = kappa * offset + inputs @ (std * residual).mT
        prior = (residual.square().sum() + (kappa - 1).square().sum()) / 2
        loss = F.cross_entropy(logits, labels, reduction="sum") + prior
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return residual.detach(), kappa.item()


def best_width(inputs: Tensor, offset: Tensor, labels: Tensor, scale: Tensor) -> float:
    """The s·σ with the greatest evidence, where `inputs` are s·x (N, d)."""
    residual, weight, evidences = torch.zeros(len(scale), inputs.shape[1], device=inputs.device), 1.0, []
    length = inputs.norm(dim=-1).mean().item()  # s
    for width in WIDTHS:
        std = width / length * scale
        residual, weight = mode(inputs, offset, labels, std, residual, weight)
        evidences.append(log_evidence(inputs, weight * offset, labels, std, residual) - (weight - 1) ** 2 / 2)
        residual = residual / 2  # a start for the next width, which is twice as large
    best = max(range(len(WIDTHS)), key=evidences.__getitem__)
    if not 0 < best < len(WIDTHS) - 1:
        return WIDTHS[best]
    before, peak, after = evidences[best - 1 : best + 2]
    curved = before - 2 * peak + after
    return WIDTHS[best] * 2.0 ** (0.5 * (before - after) / curved if curved < 0 else 0.0)


def log_evidence(inputs: Tensor, offset: Tensor, labels: Tensor, std: Tensor, residual: Tensor) -> float:
    """log p(labels | σ) ≈ log p(labels | r*) − ½‖r*‖² − ½ log det(I + H), H = Σ_n (S Λ_n S) ⊗ a_n a_nᵀ, at the mode r*.

    a_n are the inputs, Λ_n = diag p_n − p_n p_nᵀ, and S has the σ_c on its diagonal. Up to N·C = `EXACT`, the
    determinant is computed from the matrix with N·C rows that has the same eigenvalues. Beyond this size, Λ_n is
    approximated by its diagonal, so that every class has a block (d, d) of its own. This makes the determinant larger
    and so favours a smaller σ.
    """
    inputs, std = inputs.double(), std.double()
    logits = offset.double() + inputs @ (std * residual.double()).mT
    fit = -F.cross_entropy(logits, labels, reduction="sum") - residual.double().square().sum() / 2
    p = logits.softmax(-1)
    if p.numel() <= EXACT:
        values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None, :])
        roots = std * vectors * values.clamp(min=0).sqrt()[:, None, :]
        between = torch.einsum("nci,mcj,nm->nimj", roots, roots, inputs @ inputs.mT).flatten(2).flatten(0, 1)
        return float(fit - _half_log_det(between))
    spread = (std.mT.square() * p * (1 - p)).mT  # (C, N)
    return float(fit - sum(_half_log_det((of_class[:, None] * inputs).mT @ inputs) for of_class in spread))


def _half_log_det(matrix: Tensor) -> Tensor:
    """½ log det(I + matrix), from the Cholesky factor."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.cholesky(identity + matrix).diagonal().log().sum()
