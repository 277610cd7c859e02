"""Arithmetic on lists of tensors: one kernel for the whole list, or one tensor after the other.

Both ways do the same operations in the same order, so a step rule is written once and gives the same numbers.
A scale may be a number or a 0-d tensor; nothing here waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

Scale = float | Tensor
Tensors = list[Tensor]


def add_(xs: Tensors, ys: Tensors, scale: Scale = 1.0, *, foreach: bool) -> None:
    """x ← x + scale·y"""
    if foreach:
        if isinstance(scale, Tensor):
            torch._foreach_add_(xs, torch._foreach_mul(ys, scale))
        else:
            torch._foreach_add_(xs, ys, alpha=scale)
        return
    for x, y in zip(xs, ys, strict=True):
        if isinstance(scale, Tensor):
            x.add_(y * scale)
        else:
            x.add_(y, alpha=scale)


def scale_(xs: Tensors, scale: Scale, *, foreach: bool) -> None:
    """x ← scale·x"""
    if foreach:
        torch._foreach_mul_(xs, scale)
        return
    for x in xs:
        x.mul_(scale)


def normal_like(xs: Tensors, generator: torch.Generator | None) -> list[Tensor]:
    """Standard normal noise in the shapes of `xs`, drawn with one call where all share device and dtype."""
    kinds = {(x.device, x.dtype) for x in xs}
    if len(kinds) > 1:
        return [torch.randn(x.shape, device=x.device, dtype=x.dtype, generator=generator) for x in xs]
    (device, dtype) = next(iter(kinds))
    flat = torch.randn(sum(x.numel() for x in xs), device=device, dtype=dtype, generator=generator)
    return list(torch._utils._unflatten_dense_tensors(flat, xs))
