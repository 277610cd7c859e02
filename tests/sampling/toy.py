"""A tiny learner from outside the package that the loops can sample: a linear classifier of vectors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import torch
import torch.nn.functional as F


@dataclass
class ToyOutput:
    logits: torch.Tensor
    per_image: dict = field(default_factory=dict)
    per_class: dict = field(default_factory=dict)

    def rows(self, rows):
        return replace(self, logits=self.logits[rows], per_image={k: v[rows] for k, v in self.per_image.items()})

    def cloud(self, space):
        if space == "both":
            return torch.cat([self.per_image["image"], self.per_class["text"]])
        return {"logits": self.logits, **self.per_class, **self.per_image}[space]


class ToyLearner(torch.nn.Module):
    """`image` features tanh(xA) and `text` features, both of width 4; counts the images it was given."""

    repels_in = "image"

    def __init__(self, seed=0, classes=3):
        super().__init__()
        self.image = torch.nn.Parameter(torch.empty(5, 4))
        self.text = torch.nn.Parameter(torch.empty(classes, 4))
        self.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        self.seen = []
        self.reset(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def reset(self, generator):
        for p in (self.image, self.text):
            p.copy_(torch.randn(p.shape, generator=generator) * 0.5)

    def use_noise(self, generator):
        """It draws nothing while training."""

    def forward(self, images):
        self.seen.append(len(images))
        features = torch.tanh(images @ self.image) * self.frozen
        return ToyOutput(features @ self.text.T, {"image": features, "raw": images}, {"text": self.text})

    def loss(self, output, labels):
        return F.cross_entropy(output.logits, labels)


@cache
def data(n=40, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def batches(step, size=8):
    """A pure function of the step."""
    x, y = data()
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))[:size]
    return x[rows], y[rows]


@dataclass(frozen=True)
class ToyRecipe:
    """The values of a method's published recipe that presets read."""

    lr: float
    epochs: int
    batch: int
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: int = 1
    warmup_lr: float = 1e-5
    averaging: tuple[float, float] | None = None
