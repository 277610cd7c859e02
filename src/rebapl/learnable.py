"""What a sampler needs of the thing it samples, as protocols that the type checker compares with it.

`rebapl.learners.Learner` is a `Learnable`, and so is any `nn.Module` of this shape: nobody has to inherit anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from rebapl.errors import UserError

OutputT = TypeVar("OutputT", bound="LearnerOutput")


class LearnerOutput(Protocol):
    """What a learner gives for a batch of B images among C classes; `rebapl.learners.Output` is one."""

    @property
    def logits(self) -> Tensor:
        """(B, C)"""

    @property
    def per_class(self) -> Mapping[str, Tensor]:
        """The feature clouds with a row per class; all other clouds have a row per image."""

    def rows(self: OutputT, rows: slice) -> OutputT:
        """The same for some of the images."""

    def cloud(self, space: str) -> Tensor:
        """The points (n, d) of a named feature space."""


class Learnable(Protocol[OutputT]):
    """A module with a loss, of which samplers move the parameters."""

    @property
    def repels_in(self) -> str | None:
        """The feature space in which samples repel each other by default; None where nothing is learned."""

    @property
    def repels_per_image(self) -> bool:
        """Whether that space has a row per image, so that the repulsion needs reference images; or one per class."""

    def __call__(self, images: Tensor) -> OutputT: ...

    def loss(self, output: OutputT, labels: Tensor) -> Tensor:
        """The mean loss of the images with labels (B,), a scalar."""

    def reset(self, generator: torch.Generator) -> None:
        """Draw the parameters anew from their initial distribution."""

    def use_noise(self, generator: torch.Generator) -> None:
        """Draw from this stream whatever is random in training mode. The sampler saves and restores the stream."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def eval(self) -> object: ...


@runtime_checkable
class HasBranches(Protocol):
    """A learner whose pass is `respond(frozen(images), encode_classes())`: a captured pass computes these two, images
    and class names, side by side."""

    def frozen(self, images: Tensor, /) -> Any: ...

    def encode_classes(self) -> Mapping[str, Tensor]: ...

    def respond(self, frozen: Any, classes: Mapping[str, Tensor], /) -> Any: ...


@runtime_checkable
class SharesParameters(Protocol):
    """A learner whose particles side by side hold some parameters in common; one without this attribute shares none."""

    @property
    def shared_parameters(self) -> frozenset[str]:
        """Names of parameters, or of the modules that hold them."""


@runtime_checkable
class LinearInParameters(Protocol):
    """A learner with one parameter r (C, d) whose logits are g_c · a(x) · r_c, and something that r does not change."""

    def linear_inputs(self, images: Tensor, /) -> tuple[Tensor, Tensor]:
        """a (B, d) and g (C,)."""


@runtime_checkable
class StatesPrior(Protocol):
    """A learner whose mean loss has the prior N(0, 1/precision) of its parameters as a part: precision·‖θ‖²/2N."""

    @property
    def prior_precision(self) -> float: ...


@runtime_checkable
class Conjugate(Protocol):
    """A learner without steps whose posterior is known: `laplace` draws from it at once, after `see`."""

    def draws(self, features: Tensor, labels: Tensor, count: int, stream: torch.Generator) -> list[dict[str, Tensor]]:
        """`count` draws of the parameters that differ from one to another, given what `see` was given.

        Name → float32 tensor on the CPU; the generator is one of the CPU.
        """


def shared_names(learner: object, names: Iterable[str]) -> frozenset[str]:
    """Those of the `names` of its parameters that the learner shares between particles.

    >>> class Learner:
    ...     shared_parameters = frozenset({"prior"})
    >>> sorted(shared_names(Learner(), ["context", "prior.bias", "prior.weight", "priority"]))
    ['prior.bias', 'prior.weight']
    """
    given = learner.shared_parameters if isinstance(learner, SharesParameters) else frozenset()
    known = list(names)
    for each in given:
        if not any(_is_of(name, each) for name in known):
            raise UserError(
                f"shared_parameters of {type(learner).__name__} has '{each}', and it has {', '.join(known)}"
            )
    return frozenset(name for name in known if any(_is_of(name, each) for each in given))


def _is_of(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")
