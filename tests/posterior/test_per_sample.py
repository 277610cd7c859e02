"""The passes of many samples: shared if possible, mapped where that pays, with the same numbers in each way."""

import copy
import dataclasses
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from rebapl.backbones import States
from rebapl.errors import UserError
from rebapl.learners import METHODS, Learner, Output
from rebapl.learners.maple import MaPLe
from rebapl.posterior import Posterior, passes, per_sample
from rebapl.posterior.per_sample import AtSamples

IMAGE_METHODS = ["vpt", "ivlp", "maple", "promptsrc", "mmrl", "mmrl++", "vamp"]


def holding(posterior: Posterior, index: int) -> Learner:
    """A copy of the learner whose own parameters are those of one sample, written in by hand."""
    learner = copy.deepcopy(posterior.learner)
    with torch.no_grad():
        for name, parameter in learner.named_parameters():
            parameter.copy_(posterior.samples[name][index])
    return learner


def one_by_one(posterior: Posterior, views: Tensor) -> Tensor:
    """The logits of a copy of the learner per sample, which sees the images from the beginning."""
    images = posterior.learner.encoder.preprocessing.normalize(views)
    with torch.no_grad():
        return torch.stack([holding(posterior, index)(images).logits for index in range(len(posterior))])


def test_samples_differ_in_their_logits(make: Any, views: Tensor) -> None:
    first, second = one_by_one(make("maple", 2), views)
    assert (first - second).abs().max() > 0.01, "or the tests below could not tell one sample from another"


