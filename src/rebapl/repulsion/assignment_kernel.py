"""The assignment problem as one small GPU kernel, so that a step need not wait for the host.

Shortest augmenting paths with dual variables (Jonker & Volgenant, 1987; Crouse, 2016), which is what SciPy's
`linear_sum_assignment` does too. Rows are matched one after the other. Each looks for the shortest path of reduced
costs C_ij − u_i − v_j to a free column, as Dijkstra's algorithm does, over all columns at once; then the path is turned
around. The dual u of a row is kept at the column that it is matched with, so that rows need no lists of their own.

One program solves one problem. It runs in float64, and whoever imports this file needs Triton, which comes with
PyTorch's CUDA builds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _assign(costs, matches, n: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    problem = tl.program_id(0)
    costs += problem * n * n
    columns = tl.arange(0, block)
    there = columns < n
    infinity = float("inf")
    row_of = tl.full((block,), -1, tl.int32)  # the row that a column is matched with
    u = tl.zeros((block,), tl.float64)  # its dual
    v = tl.zeros((block,), tl.float64)
    for start in range(n):
        shortest = tl.full((block,), infinity, tl.float64)
        before = tl.full((block,), -1, tl.int32)  # the row from which the path comes to a column
        visited = tl.zeros((block,), tl.int1)
        row = start
        dual = tl.sum(tl.zeros((block,), tl.float64))
        length = dual
        end = -1
        while end < 0:
            cost = tl.load(costs + row * n + columns, mask=there, other=infinity)
            through = length + cost - dual - v
            nearer = there & (visited == 0) & (through < shortest)
            shortest = tl.where(nearer, through, shortest)
            before = tl.where(nearer, row, before)
            open_lengths = tl.where(there & (visited == 0), shortest, infinity)
            column = tl.argmin(open_lengths, 0)
            length = tl.min(open_lengths, 0)
            here = columns == column
            visited = visited | here
            row = tl.sum(tl.where(here, row_of, 0))
            dual = tl.sum(tl.where(here, u, 0.0))
            end = tl.where(row < 0, column, -1)
        change = tl.where(visited, length - shortest, 0.0)
        v -= change
        u += tl.where(row_of >= 0, change, 0.0)
        column = end
        row = -1
        while row != start:
            here = columns == column
            row = tl.sum(tl.where(here, before, 0))
            was = row_of == row
            old = tl.sum(tl.where(was, columns, 0))
            moved = tl.where(row == start, length, tl.sum(tl.where(was, u, 0.0)))
            row_of = tl.where(here, row, row_of)
            u = tl.where(here, moved, u)
            column = old  # which another row takes in the next round
    tl.store(matches + problem * n + row_of, columns.to(tl.int64), mask=there)


def assign_on_device(costs: Tensor) -> Tensor:
    """The columns (s, n) of the rows of s cost matrices (s, n, n) at the least total cost, on their device."""
    costs = torch.nan_to_num(costs.float()).double().contiguous()  # an infinite cost would leave no way to go
    count, n, _ = costs.shape
    matches = torch.empty(count, n, dtype=torch.long, device=costs.device)
    block = max(2, triton.next_power_of_2(n))
    _assign[(count,)](costs, matches, n, block=block, num_warps=max(1, min(4, block // 64)))
    return matches
