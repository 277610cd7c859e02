"""Texts are encoded once for a bound posterior, and captured passes give the numbers of the others."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from replaying import stand_in
from small_clip import random_views
from torch import Tensor

from rebapl.compiled import compiling, is_compiling
from rebapl.errors import UserError
from rebapl.learners import METHODS
from rebapl.posterior import passes, per_sample
from rebapl.posterior.passes import in_order
from rebapl.posterior.per_sample import AtSamples


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry, the number of samples, for each time that class names were encoded for all samples."""
    counts: list[int] = []
    original = per_sample.encode_classes

    def counted(learner: Any, samples: Any) -> Any:
        counts.append(len(samples))
        return original(learner, samples)

    monkeypatch.setattr(per_sample, "encode_classes", counted)
    return counts


def test_class_names_are_encoded_once_for_a_bound_posterior(make: Any, views: Tensor, encoded: list[int]) -> None:
    posterior = make("maple", 2)
    first = posterior.predict_views(views).probabilities
    for _ in range(3):
        assert torch.equal(posterior.predict_views(views).probabilities, first)
    posterior.predict(views)
    list(posterior.predict_portions([(["a"] * 4, views[:4]), (["b"] * 3, views[4:])]))
    posterior.passes.clouds(views, "image")
    posterior.bind(posterior.class_names).predict_views(views)  # nothing changes
    assert encoded == [2]
    other = posterior.bind(["green fish", "car"])
    assert other.predict_views(views).probabilities.shape == (7, 2)
    assert torch.equal(posterior.predict_views(views).probabilities, first)
    assert encoded == [2, 2]
    alone = posterior.sample(1).predict_views(views).probabilities
    torch.testing.assert_close(alone, posterior.predict_views(views).per_sample[1], atol=1e-6, rtol=0)
    assert encoded == [2, 2, 1]


