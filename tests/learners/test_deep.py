"""Prompts of many layers: depths, openings, and the published settings of VPT, IVLP, MaPLe and PromptSRC."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rebapl.backbones import DualEncoder, Tower
from rebapl.errors import UserError
from rebapl.learners import build_learner
from rebapl.learners.deep import prompted_layers, scaled_depth
from rebapl.learners.registry import published

DEEP = ("vpt", "ivlp", "maple", "promptsrc")


@pytest.mark.parametrize(
    ("depth", "layers", "expected"),
    [(9, 12, 9), (12, 12, 12), (3, 12, 3), (9, 24, 18), (9, 5, 4), (3, 5, 1), (3, 1, 1), (12, 1, 1), (1, 2, 1)],
)
def test_depths_scale(depth: int, layers: int, expected: int) -> None:
    assert scaled_depth(depth, layers) == expected
    assert prompted_layers(f"{depth}/12", layers) == expected


@pytest.mark.parametrize("method", DEEP)
def test_a_depth_beyond_the_backbone_is_refused(build: Any, method: str) -> None:
    with pytest.raises(UserError, match=r"depth = 5: this backbone has 4 layers.* from 1 to 4"):
        build(method, {"depth": 5})


@pytest.mark.parametrize("depth", [0, -1, "13/12", "0/12", "9", "deep"])
def test_what_is_no_depth_is_refused(build: Any, depth: int | str) -> None:
    with pytest.raises(UserError, match=rf"method.depth: {depth!r} is no depth: .* such as '9/12'"):
        build("maple", {"depth": depth})


@pytest.mark.parametrize("method", ["ivlp", "maple", "promptsrc"])
def test_words_that_are_too_few_are_refused(build: Any, method: str) -> None:
    with pytest.raises(UserError, match=r"init = 'the red' is fewer than tokens = 3 tokens.*init=None"):
        build(method, {"tokens": 3, "init": "the red"})


@pytest.mark.parametrize("method", ["ivlp", "maple", "promptsrc", "coop", "cocoop"])
def test_more_tokens_than_the_text_has_room_for_are_refused(build: Any, method: str) -> None:
    with pytest.raises(UserError, match=r"\[80 tokens\] red cat.*room for 77"):
        build(method, {"tokens": 80, "init": None})


@pytest.fixture
def tall(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> DualEncoder:
    """The vision tower with its layers twice over: 8 against 4 in the text tower, as ViT-L has 24 against 12."""
    vision: Tower = encoder.vision
    monkeypatch.setattr(vision, "layers", [*vision.layers, *vision.layers])
    return encoder


def test_towers_of_different_heights(tall: DualEncoder, images: Tensor) -> None:
    depths = {}
    for method in DEEP:
        learner = build_learner(method, tall, ["cat", "dog"], "a {}.", torch.Generator().manual_seed(0))
        learner.loss(learner(images), torch.tensor([0, 1, 0])).backward()
        assert all(parameter.grad is not None for parameter in learner.parameters())
        names = [name.split(".")[0] for name, _ in learner.named_parameters()]
        depths[method] = {kind: names.count(kind) for kind in ("text", "vision")}
    assert depths["vpt"] == {"text": 0, "vision": 8}
    assert depths["ivlp"] == {"text": 4, "vision": 8}
    assert depths["promptsrc"] == {"text": 3, "vision": 6}
    assert depths["maple"] == {"text": 3, "vision": 0}


@pytest.mark.parametrize(
    ("tokens", "words", "learned", "rest"),
    [
        (2, "a photo of a", 2, "of a red cat."),
        (4, "a photo of a", 4, "red cat."),
        (6, "a photo of a", 6, "red cat."),
        (3, None, 3, "red cat."),
    ],
)
def test_what_stays_of_the_opening(
    encoder: DualEncoder, tokens: int, words: str | None, learned: int, rest: str
) -> None:
    settings = {"tokens": tokens, "init": words}
    text = build_learner("ivlp", encoder, ["red cat"], None, torch.Generator(), settings).sequences
    assert text.slots.tolist() == [list(range(1, 1 + learned))]
    assert text.ids[0, 1 + learned :].tolist() == encoder.tokenizer.encode(rest)[1:]


def test_maple_starts_with_couplings_as_published(build: Any) -> None:
    learner = build("maple", {"depth": 4})
    learner.reset(torch.Generator().manual_seed(1))
    weights = [learner.couple[str(layer)].weight for layer in (1, 2, 3, 4)]
    assert torch.equal(weights[1], weights[2])
    assert torch.equal(weights[1], weights[3])
    assert not torch.allclose(weights[0], weights[1])
    bound = 64**-0.5
    assert all(0.95 * bound < weight.abs().max() <= bound for weight in weights)
    assert not torch.allclose(learner.text["2"], learner.text["3"])


def test_vpt_text_is_the_same_for_every_data_set(build: Any, images: Tensor) -> None:
    a, b = (build("vpt", template=template)(images).cloud("text") for template in ("the {}.", "{} texture."))
    assert torch.equal(a, b)


def test_published_settings() -> None:
    settings, recipe = published("maple", "base-to-novel", "dtd")
    assert (settings, recipe.lr, recipe.epochs, recipe.batch) == ({}, 0.0035, 5, 4)
    for protocol in ("cross-dataset", "domain-generalization"):
        settings, recipe = published("maple", protocol, "imagenet")
        assert (settings, recipe.lr, recipe.epochs) == ({"depth": "3/12"}, 0.0026, 2)
        settings, recipe = published("promptsrc", protocol, "imagenet")
        assert (settings, recipe.averaging, recipe.epochs) == ({"depth": "3/12"}, (6, 10), 20)
    _, recipe = published("promptsrc", "base-to-novel", "dtd")
    assert (recipe.lr, recipe.epochs, recipe.batch, recipe.averaging) == (0.0025, 20, 4, (15, 1))
    assert published("promptsrc", "few-shot", "caltech101")[1].averaging == (30, 30)
    assert published("promptsrc", "few-shot", "eurosat")[1].averaging == (45, 5)
    assert published("promptsrc", "few-shot", "eurosat")[1].epochs == 50
    assert (published("vpt", "few-shot", "dtd")[1].lr, published("ivlp", "few-shot", "dtd")[1].lr) == (0.0025, 0.0035)


@pytest.mark.parametrize("method", DEEP)
def test_prompts_start_as_published(vit_b16: DualEncoder, method: str) -> None:
    learner = build_learner(method, vit_b16, ["cat", "dog"], "a {}.", torch.Generator().manual_seed(0))
    for name, prompt in learner.named_parameters():
        if name.startswith(("text", "vision")) and name != "text.1":  # that one starts from words
            assert prompt.std().item() == pytest.approx(0.02, rel=0.1), name
            assert prompt.mean().item() == pytest.approx(0.0, abs=0.003), name
