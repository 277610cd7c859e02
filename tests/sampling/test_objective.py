"""The cloud of a step consists of rows of the cloud that is stored for the same parameters."""

from __future__ import annotations

import pytest
import torch

from rebapl.sampling.objective import ReferencePool

from .toy import ToyLearner, batches, data


@pytest.mark.parametrize("keep", [None, 1])
@pytest.mark.parametrize("space", ["image", "text", "both", "logits", "weights"])
def test_a_steps_cloud_is_the_stored_cloud_at_its_points(space, keep):
    learner = ToyLearner()
    images, labels = batches(0)
    n = None if space in ("text", "weights") else 6
    reference = ReferencePool(learner, space, data()[0][:20], n, images[:1], keep, chunk=7)
    chosen = reference.choose(torch.Generator().manual_seed(0))
    loss, cloud, points = reference.compared(images, labels, chosen)
    stored = reference.stored()
    torch.testing.assert_close(cloud, stored if points is None else stored[points])
    torch.testing.assert_close(loss, learner.loss(learner(images), labels))
    sizes = {"image": 20, "logits": 20, "text": 3, "both": 23, "weights": 1}
    assert len(stored) == sizes[space]
    assert reference.shape == stored.shape
    assert len(chosen) == (space not in ("text", "weights")) + (keep is not None)
    assert keep is None or len(cloud) == keep


def test_the_kept_rows_are_of_either_kind_in_turn():
    """Six of twenty images and three classes make nine rows, of which two are compared."""
    images, labels = batches(0)
    reference = ReferencePool(ToyLearner(), "both", data()[0][:20], 6, images[:1], 2)
    generator, seen = torch.Generator().manual_seed(0), set()
    for _ in range(60):
        _, cloud, points = reference.compared(images, labels, reference.choose(generator))
        assert len(cloud) == len(points.unique()) == 2
        seen |= set(points.tolist())
    assert seen == set(range(23))
