"""VaMP: text prompts of many layers, drawn for every image from a Gaussian, and vision prompts that all images share.

Cheng & Han, VaMP: Variational Multi-Modal Prompt Learning for Vision-Language Models, 2025. f is the feature of an
image x from the frozen image tower. Each of the layers i = 1 … J has b tokens, a posterior network φᵢ and a prior
network ψᵢ:

    [μᵢ, log σᵢ²] = φᵢ(f),    zᵢ = μᵢ + σᵢ·εᵢ,    [μ̂ᵢ, log σ̂ᵢ²] = ψᵢ(o_y)
    L = −log p(y | x, z) + β·Σᵢ KL(N(μᵢ, σᵢ²) ‖ N(μ̂ᵢ, σ̂ᵢ²))

zᵢ are the text prompts of this image (see `deep`), o_y is a prototype of its class, and the vision prompts are learned
vectors that all images share. A prediction averages the probabilities of S = 10 draws of z. So the logits are
log-probabilities, and every image costs S·C texts. All images of a pass share the same ε. Predictions use the same ε
every time.

The authors have published no code, and their description leaves some details open. It is **assumed** here that

* o_y is the frozen text feature of the class name in the template. The paper uses the mean feature of the training
  images of the class, which a learner does not see;
* a network is e → e/16 → 2·b·d_t with an ELU between. Its last bias starts at the starting values of MaPLe's prompts
  and at σ = 0.02, which is their size; its last weights start at N(0, 0.02²); ψᵢ starts as a copy of φᵢ;
* log σ² lies within ±20, so that the prompts are finite even if a network has large weights, for example in a draw of
  Laplace's approximation;
* the KL is a mean over coordinates with β = 0.001, as in `bpl`; the paper's bound has the sum, with the weight 1;
* training draws one z for each image;
* depth, tokens and training are those of MaPLe, one of the two models on which the paper builds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, States
from rebapl.learners.base import Output
from rebapl.learners.cocoop import REDUCTION
from rebapl.learners.deep import (
    VisionPrompts,
    deep_text_features,
    opening_ids,
    opening_text,
    prompt_parameters,
    prompted_layers,
    with_features,
)
from rebapl.learners.initial import STD, draw_linear, draw_normal, draw_tokens, undrawn_network
from rebapl.learners.maple import MaPLeConfig
from rebapl.learners.registry import register

WIDEST = 20
"""The greatest absolute log-variance: σ is between 4.5e-5 and 2.2e4."""


class VaMPConfig(MaPLeConfig):
    """MaPLe's settings. `samples` is S and `divergence` is β."""

    samples: int = Field(default=10, ge=1, le=1024)
    divergence: float = Field(default=0.001, ge=0)


@register("vamp", VaMPConfig)
class VaMP(VisionPrompts):
    config: VaMPConfig
    uses_template = False
    logits_are_products = False

    def __init__(self, encoder: DualEncoder, config: VaMPConfig) -> None:
        super().__init__(encoder, config)
        self.opening = opening_ids(encoder, config.tokens, config.init)
        depth = prompted_layers(config.depth, min(len(encoder.text.layers), len(encoder.vision.layers)))
        self.vision = prompt_parameters(depth, config.tokens, encoder.vision.width, encoder.device)
        widths = encoder.joint_width, max(1, encoder.joint_width // REDUCTION), 2 * config.tokens * encoder.text.width
        self.posterior, self.prior = (
            nn.ModuleDict({i: undrawn_network(*widths, device=encoder.device) for i in self.vision}) for _ in range(2)
        )

    def prepare_text(self) -> None:
        self.sequences = opening_text(self.encoder, self.class_names, self.config.tokens, self.config.init)
        self._prototypes: Tensor | None = None

    @property
    def prototypes(self) -> Tensor:
        """o (C, e). The first `loss` computes them: predictions never need them."""
        if self._prototypes is None:
            self._prototypes = self.text_of_template()
        return self._prototypes

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        shape = (2, self.config.tokens, self.encoder.text.width)
        for layer, prompt in self.vision.items():
            draw_normal(prompt, generator)
            first, _, last = (cast(nn.Linear, each) for each in cast(nn.Sequential, self.posterior[layer]))
            draw_linear(first, generator)
            draw_normal(last.weight, generator)
            mean, log_variance = last.bias.view(shape)
            draw_tokens(mean, self.encoder, self.opening if layer == "1" else [], generator)
            log_variance.fill_(2 * math.log(STD))
            self.prior[layer].load_state_dict(self.posterior[layer].state_dict())

    @torch.no_grad()
    def frozen(self, images: Tensor) -> States:
        return with_features(self.encoder, self.encoder.embed_images(images))

    def encode_classes(self) -> Mapping[str, Tensor]:
        """Nothing, since the text features depend on the image."""
        return {}

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        """The clouds `mean` and `log_variance` (B, J·b·d) are those of N(μ, σ²)."""
        assert frozen.features is not None
        image = self.prompted_image(frozen)
        mean, log_variance = self._moments(self.posterior, frozen.features)
        count = 1 if self.training else self.config.samples
        epsilon = self.standard_normal(count, *mean.shape[1:])
        prompts = mean.unsqueeze(1) + epsilon * (0.5 * log_variance).exp().unsqueeze(1)
        text = self.in_portions(self._text_features, prompts.flatten(0, 1)).unflatten(0, (len(mean), count))
        log_probabilities = self.encoder.logits(image[:, None, None], text).squeeze(2).log_softmax(-1)
        clouds = {"image": image, "mean": mean.flatten(1), "log_variance": log_variance.flatten(1)}
        return Output(log_probabilities.logsumexp(1) - math.log(count), clouds, classes)

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        mean, log_variance = output.per_image["mean"], output.per_image["log_variance"]
        center, log_width = (moment.flatten(1) for moment in self._moments(self.prior, self.prototypes[labels]))
        ratio = (log_variance.exp() + (mean - center).square()) * (-log_width).exp()
        divergence = 0.5 * (ratio - 1 + log_width - log_variance).mean() * len(self.vision)
        return F.cross_entropy(output.logits, labels) + self.config.divergence * divergence

    def _moments(self, networks: nn.ModuleDict, features: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log-variances (B, J, b, d) of the prompts of all layers, from features (B, e)."""
        shape = (2, self.config.tokens, self.encoder.text.width)
        moments = torch.stack([network(features).unflatten(1, shape) for network in networks.values()], 2)
        return moments[:, 0], moments[:, 1].clamp(-WIDEST, WIDEST)

    def _text_features(self, prompts: Tensor) -> Tensor:
        """Normalised text features (n, C, e) for prompts (n, J, b, d)."""
        classes = len(self.class_names)
        layers = [of_layer.repeat_interleave(classes, 0) for of_layer in prompts.unbind(1)]
        text = self.sequences if len(prompts) == 1 else self.sequences.repeated(len(prompts))
        return deep_text_features(self.encoder, text, layers).unflatten(0, (len(prompts), classes))
