"""On a GPU: a step waits for nothing, and gives what the CPU gives."""

import pytest
import torch

from rebapl.repulsion import DISTANCES, Repulsion

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", ["normalised", "fading", "capped", "absolute"])
@pytest.mark.parametrize("metric", list(DISTANCES))
def test_a_step_does_not_wait_for_the_device(metric: str, size: str) -> None:
    generator = torch.Generator().manual_seed(0)
    pool, start = torch.randn(64, 16, generator=generator), torch.randn(16, 16, generator=generator)
    terms = {}
    for device in ("cpu", "cuda"):
        repulsion = Repulsion(metric, size=size, measure_every=2)
        theta, images = start.clone().to(device).requires_grad_(), pool.to(device)
        repulsion.remember(images @ theta)
        repulsion.new_cycle()
        rows = repulsion.choose(64, 24, torch.Generator().manual_seed(1)).to(device)
        with torch.no_grad():
            theta += 0.1
        if device == "cuda" and metric != "wasserstein":  # which goes to the host by its nature
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
