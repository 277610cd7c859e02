"""The kinds of dual encoder that are understood: one adapter file each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rebapl.backbones import clip, siglip
from rebapl.backbones.text import TextTokenizer
from rebapl.backbones.tower import Tower


@dataclass(frozen=True)
class Architecture:
    """What sets one kind apart. All have `vision_model`, `text_model` and `logit_scale`, as `transformers` names them.

    `towers(model)` gives the image and the text tower; `text_tokenizer(tokenizer, limit)` the padding rule.
    """

    model_class: str
    towers: Callable[[Any], tuple[Tower, Tower]]
    text_tokenizer: Callable[[Any, int], TextTokenizer]
    crops: bool
    """Whether images are cropped to the centre when the checkpoint does not say."""


ARCHITECTURES: dict[str, Architecture] = {
    "clip": Architecture("CLIPModel", clip.towers, clip.text_tokenizer, crops=True),
    "siglip": Architecture("SiglipModel", siglip.towers, siglip.text_tokenizer, crops=False),
}
