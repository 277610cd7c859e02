"""CoCoOp: CoOp's context, shifted for every image by a small network.

Zhou et al., Conditional Prompt Learning for Vision-Language Models, 2022. With the normalised image feature x and
context vectors v₁ … v_b, the text of a class for this image is

    [start] v₁ + π(x) … v_b + π(x) name . [end],    π: e → e/16 → d_t with a ReLU between,

so that every image has its own text features: B·C sequences for B images and C classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rebapl.backbones import DualEncoder
from rebapl.learners.base import Output, TextLearner
from rebapl.learners.initial import ContextConfig, context_ids, draw_linear, draw_tokens, undrawn_linear
from rebapl.learners.registry import register

REDUCTION = 16


def bottleneck(encoder: DualEncoder) -> tuple[nn.Linear, nn.Linear]:
    """The two layers of π. They have not been drawn yet."""
    hidden, device = max(1, encoder.joint_width // REDUCTION), encoder.device
    return undrawn_linear(encoder.joint_width, hidden, device), undrawn_linear(hidden, encoder.text.width, device)


@register("cocoop", ContextConfig)
class CoCoOp(TextLearner):
    repels_in = "text"
    uses_template = False

    def __init__(self, encoder: DualEncoder, config: ContextConfig) -> None:
        super().__init__(encoder, config)
        self.tokens, self.init_ids = context_ids(encoder, config.tokens, config.init, otherwise=4)
        self.context = nn.Parameter(torch.empty(self.tokens, encoder.text.width, device=encoder.device))
        self.squeeze, self.expand = bottleneck(encoder)

    def prepare_text(self) -> None:
        self.text = self.encoder.tokenize([[self.tokens, f"{name}."] for name in self.class_names])

    def reset(self, generator: torch.Generator) -> None:
        draw_tokens(self.context, self.encoder, self.init_ids, generator)
        draw_linear(self.squeeze, generator)
        draw_linear(self.expand, generator)

    def encode_classes(self) -> Mapping[str, Tensor]:
        """Nothing, since the text features depend on the image."""
        return {}

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        """Here the cloud `text` has a row per image: its C text features side by side (B, C·e), of length 1."""
        text = self.in_portions(self._text_features, frozen)
        logits = self.encoder.logits(frozen.unsqueeze(1), text).squeeze(1)
        return Output(logits, {"image": frozen, "text": F.normalize(text.flatten(1), dim=-1)}, classes)

    def _text_features(self, image: Tensor) -> Tensor:
        """Normalised text features (B, C, e) for normalised image features (B, e)."""
        shift = self.expand(F.relu(self.squeeze(image)))
        contexts = self.context + shift.unsqueeze(1)
        count = len(self.class_names)
        features = self.encoder.text_features(self.text.repeated(len(image)), contexts.repeat_interleave(count, dim=0))
        return features.unflatten(0, (len(image), count))
