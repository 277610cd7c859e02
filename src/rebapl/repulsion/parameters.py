"""Functions of the parameters θ, a list of tensors: a random kick, θ as one point, gradients and their norms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

Gradient = tuple[Tensor | None, ...]
"""One tensor for each parameter, or None if there is no dependence on that parameter."""


@torch.no_grad()
def kick(parameters: Iterable[Tensor], scale: float, generator: torch.Generator) -> None:
    """θ ← θ + scale·rms(θ)·N(0, 1), tensor by tensor and in place: away from the saddle where a warm cycle begins.

    There θ equals a stored sample, so that both d² and its gradient are 0. The kick is given once, before the first
    step of the cycle. It is relative to the root mean square of each tensor, so that small tensors are moved little; a
    tensor of zeros stays. It changes only the start of the cycle, not the density that the cycle samples.

    >>> theta = torch.ones(4)
    >>> kick([theta], 0.01, torch.Generator().manual_seed(0))
    >>> bool((theta != 1).all()), bool((theta - 1).abs().max() < 0.1)
    (True, True)
    """
    for p in parameters:
        noise = torch.randn(p.shape, generator=generator, device=generator.device).to(p)
        p.add_(noise * p.square().mean().sqrt(), alpha=scale)


def weights(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters as a cloud of one point (1, d), differentiable, for repulsion in weight space.

    >>> weights([torch.ones(2, 2), torch.zeros(3)]).shape
    torch.Size([1, 7])
    """
    return torch.cat([p.flatten() for p in parameters])[None]


def gradient_of(value: Tensor, parameters: Sequence[Tensor], keep: bool = False) -> Gradient:
    """∇value for each parameter, or None if it has no dependence or requires no gradient.

    With `keep`, the graph is kept for another backward pass.
    """
    learning = [p for p in parameters if p.requires_grad]
    gradients = iter(torch.autograd.grad(value, learning, retain_graph=keep or None, allow_unused=True))
    return tuple(next(gradients) if p.requires_grad else None for p in parameters)


def total_norm(tensors: Iterable[Tensor | None]) -> Tensor:
    """The Euclidean norm () of all tensors together. This does not wait for the device."""
    return get_total_norm([tensor for tensor in tensors if tensor is not None])


def sum_of(gradients: Iterable[Gradient]) -> Gradient:
    """The sum for each parameter, or None if no gradient depends on it."""
    sums: list[Tensor | None] = []
    for parts in zip(*gradients, strict=True):
        terms = [part for part in parts if part is not None]
        sums.append(torch.stack(terms).sum(0) if len(terms) > 1 else next(iter(terms), None))
    return tuple(sums)
