"""The tiny CLIP of golden.json, which has the results of published implementations on it. All weights follow a formula.

Every tensor is `randn` from a generator seeded with the CRC-32 of its name, so nothing but results is stored.
"""

import json
import math
import re
import zlib
from pathlib import Path

import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from rebapl.backbones import DualEncoder, TextTokenizer
from rebapl.data.transforms import Preprocessing

VALUES = json.loads((Path(__file__).parent / "golden.json").read_text())
CLASS_NAMES = ["red cat", "dog", "big old tree"]
TEMPLATE = "a photo of a {}."
LABELS = torch.tensor([0, 2, 1])
_WORDS = [
    *".,",
    *[
        "a",
        "photo",
        "of",
        "type",
        "texture",
        "red",
        "green",
        "blue",
        "cat",
        "dog",
        "bird",
        "fish",
        "old",
        "big",
        "small",
        "tree",
        "house",
        "car",
        "x",
    ],
]
_START, _END = 62, 63
_TEXT = {
    "vocab_size": 64,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "projection_dim": 512,
    "hidden_act": "quick_gelu",
    "bos_token_id": _START,
    "eos_token_id": _END,
    "pad_token_id": 0,
}
_VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "image_size": 64,
    "patch_size": 32,
    "projection_dim": 512,
    "hidden_act": "quick_gelu",
}


def named_randn(name: str, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
    stream = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return (torch.randn(shape, generator=stream, dtype=torch.float64) * scale).float()


def learnable(method: str, name: str, shape: tuple[int, ...]) -> Tensor:
    scale = 0.1 if len(shape) == 1 or shape[0] < 16 else shape[-1] ** -0.5
    return named_randn(f"{method}/{name}", shape, scale)


def images() -> Tensor:
    return named_randn("images", (3, 3, 64, 64))


def _weight(name: str, shape: tuple[int, ...]) -> Tensor:
    if name == "logit_scale":
        return torch.tensor(math.log(10.0))
    if "norm" in name and name.endswith("weight"):
        return 1 + named_randn(name, shape, 0.1)
    if name.endswith("bias"):
        return named_randn(name, shape, 0.05)
    if "embedding" in name and "patch" not in name:
        return named_randn(name, shape, 0.1)
    return named_randn(name, shape, math.prod(shape[1:]) ** -0.5)


def _encode(text: str) -> list[int]:
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return [_START, *(1 + _WORDS.index(word) for word in words), _END]


def encoder() -> DualEncoder:
    model = CLIPModel(CLIPConfig(projection_dim=512, text_config=_TEXT, vision_config=_VISION))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_weight(name, tuple(parameter.shape)))
    preprocessing = Preprocessing(resize=64, crop=64, mean=(0.5,) * 3, std=(0.5,) * 3)
    return DualEncoder("golden", model, TextTokenizer(_encode, _START, _END, limit=77), preprocessing)
