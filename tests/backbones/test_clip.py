"""CLIP features against `transformers`' own, computed on full-length text by its own model and tokenizer."""

from pathlib import Path

import checkpoints
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, CLIPModel

from rebapl.backbones import DualEncoder, Text, load_backbone

B16_VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
}
B16_TEXT = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
}


def expected_text(folder: Path) -> Tensor:
    """The sentences' features by `transformers`, padded to all positions."""
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    limit = model.config.text_config.max_position_embeddings
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(checkpoints.SENTENCES, padding="max_length", max_length=limit, return_tensors="pt")
    assert inputs["input_ids"].shape[1] == limit
    with torch.no_grad():
        return F.normalize(model.get_text_features(**inputs).pooler_output, dim=-1)


def expected_image(folder: Path, pixels: Tensor) -> Tensor:
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return F.normalize(model.get_image_features(pixels).pooler_output, dim=-1)


def sentences(encoder: DualEncoder) -> Text:
    return encoder.tokenize([[sentence] for sentence in checkpoints.SENTENCES])


def assert_features_equal(folder: Path, pixels: Tensor) -> None:
    encoder = load_backbone(folder)
    image = encoder.image_features(pixels)
    text = encoder.text_features(sentences(encoder))
    assert image.std(0).max() > 0.01, "a test on features that are all alike would prove nothing"
    assert text.std(0).max() > 0.01
    torch.testing.assert_close(image, expected_image(folder, pixels), atol=1e-5, rtol=0)
    torch.testing.assert_close(text, expected_text(folder), atol=1e-5, rtol=0)


@pytest.mark.parametrize("fixture", ["clip_folder", "old_clip_folder"])
def test_features_equal_those_of_transformers(request: pytest.FixtureRequest, fixture: str) -> None:
    generator = torch.Generator().manual_seed(0)
    assert_features_equal(request.getfixturevalue(fixture), torch.randn(4, 3, 32, 32, generator=generator))


@pytest.mark.parametrize("eos_token_id", [None, 2])
def test_features_on_the_vit_b16_shape_with_few_layers(tmp_path: Path, eos_token_id: int | None) -> None:
    folder = checkpoints.write_clip(
        tmp_path,
        vision={**B16_VISION, "num_hidden_layers": 1},
        text={**B16_TEXT, "num_hidden_layers": 2},
        width=512,
        eos_token_id=eos_token_id,
    )
    assert_features_equal(folder, torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)))


def test_text_is_cut_after_the_longest_end(clip_folder: Path) -> None:
    encoder = load_backbone(clip_folder)
    tokenizer = AutoTokenizer.from_pretrained(clip_folder)
    lengths = [len(tokenizer(sentence)["input_ids"]) for sentence in checkpoints.SENTENCES]
    text = sentences(encoder)
    assert text.ids.shape[1] == max(lengths) < encoder.tokenizer.limit
    assert text.read.tolist() == [length - 1 for length in lengths]


def test_logits_equal_those_of_transformers(clip_folder: Path) -> None:
    encoder = load_backbone(clip_folder)
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    inputs = AutoTokenizer.from_pretrained(clip_folder)(checkpoints.SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = CLIPModel.from_pretrained(clip_folder)(**inputs, pixel_values=pixels).logits_per_image
    found = encoder.logits(encoder.image_features(pixels), encoder.text_features(sentences(encoder)))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_the_backbone_is_frozen_and_in_the_type_asked_for(clip_folder: Path) -> None:
    encoder = load_backbone(clip_folder, dtype=torch.bfloat16)
    assert not any(parameter.requires_grad for parameter in encoder.model.parameters())
    assert not encoder.model.training
    assert encoder.dtype == torch.bfloat16
    features = encoder.image_features(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert features.dtype == torch.float32
    full = load_backbone(clip_folder)
    assert encoder.fingerprint == full.fingerprint
    assert encoder.logit_scale == full.logit_scale


def test_a_model_that_was_loaded_with_another_attention(clip_folder: Path) -> None:
    """Plain ("eager") attention would see what comes after a token: it takes a mask, not a flag."""
    encoder = load_backbone(clip_folder)
    model = CLIPModel.from_pretrained(clip_folder, attn_implementation="eager")
    other = DualEncoder("eager", model, encoder.tokenizer, encoder.preprocessing)
    torch.testing.assert_close(other.text_features(sentences(other)), expected_text(clip_folder), atol=1e-5, rtol=0)
