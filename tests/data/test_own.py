"""Images and labels given directly, without files that list them."""

from pathlib import Path

import numpy as np
import pytest
from drawn_folder import draw
from PIL import Image

from rebapl.data.catalogue import load_dataset
from rebapl.data.dataset import Dataset
from rebapl.data.own_images import dataset_of
from rebapl.data.task import task_of
from rebapl.errors import UserError

GREY = np.full((4, 6), 7, np.uint8)
COLOUR = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)


def test_paths_pillow_images_and_arrays_may_be_mixed(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    draw(file)
    data = dataset_of([file, str(file), Image.fromarray(GREY), GREY, COLOUR], np.array([0, 1, 1, 0, 1]), ["cat", "dog"])
    loaded = [data.load(item.key) for item in data.train]
    assert [image.mode for image in loaded] == ["RGB"] * 5
    assert loaded[0].tobytes() == loaded[1].tobytes() == Image.open(file).convert("RGB").tobytes()
    assert np.array_equal(np.asarray(loaded[3]), np.stack([GREY] * 3, axis=2))
    assert np.array_equal(np.asarray(loaded[4]), COLOUR)
    assert [(item.label, item.class_name) for item in data.train] == [
        (label, ("cat", "dog")[label]) for label in (0, 1, 1, 0, 1)
    ]
    assert data.class_names == ["cat", "dog"]
    assert (list(data.val), list(data.test), data.template, data.name) == ([], [], "a photo of a {}.", "images")


@pytest.mark.parametrize(
    ("images", "labels", "names", "message"),
    [
        ([GREY] * 3, [0, 1], ["cat", "dog"], "3 images and 2 labels"),
        ([GREY] * 2, [0, 2], ["cat", "dog"], "label 1 is 2: labels are the numbers 0 … 1"),
        ([GREY] * 2, [0, -1], ["cat", "dog"], "label 1 is -1"),
        ([GREY] * 2, [0, "dog"], ["cat", "dog"], "label 1 is 'dog'"),
        ([GREY] * 2, [0, 1.0], ["cat", "dog"], r"label 1 is 1\.0"),
        ([GREY] * 2, [0, 0], ["cat", "dog"], "no image has the label of class dog"),
        ([GREY] * 2, [0, 1], ["cat", "Cat"], "is given twice"),
        ([GREY, GREY / 255], [0, 1], ["cat", "dog"], "image 1 is float64 of shape"),
        ([GREY, COLOUR.transpose(2, 0, 1)], [0, 1], ["cat", "dog"], r"image 1 is uint8 of shape \(3, 4, 6\)"),
        ([GREY, None], [0, 1], ["cat", "dog"], "image 1 is a NoneType"),
        ([GREY, GREY[:0]], [0, 1], ["cat", "dog"], r"image 1 of shape \(0, 6\) has no pixels"),
        ([GREY] * 2, [0, 1], [0, 1], r"class_names is \[0, 1\]: give a list of names"),
        ([GREY] * 3, [0, 1, 2], "cat", "class_names is 'cat': give a list of names"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(images, labels, names, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        dataset_of(images, labels, names)
    assert "\n" not in str(raised.value)


def test_a_template_needs_a_gap_for_the_class_name() -> None:
    with pytest.raises(UserError, match="must hold"):
        dataset_of([GREY, GREY], [0, 1], ["cat", "dog"], template="a photo")


def test_a_missing_file_is_named_when_it_is_read(tmp_path: Path) -> None:
    data = dataset_of([tmp_path / "gone.png", GREY], [0, 1], ["cat", "dog"])
    with pytest.raises(UserError, match=r"gone\.png: no such image"):
        data.load(data.train[0].key)


def nine() -> Dataset:
    return dataset_of([COLOUR] * 9, [0, 1, 2] * 3, ["cat", "dog", "emu"])


def test_a_task_of_a_data_set_trains_on_all_its_images_and_classes() -> None:
    task = task_of(nine(), seed=3)
    assert list(task.train.items) == list(nine().train)
    assert list(task.train.class_names) == ["cat", "dog", "emu"]
    assert (list(task.val.items), dict(task.tests), task.shots, task.seed) == ([], {}, 3, 3)


def test_a_task_may_take_a_few_images_of_each_class_and_tests_where_it_can() -> None:
    task = task_of(load_dataset("digits"), shots=2)
    assert len(task.train.items) == 20
    assert task.shots == 2
    assert len(task.tests["test"].items) == 531
