"""Variational Bayesian prompt learning: CoOp's context, shifted by a Gaussian residual.

Derakhshani et al., Bayesian Prompt Learning for Image-Language Model Generalization, 2023. With r ~ q = N(μ, σ²), one
vector of the text width added to every context vector,

    L = −log 1/L·Σₗ p(y | x, v + rₗ) + β·KL(q ‖ N(0, 1)),    KL = mean_d ½·(σ² + μ² − 1 − log σ²)

for L samples rₗ = μ + σ·εₗ and β = 0.001. μ and log σ² are free parameters, or two networks e → e/2 → e/2 → d_t with
ELUs between compute them from the normalised image feature. In the second case every image has its own text features,
which takes B·L·C sequences. Prediction averages the probabilities of L samples, so the logits are log-probabilities.
All images of a pass share the same ε. Predictions use the same ε every time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from rebapl.backbones import DualEncoder
from rebapl.learners.base import Output
from rebapl.learners.coop import CoOp, CoOpConfig
from rebapl.learners.initial import draw_linear, undrawn_network
from rebapl.learners.registry import register
from rebapl.settings import Settings


class BayesianConfig(CoOpConfig):
    """CoOp's settings. `samples` is L and `divergence` is β. If `conditional`, q depends on the image."""

    samples: int = Field(default=10, ge=1, le=1024)
    divergence: float = Field(default=0.001, ge=0)
    conditional: bool = False


@register("bpl", BayesianConfig)
class BayesianPrompts(CoOp):
    config: BayesianConfig
    logits_are_products = False

    @classmethod
    def per_image(cls, config: Settings) -> bool:
        return isinstance(config, BayesianConfig) and config.conditional

    def __init__(self, encoder: DualEncoder, config: BayesianConfig) -> None:
        super().__init__(encoder, config)
        self.repels_per_image = self.per_image(config)
        if config.conditional:
            hidden = max(1, encoder.joint_width // 2)
            widths = encoder.joint_width, hidden, hidden, encoder.text.width
            self.mean_network = undrawn_network(*widths, device=encoder.device)
            self.log_variance_network = undrawn_network(*widths, device=encoder.device)
        else:
            self.mean = nn.Parameter(torch.empty(encoder.text.width, device=encoder.device))
            self.log_variance = nn.Parameter(torch.empty(encoder.text.width, device=encoder.device))

    def reset(self, generator: torch.Generator) -> None:
        """A q of free parameters starts at mean 0, with log-variances drawn uniformly between 0 and 1."""
        super().reset(generator)
        if self.config.conditional:
            for layer in (*self.mean_network, *self.log_variance_network):
                if isinstance(layer, nn.Linear):
                    draw_linear(layer, generator)
            return
        with torch.no_grad():
            self.mean.zero_()
            shape = self.log_variance.shape
            self.log_variance.copy_(torch.rand(shape, generator=generator, device=generator.device))

    def encode_classes(self) -> Mapping[str, Tensor]:
        """`samples` (C, L, e) and their normalised mean `text` (C, e); nothing if they depend on the image."""
        if self.config.conditional:
            return {}
        samples = self._text_samples(self._residuals(self.mean, self.log_variance))
        return {"text": F.normalize(samples.mean(1), dim=-1), "samples": samples}

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        """If q is `conditional`, `text` has a row per image: its C mean features side by side (B, C·e)."""
        if not self.config.conditional:
            residual = {"mean": self.mean, "log_variance": self.log_variance}
            clouds = {name: vector.expand(frozen.shape[0], -1) for name, vector in residual.items()}
            return Output(self._log_probability(frozen, classes["samples"]), {"image": frozen, **clouds}, classes)
        mean, log_variance = self.mean_network(frozen), self.log_variance_network(frozen)
        residuals = self._residuals(mean.unsqueeze(1), log_variance.unsqueeze(1))
        samples = torch.stack([self._text_samples(residuals_of_image) for residuals_of_image in residuals])
        logits = torch.cat([self._log_probability(x.unsqueeze(0), w) for x, w in zip(frozen, samples, strict=True)])
        text = F.normalize(samples.mean(2).flatten(1), dim=-1)
        return Output(logits, {"image": frozen, "text": text, "mean": mean, "log_variance": log_variance}, classes)

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        mean, log_variance = output.per_image["mean"], output.per_image["log_variance"]
        divergence = 0.5 * (log_variance.exp() + mean.square() - 1 - log_variance).mean()
        return F.cross_entropy(output.logits, labels) + self.config.divergence * divergence

    def _residuals(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """L samples (…, L, d) of residuals with mean and log-variance (…, 1, d) or (d,)."""
        epsilon = self.standard_normal(self.config.samples, self.encoder.text.width)
        return mean + epsilon * (0.5 * log_variance).exp()

    def _text_samples(self, residuals: Tensor) -> Tensor:
        """Normalised text features (C, L, e) for residuals (L, d)."""
        count, classes = len(residuals), len(self.class_names)
        contexts = self.contexts + residuals[:, None, None]
        fill = contexts.expand(count, classes, -1, -1).flatten(0, 1)
        features = self.encoder.text_features(self.text.repeated(count), fill)
        return features.unflatten(0, (count, classes)).transpose(0, 1)

    def _log_probability(self, image: Tensor, samples: Tensor) -> Tensor:
        """log 1/L·Σₗ softmax (B, C) of image features (B, e) and the classes' L text features (C, L, e)."""
        logits = self.encoder.logits(image, samples.transpose(0, 1))
        return logits.log_softmax(-1).logsumexp(0) - math.log(samples.shape[1])
