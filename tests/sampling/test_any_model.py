"""The plug-and-play promise: a model that is no prompt learner; docs/sampling.md has a loop of one's own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer

from rebapl.sampling import SGHMC

from .conftest import Z


class Logistic(torch.nn.Module):
    """Many logistic regressions at once: `chains` weight vectors, each its own posterior sample."""

    def __init__(self, chains, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(chains, width))

    def forward(self, x):
        """Logits (chains, B) for x (chains, B, width) or (B, width)."""
        return (x @ self.weight[:, :, None]).squeeze(-1)


def reference_predictive(x, y, x_test, chains=200, draws=60, leapfrog=10, step=0.08):
    """Metropolis-adjusted Hamiltonian Monte Carlo on the full data, written without this package.

    Returns the predictive probability by chain (chains, M). Prior N(0, 1); mass preconditioned by the Hessian
    at the mode.
    """
    generator = torch.Generator().manual_seed(5)
    mode = torch.zeros(x.shape[1], dtype=x.dtype)

    def gradient(w):
        return (torch.sigmoid(w @ x.T) - y) @ x + w

    def energy(w):
        return F.softplus(w @ x.T).sum(-1) - (w @ x.T) @ y + 0.5 * w.square().sum(-1)

    for _ in range(30):  # Newton's method
        p = torch.sigmoid(mode @ x.T)
        hessian = (x.T * (p * (1 - p))) @ x + torch.eye(x.shape[1], dtype=x.dtype)
        mode = mode - torch.linalg.solve(hessian, gradient(mode))
    root = torch.linalg.cholesky(torch.linalg.inv(hessian))  # w = mode + root·z
    z = torch.randn(chains, x.shape[1], generator=generator, dtype=x.dtype)
    total, accepted = torch.zeros(chains, len(x_test), dtype=x.dtype), 0.0
    for draw in range(draws):
        p = torch.randn(z.shape, generator=generator, dtype=x.dtype)
        new, momentum = z, p
        size = step * (1 + 4 * torch.rand((), generator=generator))
        for _ in range(leapfrog):
            momentum = momentum - 0.5 * size * gradient(mode + new @ root.T) @ root
            new = new + size * momentum
            momentum = momentum - 0.5 * size * gradient(mode + new @ root.T) @ root
        change = energy(mode + z @ root.T) + 0.5 * p.square().sum(-1)
        change = change - energy(mode + new @ root.T) - 0.5 * momentum.square().sum(-1)
        accept = torch.rand(chains, generator=generator, dtype=x.dtype).log() < change
        z = torch.where(accept[:, None], new, z)
        accepted += accept.double().mean().item() / draws
        if draw >= draws // 3:
            total += torch.sigmoid((mode + z @ root.T) @ x_test.T) / (draws - draws // 3)
    assert accepted > 0.8
    return total


def test_logistic_regression_on_real_data_matches_a_long_reference_chain():
    """Breast cancer data: predictive probabilities of 149 test points, each within Z standard errors and 0.003."""
    raw = load_breast_cancer()
    x = torch.tensor(raw.data)
    x = torch.cat([(x - x.mean(0)) / x.std(0), torch.ones(len(x), 1)], 1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], torch.tensor(raw.target, dtype=x.dtype)[order]
    x, y, x_test = x[:420], y[:420], x[420:]
    wanted = reference_predictive(x, y, x_test)

    chains, batch = 128, 140
    model = Logistic(chains, x.shape[1])
    generator = torch.Generator().manual_seed(1)
    sampler = SGHMC(
        model.parameters(),
        lr=0.4,
        num_data=len(x),
        momentum=0.9,
        prior_std=1.0,
        gradient_noise="estimate",
        generator=generator,
    )
    found, kept = torch.zeros(chains, len(x_test)), 0
    x, y, x_test = x.float(), y.float(), x_test.float()
    for step in range(1500):
        rows = torch.randint(len(x), (chains, batch), generator=generator)
        loss = F.binary_cross_entropy_with_logits(model(x[rows]), y[rows], reduction="none").mean(1).sum()
        sampler.zero_grad()
        loss.backward()
        sampler.step()
        if step >= 600 and step % 10 == 0:
            with torch.no_grad():
                found += model(x_test).sigmoid()
            kept += 1
    found /= kept
    error = (found.var(0) / len(found) + wanted.var(0) / len(wanted)).sqrt()
    gap = (found.mean(0) - wanted.mean(0)).abs()
    assert (gap < Z * error + 0.003).all(), gap.max()
    assert error.max() < 0.01  # sharp enough to notice a wrong temperature
