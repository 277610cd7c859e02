"""Statistical tests: thousands of independent chains are the coordinates of one tensor.

A check passes within Z standard errors. With Z = 5 a correct sampler fails one check in 1.7 million under a fresh
seed (normal approximation); the whole folder holds fewer than 350 such checks, so it would raise a false
alarm in about one of 5,000 fresh seeds. Seeds are fixed, so here it never does.
"""

from __future__ import annotations

import torch

Z = 5.0


def assert_variance(samples: torch.Tensor, expected: float, z: float = Z) -> None:
    """Second moment of independent zero-mean normal draws: its standard error is expected·sqrt(2/n)."""
    n = samples.numel()
    found = samples.double().square().mean().item()
    error = expected * (2 / n) ** 0.5
    assert abs(found - expected) < z * error, f"variance {found:.5g}, expected {expected:.5g} ± {error:.2g}"
