"""Prompts in many layers: the parts that VPT, IVLP, MaPLe, PromptSRC, VaMP and, to some extent, MMRL share.

With prompts P₁ … P_J of b tokens each, in a tower of K ≥ J layers:

    text     [start] P₁ rest name . [end]        vision     [class] patches P₁

Before each layer i = 2 … J, Pᵢ overwrites the b states that Pᵢ₋₁ has become; after layer J these states are left
alone. Vision prompts are inserted after the position embedding and pass through the norm in front of layer 1.

The text prompt opens with the words "a photo of a". The first b of their tokens are learnable and start from the
embeddings of the words; the other tokens stay fixed, in front of the class name. Without words, or if the words have
fewer than b tokens, P₁ is drawn like the other prompts, and the class name follows it directly.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, Edit, Insert, Replace, States
from rebapl.backbones.text import Text
from rebapl.errors import UserError
from rebapl.learners.base import Learner, Output
from rebapl.learners.initial import draw_tokens
from rebapl.settings import Settings

OPENING = "a photo of a"
"""The words from which the text prompts of all these methods start in their publications."""


def _checked_depth(depth: int | str) -> int | str:
    share = re.fullmatch(r"(\d+)/(\d+)", depth) if isinstance(depth, str) else None
    if not (1 <= int(share[1]) <= int(share[2]) if share else isinstance(depth, int) and depth >= 1):
        raise ValueError(f"{depth!r} is no depth: give a number of layers from 1 on, or a share of them such as '9/12'")
    return depth


Depth = Annotated[int | str, AfterValidator(_checked_depth)]
"""The layers with prompts, counted from the first: their number, or their share. Published depths are of 12 layers."""


def scaled_depth(published: int, layers: int, of: int = 12) -> int:
    """The depth on a backbone with `layers` layers that corresponds to J of 12 layers: round(J·layers/12), at least 1.

    >>> [scaled_depth(9, layers) for layers in (12, 24, 4, 1)]
    [9, 18, 3, 1]
    """
    return max(1, round(published * layers / of))


def prompted_layers(depth: int | str, layers: int) -> int:
    """How many of a tower's `layers` get prompts. A number larger than that is an error.

    >>> prompted_layers("9/12", 12), prompted_layers("9/12", 24), prompted_layers(4, 12)
    (9, 18, 4)
    """
    if isinstance(depth, str):
        share, of = depth.split("/")
        return scaled_depth(int(share), layers, int(of))
    if depth > layers:
        raise UserError(f"depth = {depth}: this backbone has {layers} layers, so give a depth from 1 to {layers}")
    return depth


def opening_ids(encoder: DualEncoder, tokens: int, words: str | None) -> list[int]:
    """The token ids from which the first text prompt starts; none if it is drawn at random.

    Words other than `OPENING` that would not be used are an error.
    """
    ids = encoder.tokenizer.words(words) if words else []
    if words not in (None, OPENING) and tokens > len(ids):
        raise UserError(
            f"init = {words!r} is fewer than tokens = {tokens} tokens, so it would not be used: give more words, "
            f"fewer tokens, or init=None to draw all prompts at random"
        )
    return ids[:tokens] if tokens <= len(ids) else []


def opening_text(encoder: DualEncoder, class_names: Sequence[str], tokens: int, words: str | None) -> Text:
    """Texts of the class names, which open with `tokens` learnable tokens."""
    if opening_ids(encoder, tokens, words):
        text = encoder.tokenize([[f"{words} {name}."] for name in class_names])
        return replace(text, slots=encoder.tokenize([[tokens]] * len(class_names)).slots)
    return encoder.tokenize([[tokens, f"{name}."] for name in class_names])


def deep_text_features(encoder: DualEncoder, text: Text, prompts: Sequence[Tensor]) -> Tensor:
    """Normalised text features (C, e) with the prompts of layers 1 … J, each (b, d) for all texts or (C, b, d)."""
    at, prompts = encoder.tokenizer.first, in_type(prompts, encoder.dtype)
    edits: dict[int, Edit] = {layer: Replace(prompt, at) for layer, prompt in enumerate(prompts) if layer > 0}
    return F.normalize(encoder.text.features(encoder.embed_text(text, prompts[0]), edits), dim=-1)


def in_type(prompts: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Prompts (b, d) cast to the type of a tower, all at once: on a GPU, one kernel replaces many small ones."""
    return prompts if prompts[0].dtype == dtype else torch.stack(list(prompts)).to(dtype).unbind()


