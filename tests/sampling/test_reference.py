"""The clouds of a step are rows of what is remembered of the same parameters."""

from __future__ import annotations

import pytest
import torch

from rebapl.sampling.reference import Reference

from .toy import ToyLearner, batches, data


@pytest.mark.parametrize("space", ["image", "text", "both", "logits", "weights"])
def test_a_steps_cloud_is_the_stored_cloud_at_its_points(space):
    learner = ToyLearner()
    images, labels = batches(0)
    reference = Reference(learner, space, data()[0][:20], 6, images[:1], chunk=7)
    rows = reference.choose(torch.Generator().manual_seed(0))
    loss, cloud, points = reference.objective(images, labels, rows)
    stored = reference.stored()
    torch.testing.assert_close(cloud, stored if points is None else stored[points])
    torch.testing.assert_close(loss, learner.loss(learner(images), labels))
    sizes = {"image": 20, "logits": 20, "text": 3, "both": 23, "weights": 1}
    assert len(stored) == sizes[space]
    assert reference.shape == stored.shape
    assert (rows is None) == (space in ("text", "weights"))
