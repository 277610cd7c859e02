"""CLIPs built in memory: a small one with random weights, and one with the shape of ViT-B/16 and arbitrary weights.

Their tokenizer knows every word of every language: a word's id is the CRC-32 of it.
"""

import math
import re
import zlib

import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from rebapl.backbones import DualEncoder, Text, TextTokenizer
from rebapl.backbones.text import Piece
from rebapl.data.transforms import Preprocessing

LIMIT = 77
_WORDS = 4096
_START, _END = _WORDS, _WORDS + 1


def encode(text: str) -> list[int]:
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return [_START, *(zlib.crc32(word.encode()) % _WORDS for word in words), _END]


class Untruncated(TextTokenizer):
    """Pads every sequence to the limit."""

    def assemble(self, sequences: list[list[Piece]]) -> Text:
        text = super().assemble(sequences)
        padding = torch.full((len(text.ids), self.limit - text.ids.shape[1]), self.end)
        return Text(torch.cat([text.ids, padding], dim=1), text.read, text.slots)


def small_encoder(dtype: torch.dtype = torch.float32, tokenizer: type[TextTokenizer] = TextTokenizer) -> DualEncoder:
    """4 + 4 layers, text 64 wide, vision 96, joint 48; 16 patches; exp(logit_scale) = 10. Always the same weights."""
    model = CLIPModel(_config(text=(64, 4, 4), vision=(96, 4, 6), joint=48, image_size=16, patch_size=4))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name == "logit_scale":
                parameter.fill_(math.log(10.0))
            elif "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.1 * noise)
            elif name.endswith("bias") or ("embedding" in name and "patch" not in name):
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(noise * math.prod(parameter.shape[1:]) ** -0.5)
    return _encoder(model.to(dtype), tokenizer)


def random_views(count: int, size: int = 16, seed: int = 0) -> Tensor:
    """Views of noise, uint8 (count, 3, size, size)."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=stream)


def vit_b16_encoder() -> DualEncoder:
    """The shape of CLIP ViT-B/16 except for the vocabulary. Its memory is not used until something is computed."""
    with torch.device("meta"):
        model = CLIPModel(_config(text=(512, 12, 8), vision=(768, 12, 12), joint=512, image_size=224, patch_size=16))
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.logit_scale.fill_(0.0)
        for parameter in model.text_model.parameters():
            parameter.zero_()
        model.text_projection.weight.zero_()
    return _encoder(model, TextTokenizer)


def random_images(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def _config(
    text: tuple[int, int, int], vision: tuple[int, int, int], joint: int, image_size: int, patch_size: int
) -> CLIPConfig:
    def tower(width: int, layers: int, heads: int) -> dict:
        return {
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "projection_dim": joint,
            "hidden_act": "quick_gelu",
        }

    special = {"bos_token_id": _START, "eos_token_id": _END, "pad_token_id": 0}
    return CLIPConfig(
        projection_dim=joint,
        text_config=tower(*text) | special | {"vocab_size": _WORDS + 2, "max_position_embeddings": LIMIT},
        vision_config=tower(*vision) | {"image_size": image_size, "patch_size": patch_size},
    )


def _encoder(model: CLIPModel, tokenizer: type[TextTokenizer]) -> DualEncoder:
    size = model.config.vision_config.image_size
    preprocessing = Preprocessing(resize=size, crop=size, mean=(0.5,) * 3, std=(0.5,) * 3)
    return DualEncoder("small", model, tokenizer(encode, _START, _END, LIMIT), preprocessing)
