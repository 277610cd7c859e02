"""The protocols of a module that can be sampled: the attributes and methods that a sampler calls, and how it does so.

`rebapl.learners.Learner` is a `Learnable`, and so is any `nn.Module` that has these methods. It need not inherit from
anything; the type checker compares it with the protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rebapl.errors import UserError

OutputT = TypeVar("OutputT", bound="LearnerOutput")


class LearnerOutput(Protocol):
    """The output of a learner for a batch of B images and C classes; `rebapl.learners.Output` is one."""

    @property
    def logits(self) -> Tensor:
        """(B, C)"""

    @property
    def per_class(self) -> Mapping[str, Tensor]:
        """The feature clouds that have one row per class; all other clouds have one row per image."""

    def rows(self: OutputT, rows: slice) -> OutputT:
        """The output for some of the images only."""

    def cloud(self, space: str) -> Tensor:
        """The feature cloud (n, d) of the named feature space: n points."""


class Learnable(Protocol[OutputT]):
    """A module with a loss, whose parameters a sampler moves."""

    @property
    def repels_in(self) -> str | None:
        """The feature space in which samples repel each other by default; None if the method learns nothing."""

    @property
    def repels_per_image(self) -> bool:
        """Whether that space has one row per image, so that the repulsion needs reference images, or one per class."""

    def __call__(self, images: Tensor) -> OutputT: ...

    def loss(self, output: OutputT, labels: Tensor) -> Tensor:
        """The mean loss of the images with labels (B,), a scalar."""

    def reset(self, generator: torch.Generator) -> None:
        """Draw the parameters anew from their initial distribution."""

    def use_noise(self, generator: torch.Generator) -> None:
        """Draw everything that is random in training mode from this stream, which the sampler saves and restores."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def eval(self) -> object: ...


@runtime_checkable
class HasBranches(Protocol):
    """A learner whose forward pass is `respond(frozen(images), encode_classes())`.

    A captured pass computes the two arguments of `respond`, for images and for class names, at the same time.
    """

    def frozen(self, images: Tensor, /) -> Any: ...

    def encode_classes(self) -> Mapping[str, Tensor]: ...

    def respond(self, frozen: Any, classes: Mapping[str, Tensor], /) -> Any: ...


@runtime_checkable
class SharesParameters(Protocol):
    """A learner some of whose parameters are common to all particles of SVGD. Without this attribute, none are."""

    @property
    def shared_parameters(self) -> frozenset[str]:
        """The names of these parameters, or of the modules that hold them."""


@runtime_checkable
class LinearInParameters(Protocol):
    """A learner with one parameter r (C, d) and the logits g_c · a(x) · r_c plus a term that does not depend on r."""

    def linear_inputs(self, images: Tensor, /) -> tuple[Tensor, Tensor]:
        """a (B, d) and g (C,)."""


@runtime_checkable
class StatesPrior(Protocol):
    """A learner whose mean loss contains the prior N(0, 1/precision) of its parameters, as precision·‖θ‖²/2N."""

    @property
    def prior_precision(self) -> float: ...


@runtime_checkable
class Conjugate(Protocol):
    """A learner that takes no steps because its posterior is known: `laplace` draws from it directly, after `see`."""

    def draws(self, features: Tensor, labels: Tensor, count: int, stream: torch.Generator) -> list[dict[str, Tensor]]:
        """`count` draws of the parameters that differ between draws, for the features and labels that `see` returned.

        Each draw is name → float32 tensor on the CPU; the generator is one of the CPU.
        """


class _Called(nn.Module):
    """Calls a function of a module through `forward`, because `functional_call` can call only `forward`."""

    def __init__(self, learner: Any) -> None:
        super().__init__()
        self.learner = learner

    def forward(self, call: Callable[[Any], Any]) -> Any:
        return call(self.learner)


def call_at(learner: Any, values: Mapping[str, Tensor], call: Callable[[Any], Any]) -> Any:
    """`call(learner)`, with these values in the place of the learner's parameters of these names.

    The parameters are replaced during the call, so threads must not share a learner; each takes a `Learner.twin`.

    >>> call_at(nn.Linear(1, 1), {"weight": torch.ones(1, 1), "bias": torch.ones(1)}, lambda line: line(torch.ones(1)))
    tensor([2.])
    """
    return functional_call(_Called(learner), {f"learner.{name}": tensor for name, tensor in values.items()}, (call,))


def shared_names(learner: object, names: Iterable[str]) -> frozenset[str]:
    """Of the `names` of a learner's parameters, those that its particles share.

    >>> class Learner:
    ...     shared_parameters = frozenset({"prior"})
    >>> sorted(shared_names(Learner(), ["context", "prior.bias", "prior.weight", "priority"]))
    ['prior.bias', 'prior.weight']
    """
    shared = learner.shared_parameters if isinstance(learner, SharesParameters) else frozenset()
    names = list(names)
    for entry in shared:
        if not any(_is_of(name, entry) for name in names):
            raise UserError(
                f"shared_parameters of {type(learner).__name__} has '{entry}', and its parameters are "
                f"{', '.join(names)}"
            )
    return frozenset(name for name in names if any(_is_of(name, entry) for entry in shared))


def _is_of(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")
