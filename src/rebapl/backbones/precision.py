"""The type in which the frozen towers compute."""

from __future__ import annotations

import torch

from rebapl.errors import UserError, unknown

Dtype = torch.dtype | str
"""A type of torch, its name, or `auto`: see `computing_type`."""

_NAMED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def computing_type(dtype: Dtype, device: torch.device | str) -> torch.dtype:
    """The type that was asked for. With `auto`, bfloat16 on a GPU that computes in it, and float32 elsewhere.

    GPUs compute in bfloat16 from compute capability 8.0 on (Ampere, 2020).

    >>> computing_type("auto", "cpu"), computing_type("bfloat16", "cpu")
    (torch.float32, torch.bfloat16)
    """
    if isinstance(dtype, torch.dtype):
        if not dtype.is_floating_point:
            raise UserError(f"dtype {dtype} is no type that towers compute in: {', '.join(('auto', *_NAMED))}")
        return dtype
    if dtype != "auto":
        if dtype not in _NAMED:
            raise unknown("dtype", str(dtype), ["auto", *_NAMED])
        return _NAMED[dtype]
    where = torch.device(device)
    if where.type != "cuda" or not torch.cuda.is_available():
        return torch.float32
    with torch.cuda.device(where):
        # Without emulation: older GPUs have bfloat16, too, but slower than float32.
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
