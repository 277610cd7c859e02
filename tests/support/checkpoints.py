"""Small random checkpoints in Hugging Face format, written to a folder as a person would download them."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    AutoModel,
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
)

from rebapl.backbones import DualEncoder, load_backbone

SENTENCES = [
    "a photo of a cat.",
    "a photo of the big old red dog, a type of pet.",
    "satellite photo of annual crop land",
    "the texture of a rock's surface, seen from far away in the rain",
]
TINY_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
TINY_TEXT = {
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 60,
}
CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]


def clip_processor(size: int) -> dict[str, Any]:
    """A preprocessor_config.json like that of openai/clip-vit-base-patch16, where sizes are plain numbers."""
    return {
        "crop_size": size,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "resample": 3,
        "size": size,
    }


def siglip_processor(size: int) -> dict[str, Any]:
    """A preprocessor_config.json like that of google/siglip-base-patch16-224."""
    return {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "SiglipImageProcessor",
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"height": size, "width": size},
    }


def byte_level_tokenizer(limit: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE. As in CLIP, the start and the end token have the highest ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    start, end = "<|startoftext|>", "<|endoftext|>"
    tokenizer.add_special_tokens([start, end])
    ids = [(word, tokenizer.token_to_id(word)) for word in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{start} $A {end}", special_tokens=ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=start, eos_token=end, pad_token=end, model_max_length=limit
    )


def clip_tokenizer(folder: Path, limit: int) -> CLIPTokenizer:
    """The CLIP tokenizer itself, from a small vocab.json and merges.txt."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["a t</w>", "c at</w>", "p h", "o f</w>", "o g</w>", "d og</w>"]
    words = [*letters, *(letter + "</w>" for letter in letters), *(merge.replace(" ", "") for merge in merges)]
    vocabulary = {word: index for index, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return CLIPTokenizer.from_pretrained(folder, model_max_length=limit)


def siglip_tokenizer(limit: int) -> PreTrainedTokenizerFast:
    """Unigram pieces as in SigLIP: no start token, an end token that is also used for padding, and no punctuation."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(".", "")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    letters = [chr(code) for code in range(97, 123)]
    trainer = trainers.UnigramTrainer(
        vocab_size=120,
        initial_alphabet=["▁", ",", "'", *letters],
        special_tokens=["<unk>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>", unk_token="<unk>", model_max_length=limit
    )


@torch.no_grad()
def shuffle_weights(model: nn.Module, seed: int) -> None:
    """Make all weights, biases and norms so large that a test fails if one of them is left out."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name in ("logit_scale", "logit_bias"):
            parameter.copy_(torch.tensor({"logit_scale": 2.3, "logit_bias": -4.7}[name]))
        elif "norm" in name and name.endswith("weight"):
            parameter.copy_(1 + 0.1 * noise)
        elif parameter.dim() < 2 or "embedding" in name:
            parameter.copy_(0.1 * noise)
        else:
            parameter.copy_(noise * parameter[0].numel() ** -0.5)


def write_clip(
    folder: Path,
    *,
    vision: dict[str, Any] = TINY_VISION,
    text: dict[str, Any] = TINY_TEXT,
    width: int = 20,
    eos_token_id: int | None = None,
    own_tokenizer: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A CLIP folder. `eos_token_id=2` is the value in older configs of the hub, whatever the id of the tokenizer is."""
    folder.mkdir(parents=True, exist_ok=True)
    limit = text["max_position_embeddings"]
    tokenizer = clip_tokenizer(folder, limit) if own_tokenizer else byte_level_tokenizer(limit)
    if not own_tokenizer:
        tokenizer.save_pretrained(folder)
    end = tokenizer.eos_token_id
    tokens = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": end if eos_token_id is None else eos_token_id}
    texts = {"vocab_size": len(tokenizer), "pad_token_id": 1, **tokens, **text}
    model = CLIPModel(CLIPConfig(projection_dim=width, text_config=texts, vision_config=vision))
    shuffle_weights(model, seed=3)
    model.to(dtype).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(clip_processor(vision["image_size"])))
    return folder


def write_siglip(folder: Path) -> Path:
    """A tiny SigLIP folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = siglip_tokenizer(limit=56)
    tokenizer.save_pretrained(folder)
    text = {**TINY_TEXT, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 56}
    tokens = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1}
    config = SiglipConfig(text_config={**text, **tokens}, vision_config={**TINY_VISION, "patch_size": 16})
    model = SiglipModel(config)
    shuffle_weights(model, seed=4)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(siglip_processor(TINY_VISION["image_size"])))
    return folder


def of_transformers(folder: Path, device: str = "cpu") -> DualEncoder:
    """The encoder of a folder, in float32, with the model of `transformers` instead of ours."""
    ours = load_backbone(folder, device, torch.float32)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).to(device)
    return DualEncoder(ours.name, model, ours.tokenizer, ours.preprocessing)
