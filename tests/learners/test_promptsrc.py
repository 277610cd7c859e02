"""When PromptSRC's frozen model is computed, and with which templates."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from rebapl.errors import UserError


def test_evaluation_does_not_run_the_frozen_model(
    build: Any, images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = build("promptsrc").eval()
    tower, passes = learner.encoder.vision, []
    run = tower.run
    monkeypatch.setattr(tower, "run", lambda *arguments: passes.append(1) or run(*arguments))
    output = learner(images)
    assert len(passes) == 1
    assert learner.frozen(images).features is None
    with pytest.raises(UserError, match=r"training mode only: call learner.train\(\)"):
        learner.loss(output, labels)
    learner.train()(images)
    assert len(passes) == 3


def test_binding_for_evaluation_does_not_encode_sixty_templates(
    build: Any, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = build("promptsrc").eval()
    tower, passes = learner.encoder.text, []
    run = tower.run
    monkeypatch.setattr(tower, "run", lambda *arguments: passes.append(1) or run(*arguments))
    learner.bind(["car", "fish"])(images)
    assert len(passes) == 1


def test_own_templates(build: Any, images: Tensor) -> None:
    learner = build("promptsrc", {"templates": ["a photo of a {}."]})
    expected = build("zero-shot", template="a photo of a {}.")(images).cloud("text")
    torch.testing.assert_close(learner.frozen_text, expected)


def test_the_pass_that_computes_the_frozen_texts_is_freed_though_a_template_cannot_be_read(
    build: Any, images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the gradient nodes of the parameters outlive it, and no later pass can be recorded as a CUDA graph."""
    learner = build("promptsrc").train()
    encode = learner.encoder.tokenizer.encode

    def few_words(text: str) -> list[int]:
        if "origami" in text:
            raise UserError(f"{text!r}: unknown word")
        return encode(text)

    monkeypatch.setattr(learner.encoder.tokenizer, "encode", few_words)
    gc.disable()  # which would free it some time later
    try:
        output = learner(images)
        logits = weakref.ref(output.logits)
        learner.loss(output, labels)
        del output
        assert logits() is None
    finally:
        gc.enable()
