"""On a GPU: a step waits for nothing, and gives what the CPU gives."""

from typing import Any

import pytest
import torch

from rebapl.compiled import compiling
from rebapl.repulsion import DISTANCES, Repulsion, squared_distance

pytestmark = pytest.mark.gpu


FORCES = [
    {"kind": "fading", "measure_every": 2},
    {"kind": "normalised", "measure_every": 2},
    {"kind": "capped", "strength": 1.0, "measure_every": 2},
    {"kind": "absolute", "strength": 1.0},
]


@pytest.mark.parametrize("force", FORCES, ids=lambda force: force["kind"])
@pytest.mark.parametrize("distance", list(DISTANCES))
def test_a_step_does_not_wait_for_the_device(distance: str, force: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    pool, start = torch.randn(64, 16, generator=generator), torch.randn(16, 16, generator=generator)
    terms = {}
    for device in ("cpu", "cuda"):
        theta, images = start.clone().to(device).requires_grad_(), pool.to(device)
        repulsion = Repulsion(distance, force=force, anchor=torch.zeros_like(images @ theta))
        repulsion.remember(images @ theta)
        repulsion.begin_cycle()
        rows = repulsion.choose(64, 24, torch.Generator().manual_seed(1)).to(device)
        with torch.no_grad():
            theta += 0.1
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                loss = (images @ theta).square().mean()
                term = repulsion(images[rows] @ theta, rows, loss=loss, parameters=[theta])
                (loss + term).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        terms[device] = term.item()
    assert terms["cuda"] == pytest.approx(terms["cpu"], rel=1e-3)


def test_compiled_updates_of_sinkhorn_give_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(24, 16, generator=generator).cuda() for _ in range(2))
    usual = squared_distance(x, y, "sinkhorn")
    with compiling():
        torch.testing.assert_close(squared_distance(x, y, "sinkhorn"), usual, rtol=1e-4, atol=1e-5)