@pytest.mark.parametrize("method", METHODS)
def test_logits_are_those_of_every_sample_alone(make: Any, views: Tensor, method: str) -> None:
    posterior = make(method, 1 if method == "zero-shot" else 3)
    torch.testing.assert_close(posterior.sample_logits(views), one_by_one(posterior, views), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", IMAGE_METHODS)
@pytest.mark.parametrize("together", [2, 3, 10])
def test_mapping_over_samples_changes_nothing(
    make: Any, views: Tensor, monkeypatch: pytest.MonkeyPatch, method: str, together: int
) -> None:
    monkeypatch.setattr(per_sample, "samples_together", lambda _: together)
    posterior = make(method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # something could not be mapped
        mapped = posterior.sample_logits(views)
    torch.testing.assert_close(mapped.softmax(-1), one_by_one(posterior, views).softmax(-1), atol=1e-5, rtol=1e-5)


def at_samples(posterior: Posterior) -> AtSamples:
    return AtSamples(posterior.learner, posterior.samples, len(posterior))


@torch.no_grad()
@pytest.mark.parametrize("method", IMAGE_METHODS)
def test_mapping_over_samples_changes_no_cloud(make: Any, views: Tensor, method: str) -> None:
    samples = at_samples(make(method))
    spaces = ["image", "logits", "probabilities"]
    spaces += [] if method == "vamp" else ["text", "both"]  # it has other texts for every image
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mapped = samples.points(views, spaces, together=2)
    for space, points in samples.points(views, spaces).items():
        torch.testing.assert_close(mapped[space], points, atol=1e-5, rtol=1e-5)


class Choosy(MaPLe):
    """Its code branches on the values of its parameters, so samples cannot share a call."""

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        output = super().respond(frozen, classes)
        return output if self.text["1"].sum() < 0 else dataclasses.replace(output, logits=-output.logits)


@torch.no_grad()
def test_a_learner_that_cannot_be_mapped_takes_one_sample_after_the_other(make: Any, views: Tensor) -> None:
    posterior = make("maple", 4)
    choosy = Choosy(posterior.learner.encoder, posterior.learner.config).bind(posterior.class_names).eval()
    samples, plain = AtSamples(choosy, posterior.samples, 4), at_samples(posterior)
    signs = torch.tensor([-1 if tokens.sum() >= 0 else 1 for tokens in posterior.samples["text.1"]])
    assert len(set(signs.tolist())) == 2, "or the test could not tell a choice from another"
    with pytest.warns(RuntimeWarning, match=r"one after the other, which is slower \(.*control flow"):
        found = samples.points(views, ["logits"], 3)["logits"]
    assert torch.equal(found, signs[:, None, None] * plain.points(views, ["logits"])["logits"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is known now
        samples.points(views, ["logits"], 3)


@torch.no_grad()
def test_bad_input_is_told_as_it_is_in_a_mapped_call(make: Any, views: Tensor) -> None:
    posterior = make("maple")
    samples = at_samples(posterior)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match="did you mean 'image'"):
            samples.points(views, ["imag"], together=2)


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 2), (0, 0)])
def test_samples_may_share_positions_or_have_their_own(make: Any, dims: tuple[int | None, int | None]) -> None:
    """Positions of texts of different lengths, which a causal layer reads, mapped over three samples or shared."""
    learner, stream = make("maple").learner, torch.Generator().manual_seed(0)
    width = learner.encoder.text.width
    hidden, read = torch.randn(3, 2, 6, width, generator=stream), torch.randint(6, (3, 2, 1), generator=stream)
    given = [x[0] if dim is None else x.movedim(0, dim) for x, dim in zip((hidden, read), dims, strict=True)]
    last = per_sample.for_mapping(learner).encoder.text.layers[-1]
    with torch.no_grad():
        found = torch.func.vmap(last, in_dims=dims)(*given)
        whole = learner.encoder.text.layers[-1](hidden.flatten(0, 1)).unflatten(0, (3, 2))
    for sample in range(3):
        states, at = whole[0 if dims[0] is None else sample], read[0 if dims[1] is None else sample]
        expected = states[torch.arange(2).unsqueeze(1), at]
        torch.testing.assert_close(found[sample], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_methods_with_passes_worth_mapping_are_those_tested_above(make: Any, views: Tensor, method: str) -> None:
    learner = make(method, 1).learner
    frozen = learner.frozen(learner.encoder.preprocessing.normalize(views))
    assert isinstance(frozen, States) == (method in IMAGE_METHODS)


def test_groups_fit_into_the_memory_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    states = States(torch.zeros(5, 10, 8), torch.zeros(5, dtype=torch.long))
    bytes_of_one = 5 * 10 * 8 * 4 * per_sample.WORKING_COPIES
    on_gpu = States(torch.zeros(5, 10, 8, device="meta"), torch.zeros(5, dtype=torch.long))
    for allowed, samples in ((bytes_of_one // 2, 1), (3 * bytes_of_one, 3), (3 * bytes_of_one + 1, 3)):
        monkeypatch.setattr(per_sample, "MAPPED_BYTES", allowed)
        assert per_sample.samples_together(on_gpu) == samples
    assert per_sample.samples_together(states) == per_sample.samples_together(torch.zeros(5, 8, device="meta")) == 1


@pytest.mark.parametrize("method", ["coop", "maple", "cocoop"])
def test_images_are_embedded_once_and_text_once_per_sample(
    make: Any, monkeypatch: pytest.MonkeyPatch, views: Tensor, method: str
) -> None:
    posterior = make(method, 4)
    monkeypatch.setattr(passes, "CHUNK", 3)
    calls: Counter[str] = Counter()
    for name in ("frozen", "encode_classes"):
        original = getattr(type(posterior.learner), name)

        def counted(self: Learner, *arguments: Any, _name: str = name, _original: Any = original) -> Any:
            calls[_name] += 1
            return _original(self, *arguments)

        monkeypatch.setattr(type(posterior.learner), name, counted)
    expected = {"frozen": 3, "encode_classes": 4}  # 7 images in chunks of 3; 4 samples
    assert posterior.sample_logits(views).shape == (4, 7, 4)
    assert calls == expected


def test_chunks_of_images_change_nothing(make: Any, monkeypatch: pytest.MonkeyPatch, views: Tensor) -> None:
    posterior = make("maple")
    whole = posterior.sample_logits(views)
    monkeypatch.setattr(passes, "CHUNK", 2)
    torch.testing.assert_close(posterior.sample_logits(views), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("method", "shape"), [("maple", (3, 7, 48)), ("coop", (3, 4, 48))])
def test_clouds_are_the_features_where_the_method_repels(
    make: Any, views: Tensor, method: str, shape: tuple[int, ...]
) -> None:
    posterior = make(method)
    clouds, answers = posterior.passes.clouds(views, posterior.learner.repels_in, "probabilities")
    assert clouds.shape == shape
    images = posterior.learner.encoder.preprocessing.normalize(views)
    with torch.no_grad():
        output = holding(posterior, 1)(images)
    torch.testing.assert_close(clouds[1], output.cloud(posterior.learner.repels_in))
    assert answers.shape == (3, 7, 4)
