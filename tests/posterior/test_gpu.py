"""On a GPU samples are mapped over and passes are captured; the numbers are those of the loop, uncaptured."""

import gc
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import small_clip
import torch
from small_clip import random_views
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.posterior import Posterior, load_posterior, passes, per_sample, save_posterior
from rebapl.posterior.per_sample import AtSamples


@torch.no_grad()
def looped_logits(posterior: Posterior, views: Tensor) -> Tensor:
    """The logits of one sample after the other, uncaptured."""
    stacks = {name: stack.cuda() for name, stack in posterior.samples.items()}
    samples = AtSamples(posterior.learner, stacks, len(posterior))
    return samples.points(views.cuda(), ("logits",), together=1)["logits"].cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["vpt", "ivlp", "maple", "promptsrc", "mmrl", "mmrl++"])
def test_mapped_by_default_and_equal_to_the_loop(make: Any, views: Tensor, method: str) -> None:
    backbone = small_clip.small_encoder()
    backbone.model.to("cuda")
    posterior = make(method, 3, backbone)
    frozen = posterior.learner.frozen(backbone.preprocessing.normalize(views.cuda()))
    assert per_sample.samples_together(frozen) > 3
    mapped, looped = posterior.sample_logits(views), looped_logits(posterior, views)
    torch.testing.assert_close(mapped.softmax(-1), looped.softmax(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["maple", "mmrl"])
def test_mapping_works_in_bfloat16(make: Any, views: Tensor, method: str) -> None:
    backbone = small_clip.small_encoder(torch.bfloat16)
    backbone.model.to("cuda")
    posterior = make(method, 3, backbone)
    mapped, looped = posterior.sample_logits(views), looped_logits(posterior, views)
    assert (mapped.softmax(-1) - looped.softmax(-1)).abs().max() < 0.1


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("method", ["vpt", "ivlp", "maple", "promptsrc", "mmrl", "mmrl++"])
def test_clouds_are_mapped_by_default_and_equal_to_the_loop(make: Any, views: Tensor, method: str) -> None:
    posterior = make(method, 5, on_gpu())
    stacks, views = {name: stack.cuda() for name, stack in posterior.samples.items()}, views.cuda()
    mapped, looped = (AtSamples(posterior.learner, stacks, 5) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # something could not be mapped
        spaces = [posterior.learner.repels_in, "logits"]
        clouds = mapped.points(views, spaces)
        for space, points in looped.points(views, spaces, together=1).items():
            torch.testing.assert_close(clouds[space], points, atol=1e-3, rtol=1e-3)
    assert mapped.calls < looped.calls


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["coop", "maple", "mmrl"])
def test_to_another_device_and_back(make: Any, views: Tensor, tmp_path: Path, method: str) -> None:
    here = make(method, 2).bind(["green fish", "car"])
    there = here.to("cuda")
    assert there.learner.encoder.device.type == "cuda"
    assert here.learner.encoder.device.type == "cpu"
    assert there.to("cuda") is there
    assert there.learner.encoder.fingerprint == here.learner.encoder.fingerprint
    torch.testing.assert_close(
        there.predict_views(views).probabilities, here.predict_views(views).probabilities, atol=1e-3, rtol=1e-2
    )
    assert torch.equal(there.to("cpu").predict_views(views).probabilities, here.predict_views(views).probabilities)
    save_posterior(there, tmp_path / "p")
    again = load_posterior(tmp_path / "p", here.learner.encoder)
    assert torch.equal(
        again.bind(["green fish", "car"]).predict_views(views).probabilities, here.predict_views(views).probabilities
    )


def on_gpu(dtype: torch.dtype = torch.float32) -> DualEncoder:
    backbone = small_clip.small_encoder(dtype)
    backbone.model.to("cuda")
    return backbone


def recorded(posterior: Posterior) -> list[str]:
    """The kinds of passes that are captured."""
    capturing = posterior.passes._capturing
    assert capturing is not None
    assert not capturing.failed
    return sorted(capturing._captured)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "method", ["coop", "cocoop", "proda", "bpl", "vamp", "vpt", "ivlp", "maple", "promptsrc", "mmrl", "mmrl++", "app"]
)
def test_captured_answers_are_the_uncaptured_ones(make: Any, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """In float32, to 0.001 of logits around 10: passes that are filled up round otherwise."""
    sizes = [1, 3, 7, 1, 3, 7, 1, 3, 7, 2, 8, 1, 4, 300, 300, 300]
    asked = [random_views(size, seed=seed) for seed, size in enumerate(sizes)]
    asked[-1] = asked[-1].cuda()
    posterior = make(method, 3, on_gpu())
    found = [posterior.sample_logits(views) for views in asked]
    assert [kind.split(",")[0][1:] for kind in recorded(posterior)] == ["1", "256", "4", "64", "8"]
    bound = posterior.bind(["green fish", "car"])
    others = [bound.sample_logits(asked[1]) for _ in range(4)]
    alone = posterior.sample(1)
    alones = [alone.sample_logits(asked[1]) for _ in range(4)]
    assert recorded(bound)
    assert recorded(alone)
    monkeypatch.setenv("REBAPL_EAGER", "1")
    usual = make(method, 3, on_gpu())
    assert usual.sample_logits(asked[0]).shape == (3, 1, 4)
    assert usual.passes._capturing is None
    for one, views in zip(found, asked, strict=True):
        torch.testing.assert_close(one, usual.sample_logits(views), atol=1e-3, rtol=1e-3)
    for one in others:
        torch.testing.assert_close(one, usual.bind(["green fish", "car"]).sample_logits(asked[1]), atol=1e-3, rtol=1e-3)
    for one in alones:
        torch.testing.assert_close(one[0], usual.sample_logits(asked[1])[1], atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
def test_threads_ask_captured_passes_at_the_same_time(make: Any) -> None:
    posterior = make("maple", 3, on_gpu())
    bound = posterior.bind(["green fish", "car"])
    asked = [random_views(1 + seed % 5, seed=seed) for seed in range(20)]
    work = [(each, views) for views in asked for each in (posterior, bound)]
    expected = [each.sample_logits(views) for each, views in work]

    def on_own_stream(pair: tuple[Posterior, Tensor]) -> Tensor:
        with torch.cuda.stream(torch.cuda.Stream()):
            return pair[0].sample_logits(pair[1])

    with ThreadPoolExecutor(6) as pool:
        for ask in (lambda pair: pair[0].sample_logits(pair[1]), on_own_stream):
            for _ in range(3):
                for one, other in zip(pool.map(ask, work), expected, strict=True):
                    torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    assert len(recorded(posterior)) == len(recorded(bound)) == 4


@pytest.mark.gpu
def test_memory_is_bounded_and_freed_with_the_posterior(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "CHUNK", 16)
    backbone = on_gpu(torch.bfloat16)
    first = make("maple", 4, backbone)
    for _ in range(4):
        first.sample_logits(random_views(16))  # libraries keep some memory for themselves, for recording, too
    del first
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    posterior = make("maple", 4, backbone)
    whole = random_views(50)
    for _ in range(3):
        for size in range(1, 51):
            posterior.sample_logits(whole[:size])
    held = torch.cuda.memory_allocated()
    for _ in range(3):
        for size in range(1, 51):
            posterior.sample_logits(whole[:size])
    assert len(recorded(posterior)) == 5
    assert torch.cuda.memory_allocated() <= held + 2**20
    assert held > before
    del posterior
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (held - before) / 4
