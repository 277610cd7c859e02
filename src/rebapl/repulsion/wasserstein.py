"""Exact Wasserstein-2 (Villani, 2008): the paper's second choice of distance.

    d² = min over γ of Σ γ_ij ‖x_i − y_j‖²,    γ ≥ 0 with row sums 1/n and column sums 1/m

Solved from the detached costs; the gradient in x is that of Σ γ C with the plan held fixed (envelope theorem). As many
points on both sides: an assignment problem, see `assignment`. Otherwise: the linear programme, on the host by HiGHS,
which is for comparing samples afterwards, not for every step.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import eye_array, kron, vstack
from torch import Tensor

from rebapl.repulsion.assignment import assigned, solved_on_device
from rebapl.repulsion.clouds import Stored, squared_distances
from rebapl.repulsion.distances import Distance, register_distance


@register_distance("wasserstein")
class Wasserstein(Distance):
    """Exact Wasserstein-2; it has no settings."""

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """W₂² between x (n, d) and each stored cloud (s, m, d); shape (s,)."""
        y = stored.cloud
        costs = squared_distances(x.detach(), y)
        if x.shape[0] == y.shape[1]:
            order = assigned(costs)[..., None].expand_as(y)
            return (x - y.gather(1, order)).square().sum(-1).mean(-1)
        # costs that are not finite must reach the caller in d², not fail inside the solver
        finite = np.nan_to_num(costs.cpu().double().numpy())
        plans = torch.from_numpy(np.stack([_plan(cost) for cost in finite])).to(y)
        return (plans * squared_distances(x, y)).sum((-2, -1))

    def waits(self, points: int, device: torch.device) -> bool:
        return not solved_on_device(points, device)


def _plan(cost: np.ndarray) -> np.ndarray:
    """The optimal plan (n, m) between uniform weights."""
    n, m = cost.shape
    sums = vstack([kron(eye_array(n), np.ones((1, m))), kron(np.ones((1, n)), eye_array(m))]).tocsr()
    marginals = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    # one of the n + m sums follows from the others
    solution = linprog(cost.ravel(), A_eq=sums[:-1], b_eq=marginals[:-1], bounds=(0, None), method="highs")
    if solution.x is None:
        raise RuntimeError(f"optimal transport between {n} and {m} points was not solved: {solution.message}")
    return solution.x.reshape(n, m)
