"""The rule that stops adding cycles, against hand-made predictions."""

from __future__ import annotations

import torch

from rebapl.sampling import Adaptive
from rebapl.sampling.adaptive import diversity, likelihood, worth_another_cycle

SURE_A = torch.tensor([[0.99, 0.01]]).expand(10, 2)[None]
SURE_B = torch.tensor([[0.01, 0.99]]).expand(10, 2)[None]
LABELS = torch.zeros(10, dtype=torch.long)


def test_diversity_is_the_jensen_shannon_divergence_of_the_members():
    assert diversity(SURE_A) == 0.0
    mixed = -2 * 0.5 * torch.tensor(0.5).log()
    alone = -(0.99 * torch.tensor(0.99).log() + 0.01 * torch.tensor(0.01).log())
    assert abs(diversity(torch.cat([SURE_A, SURE_B])) - (mixed - alone).item()) < 1e-6


def test_likelihood_is_that_of_the_averaged_prediction():
    assert abs(likelihood(torch.cat([SURE_A, SURE_B]), LABELS) - torch.tensor(0.5).log().item()) < 1e-6


def test_a_cycle_that_adds_diversity_alone_or_likelihood_alone_keeps_the_run_going():
    rule = Adaptive()
    assert worth_another_cycle([SURE_A, SURE_B], LABELS, rule)  # more diverse, less likely
    likelier = [torch.full((1, 10, 2), 0.5), SURE_A]
    assert worth_another_cycle(likelier, LABELS, Adaptive(min_diversity_gain=10.0))
    assert not worth_another_cycle(likelier, None, Adaptive(min_diversity_gain=10.0))


def test_a_repeated_cycle_stops_it_after_the_patience():
    run = [SURE_A, SURE_B]
    assert worth_another_cycle([*run, SURE_B], LABELS, Adaptive(patience=2))
    assert not worth_another_cycle([*run, torch.cat([SURE_A, SURE_B])], LABELS, Adaptive())
    assert worth_another_cycle([SURE_A], LABELS, Adaptive())
