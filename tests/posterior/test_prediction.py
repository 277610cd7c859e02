"""Averages and uncertainties, counted out in plain Python."""

import dataclasses
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior import UNCERTAINTIES, Prediction
from rebapl.posterior.fitting import choose_threshold
from rebapl.posterior.prediction import averaged
from rebapl.posterior.selective import answered_within

CLASSES = ["a", "b", "c", "d", "e"]


def random_logits(samples: int = 4, images: int = 30) -> Tensor:
    return 2 * torch.randn(samples, images, len(CLASSES), generator=torch.Generator().manual_seed(1))


def make_prediction(average: Any = "probabilities", samples: int = 4, weights: Tensor | None = None) -> Prediction:
    logits = random_logits(samples)
    weights = torch.arange(1.0, samples + 1) / sum(range(1, samples + 1)) if weights is None else weights
    return predicted(logits, weights, average=average)


def predicted(
    logits: Tensor, weights: Tensor, class_names: list[str] = CLASSES, average: Any = "probabilities"
) -> Prediction:
    names = [str(i) for i in range(logits.shape[1])]
    return Prediction(class_names, names, *averaged(logits, weights, average), weights, average)


def softmax(row: list[float]) -> list[float]:
    top = [math.exp(value) for value in row]
    return [value / sum(top) for value in top]


def entropy(row: list[float]) -> float:
    return -sum(p * math.log(p) for p in row if p > 0)


def test_averages_and_entropies_counted_out() -> None:
    prediction, by_logits = make_prediction(), make_prediction("logits")
    weights, logits = prediction.weights.tolist(), random_logits().tolist()
    for n in range(len(prediction)):
        each = [softmax(logits[s][n]) for s in range(4)]
        mean = [sum(weights[s] * each[s][c] for s in range(4)) for c in range(5)]
        mean_logits = softmax([sum(weights[s] * logits[s][n][c] for s in range(4)) for c in range(5)])
        assert prediction.probabilities[n].tolist() == pytest.approx(mean, abs=1e-6)
        assert by_logits.probabilities[n].tolist() == pytest.approx(mean_logits, abs=1e-6)
        expected = sum(w * entropy(p) for w, p in zip(weights, each, strict=True))
        assert prediction.predictive_entropy[n].item() == pytest.approx(entropy(mean), abs=1e-5)
        assert prediction.expected_entropy[n].item() == pytest.approx(expected, abs=1e-5)
        assert by_logits.predictive_entropy[n].item() == pytest.approx(entropy(mean_logits), abs=1e-5)
        for given in (prediction, by_logits):
            assert given.mutual_information[n].item() == pytest.approx(entropy(mean) - expected, abs=1e-5)


def test_disagreement_is_the_probability_that_two_drawn_samples_differ() -> None:
    prediction = make_prediction()
    weights, answers = prediction.weights.tolist(), prediction.per_sample.argmax(-1).tolist()
    for n in range(len(prediction)):
        differ = sum(weights[s] * weights[t] for s in range(4) for t in range(4) if answers[s][n] != answers[t][n])
        assert prediction.disagreement[n].item() == pytest.approx(differ, abs=1e-6)
    assert prediction.disagreement.max() > 0.5


def brute_interval(values: list[float], weights: list[float], level: float) -> tuple[float, float]:
    tail = (1 - level) / 2 - 1e-6
    low = min(v for v in values if sum(w for x, w in zip(values, weights, strict=True) if x <= v) >= tail)
    high = max(v for v in values if sum(w for x, w in zip(values, weights, strict=True) if x >= v) >= tail)
    return low, high


@pytest.mark.parametrize(("samples", "level"), [(3, 0.9), (4, 0.5), (40, 0.9), (40, 0.8)])
@pytest.mark.parametrize("uniform", [True, False])
def test_intervals_are_weighted_quantiles(samples: int, level: float, uniform: bool) -> None:
    weights = torch.full((samples,), 1 / samples) if uniform else None
    prediction = make_prediction(samples=samples, weights=weights)
    low, high = prediction.interval(level)
    for n in range(len(prediction)):
        for c in range(5):
            values = prediction.per_sample[:, n, c].tolist()
            shown = prediction.probabilities[n, c].item()
            least, greatest = brute_interval(values, prediction.weights.tolist(), level)
            assert (low[n, c].item(), high[n, c].item()) == (min(least, shown), max(greatest, shown))