def prompt_parameters(depth: int, tokens: int, width: int, device: torch.device) -> nn.ParameterDict:
    """Prompts (b, d) without values yet, named "1" … "J" after the layers that they enter."""
    layers = range(1, depth + 1)
    # The names of a plain dict would be sorted: "1", "10", "2".
    return nn.ParameterDict(
        OrderedDict((str(i), nn.Parameter(torch.empty(tokens, width, device=device))) for i in layers)
    )


class VisionPrompts(Learner[States]):
    """A learner with prompts in the layers of the image tower: the parameters `vision`, or other `vision_prompts`."""

    repels_in = "image"
    vision: nn.ParameterDict

    def vision_prompts(self) -> list[Tensor]:
        """The prompts (b, d) of layers 1 … J."""
        return list(self.vision.values())

    @torch.no_grad()
    def frozen(self, images: Tensor) -> States:
        return self.encoder.embed_images(images)

    def prompted_image(self, frozen: States) -> Tensor:
        """Normalised image features (B, e) with these prompts."""
        prompts = in_type(self.vision_prompts(), self.encoder.dtype)
        edits: dict[int, Edit] = {layer: Replace(prompt, -len(prompt)) for layer, prompt in enumerate(prompts)}
        edits[0] = Insert(prompts[0])
        return F.normalize(self.encoder.vision.features(frozen, edits), dim=-1)

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        image = self.prompted_image(frozen)
        return Output(self.encoder.logits(image, classes["text"]), {"image": image}, classes)


class DeepConfig(Settings):
    """`tokens` in each of the first `depth` layers, which is a number or a share of a tower's layers.

    `init`: the words with which the text opens.
    """

    tokens: int = Field(default=2, ge=1, le=512)
    depth: Depth = "12/12"
    init: str | None = Field(default=OPENING, min_length=1)


class DeepPrompts(VisionPrompts):
    """A learner with prompts in the first `depth` layers of the text tower, and prompts in the image tower."""

    config: DeepConfig
    uses_template = False

    def __init__(self, encoder: DualEncoder, config: DeepConfig, depth: int) -> None:
        super().__init__(encoder, config)
        self.opening = opening_ids(encoder, config.tokens, config.init)
        self.text = prompt_parameters(depth, config.tokens, encoder.text.width, encoder.device)

    def draw_text(self, generator: torch.Generator) -> None:
        """Set the first prompt to the opening words if they have enough tokens; draw the others from Normal(0.02)."""
        for layer, prompt in enumerate(self.text.values()):
            draw_tokens(prompt, self.encoder, self.opening if layer == 0 else [], generator)

    def prepare_text(self) -> None:
        self.sequences = opening_text(self.encoder, self.class_names, self.config.tokens, self.config.init)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": deep_text_features(self.encoder, self.sequences, list(self.text.values()))}


@torch.no_grad()
def with_features(encoder: DualEncoder, states: States) -> States:
    """These image states, with the features that the frozen tower computes from them.

    A loss compares with these features. Outside of training only VaMP needs them.
    """
    return replace(states, features=F.normalize(encoder.vision.features(states), dim=-1))


def frozen_image(output: Output, method: str) -> Tensor:
    """The image features (B, e) of the frozen model, with which the loss of a `method` compares."""
    if "frozen_image" not in output.per_image:
        raise UserError(
            f"{method}'s loss compares with the frozen model's image features, which are computed in training mode "
            "only: call learner.train() before the pass"
        )
    return output.per_image["frozen_image"]
