"""The paper's two-mode example (its appendix "Toy Example"). `toy_figures` draws it.

    U(θ) = −log(½ N(θ | μ₁, Σ₁) + ½ N(θ | μ₂, Σ₂)),    V(θ, θ′) = 1/(‖θ−θ′‖² + ε),    θ in the plane

The paper prints the density itself as the potential U, but a sampler needs its negative logarithm. Every run is
cyclical SGLD with warm restarts: each cycle starts where the last one ended, with a small kick.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rebapl.randomness import generator
from rebapl.repulsion import Inverse, kick
from rebapl.repulsion.repulsion import Stage
from rebapl.sampling import SGLD, CyclicalSchedule

MEANS = torch.tensor([[-1.5, -0.6], [1.5, 0.6]])
COVARIANCES = torch.tensor([[[0.30, 0.05], [0.05, 0.25]], [[0.25, -0.08], [-0.08, 0.32]]])
_PRECISIONS = torch.linalg.inv(COVARIANCES)
_NORMALISERS = torch.log(2 * 2 * torch.pi * torch.linalg.det(COVARIANCES).sqrt())
EPSILON = 1.0
IN_MODE = 3.0
"""The radius of a mode in standard deviations. In the plane, it contains 98.9 % of the mode's probability."""


@dataclass(frozen=True)
class Setting:
    """One way to sample the example: its name, the strength of the repulsion, and the stage in which it acts."""

    name: str
    strength: float
    stage: Stage = "exploration"


# The far too strong repulsion also acts in the sampling stage, as in the paper's update: if it acted in the exploration
# alone, the sampling stage would bring the chain back into a mode.
SETTINGS = (
    Setting("no repulsion", 0.0),
    Setting("repulsion, ξ = 50", 50.0),
    Setting("ξ = 1000, in both stages", 1000.0, stage="both"),
)


def density_potential(theta: Tensor) -> Tensor:
    """The potential U at points (…, 2), of shape (…)."""
    return -torch.logsumexp(-0.5 * _mahalanobis(theta) - _NORMALISERS, dim=-1)


def repulsive_potential(theta: Tensor, stored: Tensor) -> Tensor:
    """The potential V between points (…, 2) and their stored points (…, 2), of shape (…)."""
    return Inverse().value((theta - stored).square().sum(-1), torch.tensor(EPSILON))


def mode_of(theta: Tensor) -> Tensor:
    """The mode in which each of the points (…, 2) lies, of shape (…): 0, 1, or −1 for neither."""
    nearest, index = _mahalanobis(theta).sqrt().min(dim=-1)
    return torch.where(nearest <= IN_MODE, index, -1)


def _mahalanobis(theta: Tensor) -> Tensor:
    """The squared distance of points (…, 2) from each of the two modes in standard deviations, of shape (…, 2)."""
    shift = theta[..., None, :] - MEANS
    return torch.einsum("...mi,mij,...mj->...m", shift, _PRECISIONS, shift)


@dataclass
class Chains:
    """R chains: their sample of each cycle, and their path from the start, point by point.

    samples (cycles, R, 2), path (cycles · steps + 1, R, 2). `exploring` has for each step whether it is in the
    exploration stage.
    """

    samples: Tensor
    path: Tensor
    exploring: list[bool]


def repulsion_term(setting: Setting, theta: Tensor, stored: Tensor) -> Tensor:
    """strength · Σ V, the term that repels points (R, 2) from their stored points.

    For one chain, `Repulsion` gives the same term in weight space. Here each of R chains has its own stored sample.
    """
    return setting.strength * repulsive_potential(theta, stored).sum()


def run_chains(
    setting: Setting,
    start: Tensor,
    *,
    seed: int,
    cycles: int = 10,
    steps: int = 200,
    lr: float = 0.02,
    temperature: float = 1.0,
    stored: Tensor | None = None,
) -> Chains:
    """Cyclical SGLD from `start` (R, 2), R chains side by side.

    Each chain is repelled by its own sample of the previous cycle and, in the first cycle, by `stored` (R, 2) if given.
    """
    theta = torch.nn.Parameter(start.clone())
    sampler = SGLD([theta], lr=lr, num_data=1, temperature=temperature, generator=generator(seed, "toy", "noise"))
    schedule = CyclicalSchedule(sampler, steps, exploration=0.5, cycles=cycles)
    kicks = generator(seed, "toy", "kick")
    samples, path, exploring = [], [theta.detach().clone()], []
    while not schedule.done:
        if schedule.at_cycle_start:
            kick([theta], 0.02, kicks)
        exploring.append(schedule.exploring)
        loss = density_potential(theta).sum()
        if stored is not None and (schedule.exploring or setting.stage == "both"):
            loss = loss + repulsion_term(setting, theta, stored)
        sampler.zero_grad()
        loss.backward()
        sampler.step()
        schedule.step()
        path.append(theta.detach().clone())
        if schedule.at_sample:
            stored = path[-1]
            samples.append(stored)
    return Chains(torch.stack(samples), torch.stack(path), exploring)


def run_many(setting: Setting, *, seed: int, runs: int = 400, cycles: int = 10) -> Tensor:
    """The modes in which the samples of independent runs lie, (cycles, runs). All runs start in the first mode."""
    start = MEANS[0] + 0.1 * torch.randn(runs, 2, generator=generator(seed, "toy", "start"))
    return mode_of(run_chains(setting, start, seed=seed, cycles=cycles).samples)


def visited_both(modes: Tensor) -> Tensor:
    """Whether each run has had a sample in both modes by each cycle: modes (cycles, runs) → booleans (cycles, runs)."""
    return ((modes == 0).cumsum(0) > 0) & ((modes == 1).cumsum(0) > 0)
