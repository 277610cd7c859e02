"""Samples of a learner's parameters, and prediction by all of them together.

p(y|x) = Σ_s ω_s p(y|x, θ_s), the ω uniform unless said otherwise: probabilities are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from rebapl.errors import UserError
from rebapl.learners import Learner

CHUNK = 256  # images in one pass


@dataclass(frozen=True)
class Posterior:
    """Stacked samples of the parameters of `learner`: name → (S, …), with weights (S,) that sum to one.

    `about` is what is known of its making: the class names and the template learned with, method, settings, seed.
    """

    learner: Learner
    samples: Mapping[str, Tensor]
    weights: Tensor
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, learner: Learner, samples: Sequence[Mapping[str, Tensor]], about: Mapping[str, Any]
    ) -> Posterior:
        """The uniformly weighted posterior of samples given one by one."""
        if not samples:
            raise UserError("a posterior needs at least one sample")
        stacked = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
        learned = {"class_names": learner.class_names, "template": learner.template, **about}
        return cls(learner, stacked, torch.full((len(samples),), 1 / len(samples)), learned)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def class_names(self) -> list[str]:
        return self.learner.class_names

    def bind(self, class_names: Sequence[str], template: str | None = None, transfer: bool = False) -> Posterior:
        """The same samples for other class names; `transfer` if the images are of another data set."""
        return replace(self, learner=self.learner.bind(class_names, template, transfer))

    @torch.no_grad()
    def sample_logits(self, views: Tensor) -> Tensor:
        """Logits (S, N, C) of every sample for test-time views, uint8 (N, 3, H, W)."""
        calls = [at_sample(self.learner, sample) for sample in self._each()]
        classes = [call("encode_classes") for call in calls]
        device = self.learner.encoder.device
        chunks = []
        for chunk in views.split(CHUNK):
            frozen = self.learner.frozen(self.learner.encoder.preprocessing.normalize(chunk.to(device)))
            each = zip(calls, classes, strict=True)
            chunks.append(torch.stack([call("respond", frozen, c).logits.float().cpu() for call, c in each]))
        return torch.cat(chunks, dim=1)

    def probabilities(self, views: Tensor) -> Tensor:
        """The posterior predictive (N, C)."""
        return torch.einsum("s,snc->nc", self.weights, self.sample_logits(views).softmax(-1))

    def _each(self) -> Iterator[dict[str, Tensor]]:
        device = self.learner.encoder.device
        for index in range(len(self)):
            yield {name: stack[index].to(device) for name, stack in self.samples.items()}


class _Methods(nn.Module):
    """Makes every method of a learner callable through `forward`, which `functional_call` needs."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.learner = learner

    def forward(self, method: str, *arguments: Any) -> Any:
        return getattr(self.learner, method)(*arguments)


def at_sample(learner: Learner, sample: Mapping[str, Tensor]) -> Callable[..., Any]:
    """Calls `(method, *arguments)` of a learner as if its parameters were the sample's."""
    parameters = {f"learner.{name}": tensor for name, tensor in sample.items()}
    methods = _Methods(learner)
    return lambda method, *arguments: torch.func.functional_call(methods, parameters, (method, *arguments))
