"""A posterior on several devices: the same numbers in the same order, by images or by samples."""

import copy
import threading
from typing import Any

import pytest
import torch
from small_clip import random_views
from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior.passes import Passes


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """The work of each device: the samples, the images, and the thread."""
    given: list[tuple[int, int, int]] = []
    original = Passes.begin

    def counted(self: Passes, views: Tensor) -> Any:
        given.append((self.count, len(views), threading.get_ident()))
        return original(self, views)

    monkeypatch.setattr(Passes, "begin", counted)
    return given


@pytest.mark.parametrize("method", ["coop", "cocoop", "maple", "mmrl"])
@pytest.mark.parametrize("images", [1, 2, 7])
def test_several_devices_give_the_numbers_of_one(make: Any, method: str, images: int) -> None:
    posterior, views = make(method), random_views(images)
    spread = posterior.spread(["cpu", "cpu", "cpu"])
    expected = posterior.sample_logits(views)
    torch.testing.assert_close(spread.sample_logits(views), expected, atol=1e-5, rtol=1e-5)
    portions = [views[index : index + 2] for index in range(0, images, 2)]
    torch.testing.assert_close(spread.sample_logits(iter(portions)), expected, atol=1e-5, rtol=1e-5)
    names = ["green fish", "car"]
    others = spread.bind(names)
    assert others.device_count == 3
    torch.testing.assert_close(
        others.sample_logits(views), posterior.bind(names).sample_logits(views), atol=1e-5, rtol=1e-5
    )
    assert torch.equal(spread.to("cpu").sample_logits(views), expected)
    assert spread.to("cpu").device_count == 1


def test_many_images_are_split_and_for_few_the_samples_are(make: Any, work: list[tuple[int, int, int]]) -> None:
    spread = make("maple", 5).spread(["cpu", "cpu"])
    spread.sample_logits(random_views(7))
    assert sorted(given[:2] for given in work) == [(5, 3), (5, 4)]
    assert len({thread for _, _, thread in work}) == 2
    work.clear()
    spread.sample_logits(random_views(1))
    assert sorted(given[:2] for given in work) == [(2, 1), (3, 1)]
    work.clear()
    make("maple", 1).spread(["cpu", "cpu"]).sample_logits(random_views(1))
    assert [given[:2] for given in work] == [(1, 1)]


def test_a_copy_predicts_the_same(make: Any) -> None:
    spread, views = make("coop", 2).spread(["cpu", "cpu"]), random_views(1)
    expected = spread.sample_logits(views)
    assert torch.equal(copy.deepcopy(spread).sample_logits(views), expected)


def test_an_error_on_a_device_is_raised_and_the_next_is_answered(make: Any) -> None:
    spread = make("coop").spread(["cpu", "cpu"])
    with pytest.raises((ValueError, RuntimeError)):
        spread.sample_logits(random_views(4, size=24))
    assert spread.sample_logits(random_views(4)).shape == (3, 4, 4)
    with pytest.raises(UserError, match="name at least one device"):
        spread.spread([])


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["coop", "maple"])
def test_a_gpu_twice_and_a_cpu_give_the_numbers_of_one(make: Any, method: str) -> None:
    posterior = make(method, 5)
    one = posterior.to("cuda")
    twice, mixed = one.spread(["cuda:0", "cuda:0"]), one.spread(["cuda:0", "cpu"])
    for size in (1, 1, 1, 40, 40, 40, 700):
        views = random_views(size, seed=size)
        expected = one.sample_logits(views)
        torch.testing.assert_close(twice.sample_logits(views), expected, atol=1e-3, rtol=1e-3)
        # The convolution of a GPU is in TensorFloat-32.
        torch.testing.assert_close(mixed.sample_logits(views), expected, atol=5e-2, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_capture_each_for_itself(make: Any) -> None:
    posterior = make("maple", 4).to("cuda:0")
    spread = posterior.spread(["cuda:0", "cuda:1"])
    for _ in range(5):
        for size in (1, 64):
            views = random_views(size, seed=size)
            torch.testing.assert_close(
                spread.sample_logits(views), posterior.sample_logits(views), atol=1e-3, rtol=1e-3
            )
