"""PromptSRC's three terms, and who pays for the frozen model."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.errors import UserError
from rebapl.learners.deep import StatesWithFeatures


def test_each_term_is_as_published(build: Any, images: Tensor, labels: Tensor) -> None:
    def loss(**weights: float) -> Tensor:
        off = {"text_weight": 0.0, "image_weight": 0.0, "logits_weight": 0.0}
        learner = build("promptsrc", off | weights)
        return learner.loss(learner(images), labels)

    learner = build("promptsrc")
    output = learner(images)
    image, text = output.per_image["frozen_image"], learner.frozen_text
    base = F.cross_entropy(output.logits, labels)
    frozen = (learner.encoder.logit_scale * image @ text.T).softmax(-1)
    divergence = (frozen * (frozen.log() - output.logits.log_softmax(-1))).sum() / output.logits.numel()
    torch.testing.assert_close(loss(), base)
    torch.testing.assert_close(loss(text_weight=25.0) - base, 25 * (output.cloud("text") - text).abs().mean())
    torch.testing.assert_close(loss(image_weight=10.0) - base, 10 * (output.cloud("image") - image).abs().mean())
    torch.testing.assert_close(loss(logits_weight=1.0) - base, divergence, atol=1e-5, rtol=1e-4)


def test_evaluation_does_not_run_the_frozen_model(
    build: Any, images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = build("promptsrc").eval()
    tower, passes = learner.encoder.vision, []
    run = tower.run
    monkeypatch.setattr(tower, "run", lambda *arguments: passes.append(1) or run(*arguments))
    output = learner(images)
    assert len(passes) == 1
    assert not isinstance(learner.frozen(images), StatesWithFeatures)
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


@pytest.mark.parametrize("name", ["text_weight", "image_weight", "logits_weight"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_bad_weights_are_refused(build: Any, name: str, value: float) -> None:
    with pytest.raises(UserError, match=name):
        build("promptsrc", {name: value})


def test_templates_that_no_term_reads_are_refused(build: Any) -> None:
    with pytest.raises(UserError, match=r"method.templates has no effect"):
        build("promptsrc", {"templates": ["a {}."], "text_weight": 0.0, "logits_weight": 0.0})
