"""Mini-batches of features that were encoded once: what heads are trained on."""

from __future__ import annotations

from torch import Tensor

from rebapl.data.batches import epoch_order


class FeatureBatches:
    """`batches(step)` gives features (B, e) and labels (B,) of that step, as `TrainBatches` gives images.

    If a batch has room for all of them, each step has all, in their order. Otherwise each epoch goes through them in a
    new random order, which depends on the seed and the epoch alone, and an incomplete last batch is dropped.
    `fingerprint` identifies the images that the features are of.
    """

    def __init__(self, features: Tensor, labels: Tensor, batch: int, seed: int, fingerprint: str) -> None:
        self.features, self.labels = features, labels
        self.batch = min(batch, len(labels))
        self.seed, self.fingerprint = seed, fingerprint

    @property
    def steps_per_epoch(self) -> int:
        return len(self.labels) // self.batch

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        if self.batch == len(self.labels):
            return self.features, self.labels
        epoch, number = divmod(step, self.steps_per_epoch)
        rows = epoch_order(self.seed, epoch, len(self.labels))[number * self.batch : (number + 1) * self.batch]
        rows = rows.to(self.features.device, non_blocking=True)
        return self.features[rows], self.labels[rows]
