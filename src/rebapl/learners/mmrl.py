"""MMRL: representation tokens shared by both towers, in their upper layers, and a second head for images.

Guo & Gu, MMRL: Multi-Modal Representation Learning for Vision-Language Models, 2025. Tokens R (b, w) that belong to no
modality are mapped into each upper layer of each tower by a linear layer of its own:

    text     [start] Tₗ(R) a photo of a name . [end]        vision     [class] Vₗ(R) patches

They are inserted at the first of these layers and overwritten at the later ones. An image has two features: x from its
class token, and r, the mean of its representation tokens after the last norm, multiplied by a projection P of its own.
With the text features w, the features x̄ and w̄ of the frozen model, all normalised, and logits 100·x·wᵀ and 100·r·wᵀ,

    L = α·CE(100·x·wᵀ, y) + (1−α)·CE(100·r·wᵀ, y) + λ·(1 − mean x·x̄) + λ·(1 − mean w·w̄)

The second head is specific to the classes and images of training. So the logits are α·100·x·wᵀ + (1−α)·100·r·wᵀ for
the classes of training, and 100·x·wᵀ alone for other classes and for other data sets: see `mixes_heads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, Edit, Insert, Replace, States, Tower
from rebapl.errors import UserError
from rebapl.learners.base import Learner, Output
from rebapl.learners.deep import frozen_image, scaled_depth, with_features
from rebapl.learners.initial import draw_linear, draw_normal, undrawn_linear
from rebapl.learners.registry import register
from rebapl.settings import Settings

SCALE = 100.0  # of both heads' logits, whatever the backbone's own scale
LAYERS_OF_12 = 7
AFTER_FIRST = 1  # the position after the class token or the start-of-text token


class MMRLConfig(Settings):
    """`tokens` of a `width` in the last `layers` (by default 7/12 of them); α is `class_share`, λ is `consistency`."""

    tokens: int = Field(default=5, ge=1, le=512)
    width: int = Field(default=512, ge=1, le=16384)
    layers: int | None = Field(default=None, ge=1)
    class_share: float = Field(default=0.7, ge=0, le=1)
    consistency: float = Field(default=0.5, ge=0)


class RepresentationLearner(Learner[States]):
    """The parts that MMRL and MMRL++ share. They differ in the sources of the layers' tokens and second projection."""

    config: MMRLConfig
    repels_in = "image"

    def __init__(self, encoder: DualEncoder, config: MMRLConfig) -> None:
        super().__init__(encoder, config)
        if encoder.vision.pool is not None:
            raise UserError(
                "MMRL puts its tokens behind the class token, and this backbone's images have none: use a CLIP backbone"
            )
        self.vision_layers = _last_layers(encoder.vision, config.layers)
        self.text_layers = _last_layers(encoder.text, config.layers)
        self.tokens = nn.Parameter(torch.empty(config.tokens, config.width, device=encoder.device))

    def adopt(self, class_names: Sequence[str]) -> None:
        """Store the classes of training, for which both heads predict."""
        self.trained_on = frozenset(class_names)

    def vision_tokens(self) -> list[Tensor]:
        """Tokens (b, d_v) for each of the vision layers."""
        raise NotImplementedError

    def text_tokens(self) -> list[Tensor]:
        """Tokens (b, d_t) for each of the text layers."""
        raise NotImplementedError

    def project(self, representation: Tensor) -> Tensor:
        """The second head: (B, d_v) → (B, e)."""
        raise NotImplementedError

    @property
    def mix(self) -> float:
        """The share of a layer's own tokens; the remaining share is the tokens that come from the layer before."""
        return 1.0

    @property
    def mixes_heads(self) -> bool:
        """Whether the logits mix both heads: only for the classes of training, and only on the data set of training."""
        return not self.transfer and self.trained_on.issuperset(self.class_names)

    @torch.no_grad()
    def prepare_text(self) -> None:
        text = self.encoder.tokenize([[sentence] for sentence in self.sentences()])
        tower = self.encoder.text
        self.lower_text = tower.run(self.encoder.embed_text(text), stop=self.text_layers.start)
        self.frozen_text = F.normalize(tower.features(self.lower_text), dim=-1)

    @torch.no_grad()
    def frozen(self, images: Tensor) -> States:
        """The states below the first layer with tokens, in training mode with the frozen model's features."""
        lower = self.encoder.vision.run(self.encoder.embed_images(images), stop=self.vision_layers.start)
        return with_features(self.encoder, lower) if self.training else lower

    def encode_classes(self) -> Mapping[str, Tensor]:
        edits = self._edits(self.text_layers, self.text_tokens())
        return {"text": F.normalize(self.encoder.text.features(self.lower_text, edits), dim=-1)}

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        tower = self.encoder.vision
        edits = self._edits(self.vision_layers, self.vision_tokens())
        states = tower.last_states(frozen, edits, AFTER_FIRST + self.config.tokens)
        clouds = {
            "image": F.normalize(tower.projection(states[:, 0]).float(), dim=-1),
            "representation": F.normalize(self.project(states[:, AFTER_FIRST:].float().mean(1)), dim=-1),
        }
        if frozen.features is not None:
            clouds["frozen_image"] = frozen.features
        by_class, by_representation = _both_logits(clouds, classes)
        share = self.config.class_share if self.mixes_heads else 1.0
        return Output(share * by_class + (1 - share) * by_representation, clouds, classes)

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        by_class, by_representation = _both_logits(output.per_image, output.per_class)
        share = self.config.class_share
        like_image = (output.per_image["image"] * frozen_image(output, "MMRL")).sum(-1).mean()
        like_text = (output.per_class["text"] * self.frozen_text).sum(-1).mean()
        return (
            share * F.cross_entropy(by_class, labels)
            + (1 - share) * F.cross_entropy(by_representation, labels)
            + self.config.consistency * ((1 - like_image) + (1 - like_text))
        )

    def _edits(self, layers: range, tokens: Sequence[Tensor]) -> dict[int, Edit]:
        edits: dict[int, Edit] = {
            layer: Replace(new, AFTER_FIRST, self.mix) for layer, new in zip(layers, tokens, strict=True)
        }
        edits[layers.start] = Insert(tokens[0], AFTER_FIRST)
        return edits


