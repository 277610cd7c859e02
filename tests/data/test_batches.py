"""Mini-batches: what is drawn follows the seed and the step alone, by whichever way the pixels come."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from rebapl.data.batches import FeatureBatches, LabelledImages, TrainBatches
from rebapl.data.dataset import Dataset, Item
from rebapl.data.resident import LONGEST_SIDE, fits
from rebapl.data.task import load_task
from rebapl.data.transforms import Preprocessing, largest_box, random_box
from rebapl.randomness import generator, python_random

PREPROCESSING = Preprocessing(resize=32, crop=32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))
SCALE = (0.08, 1.0)
FEATURES, LABELS = torch.arange(14.0).view(7, 2), torch.arange(7)
SIZES = [(40, 30), (30, 55), (64, 64), (20, 20), (150, 28), (31, 90), (32, 32), (9, 13), (77, 50), (50, 77)]


def some_images(min_crop: float = 0.0, flip: bool = True) -> LabelledImages:
    """Ten noise pictures of ten sizes in three classes."""

    def load(key: str) -> Image.Image:
        width, height = SIZES[int(key)]
        return Image.fromarray(np.random.default_rng(int(key)).integers(0, 256, (height, width, 3)).astype(np.uint8))

    items = tuple(Item(str(index), index % 3, f"class {index % 3}") for index in range(len(SIZES)))
    return LabelledImages(Dataset("noise", "{}.", items, items, items, load, min_crop, flip), items)


def by_hand(
    data: LabelledImages, batch: int, seed: int, step: int, scale: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """One image after the other by Pillow alone."""
    epoch, place = divmod(step, len(data) // batch)
    order = torch.randperm(len(data), generator=generator(seed, "order", epoch)).tolist()
    rng = python_random(seed, "augmentation", step)
    chosen = order[place * batch : (place + 1) * batch]
    views = []
    for row in chosen:
        image = data.dataset.load(data.items[row].key)
        view = image.crop(random_box(*image.size, scale, rng)).resize((32, 32), Image.Resampling.BICUBIC)
        if data.dataset.flip and rng.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        views.append(torch.from_numpy(np.array(view)).permute(2, 0, 1))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (PREPROCESSING.mean, PREPROCESSING.std))
    return (torch.stack(views).float() / 255 - mean) / std, data.labels[chosen]


WAYS = {
    "at once": {"resident": False, "ahead": 0},
    "ahead": {"resident": False, "ahead": 3},
    "resident": {"resident": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("min_crop", "flip"), [(0.0, True), (0.5, False)])
def test_every_way_gives_the_same_pictures_to_the_bit(way: str, min_crop: float, flip: bool) -> None:
    data = some_images(min_crop, flip)
    batches = TrainBatches(data, PREPROCESSING, 4, SCALE, 7, **WAYS[way])
    assert (batches.resident is not None) == (way == "resident")
    for step in (0, 1, 2, 3, 4, 5, 11, 3, 40):
        images, labels = batches(step)
        wanted, wanted_labels = by_hand(data, 4, 7, step, (max(min_crop, 0.08), 1.0))
        assert torch.equal(images, wanted)
        assert torch.equal(labels, wanted_labels)


@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_shows_each_image_once_and_the_next_in_another_order(way: str) -> None:
    batches = TrainBatches(some_images(), PREPROCESSING, 5, SCALE, 1, **WAYS[way])
    assert batches.steps_per_epoch == 2
    epochs = [torch.cat([batches.choices(2 * epoch + place)[:, 0] for place in range(2)]).tolist() for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]
    assert Counter(torch.cat([batches(step)[1] for step in range(2)]).tolist()) == {0: 4, 1: 3, 2: 3}


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    images, labels = TrainBatches(some_images(), PREPROCESSING, 64, SCALE, 1)(3)
    assert images.shape == (10, 3, 32, 32)
    assert sorted(labels.tolist()) == sorted(index % 3 for index in range(10))


def test_labels_can_be_changed_without_harm() -> None:
    batches = TrainBatches(some_images(), PREPROCESSING, 4, SCALE, 1, resident=True)
    before = batches(0)[1].clone()
    batches(0)[1].zero_()
    assert torch.equal(batches(0)[1], before)


def test_resident_images_are_dropped_from_memory_and_read_again_for_views() -> None:
    data = some_images()
    whole = data.views(PREPROCESSING)
    assert data._images is None
    TrainBatches(data, PREPROCESSING, 4, SCALE, 1, resident=True)
    assert data._images is None
    assert torch.equal(data.views(PREPROCESSING, [4, 2]), whole[[4, 2]])
    assert torch.equal(whole[4], PREPROCESSING.centre(data.images[4]))


@pytest.mark.parametrize("first_use", ["views", "training"])
def test_an_image_that_cannot_be_read_is_an_error_at_once(first_use: str) -> None:
    def load(key: str) -> Image.Image:
        if key == "6":
            raise OSError("image 6 is broken")
        return Image.new("RGB", (20, 20))

    items = tuple(Item(str(index), 0, "thing") for index in range(10))
    data = LabelledImages(Dataset("broken", "{}.", items, (), (), load), items)
    with pytest.raises(OSError, match="image 6 is broken"):
        data.views(PREPROCESSING) if first_use == "views" else TrainBatches(data, PREPROCESSING, 4, SCALE, 1)


def test_drawing_in_threads_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebapl.data.workers.cores", lambda: 4)
    task = load_task("shapes", shots=1, seed=1)
    found = LabelledImages(task.dataset, task.train.items).images
    for image, item in zip(found, task.train.items, strict=True):
        assert image.tobytes() == task.dataset.load(item.key).tobytes()


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.02, 0.3), (1.0, 1.0)])
def test_no_box_is_larger_than_the_largest(scale: tuple[float, float]) -> None:
    rng = random.Random(0)
    for width, height in [(64, 64), (400, 20), (20, 400), (300, 200), (7, 5), (1, 1), (1, 90)]:
        widest, highest = largest_box(width, height, scale)
        boxes = [random_box(width, height, scale, rng) for _ in range(500)]
        wide, high = (max(box[side + 2] - box[side] for box in boxes) for side in (0, 1))
        assert wide <= widest <= width
        assert high <= highest <= height


def test_images_stay_on_a_device_only_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [Image.new("RGB", (100, 100))] * 10
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 0))
    free = 100_000_000
    assert fits(images, PREPROCESSING, SCALE, 4, "cuda")
    assert not fits([Image.new("RGB", (LONGEST_SIDE + 1,) * 2)], PREPROCESSING, SCALE, 1, "cuda")
    assert not fits(images, Preprocessing(32, 32, (0.5,) * 3, (0.5,) * 3, Image.Resampling.LANCZOS), SCALE, 4, "cuda")
    free = 1_000_000
    assert not fits(images, PREPROCESSING, SCALE, 4, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("way", [*WAYS, "default"])
def test_a_gpu_sees_the_same_pictures_and_nothing_waits_for_it(way: str) -> None:
    data = some_images()
    batches = TrainBatches(data, PREPROCESSING, 4, SCALE, 7, "cuda", **WAYS.get(way, {}))
    assert (batches.resident is not None) == (way in ("resident", "default"))
    batches(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [batches(step) for step in range(6)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for step, (images, labels) in enumerate(found):
        wanted, wanted_labels = by_hand(data, 4, 7, step, SCALE)
        assert images.device.type == labels.device.type == "cuda"
        torch.testing.assert_close(images.cpu(), wanted, atol=1e-6, rtol=0)  # a level is 0.013
        assert torch.equal(labels.cpu(), wanted_labels)


@pytest.mark.gpu
def test_drawing_can_be_captured_and_replayed() -> None:
    batches = TrainBatches(some_images(), PREPROCESSING, 4, SCALE, 7, "cuda", resident=True)
    choices = batches.choices(0).cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        batches.draw(choices)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        images, labels = batches.draw(choices)
    for step in (5, 2):
        choices.copy_(batches.choices(step), non_blocking=True)
        graph.replay()
        wanted, wanted_labels = batches(step)
        assert torch.equal(images, wanted)
        assert torch.equal(labels, wanted_labels)


def test_a_batch_of_features_with_room_for_all_has_all_in_their_order() -> None:
    batches = FeatureBatches(FEATURES, LABELS, 100, seed=1)
    assert (batches.batch, batches.steps_per_epoch) == (7, 1)
    for step in (0, 5):
        features, labels = batches(step)
        assert torch.equal(features, FEATURES)
        assert torch.equal(labels, LABELS)


def test_an_epoch_sees_each_feature_once_and_epochs_differ() -> None:
    batches = FeatureBatches(FEATURES, LABELS, 3, seed=1)
    assert batches.steps_per_epoch == 2
    epochs = [torch.cat([batches(2 * epoch + step)[1] for step in range(2)]).tolist() for epoch in range(3)]
    assert all(len(set(seen)) == 6 for seen in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    features, labels = batches(3)
    assert torch.equal(features, FEATURES[labels]), "features and labels stay together"
    again = FeatureBatches(FEATURES, LABELS, 3, seed=1)
    assert torch.equal(again(3)[1], labels), "a pure function of seed and step"
    other = FeatureBatches(FEATURES, LABELS, 3, seed=2)
    assert [other(step)[1].tolist() for step in range(4)] != [again(step)[1].tolist() for step in range(4)]
