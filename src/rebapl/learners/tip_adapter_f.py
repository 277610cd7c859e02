"""Tip-Adapter-F: Tip-Adapter whose keys are trained further.

Zhang et al., Tip-Adapter: Training-Free Adaption of CLIP for Few-Shot Classification, 2022. The keys start as those of
`tip-adapter`. Their values, β, α and κ stay as `tip-adapter` chooses them. The published code trains on random crops of
the images and afterwards searches α and β once more, on validation or test images. Here the keys are trained on the
features of the whole views, and nothing is searched afterwards. If `tip-adapter` chooses α = 0, so that the cache has
no weight, the keys are trained with the published α = 1 and β = 5.5 instead.
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
    """The features of the training images, from which the keys start."""

    def make_room(self, images: int) -> None:
        super().make_room(images)
        self.keys.requires_grad_()

    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.start = features
        return super().see(features, labels)

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:  # noqa: ARG002
        """Draw nothing: the keys start again from the features of the training images."""
        if self.start is not None:
            self.keys.copy_(self.start)
        else:
            nn.init.zeros_(self.keys)
