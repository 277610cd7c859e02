"""The assignment problem: which column each row takes, so that the total cost is least.

On a GPU one small kernel solves it there (`assignment_kernel`), so that nothing waits and a step can be captured.
Everywhere else, and for large problems, SciPy solves it on the host.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

LARGEST = 256
"""The kernel works on one problem with one multiprocessor, so larger ones are left to the host."""


def solved_on_device(points: int, device: torch.device) -> bool:
    """Whether problems of `points` rows and columns are solved on this device, without waiting for the host."""
    return device.type == "cuda" and points <= LARGEST and _has_triton()


def assigned(costs: Tensor) -> Tensor:
    """The columns (s, n) of the rows of s cost matrices (s, n, n), at the least total cost of each.

    Costs that are not finite do not fail here: they must reach the caller in the distance.
    """
    if solved_on_device(costs.shape[-1], costs.device):
        from rebapl.repulsion.assignment_kernel import assign_on_device

        return assign_on_device(costs)
    finite = np.nan_to_num(costs.cpu().double().numpy())
    return torch.from_numpy(np.stack([linear_sum_assignment(cost)[1] for cost in finite])).to(costs.device)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
