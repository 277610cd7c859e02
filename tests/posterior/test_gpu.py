"""On a GPU samples are mapped over by default; the numbers are those of the loop."""

from pathlib import Path
from typing import Any

import pytest
import small_clip
import torch
from torch import Tensor

from rebapl.posterior import load_posterior, per_sample, save_posterior


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["vpt", "ivlp", "maple", "promptsrc", "mmrl", "mmrl++"])
def test_mapped_by_default_and_equal_to_the_loop(make: Any, views: Tensor, method: str) -> None:
    backbone = small_clip.small_encoder()
    backbone.model.to("cuda")
    posterior = make(method, 3, backbone)
    frozen = posterior.learner.frozen(backbone.preprocessing.normalize(views.cuda()))
    assert per_sample.samples_together(frozen) > 3
    mapped, looped = posterior.sample_logits(views), posterior.sample_logits(views, together=1)
    torch.testing.assert_close(mapped.softmax(-1), looped.softmax(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["maple", "mmrl"])
def test_mapping_works_in_bfloat16(make: Any, views: Tensor, method: str) -> None:
    backbone = small_clip.small_encoder(torch.bfloat16)
    backbone.model.to("cuda")
    posterior = make(method, 3, backbone)
    mapped, looped = posterior.sample_logits(views), posterior.sample_logits(views, together=1)
    assert (mapped.softmax(-1) - looped.softmax(-1)).abs().max() < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["coop", "maple", "mmrl"])
def test_to_another_device_and_back(make: Any, views: Tensor, tmp_path: Path, method: str) -> None:
    here = make(method, 2).bind(["green fish", "car"])
    there = here.to("cuda")
    assert there.learner.encoder.device.type == "cuda"
    assert here.learner.encoder.device.type == "cpu"
    assert there.to("cuda") is there
    assert there.learner.encoder.fingerprint == here.learner.encoder.fingerprint
    torch.testing.assert_close(there.probabilities(views), here.probabilities(views), atol=1e-3, rtol=1e-2)
    assert torch.equal(there.to("cpu").probabilities(views), here.probabilities(views))
    save_posterior(there, tmp_path / "p")
    again = load_posterior(tmp_path / "p", here.learner.encoder)
    assert torch.equal(again.bind(["green fish", "car"]).probabilities(views), here.probabilities(views))
