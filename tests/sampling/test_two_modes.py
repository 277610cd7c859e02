"""Repulsion finds the second mode; far too much of it finds neither (the paper's toy remark).

A mixture of two Gaussians, 6 standard deviations apart: from the left mode, three cycles of cyclical SGHMC. A
run visits a mode if a kept sample lies within 3 standard deviations of its centre.
"""

from __future__ import annotations

import torch
from scipy.stats import fisher_exact

from rebapl.repulsion import Inverse, Repulsion, kick, weights
from rebapl.repulsion.force import Absolute
from rebapl.sampling import SGHMC, CyclicalSchedule

MODES, STD, RUNS = torch.tensor([[-1.5, 0.0], [1.5, 0.0]]), 0.5, 26


def potential(theta):
    return -torch.logsumexp(-(theta - MODES).square().sum(-1) / (2 * STD**2), -1)


def visited(strength, seed, cycles=3, steps=60):
    """Whether one run visits each of the two modes (2,)."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.nn.Parameter(MODES[0] + 0.5 * STD * torch.randn(2, generator=generator))
    sampler = SGHMC([theta], lr=0.04, num_data=1, momentum=0.8, generator=generator)
    schedule = CyclicalSchedule(sampler, steps, exploration=0.5)
    force, inverse = Absolute(strength=strength), Inverse(scale=1.0)
    repulsion = Repulsion("paired", force=force, potential=inverse, stage="both", memory="previous")
    samples = []
    for _ in range(cycles * steps):
        if schedule.at_cycle_start:
            repulsion.begin_cycle()
            if strength and repulsion.acts(schedule.exploring):
                kick([theta], 0.01, generator)
        loss = potential(theta)
        if strength and repulsion.acts(schedule.exploring):
            loss = loss + repulsion(weights([theta]))
        sampler.zero_grad()
        loss.backward()
        sampler.step()
        schedule.step()
        if schedule.at_sample:
            samples.append(theta.detach().clone())
            repulsion.remember(weights([theta]))
    return ((torch.stack(samples)[:, None] - MODES).norm(dim=-1) < 3 * STD).any(0)


def both(strength):
    """The number of runs that visit both modes."""
    return sum(bool(visited(strength, seed).all()) for seed in range(RUNS))


def more(many, few):
    """The p-value of Fisher's exact test, one-sided, that runs visit both modes more often."""
    return fisher_exact([[many, RUNS - many], [few, RUNS - few]], alternative="greater").pvalue


def test_repulsion_visits_both_modes_and_far_too_much_does_not():
    """At equal shares a p-value below 0.001 comes by chance in fewer than 1 of 1000 seeds.

    At the shares found here (0.03, 0.8, 0.03) a fresh seed fails by chance in fewer than 1 of 2000.
    """
    without, moderate, excessive = both(0.0), both(200.0), both(5000.0)
    assert more(moderate, without) < 0.001
    assert more(moderate, excessive) < 0.001
    assert moderate > RUNS / 2
