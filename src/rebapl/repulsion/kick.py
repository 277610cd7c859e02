"""The kick off the saddle: at a warm restart θ equals the stored θ′, d² is 0 and so is the force."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def kick(parameters: Iterable[Tensor], scale: float, generator: torch.Generator) -> None:
    """θ ← θ + scale·rms(θ)·N(0, 1), tensor by tensor, in place: a small random step away from a stored
    sample.

    Done once when a cycle starts warm, before its first step. Relative to each tensor's root mean square, so
    that no tensor is moved by more than it is large; a tensor of zeros stays. It only changes where the
    cycle starts, never the density that it samples.

    >>> theta = torch.ones(4)
    >>> kick([theta], 0.01, torch.Generator().manual_seed(0))
    >>> bool((theta != 1).all()), bool((theta - 1).abs().max() < 0.1)
    (True, True)
    """
    for p in parameters:
        noise = torch.randn(p.shape, generator=generator, device=generator.device).to(p)
        p.add_(noise * p.square().mean().sqrt(), alpha=scale)
