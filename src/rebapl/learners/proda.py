"""ProDA: many prompts, and the distribution of their text features.

Lu et al., Prompt Distribution Learning, 2022. There are P prompts of b tokens each. The class name stands in front of
the first quarter of them, in the middle of the second quarter and at the end of the rest. Class c has normalised text
features w_cp, whose mean w̄_c is not normalised again. With the image feature x, s = exp(logit_scale) and covariances
Σ_cc′(x) = Σ_d x_d²·Σ_p (w_cpd − w̄_cd)(w_c′pd − w̄_c′d) / (P+1), which are diagonal in the feature space,

    L = CE(s·x·w̄_c + ½·s²·(Σ_yy + Σ_cc − 2·Σ_yc), y) + λ·mean_{p≠q} |cos(u_p, u_q)|

The first term is an upper bound on the expected loss under Gaussian features. The second keeps the prompts apart: u_p
is the feature of prompt p without a class name. Predictions use the logits s·x·w̄_c of all prompts. A training pass
uses `at_once` prompts, drawn at random, in the first term and all of them in the second.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, Text
from rebapl.learners.base import Output, TextLearner
from rebapl.learners.coop import Position, pieces
from rebapl.learners.initial import draw_normal
from rebapl.learners.registry import register
from rebapl.settings import SettingError, Settings

ORDER: tuple[Position, ...] = ("front", "middle", "end")
AT_ONCE = 4
ORTHOGONALITY = 0.1


class ProDAConfig(Settings):
    """`prompts` of `tokens` each, of which a training pass uses `at_once`; `orthogonality` is λ.

    If there are fewer prompts than the published `at_once` = 4, a pass uses all of them.
    """

    prompts: int = Field(default=32, ge=1, le=1024)
    tokens: int = Field(default=16, ge=1, le=512)
    at_once: int = Field(default=AT_ONCE, ge=1)
    orthogonality: float = Field(default=ORTHOGONALITY, ge=0)

    @model_validator(mode="after")
    def _all_act(self) -> ProDAConfig:
        if self.at_once > self.prompts and self.at_once != AT_ONCE:
            wrong = f"= {self.at_once} is more than there are prompts: give {self.prompts} at most"
            raise SettingError(("at_once",), wrong)
        if self.prompts == 1 and self.orthogonality not in (0, ORTHOGONALITY):
            wrong = "has no effect on a single prompt: leave it out, or give more prompts"
            raise SettingError(("orthogonality",), wrong)
        return self


@register("proda", ProDAConfig)
class ProDA(TextLearner):
    config: ProDAConfig
    repels_in = "text"
    uses_template = False
    repels_per_image = False

    def __init__(self, encoder: DualEncoder, config: ProDAConfig) -> None:
        super().__init__(encoder, config)
        quarter = config.prompts // 4
        order = [0] * quarter + [1] * quarter + [2] * (config.prompts - 2 * quarter)
        self.positions = torch.tensor(order, device=encoder.device)
        shape = (config.prompts, config.tokens, encoder.text.width)
        self.context = nn.Parameter(torch.empty(shape, device=encoder.device))

    def prepare_text(self) -> None:
        """Tokenise the classes' texts with the name at each position (3·C sequences), and one text without a name."""
        tokens = self.config.tokens
        names = self.class_names
        self.text = self.encoder.tokenize([pieces(name, tokens, position) for position in ORDER for name in names])
        self.nameless = self.encoder.tokenize([[tokens, "."]])

    def reset(self, generator: torch.Generator) -> None:
        draw_normal(self.context, generator)

    def encode_classes(self) -> Mapping[str, Tensor]:
        """`prompts` (C, P, e) are the normalised features; `text` (C, e) is their mean, whose length is below 1."""
        features = self.in_portions(self._class_features, self._chosen()).transpose(0, 1)
        return {"text": features.mean(1), "prompts": features}

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        bound = output.logits + self._half_variance(output, labels)
        return F.cross_entropy(bound, labels) + self.config.orthogonality * self.overlap()

    def overlap(self) -> Tensor:
        """The mean |cos| between different prompts without a class name."""
        count = self.config.prompts
        features = self.encoder.text_features(self.nameless.repeated(count), self.context)
        apart = (features @ features.T).abs().sum() - features.square().sum()
        return apart / max(1, count * (count - 1))

    def _half_variance(self, output: Output, labels: Tensor) -> Tensor:
        """½·s²·(Σ_yy + Σ_cc − 2·Σ_yc) (B, C), without storing the C·C covariances of every dimension."""
        prompts = output.per_class["prompts"]
        spread = prompts - output.per_class["text"].unsqueeze(1)
        squares = output.per_image["image"].square()
        own = squares.unsqueeze(1) * spread[labels]
        covariance = own.flatten(1) @ spread.flatten(1).T
        variance = squares @ spread.square().sum(1).T
        own_variance = variance.gather(1, labels.unsqueeze(1))
        scale = self.encoder.logit_scale
        return 0.5 * scale**2 * (own_variance + variance - 2 * covariance) / (prompts.shape[1] + 1)

    def _chosen(self) -> Tensor:
        """The indices of the prompts in this pass: all prompts, or in training `at_once` random ones."""
        count, some = self.config.prompts, self.config.at_once
        device = self.encoder.device
        if not self.training or some >= count:
            return torch.arange(count, device=device)
        noise = self.noise_stream()
        return torch.randperm(count, generator=noise, device=noise.device)[:some].to(device)

    def _class_features(self, chosen: Tensor) -> Tensor:
        """Normalised features (p, C, e) of the `chosen` p prompts with every class name."""
        count = len(self.class_names)
        rows = (self.positions[chosen].unsqueeze(1) * count + torch.arange(count, device=chosen.device)).flatten()
        text = Text(self.text.ids[rows], self.text.read[rows], self.text.slots[rows])
        fill = self.context[chosen].repeat_interleave(count, dim=0)
        return self.encoder.text_features(text, fill).unflatten(0, (-1, count))
