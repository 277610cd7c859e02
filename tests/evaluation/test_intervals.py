"""Intervals of scores over test images, compared with closed forms and with scipy."""

import pytest
import torch
from scipy.stats import binomtest

from rebapl.evaluation.intervals import accuracy_interval, around, resampled_scores
from rebapl.evaluation.scores import scores


def answers(images: int = 300, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(images, classes, generator=stream)
    return logits.softmax(-1), torch.randint(classes, (images,), generator=stream)


@pytest.mark.parametrize(("right", "images"), [(9, 10), (0, 5), (20, 20), (1, 1), (517, 1000)])
def test_the_interval_of_the_accuracy_is_that_of_wilson(right: int, images: int) -> None:
    expected = binomtest(right, images).proportion_ci(0.95, method="wilson")
    found = accuracy_interval(torch.arange(images) < right)
    assert found == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-9)


def test_the_bootstrap_gives_the_standard_error_of_a_mean() -> None:
    """The deviation of 1000 draws is within 2.3 % in two of three cases; 12 % is five times that."""
    probabilities, labels = answers()
    drawn = resampled_scores(probabilities, labels)
    nll = -probabilities.gather(1, labels[:, None])[:, 0].log().double()
    truth = torch.nn.functional.one_hot(labels, 4)
    brier = (probabilities.double() - truth).square().sum(-1)
    right = 100 * (probabilities.argmax(-1) == labels).double()
    for name, values in (("nll", nll), ("brier", brier), ("accuracy", right)):
        expected = values.std(correction=0).item() / len(labels) ** 0.5
        assert drawn[name].std().item() == pytest.approx(expected, rel=0.12)
        assert drawn[name].mean().item() == pytest.approx(values.mean().item(), abs=6 * expected / 1000**0.5)


def test_a_resampled_score_is_the_score_of_the_resampled_images() -> None:
    """All images are alike in pairs of two kinds, so that a draw depends on one count, and every score on it alone."""
    probabilities = torch.tensor([[0.9, 0.1]]).expand(40, 2)
    labels = (torch.arange(40) < 10).long()
    drawn = resampled_scores(probabilities, labels, draws=50)
    for index in range(50):
        wrong = round(40 - 0.4 * drawn["accuracy"][index].item())
        expected = scores(probabilities, (torch.arange(40) < wrong).long())
        assert {name: each[index].item() for name, each in drawn.items()} == pytest.approx(
            {name: expected[name] for name in drawn}, abs=1e-5
        )


def test_the_same_images_are_drawn_each_time_so_that_differences_are_paired() -> None:
    probabilities, labels = answers()
    first, again = (resampled_scores(probabilities, labels, draws=20) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_an_interval_lies_around_its_score_and_not_below_zero() -> None:
    low, high = around(0.5, torch.tensor([0.4, 0.6, 0.5]))
    assert (low, high) == pytest.approx((0.5 - 0.196, 0.5 + 0.196), abs=1e-4)
    assert around(0.1, torch.tensor([0.0, 2.0])).low == 0.0
