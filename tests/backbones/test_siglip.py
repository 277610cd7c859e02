"""SigLIP behind the same interface, against `transformers`' own outputs; the learners that run on it."""

import json
import shutil
from pathlib import Path

import checkpoints
import pytest
import torch
from transformers import AutoTokenizer, SiglipModel
from transformers.models.siglip.modeling_siglip import SiglipOutput

from rebapl.backbones import DualEncoder, Insert, load_backbone
from rebapl.errors import UserError
from rebapl.learners import build_learner

PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def encoder(siglip_folder: Path) -> DualEncoder:
    return load_backbone(siglip_folder)


@pytest.fixture(scope="module")
def expected(siglip_folder: Path) -> SiglipOutput:
    """By `transformers`, from its own tokenizer with SigLIP's padding rule."""
    tokenizer = AutoTokenizer.from_pretrained(siglip_folder)
    inputs = tokenizer(checkpoints.SENTENCES, padding="max_length", max_length=56, return_tensors="pt")
    with torch.no_grad():
        return SiglipModel.from_pretrained(siglip_folder)(input_ids=inputs["input_ids"], pixel_values=PIXELS)


def test_features_and_logits_equal_those_of_transformers(encoder: DualEncoder, expected: SiglipOutput) -> None:
    image = encoder.image_features(PIXELS)
    text = encoder.text_features(encoder.tokenize([[sentence] for sentence in checkpoints.SENTENCES]))
    torch.testing.assert_close(image, expected.image_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(text, expected.text_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.logits(image, text), expected.logits_per_image, atol=1e-5, rtol=1e-5)
    assert encoder.logit_bias == pytest.approx(-4.7)


def test_text_is_padded_to_the_full_length_and_read_at_the_end(encoder: DualEncoder) -> None:
    text = encoder.tokenize([["a cat"]])
    assert text.ids.shape == (1, 56)
    assert text.read.tolist() == [55]
    # Nothing may be cut: attention goes both ways, so what stands in the padding matters.
    cut = encoder.text.run(encoder.embed_text(type(text)(text.ids[:, :-1], text.read - 1, text.slots)))
    whole = encoder.text.run(encoder.embed_text(text))
    assert not torch.allclose(encoder.text.features(cut), encoder.text.features(whole), atol=1e-3)


def test_prompt_tokens_take_part_in_pooling(encoder: DualEncoder) -> None:
    vision = encoder.vision
    tokens = torch.randn(2, vision.width, generator=torch.Generator().manual_seed(1)).requires_grad_()
    states = vision.run(encoder.embed_images(PIXELS), {len(vision.layers) - 1: Insert(tokens)})
    model = encoder.model.vision_model
    pooled = model.head(model.post_layernorm(states.hidden))
    assert states.hidden.shape[1] == 4 + 2
    torch.testing.assert_close(vision.features(states), pooled)
    patches_only = model.head(model.post_layernorm(states.hidden[:, :4]))
    assert not torch.allclose(pooled, patches_only, atol=1e-3)


def test_names_that_the_tokenizer_drops_are_refused(encoder: DualEncoder) -> None:
    with pytest.raises(UserError, match=r"finds nothing in '\.\.\.'"):
        encoder.tokenize([["a photo of", "..."]])
    assert encoder.tokenize([["cat", 2, "."]]).slots.shape == (1, 2)


def test_text_is_lowered_where_the_tokenizer_leaves_it_as_it_is(siglip_folder: Path, tmp_path: Path) -> None:
    """SigLIP 2 has the tokenizer of Gemma, which keeps capitals, and was trained on small letters."""
    folder = Path(shutil.copytree(siglip_folder, tmp_path / "siglip2"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    encode = load_backbone(folder).tokenizer.encode
    assert encode("A Photo of a CAT") == encode("a photo of a cat")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    encode = load_backbone(folder).tokenizer.encode
    assert encode("A Photo of a CAT") != encode("a photo of a cat")


def test_a_checkpoint_without_pooling_head_is_refused(siglip_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(siglip_folder, tmp_path / "headless"))
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["vision_use_head"] = False
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="without a pooling head"):
        load_backbone(folder)
    whole = load_backbone(siglip_folder)
    with pytest.raises(UserError, match="has no pooling head"):
        DualEncoder("headless", SiglipModel.from_pretrained(folder), whole.tokenizer, whole.preprocessing)


METHODS = ("coop", "ivlp", "maple")


@pytest.mark.parametrize("method", METHODS)
def test_learners_run_on_it(encoder: DualEncoder, method: str) -> None:
    generator = torch.Generator().manual_seed(0)
    learner = build_learner(method, encoder, ["cat", "the old dog"], "a photo of a {}.", generator)
    output = learner(PIXELS)
    loss = learner.loss(output, torch.tensor([0, 1, 1]))
    loss.backward()
    assert output.logits.shape == (3, 2)
    assert loss.isfinite()
    for name, parameter in learner.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name
    bound = learner.bind(["rock", "rain", "red pet"])
    assert bound(PIXELS).logits.shape == (3, 3)
    assert {id(p) for p in bound.parameters()} == {id(p) for p in learner.parameters()}


@pytest.mark.parametrize(("method", "settings"), [("coop", {}), ("ivlp", {"depth": 1}), ("maple", {"depth": 1})])
def test_text_starts_as_zero_shot(encoder: DualEncoder, method: str, settings: dict) -> None:
    """The learnable tokens stand where the words they start from stood: there is no start token."""
    arguments = encoder, ["cat", "the old dog"], "a photo of a {}.", torch.Generator()
    given = build_learner(method, *arguments, settings)(PIXELS).cloud("text")
    torch.testing.assert_close(given, build_learner("zero-shot", *arguments)(PIXELS).cloud("text"), atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_downhill_lowers_the_loss(encoder: DualEncoder, method: str) -> None:
    learner = build_learner(method, encoder, ["cat", "dog"], "a photo of a {}.", torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 1])
    before = learner.loss(learner(PIXELS), labels)
    before.backward()
    with torch.no_grad():
        for parameter in learner.parameters():
            assert parameter.grad is not None
            parameter -= 1e-3 * parameter.grad
        assert learner.loss(learner(PIXELS), labels) < before
