import hashlib
from collections import Counter

import numpy as np
import pytest

from rebapl.data.embedded import EMBEDDED, PER_CLASS, shape_classes

DRAWN = [name for name in EMBEDDED if name != "digits"]
SHAPES = [name for name in DRAWN if name != "letters"]


@pytest.fixture(scope="module")
def tasks():
    return {name: task() for name, task in EMBEDDED.items()}


def pixels(data, item):
    return np.asarray(data.load(item.key))


CHECKSUMS = {
    "digits": "4cd72b185ef4301e",
    "shapes": "235439d9a7e91b12",
    "shapes-sketch": "4bf22edbafbd61a0",
    "shapes-inverted": "5437ec728189d8c5",
    "shapes-lowlight": "fb7eda04ade72a66",
    "shapes-rotated": "13682f5e1a72c278",
    "letters": "4ae63ac8f81ea984",
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_pictures_are_those_that_all_published_scores_were_measured_on(tasks, name):
    """Found the same with NumPy 2.2 and 2.4, Pillow 12.3 and 13.0, on x86-64 Linux, over all pictures of all tasks."""
    data = tasks[name]
    some = [split[round(share * (len(split) - 1))] for split in (data.train, data.test) for share in (0, 0.3, 0.6, 1)]
    found = hashlib.sha256(b"".join(pixels(data, item).tobytes() for item in some)).hexdigest()[:16]
    assert found == CHECKSUMS[name], (
        f"the pictures of '{name}' have changed: if the code that draws them is the same, then NumPy's random streams, "
        "Pillow's drawing or scikit-learn's digits have; scores are not comparable with earlier ones"
    )


@pytest.mark.parametrize("name", ["digits", "shapes", "letters"])
def test_every_class_draws_and_no_image_comes_twice(tasks, name):
    data = tasks[name]
    per_class = {}
    for split in (data.train, data.test):
        for item in split:
            per_class.setdefault((split is data.train, item.label), []).append(item)
    some = [item for items in per_class.values() for item in items[:3]]
    assert len(per_class) == 2 * len(data.class_names)
    assert len({pixels(data, item).tobytes() for item in some}) == len(some)


@pytest.mark.parametrize("name", EMBEDDED)
def test_splits_share_no_key_and_hold_every_class(tasks, name):
    data = tasks[name]
    keys = [item.key for split in (data.train, data.val, data.test) for item in split]
    assert len(set(keys)) == len(keys)
    for split in (data.train, data.val, data.test):
        assert {(item.label, item.class_name) for item in split} == set(enumerate(data.class_names))
    assert data.template.count("{}") == 1


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_tasks_have_equally_many_images_of_each_class(tasks, name):
    for part, count in PER_CLASS.items():
        assert set(Counter(item.label for item in getattr(tasks[name], part)).values()) == {count}


def test_digits_are_all_of_scikit_learns_split_alike_in_every_class(tasks):
    data = tasks["digits"]
    assert data.class_names == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    splits = [Counter(item.label for item in split) for split in (data.train, data.val, data.test)]
    assert sum(map(len, (data.train, data.val, data.test))) == 1797
    for label in range(10):
        counts = np.array([split[label] for split in splits])
        assert counts / counts.sum() == pytest.approx([0.5, 0.2, 0.3], abs=0.02)


def test_a_digit_is_its_scan_enlarged(tasks):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    item = tasks["digits"].test[100]
    index = int(item.key.split("/")[-1])
    assert bunch.target[index] == item.label
    middle = pixels(tasks["digits"], item)[16:48, 16:48, 0]
    assert middle[::4, ::4] / 255 * 16 == pytest.approx(bunch.images[index], abs=0.05)
    assert np.array_equal(middle, np.kron(middle[::4, ::4], np.ones((4, 4))))


def test_both_halves_of_the_shapes_hold_every_attribute_equally_often_in_new_combinations():
    classes = [tuple(name.split()) for name in shape_classes()]
    assert len(set(classes)) == len(classes) == 48
    halves = classes[:24], classes[24:]
    for attribute, kinds in enumerate((6, 4, 8)):
        for half in halves:
            counts = Counter(words[attribute] for words in half)
            assert len(counts) == kinds
            assert set(counts.values()) == {24 // kinds}
    pairs = [{(colour, shape) for colour, _, shape in half} for half in halves]
    assert not pairs[0] & pairs[1]


def test_all_shapes_tasks_have_the_same_classes_and_keys_but_other_images(tasks):
    plain = tasks["shapes"]
    for name in SHAPES[1:]:
        assert tasks[name].class_names == plain.class_names
        assert list(tasks[name].test) == list(plain.test)
        assert not np.array_equal(pixels(tasks[name], plain.test[0]), pixels(plain, plain.test[0]))
