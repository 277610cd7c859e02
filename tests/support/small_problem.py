"""A small model without prompts, for tests of the repulsion."""

from typing import Any

import torch
from torch import Tensor, nn

from rebapl.repulsion import Repulsion, kick


class Problem:
    """A small network on 24 points, its loss, and its features on a pool of 16."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5))
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.x, self.pool = torch.randn(24, 3, generator=generator), torch.randn(16, 3, generator=generator)
        self.y = torch.randint(5, (24,), generator=generator)
        self.parameters = list(self.model.parameters())

    def loss(self) -> Tensor:
        return nn.functional.cross_entropy(self.model(self.x), self.y)

    def gradient_norm(self, value: Tensor) -> float:
        found = torch.autograd.grad(value, self.parameters, retain_graph=True)
        return torch.cat([g.flatten() for g in found]).norm().item()

    def move(self, scale: float, seed: int = 1) -> None:
        kick(self.parameters, scale, torch.Generator().manual_seed(seed))

    @property
    def anchor(self) -> Tensor:
        """Features on the pool as before learning: those of another draw of the parameters."""
        return Problem(seed=100).model(self.pool).detach()

    def repulsion(self, distance: Any = "mmd", **settings: Any) -> Repulsion:
        """A repulsion that measures ε against the anchor and remembers nothing yet."""
        return Repulsion(distance, **{"anchor": self.anchor, **settings})

    def repelled(self, distance: Any = "mmd", **settings: Any) -> Repulsion:
        """A repulsion that remembers the present features of the model."""
        repulsion = self.repulsion(distance, **settings)
        repulsion.remember(self.model(self.pool))
        repulsion.begin_cycle()
        return repulsion