def _both_logits(images: Mapping[str, Tensor], classes: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The logits (B, C) of the class head and of the representation head."""
    text = classes["text"].T
    return SCALE * images["image"] @ text, SCALE * images["representation"] @ text


def _last_layers(tower: Tower, layers: int | None) -> range:
    """The indices of the layers that get tokens. The first layer cannot be one of them: tokens enter between layers."""
    count = len(tower.layers)
    if layers is None:
        layers = scaled_depth(LAYERS_OF_12, count)
    if not 1 <= layers < count:
        raise UserError(
            f"layers = {layers}: representation tokens enter behind the first layer, and this backbone has towers of "
            f"{count} layers: give a number from 1 to {count - 1}"
        )
    return range(count - layers, count)


@register("mmrl", MMRLConfig)
class MMRL(RepresentationLearner):
    def __init__(self, encoder: DualEncoder, config: MMRLConfig) -> None:
        super().__init__(encoder, config)
        device, vision, text = encoder.device, encoder.vision, encoder.text
        self.to_vision = nn.ModuleList(undrawn_linear(config.width, vision.width, device) for _ in self.vision_layers)
        self.to_text = nn.ModuleList(undrawn_linear(config.width, text.width, device) for _ in self.text_layers)
        self.representation_projection = nn.Parameter(torch.empty(vision.width, encoder.joint_width, device=device))

    def reset(self, generator: torch.Generator) -> None:
        """All linear layers of one tower start with the same values, as in the authors' code."""
        draw_normal(self.tokens, generator)
        first: nn.Linear
        for first, *others in (self.to_vision, self.to_text):  # type: ignore[assignment]
            draw_linear(first, generator)
            for other in others:
                other.load_state_dict(first.state_dict())
        draw_normal(self.representation_projection, generator, std=self.encoder.vision.width**-0.5)

    def vision_tokens(self) -> list[Tensor]:
        return [linear(self.tokens) for linear in self.to_vision]

    def text_tokens(self) -> list[Tensor]:
        return [linear(self.tokens) for linear in self.to_text]

    def project(self, representation: Tensor) -> Tensor:
        return representation @ self.representation_projection
