"""CLIP as `transformers` has it: causal text read at its end token, images read at their class token."""

from __future__ import annotations

from typing import Any

from torch import nn

from rebapl.backbones.block import Block
from rebapl.backbones.text import TextTokenizer
from rebapl.backbones.tower import Tower
from rebapl.errors import UserError


def towers(model: Any) -> tuple[Tower, Tower]:
    """The image and the text tower of a `CLIPModel`."""
    vision, text = model.vision_model, model.text_model
    return (
        Tower(
            [Block(layer, model.config.vision_config) for layer in vision.encoder.layers],
            model.config.vision_config.hidden_size,
            vision.pre_layrnorm,
            vision.post_layernorm,
            model.visual_projection,
        ),
        Tower(
            [Block(layer, model.config.text_config, causal=True) for layer in text.encoder.layers],
            model.config.text_config.hidden_size,
            nn.Identity(),
            text.final_layer_norm,
            model.text_projection,
        ),
    )


def text_tokenizer(tokenizer: Any, limit: int) -> TextTokenizer:
    """A CLIP tokenizer puts a start and an end token around text; what follows the end may be cut."""
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    ids = tokenizer("a")["input_ids"]
    if start is None or end is None or ids[0] != start or ids[-1] != end:
        raise UserError("it does not put a start and an end token around text, as a CLIP tokenizer does")
    return TextTokenizer(lambda text: tokenizer(text, verbose=False)["input_ids"], start, end, limit)
