"""The assignment problem as one small GPU kernel, so that a step need not wait for the host.

The method is that of shortest augmenting paths with dual variables (Jonker & Volgenant, 1987; Crouse, 2016), as in
SciPy's `linear_sum_assignment`. Rows are matched one after the other. For each, Dijkstra's algorithm, over all columns
at once, finds the shortest path of reduced costs C_ij − u_i − v_j to a free column; then the matches along this path
are exchanged. The dual u of a row is stored at the column that the row is matched with, so that rows need no arrays of
their own.

One program of the kernel solves one problem, in float64. This file can be imported only with Triton, which comes with
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
    u = tl.zeros((block,), tl.float64)  # the dual of that row
    v = tl.zeros((block,), tl.float64)
    for start in range(n):
        shortest = tl.full((block,), infinity, tl.float64)
        before = tl.full((block,), -1, tl.int32)  # the row before a column on the path
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
            column = old  # the next round gives it to another row
    tl.store(matches + problem * n + row_of, columns.to(tl.int64), mask=there)


def assign_on_device(costs: Tensor) -> Tensor:
    """The columns (s, n) assigned to the rows of s cost matrices (s, n, n) at the least total cost, on their device."""
    costs = torch.nan_to_num(costs.float()).double().contiguous()  # with an infinite cost no path might be found
    count, n, _ = costs.shape
    matches = torch.empty(count, n, dtype=torch.long, device=costs.device)
    block = max(2, triton.next_power_of_2(n))
    _assign[(count,)](costs, matches, n, block=block, num_warps=max(1, min(4, block // 64)))
    return matches
