"""SigLIP: Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023.

It differs from CLIP in three ways:

- Text attends in both directions and is padded to the full length. Its feature is read at the last position, whether
  that is padding or not. So the padding must not be cut off.
- Images have no class token. An attention head pools all tokens that leave the last layer. Prompt tokens in the image
  tower take part in the pooling, as patches do.
- Logits have a bias: exp(scale)·cos + bias, which is meant for a sigmoid. A softmax over classes does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from rebapl.backbones.model import (
    ImageEmbeddings,
    NamedModules,
    checked,
    layers,
    mlp,
    norm,
    read_tower,
    text_embeddings,
)
from rebapl.backbones.text import TextTokenizer, tokenizer_of_transformers
from rebapl.backbones.tower import ACTIVATIONS, Block, Tower
from rebapl.errors import UserError

TOWER = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
TEXT = {**TOWER, "vocab_size": 32000, "max_position_embeddings": 64}
VISION = {**TOWER, "num_channels": 3, "image_size": 224, "patch_size": 16, "vision_use_head": True}
"""The defaults of settings that config.json leaves out."""


CROPS = False
"""If the checkpoint does not state it, images are not cropped."""


def read_config(content: Mapping[str, Any]) -> SimpleNamespace:
    """The sizes in config.json. If it does not give the width of text features, this is the width of the text tower."""
    text = read_tower("text_config", content.get("text_config"), TEXT)
    width = (content.get("text_config") or {}).get("projection_size")
    text.projection_size = text.hidden_size if width is None else checked("text_config.projection_size", width, 768)
    vision = read_tower("vision_config", content.get("vision_config"), VISION)
    if not vision.vision_use_head:
        raise UserError("vision_config.vision_use_head is false: without a pooling head there are no image features")
    return SimpleNamespace(model_type="siglip", text_config=text, vision_config=vision)


class Pooling(nn.Module):
    """Pools the states (B, L, d) of an image into one (B, d): a learned probe attends to them, and an MLP follows."""

    def __init__(self, tower: SimpleNamespace) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[tower.hidden_act]
        self.probe = nn.Parameter(torch.empty(1, 1, tower.hidden_size))
        self.attention = nn.MultiheadAttention(tower.hidden_size, tower.num_attention_heads, batch_first=True)
        self.layernorm = norm(tower)
        self.mlp: Any = mlp(tower)

    def forward(self, states: Tensor) -> Tensor:
        pooled = self.attention(self.probe.repeat(states.shape[0], 1, 1), states, states)[0]
        return (pooled + self.mlp.fc2(self.activation(self.mlp.fc1(self.layernorm(pooled)))))[:, 0]


def build(config: SimpleNamespace) -> NamedModules:
    """A model of these sizes. Its tensors are not initialised."""
    text, vision = config.text_config, config.vision_config
    return NamedModules(
        config=config,
        text_model=NamedModules(
            embeddings=text_embeddings(text),
            encoder=layers(text),
            final_layer_norm=norm(text),
            head=nn.Linear(text.hidden_size, text.projection_size),
        ),
        vision_model=NamedModules(
            embeddings=ImageEmbeddings(vision, class_token=False),
            encoder=layers(vision),
            post_layernorm=norm(vision),
            head=Pooling(vision),
        ),
        logit_scale=nn.Parameter(torch.empty(1)),
        logit_bias=nn.Parameter(torch.empty(1)),
    )


def towers(model: Any) -> tuple[Tower, Tower]:
    """The image and the text tower of a SigLIP."""
    vision, text = model.vision_model, model.text_model
    if not hasattr(vision, "head"):
        raise UserError("this SigLIP has no pooling head, and without one there are no image features")
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


def text_tokenizer(folder: Path, limit: int) -> TextTokenizer:
    """A SigLIP tokenizer puts an end token after text and pads to the full length; most have no start token.

    The tokenizer of `transformers` is used, because it drops punctuation first, which tokenizer.json alone does not
    state. Text is put into lower case, in which all SigLIPs were trained, unless the checkpoint says otherwise. The
    tokenizer of SigLIP 2, which is Gemma's, does not do this itself.
    """
    tokenizer = tokenizer_of_transformers(folder)
    start, end, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    ids = tokenizer("a")["input_ids"]
    if end is None or pad is None or ids[-1] != end:
        raise UserError("it does not put an end token after text and have a padding token, as a SigLIP tokenizer does")
    start = start if ids[0] == start else None
    lower = tokenizer.init_kwargs.get("do_lower_case", True)

    def encode(text: str) -> list[int]:
        return tokenizer(text.lower() if lower else text, verbose=False)["input_ids"]

    return TextTokenizer(encode, start, end, limit, pad, tokenizer.get_vocab())
