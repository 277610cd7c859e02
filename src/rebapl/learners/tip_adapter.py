"""Tip-Adapter: the training images as a cache, whose labels are weighted by how similar an image is to each of them.

Zhang et al., Tip-Adapter: Training-Free Adaption of CLIP for Few-Shot Classification, 2022. The keys f_n are the
features of the N training images, and the values are their one-hot labels:

    g_c(x) = α Σ_n exp(−β (1 − x·f_n)) [label_n = c].

The published code starts from α = 1 and β = 5.5, searches both on the validation set or, for some data sets, on the
test set, and averages each key over ten random crops. Here a key is the feature of the whole view. β, α, and the factor
κ of the zero-shot logits maximise the likelihood of the training images. For this, each of them is scored without its
own key, and the sum of its class is scaled up to make good for the missing key. If no class has two images, these
scores carry no information; then β = 5.5, α = 1 and κ = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.learners.head import Head, NothingToSet, blended
from rebapl.learners.registry import register

SHARPNESSES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.5, 7.0)
"""The values of β that are tried: up to 7, as in the published search. With few images, sharper kernels use only the
nearest one."""

PUBLISHED = (1.0, 1.0, 0.0, 5.5)
"""κ, α, 0 in the place of a loss, and β, from which the published search starts."""

LARGEST_EXPONENT = 20.0
"""The bound of a kernel's exponent, so that keys that a sampler has moved far give finite logits."""


class Cache(Head):
    """A head with a key (e,) for each of the N training images, and its values (T,): what it adds to each class."""

    def adopt(self, class_names: Sequence[str]) -> None:
        super().adopt(class_names)
        self.sharpness = self.fixed(1)  # β
        self.make_room(0)

    def make_room(self, images: int) -> None:
        """Make keys and values for this number of images."""
        self.keys = self.fixed(images, self.encoder.joint_width)
        self.values = self.fixed(images, len(self.owners))

    def shape_like(self, shapes: Mapping[str, Sequence[int]]) -> None:
        if len(shapes.get("keys", ())) == 2:
            self.make_room(shapes["keys"][0])

    def extra(self, features: Tensor) -> Tensor:
        return kernel(features, self.keys, self.sharpness) @ self.values

    @torch.no_grad()
    def keep(self, keys: Tensor, values: Tensor, sharpness: float, text_weight: float) -> None:
        """Set the parameters to these values, which `see` has computed."""
        self.make_room(len(keys))
        self.keys.copy_(keys)
        self.values.copy_(values)
        self.sharpness.fill_(sharpness)
        self.text_weight.fill_(text_weight)


@register("tip-adapter", NothingToSet)
class TipAdapter(Cache):
    @torch.no_grad()
    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        values = F.one_hot(labels, len(self.owners)).to(features)
        best = PUBLISHED
        if labels.bincount().max() > 1:
            zero_shot, counts, candidates = self.encoder.logits(features, self.text_features), values.sum(0), []
            missing = counts / (counts - values).clamp(min=1)
            for sharpness in SHARPNESSES:
                others = missing * (kernel(features, features, sharpness).fill_diagonal_(0) @ values)
                candidates.append((*blended(zero_shot, others, labels), sharpness))
            best = min(candidates, key=lambda candidate: candidate[2])
        if best[1] == 0 and self.keys.requires_grad:  # keys without a weight could not be trained
            best = PUBLISHED
        kappa, alpha, _, sharpness = best
        self.keep(features, alpha * values, sharpness, kappa)
        return features, labels


def kernel(features: Tensor, keys: Tensor, sharpness: Tensor | float) -> Tensor:
    """exp(−β (1 − x·f)) (B, N) of features (B, e) and keys (N, e).

    The exponent is at most 0 for keys of length 1. For keys that a sampler has moved far it is bounded.
    """
    return (sharpness * (features @ keys.mT - 1)).clamp(max=LARGEST_EXPONENT).exp()
