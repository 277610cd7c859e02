"""The few-shot rule against the published lists, and the base/novel rule against the published counts."""

import hashlib
import json
from pathlib import Path

import pytest
from PIL import Image

from rebapl.data.dataset import Dataset, Item
from rebapl.data.task import base_novel, few_shot, load_task
from rebapl.errors import UserError

SPLITS = {
    "caltech101": "Caltech101",
    "dtd": "DescribableTextures",
    "eurosat": "EuroSAT",
    "oxford_flowers": "OxfordFlowers",
    "oxford_pets": "OxfordPets",
    "stanford_cars": "StanfordCars",
    "ucf101": "UCF101",
}


def toy(train_per_class: int = 6) -> Dataset:
    def items(split: str, count: int) -> list[Item]:
        return [Item(f"{split}/{name}/{i}", label, name) for label, name in enumerate("ab") for i in range(count)]

    def load(key: str):
        raise AssertionError(f"no image is needed to choose items, but {key} was loaded")

    return Dataset("toy", "a {}.", items("train", train_per_class), items("val", 5), items("test", 3), load)


@pytest.mark.shared
@pytest.mark.parametrize("name", SPLITS)
def test_equals_the_published_lists(shared: Path, name: str) -> None:
    expected = json.loads((shared / "splits/few_shot_expected.json").read_text())[name]
    raw = json.loads((shared / f"splits/split_zhou_{SPLITS[name]}.json").read_text())
    splits = {split: [Item(*entry) for entry in raw[split]] for split in ("train", "val", "test")}
    dataset = Dataset(name, "{}", splits["train"], splits["val"], splits["test"], load=Image.open)
    assert len(expected) == 6
    for case, values in expected.items():
        shots, seed = (int(word) for word in case.replace("-shot seed", "").split())
        for split, items in zip(("train", "val"), few_shot(dataset, shots, seed), strict=True):
            digest = hashlib.sha256("\n".join(sorted(item.key for item in items)).encode()).hexdigest()
            assert len(items) == values[split]
            assert digest == values[f"{split}_sha256"], f"{name} {case} {split}"


def test_takes_shots_of_each_class_and_at_most_four_for_val() -> None:
    train, val = few_shot(toy(), shots=5, seed=1)
    assert [item.label for item in train] == [0] * 5 + [1] * 5
    assert [item.label for item in val] == [0] * 4 + [1] * 4
    assert few_shot(toy(), 5, seed=1) == few_shot(toy(), 5, seed=1) != few_shot(toy(), 5, seed=2)


def test_takes_all_where_there_are_fewer() -> None:
    train, _ = few_shot(toy(train_per_class=3), shots=16, seed=1)
    assert len(train) == 6


def test_refuses_no_shots() -> None:
    with pytest.raises(UserError, match="shots = 0"):
        few_shot(toy(), shots=0, seed=1)


def test_refuses_a_data_set_for_testing_only() -> None:
    with pytest.raises(UserError, match="'toy' has no training images"):
        few_shot(toy(train_per_class=0), shots=1, seed=1)


@pytest.mark.parametrize(
    ("classes", "base", "novel"),
    [(1000, 500, 500), (100, 50, 50), (37, 19, 18), (101, 51, 50), (397, 199, 198), (47, 24, 23), (10, 5, 5)],
)
def test_first_half_is_base(classes: int, base: int, novel: int) -> None:
    first, rest = base_novel([str(i) for i in range(classes)])
    assert (len(first), len(rest)) == (base, novel)
    assert first + rest == list(range(classes))


def test_no_half_may_be_one_class() -> None:
    """There every answer would be right."""
    assert base_novel(["a", "b", "c", "d"]) == ([0, 1], [2, 3])
    with pytest.raises(UserError, match=r"two classes each, so four in all; there are 3: .*--protocol few-shot"):
        base_novel(["a", "b", "c"])


def test_relabels_from_zero() -> None:
    novel = load_task("digits", shots=1).tests["novel"]
    assert {(item.label, item.class_name) for item in novel.items} == set(enumerate(novel.class_names))
    assert novel.class_names == ["five", "six", "seven", "eight", "nine"]


def test_labels_with_a_gap_are_refused() -> None:
    items = [Item("a", 0, "cat"), Item("b", 2, "dog")]
    with pytest.raises(UserError, match=r"labels of data set 'gap' are not 0 … 1: \[0, 2\]"):
        _ = Dataset("gap", "{}", items, [], [], load=Image.open).class_names
