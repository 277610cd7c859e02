"""Tip-Adapter-F: Tip-Adapter whose keys are trained further.

Zhang et al., Tip-Adapter: Training-Free Adaption of CLIP for Few-Shot Classification, 2022. The keys start as those of
`tip-adapter`; their values, β, α and κ stay as they were found there. The published code trains on random crops of the
images and searches α and β once more afterwards, on validation or test images; here the keys are trained on the
features of the whole views, and nothing is searched afterwards. If the cache has no weight there, α = 0, the keys are
trained from the published start, α = 1 and β = 5.5.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rebapl.learners.head import NothingToSet
from rebapl.learners.registry import register
from rebapl.learners.tip_adapter import TipAdapter


@register("tip-adapter-f", NothingToSet)
class TipAdapterF(TipAdapter):
    repels_in = "extra"
    start: Tensor | None = None
    """The features of the training images, which the keys start from."""

    def make_room(self, images: int) -> None:
        super().make_room(images)
        self.keys.requires_grad_()

    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.start = features
        return super().see(features, labels)

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:  # noqa: ARG002
        """Nothing is drawn: the keys are the training images once more."""
        if self.start is not None:
            self.keys.copy_(self.start)
        else:
            nn.init.zeros_(self.keys)
