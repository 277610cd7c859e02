"""The type in which towers compute: chosen by the device, or as asked for."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from rebapl.backbones import computing_type, load_backbone
from rebapl.errors import UserError
from rebapl.posterior import Posterior, load_posterior, save_posterior


@pytest.mark.parametrize(("capable", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_where_a_gpu_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, capable: bool, expected: torch.dtype
) -> None:
    def supported(including_emulation: bool) -> bool:
        return capable or including_emulation

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    assert computing_type("auto", "cuda:1") == expected
    assert computing_type("auto", "cpu") == computing_type("float32", "cuda") == torch.float32
    assert computing_type(torch.float16, "cuda") == torch.float16


@pytest.mark.parametrize(
    ("dtype", "said"), [("bfloat", "did you mean 'bfloat16'"), (torch.int8, "towers cannot compute in dtype")]
)
def test_other_types_are_refused_before_anything_is_read(dtype: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_backbone("no/such/backbone", dtype=dtype)  # type: ignore[arg-type]


def test_a_copy_in_another_type_is_the_same_backbone(clip_folder: Path) -> None:
    encoder = load_backbone(clip_folder)
    assert encoder.to("cpu") is encoder.to("cpu", "auto") is encoder
    coarse = encoder.to("cpu", "bfloat16")
    back = coarse.to("cpu", "auto")
    assert (encoder.dtype, coarse.dtype, back.dtype) == (torch.float32, torch.bfloat16, torch.float32)
    assert encoder.fingerprint == coarse.fingerprint == back.fingerprint
    assert encoder.logit_scale == coarse.logit_scale == back.logit_scale
    sound = load_backbone(clip_folder, dtype="bfloat16")
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(coarse.image_features(pixels), sound.image_features(pixels))


@pytest.mark.gpu
def test_backbones_and_posteriors_compute_in_bfloat16_on_this_gpu(tmp_path: Path) -> None:
    from rebapl.learners import build_learner

    assert load_backbone("mini", "cuda").dtype == torch.bfloat16
    assert load_backbone("mini", "cuda", "float32").dtype == torch.float32
    learner = build_learner("coop", load_backbone("mini"), ["one", "two"], "a {}.", torch.Generator(), {})
    sample = {name: x.detach() for name, x in learner.named_parameters()}
    folder = save_posterior(Posterior.of(learner.eval(), [sample]), tmp_path / "p")
    assert load_posterior(folder, device="cuda").learner.encoder.dtype == torch.bfloat16
    here = load_posterior(folder)
    assert here.to("cuda").learner.encoder.dtype == torch.float32
    assert here.to("cuda", "auto").learner.encoder.dtype == torch.bfloat16
