"""CLIP: the feature of a text is read at its end token (attention is causal), that of an image at its class token.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rebapl.backbones.model import ImageEmbeddings, NamedModules, checked, layers, norm, read_tower, text_embeddings
from rebapl.backbones.text import TextTokenizer, tokenizer_of_transformers
from rebapl.backbones.tower import Block, Tower
from rebapl.errors import UserError

TEXT = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
"""The defaults of settings that config.json leaves out."""


CROPS = True
"""If the checkpoint does not state it, images are cropped to the centre."""


def read_config(content: Mapping[str, Any]) -> SimpleNamespace:
    """The sizes in config.json. Early checkpoints have a second section `…_config_dict`, which takes precedence."""
    sections = {}
    for name, defaults in (("text_config", TEXT), ("vision_config", VISION)):
        early_section = content.get(f"{name}_dict")
        sections[name] = read_tower(name, content.get(name) if early_section is None else early_section, defaults)
    width = checked("projection_dim", content.get("projection_dim", 512), 512)
    return SimpleNamespace(model_type="clip", projection_dim=width, **sections)


def build(config: SimpleNamespace) -> NamedModules:
    """A model of these sizes. Its tensors are not initialised."""
    text, vision = config.text_config, config.vision_config
    return NamedModules(
        config=config,
        text_model=NamedModules(embeddings=text_embeddings(text), encoder=layers(text), final_layer_norm=norm(text)),
        vision_model=NamedModules(
            embeddings=ImageEmbeddings(vision, class_token=True),
            pre_layrnorm=norm(vision),
            encoder=layers(vision),
            post_layernorm=norm(vision),
        ),
        text_projection=nn.Linear(text.hidden_size, config.projection_dim, bias=False),
        visual_projection=nn.Linear(vision.hidden_size, config.projection_dim, bias=False),
        logit_scale=nn.Parameter(torch.empty(())),
    )


def towers(model: Any) -> tuple[Tower, Tower]:
    """The image and the text tower of a CLIP."""
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


def text_tokenizer(folder: Path, limit: int) -> TextTokenizer:
    """A CLIP tokenizer puts a start and an end token around text; tokens after the end may be cut off.

    tokenizer.json is read without `transformers`, unless another file names special tokens that it does not have.
    """
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
        plain.no_truncation()
        plain.no_padding()
        ids = plain.encode("a").ids
        added = plain.get_added_tokens_decoder()
        special = {token.content: number for number, token in added.items() if token.special}
        has_ends = len(ids) > 2 and {ids[0], ids[-1]} <= set(special.values())
        if has_ends and _has_all_special_tokens(folder, special, ids[0], ids[-1]):
            return TextTokenizer(
                lambda text: plain.encode(text).ids, ids[0], ids[-1], limit, vocabulary=plain.get_vocab()
            )
    tokenizer = tokenizer_of_transformers(folder)
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    ids = tokenizer("a")["input_ids"]
    if start is None or end is None or ids[0] != start or ids[-1] != end:
        raise UserError("it does not put a start and an end token around text, as a CLIP tokenizer does")
    vocabulary = tokenizer.get_vocab()
    return TextTokenizer(lambda text: tokenizer(text, verbose=False)["input_ids"], start, end, limit, None, vocabulary)


def _has_all_special_tokens(folder: Path, special: Mapping[str, int], start: int, end: int) -> bool:
    """Whether `special`, from tokenizer.json, has all special tokens that other files name, and these two ends."""
    ends = {"bos_token": start, "eos_token": end}
    for path in (folder / "tokenizer_config.json", folder / "special_tokens_map.json"):
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for role in (*ends, "unk_token", "pad_token"):
            token = content.get(role)
            word = token["content"] if isinstance(token, Mapping) else token
            if word is not None and (word not in special or ends.get(role, special[word]) != special[word]):
                return False
    return True
