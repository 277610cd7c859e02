"""What is special to ProDA: positions of the class name, the covariance term, prompts that differ, few at once."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.learners import Learner, build_learner
from rebapl.learners.registry import published

NAMES = ["red cat", "dog", "big old tree"]


def build(encoder: DualEncoder, **settings: object) -> Learner:
    generator = torch.Generator().manual_seed(3)
    learner = build_learner("proda", encoder, NAMES, "a {}.", generator, {"prompts": 4, "tokens": 3, **settings})
    with torch.no_grad():
        learner.context.mul_(20)
    return learner


def test_the_covariance_term(encoder: DualEncoder, images: Tensor) -> None:
    learner, labels = build(encoder, orthogonality=0.0), torch.tensor([0, 2, 1])
    output = learner(images)
    prompts, x = output.per_class["prompts"].double(), output.per_image["image"].double()
    assert prompts.shape == (3, 4, encoder.joint_width)
    mean = prompts.mean(1)
    spread = prompts - mean.unsqueeze(1)
    by_dimension = torch.einsum("ipd,jpd->dij", spread, spread) / (4 + 1)
    covariance = torch.einsum("bd,dij->bij", x**2, by_dimension)
    bound = 10 * x @ mean.T
    for row, y in enumerate(labels.tolist()):
        for c in range(3):
            bound[row, c] += 0.5 * 10**2 * (covariance[row, y, y] + covariance[row, c, c] - 2 * covariance[row, y, c])
    plain_loss, loss = F.cross_entropy(output.logits, labels), learner.loss(output, labels)
    assert loss - plain_loss > 0.01
    torch.testing.assert_close(loss.double(), F.cross_entropy(bound, labels), atol=1e-5, rtol=1e-5)


def test_orthogonality_is_the_mean_cosine_of_different_prompts(encoder: DualEncoder, images: Tensor) -> None:
    labels = torch.tensor([0, 2, 1])

    def loss(weight: float) -> Tensor:
        learner = build(encoder, orthogonality=weight)
        return learner.loss(learner(images), labels)

    learner = build(encoder)
    bare = [encoder.text.features(encoder.text.run(encoder.embed_text(encoder.tokenize([[3, "."]]), v)))
            for v in learner.context]  # fmt: skip
    pairs = [F.cosine_similarity(bare[i], bare[j]).abs() for i in range(4) for j in range(4) if i != j]
    torch.testing.assert_close(loss(2.0) - loss(0.0), 2 * torch.cat(pairs).mean(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("prompts", "expected"), [(1, "e"), (2, "ee"), (4, "fmee"), (6, "fmeeee"), (8, "ffmmeeee")])
def test_where_the_class_name_stands(encoder: DualEncoder, prompts: int, expected: str) -> None:
    learner = build(encoder, prompts=prompts)
    assert "".join("fme"[position] for position in learner.positions.tolist()) == expected


def test_each_prompt_gives_what_coop_gives(encoder: DualEncoder) -> None:
    learner = build(encoder).eval()
    features = learner.encode_classes()["prompts"]
    for index, position in enumerate(("front", "middle", "end", "end")):
        settings = {"init": None, "tokens": 3, "position": position}
        coop = build_learner("coop", encoder, NAMES, "a {}.", torch.Generator(), settings)
        with torch.no_grad():
            coop.context.copy_(learner.context[index])
        torch.testing.assert_close(features[:, index], coop.encode_classes()["text"], atol=1e-5, rtol=0)


def test_training_takes_a_random_few_and_prediction_all(encoder: DualEncoder) -> None:
    learner = build(encoder, prompts=8, at_once=2)

    def chosen(seed: int) -> Tensor:
        learner.use_noise(torch.Generator().manual_seed(seed))
        features = learner.encode_classes()["prompts"]
        assert features.shape[1] == 2
        return features

    assert torch.equal(chosen(1), chosen(1))
    assert not torch.equal(chosen(1), chosen(2))
    learner.noise = None
    assert not torch.equal(learner.encode_classes()["prompts"], learner.encode_classes()["prompts"])
    assert learner.eval().encode_classes()["prompts"].shape[1] == 8


def test_passes_over_few_sequences_change_nothing(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = build(encoder).eval()
    whole = learner.encode_classes()["prompts"]
    monkeypatch.setattr("rebapl.learners.base.SEQUENCES", 5)
    torch.testing.assert_close(learner.encode_classes()["prompts"], whole, atol=1e-6, rtol=0)


def test_orthogonality_of_a_single_prompt_is_refused(encoder: DualEncoder) -> None:
    with pytest.raises(UserError, match=r"method.orthogonality has no effect on a single prompt"):
        build(encoder, prompts=1, orthogonality=2.0)


def test_published_recipe() -> None:
    settings, recipe = published("proda", "base-to-novel", "dtd")
    assert settings == {}
    assert (recipe.lr, recipe.epochs, recipe.batch) == (0.001, 100, 20)
