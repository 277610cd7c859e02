"""Prompts of many layers: what VPT, IVLP, MaPLe and PromptSRC share.

With prompts P₁ … P_J of b tokens each, in a tower of K ≥ J layers:

    text     [start] P₁ rest name . [end]        vision     [class] patches P₁

Before layer i = 2 … J the b states that came of Pᵢ₋₁ are overwritten by Pᵢ; after layer J they flow on. Vision
prompts come after the position embedding and pass the norm in front of layer 1.

The text prompt opens with words, "a photo of a": the first b of its tokens are learnable and start from the words'
embeddings; the rest stay as they are, in front of the class name. Without words, or with fewer than b tokens of
them, P₁ is drawn like the others, and the class name follows it directly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, Edit, Insert, Replace, States
from rebapl.errors import UserError
from rebapl.learners.initial import draw_tokens


class OpeningText:
    """Class names behind an opening of `tokens` learnable tokens."""

    def __init__(self, encoder: DualEncoder, class_names: Sequence[str], tokens: int, words: str | None) -> None:
        self.encoder = encoder
        if opening_ids(encoder, tokens, words):
            text = encoder.tokenize([[f"{words} {name}."] for name in class_names])
            self.text = replace(text, slots=encoder.tokenize([[tokens]] * len(class_names)).slots)
        else:
            self.text = encoder.tokenize([[tokens, f"{name}."] for name in class_names])

    def features(self, prompts: Sequence[Tensor]) -> Tensor:
        """Normalised text features (C, e) with prompts (b, d) of layers 1 … J."""
        at = self.encoder.tokenizer.first
        edits: dict[int, Edit] = {layer: Replace(prompt, at) for layer, prompt in enumerate(prompts) if layer > 0}
        states = self.encoder.text.run(self.encoder.embed_text(self.text, prompts[0]), edits)
        return F.normalize(self.encoder.text.features(states), dim=-1)


def opening_ids(encoder: DualEncoder, tokens: int, words: str | None) -> list[int]:
    """The ids that the first text prompt starts from; none when it is drawn at random."""
    ids = encoder.tokenizer.words(words) if words else []
    return ids[:tokens] if tokens <= len(ids) else []


def image_features(encoder: DualEncoder, embedded: States, prompts: Sequence[Tensor]) -> Tensor:
    """Normalised features (B, e) of embedded images with prompts (b, d) of layers 1 … J."""
    edits: dict[int, Edit] = {layer: Replace(prompt, -len(prompt)) for layer, prompt in enumerate(prompts)}
    edits[0] = Insert(prompts[0])
    return F.normalize(encoder.vision.features(encoder.vision.run(embedded, edits)), dim=-1)


def prompt_parameters(depth: int, tokens: int, width: int, device: torch.device) -> nn.ParameterDict:
    """Undrawn prompts (b, d) under the names "1" … "J", the layers they enter."""
    layers = range(1, depth + 1)
    # a plain dict would be sorted: "1", "10", "2"
    return nn.ParameterDict(
        OrderedDict((str(i), nn.Parameter(torch.empty(tokens, width, device=device))) for i in layers)
    )


def draw_text_prompts(
    prompts: Iterable[Tensor], encoder: DualEncoder, words: str | None, generator: torch.Generator
) -> None:
    """The first from the opening words where there are enough of them, the rest Normal(0.02)."""
    for layer, prompt in enumerate(prompts):
        ids = opening_ids(encoder, len(prompt), words) if layer == 0 else []
        draw_tokens(prompt, encoder, ids, generator)


def check_tokens(tokens: int) -> None:
    """Refuse a number of prompt tokens below one."""
    if tokens < 1:
        raise UserError(f"tokens = {tokens}: at least one prompt token is needed")