@pytest.mark.parametrize("average", ["probabilities", "logits"])
def test_an_interval_contains_the_probability_it_is_shown_beside(average: str) -> None:
    prediction = make_prediction(average, samples=3)
    outside = (prediction.probabilities < prediction.per_sample.amin(0)) | (
        prediction.probabilities > prediction.per_sample.amax(0)
    )
    assert bool(outside.any()) == (average == "logits")
    top = prediction.top(5)
    assert bool((top.low <= top.probabilities).all() and (top.probabilities <= top.high).all())


def test_few_samples_give_least_and_greatest_and_weightless_ones_count_for_nothing() -> None:
    prediction = make_prediction(samples=3, weights=torch.tensor([0.4, 0.0, 0.6]))
    low, high = prediction.interval(0.9)
    kept = prediction.per_sample[[0, 2]]
    assert torch.equal(low, kept.amin(0))
    assert torch.equal(high, kept.amax(0))


def test_top_is_sorted_and_matches_its_interval() -> None:
    prediction = make_prediction()
    top = prediction.top(2)
    low, _ = prediction.interval()
    order = np.argsort(-prediction.probabilities.numpy(), axis=1)[:, :2]
    assert np.array_equal(top.labels.numpy(), order)
    assert torch.equal(top.probabilities[:, 0], prediction.probabilities.amax(-1))
    assert torch.equal(top.low, low.gather(1, top.labels))
    assert prediction.top(99).labels.shape == (30, 5)


def test_of_equally_likely_classes_the_first_comes_first() -> None:
    prediction = predicted(torch.zeros(1, 3, 5), torch.ones(1))
    assert torch.equal(prediction.top(1).labels[:, 0], prediction.labels)


@pytest.mark.parametrize("by", UNCERTAINTIES)
def test_a_threshold_for_coverage_answers_that_share_and_no_lower_one_does(by: str) -> None:
    prediction = make_prediction()
    labels = torch.randint(5, (30,), generator=torch.Generator().manual_seed(2))
    uncertainty = prediction.uncertainty(by)
    for coverage in (0.1, 0.5, 0.9, 1.0):
        threshold = choose_threshold(prediction, labels, coverage=coverage, by=by)
        answered = ~prediction.unsure(threshold)
        assert answered.double().mean() >= coverage - 1e-9
        assert threshold.coverage == pytest.approx(answered.double().mean().item())
        lower = uncertainty[uncertainty < threshold.value]
        assert len(lower) < coverage * 30
        wrong = (prediction.labels != labels)[answered].double().mean().item()
        assert threshold.risk == pytest.approx(wrong)


@pytest.mark.parametrize("risk", [0.2, 0.4, 0.6, 0.8])
def test_a_threshold_for_risk_answers_most_within_it(risk: float) -> None:
    prediction = make_prediction()
    labels = prediction.labels.clone()
    noise = torch.Generator().manual_seed(3)
    labels[torch.rand(30, generator=noise) < 0.4] = 0
    uncertainty, wrong = prediction.uncertainty(), (prediction.labels != labels).double()
    within = [v for v in uncertainty.tolist() if wrong[uncertainty <= v].mean() <= risk]
    found = choose_threshold(prediction, labels, risk=risk, confidence=0)
    assert (found.value, found.promised, found.confidence) == (max(within), None, 0)


def test_a_threshold_says_what_it_promises_and_what_is_to_be_expected() -> None:
    """100 answers with ever less confidence, of which the last 20 are wrong."""
    sure = torch.linspace(0.99, 0.6, 100)
    prediction = predicted(torch.stack([sure, 1 - sure], 1).log()[None], torch.ones(1), ["a", "b"])
    labels = (torch.arange(100) >= 80).long()
    promised = choose_threshold(prediction, labels, risk=0.05)
    count = answered_within(prediction.uncertainty(), labels == 1, 0.05)
    assert (promised.coverage, promised.promised, promised.confidence) == (count / 100, 0.05, 0.9)
    assert promised.promise == (
        "Promise: at most 5 % of the answers to new images are wrong, at confidence 90 %. "
        f"Expectation: {100 * (count - 80 + 1) / (count + 1):.1f} %"
    )
    capped = choose_threshold(prediction, labels, risk=0.05, coverage=0.5)
    assert (capped.coverage, capped.risk, capped.promised) == (0.5, 0.0, 0.05)
    plain = choose_threshold(prediction, labels, coverage=0.5)
    assert (plain.value, plain.promised, plain.confidence) == (capped.value, None, 0)
    assert plain.promise == "Promise: none. Expectation: 2.0 % of the answers to new images are wrong"


