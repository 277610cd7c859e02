"""On a GPU: the same numbers by either path, no waiting in a step, and a step that can be captured."""

from __future__ import annotations

import pytest
import torch

from rebapl.sampling import SGHMC, Chain, Inference
from rebapl.sampling.settings import Repelling

from .toy import ToyLearner, batches, data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SETTINGS = {
    "sampler": {"kind": "sghmc", "lr": 0.05, "temperature": 0.01, "burn_in": 0.5},
    "batch": 8,
    "cycles": 2,
    "restart": "warm",
}


def parameters():
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.nn.Parameter(torch.randn(n, 7, device="cuda", generator=generator)) for n in (3, 50, 1000)]


def walk(params, sampler, steps):
    for _ in range(steps):
        for p in params:
            p.grad = p.detach() * 0.1
        sampler.step()


@pytest.mark.parametrize("integrator", ["kdod", "symplectic"])
@pytest.mark.parametrize("noise", [None, "estimate"])
def test_nothing_in_a_step_waits(integrator, noise):
    params, generator = parameters(), torch.Generator("cuda").manual_seed(1)
    settings = {"weight_decay": 0.01, "gradient_noise": noise, "integrator": integrator}
    sampler = SGHMC(params, lr=0.05, num_data=40, generator=generator, **settings)
    walk(params, sampler, 2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        walk(params, sampler, 10)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(p.isfinite().all() for p in params)


def test_a_captured_step_follows_the_learning_rate_and_draws_fresh_noise():
    params, generator = parameters(), torch.Generator("cuda").manual_seed(1)
    lr = torch.tensor(0.05, device="cuda")
    sampler = SGHMC(params, lr=lr, num_data=40, generator=generator)
    for p in params:
        p.grad = torch.zeros_like(p)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            sampler.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        sampler.step()
    moves = []
    for value in (0.05, 0.05, 1e-12):
        lr.fill_(value)
        before = params[2].detach().clone()
        graph.replay()
        moves.append(params[2].detach() - before)
    assert not torch.equal(moves[0], moves[1])
    assert moves[0].abs().max() > 1e-3
    assert moves[2].abs().max() < 1e-3 * moves[0].abs().max()


def test_a_run_goes_on_there_from_a_state_kept_on_the_cpu():
    inference = Inference(**SETTINGS, epochs=3, repulsion=Repelling(images=6))

    def chain():
        return Chain(ToyLearner().cuda(), inference, given, num_data=40, steps_per_epoch=5, reference=data()[0])

    def given(step):
        return tuple(x.cuda() for x in batches(step))

    def on_cpu(tree):
        if isinstance(tree, dict):
            return {key: on_cpu(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return type(tree)(on_cpu(value) for value in tree)
        return tree.cpu() if isinstance(tree, torch.Tensor) else tree

    whole = list(chain().run())
    for stop in (7, 18):
        first, second = chain(), chain()
        for _ in range(stop):
            first.step()
        second.load_state_dict(on_cpu(first.state_dict()))
        list(second.run())
        for a, b in zip(whole, second.samples, strict=True):
            torch.testing.assert_close(a.parameters, b.parameters, rtol=1e-5, atol=1e-6)


def test_the_loop_runs_there_without_waiting_between_checks():
    learner = ToyLearner().cuda()
    inference = Inference(**SETTINGS, epochs=2, repulsion=Repelling(images=6, pool=16))

    given = [tuple(x.cuda() for x in batches(step)) for step in range(20)]
    run = Chain(
        learner, inference, given.__getitem__, num_data=40, steps_per_epoch=5, reference=data()[0], check_every=1000
    )
    for step in range(20):
        quiet = step not in (0, 9, 10, 19)  # the ends and beginnings of cycles keep samples
        torch.cuda.set_sync_debug_mode("error" if quiet else "default")
        try:
            run.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(run.samples) == 2
