"""Ours against what the published implementations compute, to 1e-4: features, logits, loss and gradients."""

import golden
import pytest
import torch
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners import Learner, Output, build_learner


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return golden.encoder()


def near(given: Tensor, expected: list) -> bool:
    return torch.allclose(given, torch.tensor(expected), atol=1e-4, rtol=1e-4)


def learner_and_output(
    encoder: DualEncoder, method: str, settings: dict, names: dict[str, str]
) -> tuple[Learner, Output]:
    """`names` maps our parameter names to the oracle's."""
    learner = build_learner(method, encoder, golden.CLASS_NAMES, golden.TEMPLATE, torch.Generator(), settings)
    with torch.no_grad():
        for ours, theirs in names.items():
            parameter = learner.get_parameter(ours)
            parameter.copy_(golden.learnable(method, theirs, tuple(parameter.shape)))
    assert set(names) == {name for name, _ in learner.named_parameters()}
    return learner, learner(golden.images())


CASES = {
    "zero_shot": ("zero-shot", {}, {}),
    "coop": ("coop", {"tokens": 4, "init": None}, {"context": "context"}),
    "maple": (
        "maple",
        {"depth": 3},
        {
            f"{kind}.{layer}{part}": f"{kind}.{layer}{part}"
            for layer in (1, 2, 3)
            for kind, part in (("text", ""), ("couple", ".weight"), ("couple", ".bias"))
        },
    ),
    "mmrl": (
        "mmrl",
        {"layers": 3, "class_share": 0.7, "consistency": 0.5},
        {
            "tokens": "tokens",
            "representation_projection": "representation_projection",
            **{
                f"{kind}.{index}.{part}": f"{kind}.{index + 2}.{part}"
                for kind in ("to_vision", "to_text")
                for index in range(3)
                for part in ("weight", "bias")
            },
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_published_implementation(encoder: DualEncoder, case: str) -> None:
    method, settings, names = CASES[case]
    expected = golden.VALUES[case]
    learner, output = learner_and_output(encoder, method, settings, names)
    loss = learner.loss(output, golden.LABELS)
    assert near(output.per_image["image"][:, :6], expected["image_features"])
    assert near(output.per_class["text"][:, :6], expected["text_features"])
    assert near(output.logits, expected.get("base_logits", expected["logits"]))
    assert near(loss, expected["loss"])
    if names:
        loss.backward()
    for ours, theirs in names.items():
        gradient = learner.get_parameter(ours).grad
        assert gradient is not None
        assert list(gradient.shape) == expected["parameters"][theirs]["shape"]
        assert near(gradient.norm(), expected["parameters"][theirs]["grad_norm"])
        assert near(gradient.flatten()[:4], expected["parameters"][theirs]["grad_head"])


def test_both_heads_of_mmrl_equal_the_published_ones(encoder: DualEncoder) -> None:
    expected = golden.VALUES["mmrl"]
    learner, output = learner_and_output(encoder, *CASES["mmrl"])
    assert near(100 * output.per_image["image"] @ output.per_class["text"].T, expected["logits"])
    assert near(
        100 * output.per_image["representation"] @ output.per_class["text"].T, expected["representation_logits"]
    )
    elsewhere = learner.bind(golden.CLASS_NAMES, transfer=True)
    assert near(elsewhere(golden.images()).logits, expected["logits"])