def test_ties_are_answered_together() -> None:
    logits = torch.zeros(1, 4, 2)
    logits[0, :, 0] = torch.tensor([5.0, 1.0, 1.0, 1.0])
    prediction = predicted(logits, torch.ones(1), ["a", "b"])
    threshold = choose_threshold(prediction, torch.tensor([0, 0, 1, 0]), coverage=0.5)
    assert threshold.coverage == 1.0
    assert threshold.risk == 0.25
    assert choose_threshold(prediction, torch.tensor([0, 0, 1, 0]), risk=0.0, confidence=0).coverage == 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "by risk or by coverage"),
        ({"risk": 1.0}, "risk = 1.0"),
        ({"risk": 0.05}, "cannot be promised at confidence 0.9 with 30 images"),
        ({"risk": 0.5}, "no threshold keeps the risk at 0.5, at confidence 0.9, on these 30 images"),
        ({"coverage": 0.0}, "coverage = 0.0"),
        ({"coverage": 0.5, "by": "entropie"}, "did you mean 'entropy'"),
        ({"risk": 0.0, "confidence": 0}, "no threshold keeps the risk at 0 on these 30 images"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(arguments: dict, message: str) -> None:
    prediction = make_prediction()
    labels = (prediction.labels + 1) % 5  # all wrong
    with pytest.raises(UserError, match=message):
        choose_threshold(prediction, labels, **arguments)


def test_other_refusals() -> None:
    prediction = make_prediction()
    with pytest.raises(UserError, match="3 labels for 30 images"):
        choose_threshold(prediction, torch.zeros(3, dtype=torch.long), coverage=0.5)
    with pytest.raises(UserError, match="no threshold was chosen"):
        prediction.unsure()
    with pytest.raises(UserError, match="at least one class"):
        prediction.top(0)
    with pytest.raises(UserError, match="level = 1"):
        prediction.interval(1)
    with pytest.raises(UserError, match="unknown average 'mean'"):
        make_prediction("mean")


def test_a_prediction_is_indexed_and_iterated_like_a_list() -> None:
    whole = make_prediction()
    one, last, some = whole[3], whole[-1], whole[5:9]
    assert (len(one), one.names, last.names, some.names) == (1, ["3"], ["29"], ["5", "6", "7", "8"])
    assert torch.equal(one.probabilities, whole.probabilities[3:4])
    assert torch.equal(some.mutual_information, whole.mutual_information[5:9])
    assert [each.names[0] for each in whole] == whole.names
    with pytest.raises(IndexError):
        whole[30]


def test_plain_values_and_a_data_frame_hold_the_same() -> None:
    whole = make_prediction()
    plain, frame = whole.to_dict(top=2), whole.to_pandas(top=9)
    assert (plain["class_names"], plain["samples"], len(plain["images"])) == (CLASSES, 4, 30)
    assert frame.shape == (30, 8 + 4 * 5 + 1)
    for index, image in enumerate(plain["images"]):
        best = int(whole.labels[index])
        assert image["answer"] == frame["answer"][index] == CLASSES[best]
        assert image["top"][0]["probability"] == frame["probability_1"][index] == whole.probabilities[index, best]
        assert image["disagreement"] == frame["disagreement"][index] == whole.disagreement[index]
        assert len(image["top"]) == 2


def test_it_abstains_where_a_threshold_was_chosen() -> None:
    whole = make_prediction()
    chosen = dataclasses.replace(whole, threshold=choose_threshold(whole, whole.labels, coverage=0.5))
    assert [each["answer"] is None for each in chosen.records()] == chosen.unsure().tolist()
    assert all(each["answer"] for each in chosen.records(abstain=False))
    assert chosen[int(chosen.unsure().int().argmax())]._repr_html_().count("I don&#x27;t know") == 1


def test_it_says_what_it_is_in_a_line_and_in_a_notebook() -> None:
    whole = dataclasses.replace(make_prediction(), names=["<b>\x1b[31m.png", *"b" * 29])
    answer, probability = CLASSES[int(whole.labels[0])], float(whole.probabilities[0].max())
    assert (
        repr(whole) == f"Prediction(30 images, 5 classes, 4 samples, <b>\\x1b[31m.png: {answer} {probability:.2f}, …)"
    )
    page = whole._repr_html_()
    assert "&lt;b&gt;\\x1b[31m.png" in page
    assert page.count("<tr>") == 1 + 10
    assert "20 more images" in page


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        make_prediction().to_pandas()
