"""Batches of features: all of them at once, or each once per epoch in an order of its own."""

import torch

from rebapl.data.feature_batches import FeatureBatches

FEATURES, LABELS = torch.arange(14.0).view(7, 2), torch.arange(7)


def test_a_batch_with_room_for_all_has_all_in_their_order() -> None:
    batches = FeatureBatches(FEATURES, LABELS, 100, seed=1, fingerprint="")
    assert (batches.batch, batches.steps_per_epoch) == (7, 1)
    for step in (0, 5):
        features, labels = batches(step)
        assert torch.equal(features, FEATURES)
        assert torch.equal(labels, LABELS)


def test_an_epoch_sees_each_once_and_epochs_differ() -> None:
    batches = FeatureBatches(FEATURES, LABELS, 3, seed=1, fingerprint="")
    assert batches.steps_per_epoch == 2
    epochs = [torch.cat([batches(2 * epoch + step)[1] for step in range(2)]).tolist() for epoch in range(3)]
    assert all(len(set(seen)) == 6 for seen in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    features, labels = batches(3)
    assert torch.equal(features, FEATURES[labels]), "features and labels stay together"
    again = FeatureBatches(FEATURES, LABELS, 3, seed=1, fingerprint="")
    assert torch.equal(again(3)[1], labels), "a pure function of seed and step"
    other = FeatureBatches(FEATURES, LABELS, 3, seed=2, fingerprint="")
    assert [other(step)[1].tolist() for step in range(4)] != [again(step)[1].tolist() for step in range(4)]
