"""SigLIP as `transformers` has it.

Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023. It differs from CLIP in three ways:

- Text attends in both directions and is padded to the full length. Its feature is read at the last position, whether
  that is padding or not. So nothing may be cut off.
- Images have no class token. An attention head pools all tokens that leave the last layer. Prompt tokens that were put
  into the image tower take part in the pooling, as patches do.
- Logits have a bias: exp(scale)·cos + bias, meant for a sigmoid. Softmax over classes does not see the bias.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from rebapl.backbones.block import Block
from rebapl.backbones.text import TextTokenizer
from rebapl.backbones.tower import Tower
from rebapl.errors import UserError


def towers(model: Any) -> tuple[Tower, Tower]:
    """The image and the text tower of a `SiglipModel`."""
    vision, text = model.vision_model, model.text_model
    if not vision.use_head:
        raise UserError("this SigLIP checkpoint has no pooling head (vision_use_head is false), so no image features")
    return (
        Tower(
            [Block(layer, model.config.vision_config) for layer in vision.encoder.layers],
            model.config.vision_config.hidden_size,
            nn.Identity(),
            vision.post_layernorm,
            nn.Identity(),
            pool=vision.head,
        ),
        Tower(
            [Block(layer, model.config.text_config) for layer in text.encoder.layers],
            model.config.text_config.hidden_size,
            nn.Identity(),
            text.final_layer_norm,
            text.head,
        ),
    )


def text_tokenizer(tokenizer: Any, limit: int) -> TextTokenizer:
    """A SigLIP tokenizer puts an end token after text and pads to the full length; most have no start token."""
    start, end, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    ids = tokenizer("a")["input_ids"]
    if end is None or pad is None or ids[-1] != end:
        raise UserError("it does not put an end token after text and have a padding token, as a SigLIP tokenizer does")
    start = start if ids[0] == start else None
    return TextTokenizer(lambda text: tokenizer(text, verbose=False)["input_ids"], start, end, limit, pad)
