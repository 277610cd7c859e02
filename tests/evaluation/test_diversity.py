"""How much samples differ: distances compared with another library's optimal transport, the rest counted by hand."""

import math

import numpy as np
import ot
import pytest
import small_clip
import torch

from rebapl.evaluation.diversity import disagreement_matrix, measure_diversity, wasserstein_matrix
from rebapl.evaluation.scores import scores
from rebapl.evaluation.tasks import prediction_scores
from rebapl.learners import build_learner
from rebapl.numbers import effective_samples
from rebapl.posterior import Posterior
from rebapl.posterior.prediction import Prediction, averaged


def test_distances_equal_another_library() -> None:
    clouds = torch.randn(4, 12, 5, generator=torch.Generator().manual_seed(0))
    matrix = wasserstein_matrix(clouds)
    assert torch.equal(matrix, matrix.T)
    assert matrix.diagonal().abs().max() == 0
    for i in range(4):
        for j in range(4):
            cost = ot.dist(clouds[i].double().numpy(), clouds[j].double().numpy())
            expected = math.sqrt(ot.emd2(np.ones(12) / 12, np.ones(12) / 12, cost))
            assert matrix[i, j].item() == pytest.approx(expected, abs=1e-6)


def test_disagreement_counts_images() -> None:
    answers = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0], [3, 2, 1, 0]])
    expected = [[0, 0.25, 1.0], [0.25, 0, 0.75], [1.0, 0.75, 0]]
    assert disagreement_matrix(answers).tolist() == expected


def test_effective_number_of_samples() -> None:
    assert effective_samples(torch.full((5,), 0.2)) == pytest.approx(5)
    assert effective_samples(torch.tensor([1.0, 0.0])) == pytest.approx(1)
    assert effective_samples(torch.tensor([0.75, 0.25])) == pytest.approx(1 / (0.75**2 + 0.25**2))
    two_kinds = torch.tensor([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    assert effective_samples(torch.full((4,), 0.25), two_kinds) == pytest.approx(2)
    assert effective_samples(torch.full((4,), 0.25), torch.ones(4, 4)) == pytest.approx(1)


def posterior_of(spread: float, method: str = "maple", samples: int = 3) -> Posterior:
    encoder = small_clip.small_encoder()
    names = ["red cat", "dog", "tree", "house"]
    learner = build_learner(method, encoder, names, "a {}.", torch.Generator().manual_seed(2)).eval()
    stream = torch.Generator().manual_seed(5)
    around = [
        {name: x.detach() + spread * torch.randn(x.shape, generator=stream) for name, x in learner.named_parameters()}
        for _ in range(samples)
    ]
    return Posterior.of(learner, around, {})


def random_views(count: int) -> torch.Tensor:
    stream = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, 3, 16, 16), dtype=torch.uint8, generator=stream)


def test_samples_farther_apart_are_more_diverse() -> None:
    views = random_views(130)
    near, far, same = (measure_diversity(posterior_of(spread), views) for spread in (0.01, 0.5, 0.0))
    assert near.images == 100
    assert near.space == "image"
    assert far.mean_distance > 2 * near.mean_distance > 0
    assert far.mean_disagreement > near.mean_disagreement
    assert 1 <= near.effective_by_answers < far.effective_by_answers < 3
    assert far.effective_by_weights == pytest.approx(3)
    assert same.mean_distance == same.mean_disagreement == 0
    assert same.effective_by_answers == pytest.approx(1)
    assert measure_diversity(posterior_of(0.5, "coop"), views[:9]).space == "text"
    alone = measure_diversity(posterior_of(0.5, samples=1), views[:9])
    assert (alone.mean_distance, alone.mean_disagreement, alone.effective_by_answers) == (0, 0, 1)


def test_a_hundred_images_are_spread_over_those_given() -> None:
    views, posterior = random_views(130), posterior_of(0.5)
    chosen = views[[i * 130 // 100 for i in range(100)]]
    found = measure_diversity(posterior, views)
    torch.testing.assert_close(
        torch.tensor(found.distance), wasserstein_matrix(posterior.passes.clouds(chosen, "image")[0])
    )
    assert found.disagreement == disagreement_matrix(posterior.sample_logits(chosen).argmax(-1)).tolist()


def test_scores_of_all_samples_and_of_each() -> None:
    logits = 2 * torch.randn(3, 50, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(4, (50,), generator=torch.Generator().manual_seed(1))
    weights = torch.full((3,), 1 / 3)
    prediction = Prediction(list("abcd"), ["x"] * 50, *averaged(logits, weights), weights)
    found = prediction_scores(prediction, labels)
    together = scores(logits.softmax(-1).mean(0), labels)
    assert {key: found[key] for key in together} == pytest.approx(together, rel=1e-5)
    assert found["images"] == 50
    assert found["per_sample"] == [scores(logits[s].softmax(-1), labels) for s in range(3)]
    # Averaging probabilities cannot be less likely than the average sample (Jensen).
    assert found["nll"] < np.mean([alone["nll"] for alone in found["per_sample"]])
    pairs = [(logits[s].argmax(-1) != logits[t].argmax(-1)).float().mean() for s, t in ((0, 1), (0, 2), (1, 2))]
    assert found["disagreement"] == pytest.approx(100 * np.mean(pairs), rel=1e-5)
    assert found["entropy"] == pytest.approx(found["expected_entropy"] + found["mutual_information"], abs=1e-5)
