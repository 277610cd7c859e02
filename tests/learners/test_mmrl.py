"""What is special to MMRL and MMRL++: two heads and when they mix, and the published settings."""

import pytest
import torch
from small_clip import random_images
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.learners import Learner, build_learner
from rebapl.learners.registry import published

NAMES = ["red cat", "dog", "big old tree"]
TEMPLATE = "a photo of a {}."
BOTH = ("mmrl", "mmrl++")


def build(encoder: DualEncoder, method: str, names: list[str] = NAMES, **settings: object) -> Learner:
    generator = torch.Generator().manual_seed(3)
    return build_learner(method, encoder, names, TEMPLATE, generator, {"width": 24, **settings})


def heads(learner: Learner) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of the class head and of the representation head."""
    output = learner(random_images(2))
    text = output.per_class["text"].T
    return output.logits, 100 * output.per_image["image"] @ text, 100 * output.per_image["representation"] @ text


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize("names", [NAMES, NAMES[::-1], NAMES[1:]], ids=["all", "permuted", "some"])
def test_classes_of_training_get_both_heads(encoder: DualEncoder, method: str, names: list[str]) -> None:
    logits, by_class, by_representation = heads(build(encoder, method).bind(names))
    assert not torch.allclose(by_class, by_representation, atol=0.1)
    torch.testing.assert_close(logits, 0.7 * by_class + 0.3 * by_representation)


@pytest.mark.parametrize("method", BOTH)
def test_other_classes_and_other_data_sets_get_the_class_head(encoder: DualEncoder, method: str) -> None:
    learner = build(encoder, method)
    for bound in (learner.bind(["fish", "house"]), learner.bind([*NAMES, "fish"]), learner.bind(NAMES, transfer=True)):
        logits, by_class, _ = heads(bound)
        torch.testing.assert_close(logits, by_class)
        back, by_class, _ = heads(bound.bind(NAMES))
        assert not torch.allclose(back, by_class, atol=0.1)


def test_evaluation_does_not_pay_for_the_frozen_model(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = build(encoder, "mmrl")
    passed: list[int] = []
    layers = [
        lambda *given, i=i, layer=layer: (passed.append(i), layer(*given))[1]
        for i, layer in enumerate(encoder.vision.layers)
    ]
    monkeypatch.setattr(encoder.vision, "layers", layers)
    learner(random_images(1))
    assert passed == [0, 1, 2, 3, 2, 3]
    passed.clear()
    output = learner.eval()(random_images(1))
    assert passed == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"learner\.train\(\)"):
        learner.loss(output, torch.tensor([0]))


@pytest.mark.parametrize(
    ("method", "protocol", "dataset", "settings", "epochs", "batch", "warmup"),
    [
        ("mmrl", "base-to-novel", "eurosat", {"consistency": 0.01, "width": 2048}, 10, 4, 1),
        ("mmrl", "base-to-novel", "stanford_cars", {"consistency": 7.0}, 10, 4, 1),
        ("mmrl", "base-to-novel", "imagenet", {"consistency": 0.5}, 5, 32, 1),
        ("mmrl", "few-shot", "dtd", {"consistency": 0.5}, 50, 32, 1),
        ("mmrl", "few-shot", "imagenet", {"consistency": 0.5}, 5, 32, 1),
        ("mmrl", "few-shot", "eurosat", {"consistency": 0.5, "width": 2048}, 50, 32, 1),
        ("mmrl", "cross-dataset", "imagenet", {"consistency": 0.2}, 1, 32, 0),
        ("mmrl", "domain-generalization", "imagenet", {"consistency": 0.2}, 1, 32, 0),
        ("mmrl", "base-to-novel", "my pictures", {}, 10, 4, 1),
        ("mmrl++", "base-to-novel", "oxford_flowers", {"mix": 0.4, "consistency": 7.0}, 10, 4, 1),
        ("mmrl++", "few-shot", "food101", {"mix": 0.1, "consistency": 1.0}, 50, 32, 1),
        ("mmrl++", "few-shot", "imagenet", {"mix": 0.9, "consistency": 0.2}, 5, 32, 1),
        ("mmrl++", "cross-dataset", "imagenet", {"mix": 0.9, "consistency": 0.1}, 1, 32, 0),
        ("mmrl++", "cross-dataset", "oxford_flowers", {"mix": 0.4, "consistency": 0.1}, 1, 32, 0),
        ("mmrl++", "domain-generalization", "imagenet_a", {"mix": 0.8, "consistency": 0.1}, 1, 32, 0),
    ],
)
def test_published_settings(
    method: str, protocol: str, dataset: str, settings: dict, epochs: int, batch: int, warmup: int
) -> None:
    given, recipe = published(method, protocol, dataset)
    assert given == settings
    assert (recipe.optimizer, recipe.lr, recipe.crop_scale) == ("adamw", 0.001, (0.5, 1.0))
    assert (recipe.epochs, recipe.batch, recipe.warmup_epochs) == (epochs, batch, warmup)


def test_layers_fit_the_backbone(encoder: DualEncoder) -> None:
    assert build(encoder, "mmrl").vision_layers == range(2, 4)
    assert build(encoder, "mmrl", layers=3).text_layers == range(1, 4)
    with pytest.raises(UserError, match="1 to 3"):
        build(encoder, "mmrl", layers=12)


def test_starts_with_the_published_scales(encoder: DualEncoder) -> None:
    learner = build(encoder, "mmrl", width=512)
    assert learner.tokens.std().item() == pytest.approx(0.02, rel=0.1)
    assert learner.representation_projection.std().item() == pytest.approx(96**-0.5, rel=0.1)
    assert learner.to_text[0].weight.abs().max().item() == pytest.approx(512**-0.5, rel=0.02)
