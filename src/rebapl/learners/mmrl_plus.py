"""MMRL++: MMRL with few parameters and tokens that flow from layer to layer.

Guo & Gu, MMRL++: Parameter-Efficient and Interaction-Aware Representation Learning for Vision-Language Models, 2025.
In each tower, all layers share one matrix W, and layer l adds a residual of rank ρ and a bias of its own:

    Vₗ(R) = R·(W + AₗBₗ)ᵀ + cₗ

The tokens at a layer are β·Vₗ(R) + (1−β)·(the tokens that come from the layer before). The second head is the
backbone's own projection plus a residual A·B. All B start at zero. Text, loss and prediction are as in MMRL.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from rebapl.backbones import DualEncoder
from rebapl.learners.initial import draw_linear, draw_normal, draw_uniform, undrawn_linear
from rebapl.learners.mmrl import MMRLConfig, RepresentationLearner
from rebapl.learners.registry import register
from rebapl.settings import SettingError

MIX = 0.9


class MMRLPlusConfig(MMRLConfig):
    """MMRL's settings. `mix` is β; `rank` is that of the layers' residuals, `projection_rank` the second head's."""

    mix: float = Field(default=MIX, ge=0, le=1)
    rank: int = Field(default=4, ge=1, le=16384)
    projection_rank: int = Field(default=64, ge=1, le=16384)

    @model_validator(mode="after")
    def _mix_acts(self) -> MMRLPlusConfig:
        if self.layers == 1 and self.mix != MIX:
            wrong = f"has no effect where tokens enter one layer only: leave it at {MIX}, or give more layers"
            raise SettingError(("mix",), wrong)
        return self


class Residual(nn.Module):
    """A matrix A·B (outputs, inputs) of low rank, which starts at zero."""

    def __init__(self, outputs: int, inputs: int, rank: int, device: torch.device) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.empty(outputs, rank, device=device))
        self.right = nn.Parameter(torch.empty(rank, inputs, device=device))

    def reset(self, generator: torch.Generator) -> None:
        draw_uniform(self.left, generator, bound=self.left.shape[1] ** -0.5)
        nn.init.zeros_(self.right)

    def forward(self) -> Tensor:
        return self.left @ self.right


class SharedAligner(nn.Module):
    """One weight for all layers, and for each layer a residual and a bias."""

    def __init__(self, inputs: int, outputs: int, layers: int, rank: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device))
        self.residuals = nn.ModuleList(Residual(outputs, inputs, rank, device) for _ in range(layers))
        self.biases = nn.ParameterList(torch.empty(outputs, device=device) for _ in range(layers))

    def reset(self, generator: torch.Generator) -> None:
        """All layers start as the same linear layer."""
        outputs, inputs = self.weight.shape
        linear = undrawn_linear(inputs, outputs, self.weight.device)
        draw_linear(linear, generator)
        with torch.no_grad():
            self.weight.copy_(linear.weight)
            for bias in self.biases:
                bias.copy_(linear.bias)
        for residual in self._residuals():
            residual.reset(generator)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """The tokens (b, outputs) of each layer, from the shared tokens (b, inputs)."""
        return [
            F.linear(tokens, self.weight + residual(), bias)
            for residual, bias in zip(self._residuals(), self.biases, strict=True)
        ]

    def _residuals(self) -> Iterable[Residual]:
        return self.residuals  # type: ignore[return-value]


@register("mmrl++", MMRLPlusConfig)
class MMRLPlus(RepresentationLearner):
    """In transfer, β is the source's in training and each target's in prediction. It changes no parameter."""

    config: MMRLPlusConfig

    def __init__(self, encoder: DualEncoder, config: MMRLPlusConfig) -> None:
        super().__init__(encoder, config)
        device, vision, text = encoder.device, encoder.vision, encoder.text
        self.to_vision = SharedAligner(config.width, vision.width, len(self.vision_layers), config.rank, device)
        self.to_text = SharedAligner(config.width, text.width, len(self.text_layers), config.rank, device)
        self.projection = Residual(vision.width, encoder.joint_width, config.projection_rank, device)

    @property
    def mix(self) -> float:
        return self.config.mix

    def reset(self, generator: torch.Generator) -> None:
        draw_normal(self.tokens, generator)
        for part in (self.to_vision, self.to_text, self.projection):
            part.reset(generator)

    def vision_tokens(self) -> list[Tensor]:
        return self.to_vision(self.tokens)

    def text_tokens(self) -> list[Tensor]:
        return self.to_text(self.tokens)

    def project(self, representation: Tensor) -> Tensor:
        own = self.encoder.vision.projection
        return own(representation.to(own.weight.dtype)).float() + representation @ self.projection()