def test_memory_is_freed_with_the_posterior_and_copies_begin_anew(make: Any, views: Tensor) -> None:
    posterior = make("maple", 2)
    expected = posterior.predict_views(views).probabilities
    other = copy.deepcopy(posterior)
    assert "_at_samples" not in vars(other.passes)
    assert other.passes.learner is other.learner
    assert torch.equal(other.predict_views(views).probabilities, expected)
    kept = [weakref.ref(posterior.passes), weakref.ref(posterior.passes._at_samples.classes[0]["text"])]
    gc.collect()
    gc.disable()  # it must not need to look for circles
    try:
        del posterior
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("method", [name for name in METHODS if name != "zero-shot"])
def test_captured_passes_give_the_numbers_of_the_others(
    make: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    sizes = [1, 3, 7, 1, 3, 7, 1, 4, 8, 2, 1]
    asked = [random_views(size, seed=seed) for seed, size in enumerate(sizes)]
    usual = [make(method).sample_logits(views) for views in asked]
    recorded = stand_in(monkeypatch)
    posterior = make(method)
    found = [posterior.sample_logits(views) for views in asked]
    assert recorded == [(1, 3, 16, 16), (4, 3, 16, 16), (8, 3, 16, 16)]
    for one, other in zip(found, usual, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    bound = posterior.bind(["green fish", "car"])
    again = [bound.sample_logits(asked[0]) for _ in range(4)]
    torch.testing.assert_close(again[3], again[0])
    assert again[0].shape == (3, 1, 2)


def test_what_is_kept_in_inference_mode_serves_outside_of_it(
    make: Any, monkeypatch: pytest.MonkeyPatch, views: Tensor
) -> None:
    recorded = stand_in(monkeypatch)
    posterior = make("maple", 2)
    with torch.inference_mode():
        inside = [posterior.sample_logits(views + 0) for _ in range(3)]
    assert len(recorded) == 1
    torch.testing.assert_close(posterior.sample_logits(views), inside[0], atol=1e-5, rtol=1e-5)


def test_few_passes_are_recorded_whatever_is_asked(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "CHUNK", 16)
    recorded = stand_in(monkeypatch)
    posterior = make("coop", 2)
    whole = random_views(45)
    expected = posterior.sample_logits(whole)
    for size in [*range(1, 46), *range(1, 46)]:
        torch.testing.assert_close(posterior.sample_logits(whole[:size]), expected[:, :size], atol=1e-4, rtol=1e-4)
    assert sorted(shape[0] for shape in recorded) == [1, 2, 4, 8, 16]
    assert posterior.sample_logits(whole[:0]).shape == (2, 0, 4)


def test_layers_are_compiled_where_that_is_asked_for_or_earned(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "CHUNK", 4)
    monkeypatch.setattr(passes, "COMPILED_FROM", 3 * 4 * 4)
    recorded = stand_in(monkeypatch)
    compiled: list[bool] = []
    original = AtSamples.points
    monkeypatch.setattr(AtSamples, "points", lambda *given: compiled.append(is_compiling()) or original(*given))
    posterior = make("maple", 3)
    for _ in range(3):
        posterior.sample_logits(random_views(4))
    assert compiled == [False] * 3 + [False]  # twice as usual, recorded, replayed
    compiled.clear()
    posterior.sample_logits(random_views(4))
    assert compiled == [True]
    posterior.sample_logits(random_views(2))
    with compiling():
        posterior.spread(["cpu", "cpu"]).sample_logits(random_views(4))
    assert compiled == [True, False, True, True]
    posterior.sample_logits(random_views(8))
    assert [shape[0] for shape in recorded] == [4, 4], "once as usual, and once compiled"


def test_large_passes_are_not_recorded(make: Any, monkeypatch: pytest.MonkeyPatch, views: Tensor) -> None:
    recorded = stand_in(monkeypatch)
    posterior = make("maple", 3)
    layers = len(posterior.learner.encoder.vision.layers)
    monkeypatch.setattr(passes, "LARGEST", 3 * layers - 1)
    expected = posterior.sample_logits(views)
    for _ in range(3):
        assert torch.equal(posterior.sample_logits(views), expected)
    assert recorded == []
    monkeypatch.setattr(passes, "LARGEST", 3 * layers)
    other = make("maple", 3)
    for _ in range(3):
        other.sample_logits(views)
    assert recorded == [(8, 3, 16, 16)]


@pytest.mark.parametrize("captured", [True, False])
def test_threads_may_ask_at_the_same_time(make: Any, monkeypatch: pytest.MonkeyPatch, captured: bool) -> None:
    if captured:
        stand_in(monkeypatch)
    posterior = make("maple", 3)
    bound = posterior.bind(["green fish", "car"])
    alone, heavier = posterior.sample(2), posterior.with_weights(torch.tensor([0.5, 0.25, 0.25]))
    asked = [random_views(1 + seed % 3, seed=seed) for seed in range(6)]
    work = [(each, views) for views in asked for each in (posterior, bound, alone, heavier)]
    expected = [each.predict_views(views).probabilities for each, views in work]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            found = list(pool.map(lambda pair: pair[0].predict_views(pair[1]).probabilities, work))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_portions_are_asked_for_ahead_and_given_in_order() -> None:
    asked: list[int] = []

    def portions() -> Any:
        for index in range(5):
            asked.append(index)
            yield str(index), torch.tensor(index)

    given = in_order(portions(), lambda portion: lambda: portion, ahead=2)
    assert next(given) == ("0", 0)
    assert asked == [0, 1, 2]
    assert list(given) == [(str(index), index) for index in range(1, 5)]


def test_an_error_comes_after_the_portions_before_it() -> None:
    def portions() -> Any:
        yield "a", torch.tensor(0)
        yield "b", torch.tensor(1)
        raise UserError("broken")

    given = in_order(portions(), lambda portion: lambda: portion, ahead=3)
    assert [next(given), next(given)] == [("a", 0), ("b", 1)]
    with pytest.raises(UserError, match="broken"):
        next(given)


def test_no_portion_comes_after_one_whose_pass_failed() -> None:
    """Otherwise its answers would be taken for those of the portion that failed."""

    def finish_of(views: Tensor) -> Any:
        def finish() -> Tensor:
            if views == 1:
                raise RuntimeError("out of memory")
            return views

        return finish

    answers = in_order([(str(index), torch.tensor(index)) for index in range(4)], finish_of, ahead=1)
    assert next(answers) == ("0", 0)
    with pytest.raises(RuntimeError, match="out of memory"):
        next(answers)
    assert list(answers) == []
