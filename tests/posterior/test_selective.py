"""The number of answers within a risk: compared with brute force by scipy, and by simulation with known risks."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from rebapl.errors import UserError
from rebapl.posterior.selective import answered_within, check_promise, expected_risk, first_tested

RISK = 0.05


def answers(images: int, power: float, stream: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Uniform uncertainties u, and answers that are wrong with probability ¼·(power + 1)·u^power: a quarter of them.

    The share of wrong answers among all images below the uncertainty t is ¼·t^power.
    """
    doubt = torch.from_numpy(stream.random(images))
    return doubt, torch.from_numpy(stream.random(images)) < 0.25 * (power + 1) * doubt**power


def chosen(doubt: torch.Tensor, count: int) -> float:
    """The threshold at which `count` images are answered."""
    return doubt.sort().values[count - 1].item()


@pytest.mark.parametrize("images", [50, 100, 300, 1000])
@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_a_promised_risk_is_kept_as_often_as_promised(power: float, images: int) -> None:
    """Accuracy ¾, 1000 draws of held-out images; the true risk of each choice is known.

    At confidence 0.9 a tenth of the choices may exceed the risk. If exactly a tenth did, more than 138 of 1000 would in
    1 of 20 000 seeds. Without a promise more than half of the choices exceed it; with (W + 1)/(j + 1) the expectation
    is right or too high, within five standard errors of at most 0.002.
    """
    stream = np.random.default_rng(images)
    exceeding = {0.0: 0, 0.9: 0}
    expected, true = [], []
    for _ in range(1000):
        doubt, wrong = answers(images, power, stream)
        for confidence in exceeding:
            count = answered_within(doubt, wrong, RISK, confidence)
            risk = 0.25 * chosen(doubt, count) ** power if count else 0.0
            exceeding[confidence] += risk > RISK
            if count and not confidence:
                true.append(risk)
                expected.append(expected_risk(int(wrong[doubt <= chosen(doubt, count)].sum()), count))
    assert exceeding[0.9] <= 138
    assert exceeding[0.0] > 450, "the plain choice"
    assert np.mean(expected) > np.mean(true) - 0.01


@pytest.mark.parametrize(("images", "least"), [(300, 0.6), (1000, 0.9)])
def test_with_enough_images_there_is_a_promise(images: int, least: float) -> None:
    """Accuracy ¾, 400 draws: with 300 images 77 % allow a promise, with 1000 98 %; the bounds are five errors off."""
    stream = np.random.default_rng(images)
    found = sum(answered_within(*answers(images, 2.0, stream), RISK) > 0 for _ in range(400))
    assert found / 400 > least


def test_the_promise_wastes_nothing_where_every_answer_is_wrong_as_often_as_allowed() -> None:
    """With a risk of a bit over 5 % for every threshold, any choice is a wrong one. There is one exactly if the first
    test passes, that none of 45 answers is wrong: with probability 0.95^45 = 0.0994. 4000 draws, five standard errors.
    """
    stream = np.random.default_rng(0)
    wrong = torch.from_numpy(stream.random((4000, 100)) < RISK)
    found = sum(answered_within(torch.arange(100.0), each, RISK) > 0 for each in wrong) / 4000
    assert found == pytest.approx(0.95**45, abs=5 * (0.1 * 0.9 / 4000) ** 0.5)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_fixed_sequence_of_binomial_tests_by_hand(seed: int) -> None:
    """With ties: the 120 images have 40 uncertainties, and images of equal uncertainty are answered together."""
    stream = np.random.default_rng(seed)
    doubt = stream.integers(0, 40, 120)
    wrong = stream.random(120) < 0.002 * doubt
    risk, confidence = 0.1, 0.8
    by_hand = plain = 0
    begun = True
    for value in sorted(set(doubt.tolist())):
        inside = doubt <= value
        count, errors = int(inside.sum()), int(wrong[inside].sum())
        if count > 100:
            continue
        plain = count if errors <= risk * count else plain
        if begun and count >= 18:  # 15 % of 120; 0.9^16 ≤ 0.2 alone would allow 16
            begun = binom.cdf(errors, count, risk) <= 1 - confidence
            by_hand = count if begun else by_hand
    tensors = torch.from_numpy(doubt), torch.from_numpy(wrong)
    assert answered_within(*tensors, risk, confidence, 100) == by_hand
    assert answered_within(*tensors, risk, 0.0, 100) == plain


def test_the_first_test_is_the_smallest_that_can_be_passed() -> None:
    for risk, confidence in ((0.05, 0.9), (0.05, 0.95), (0.01, 0.9), (0.2, 0.5)):
        first = first_tested(risk, confidence, 0)
        assert binom.cdf(0, first, risk) <= 1 - confidence < binom.cdf(0, first - 1, risk)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.9, 100), "risk = 1.0"),
        ((0.05, 1.0, 100), "confidence = 1.0"),
        ((0.05, -0.1, 100), "confidence = -0.1"),
        ((0.05, 0.9, 44), "with 44 images: that takes 45 right answers or more"),
        ((0.0, 0.9, 1000), "no number of images can"),
    ],
)
def test_promises_that_cannot_be_are_refused(arguments: tuple[float, float, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_promise(*arguments)
    check_promise(0.05, 0.9, 45)
    check_promise(0.0, 0.0, 1)
