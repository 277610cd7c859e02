"""The protocols: which images are learned from and which are tested, without loading any."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_published import make_fixture
from PIL import Image

from rebapl.data.catalogue import DATASETS, Made
from rebapl.data.dataset import Dataset, Item
from rebapl.data.task import PROTOCOLS, TARGETS, load_task, part_names, targets_of
from rebapl.errors import UserError
from rebapl.learners import METHODS, published


def never(key: str) -> Image.Image:
    raise AssertionError(f"no image is needed to choose items, but {key} was loaded")


def toy(classes: int = 7, val: int = 5) -> Dataset:
    def items(split: str, count: int) -> list[Item]:
        return [Item(f"{split}/{n}/{i}", n, f"class {n}") for n in range(classes) for i in range(count)]

    return Dataset("toy", "a {}.", items("train", 6), items("val", val), items("test", 3), never)


def splits(part) -> set[str]:
    return {item.key.split("/")[0] for item in part.items}


def test_base_to_novel_halves_the_classes() -> None:
    task = load_task(toy(), shots=2)
    assert [len(task.tests[name].class_names) for name in ("base", "novel")] == [4, 3]
    assert splits(task.train) == {"train"}
    assert splits(task.tests["novel"]) == {"test"}
    assert {item.label for item in task.tests["novel"].items} == {0, 1, 2}


def test_selection_sees_no_test_image_and_no_novel_class() -> None:
    task = load_task(toy(), shots=2, protocol="selection")
    assert task.train.class_names == ["class 0", "class 1"]
    assert task.tests["base"].class_names == ["class 0", "class 1"]
    assert task.tests["novel"].class_names == ["class 2", "class 3"]
    for part in task.tests.values():
        assert splits(part) == {"val"}
        assert Counter(item.label for item in part.items) == {0: 5, 1: 5}  # all of them, not the few-shot ones
    for part in (task.train, task.val, *task.tests.values()):
        assert not {item.class_name for item in part.items} & {"class 4", "class 5", "class 6"}


def test_selection_trains_on_the_few_shot_images_of_base_to_novel() -> None:
    whole, half = (load_task(toy(), 2, 1, protocol).train.items for protocol in ("base-to-novel", "selection"))
    assert {item.key for item in half} < {item.key for item in whole}


@pytest.mark.parametrize(("data", "message"), [(toy(6), "needs seven classes"), (toy(val=0), "no validation images")])
def test_selection_needs_classes_and_validation_images(data: Dataset, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_task(data, protocol="selection")


@pytest.mark.parametrize("protocol", TARGETS)
def test_transfer_tests_the_source_and_every_target_with_its_own_names_and_template(protocol: str) -> None:
    task = load_task("digits", shots=2, protocol=protocol, targets=["shapes", "letters"], test_images=30)
    assert list(task.tests) == ["test", "shapes", "letters"] == part_names(protocol, "digits", ["shapes", "letters"])
    assert len(task.train.class_names) == 10
    shapes = task.tests["shapes"]
    assert shapes.dataset.name == "shapes"
    assert shapes.class_names == shapes.dataset.class_names
    assert shapes.dataset.load(shapes.items[0].key).size[0] > 0
    assert [len(part.items) for part in task.tests.values()] == [30, 30, 30]
    assert task.tests["test"].dataset is task.dataset is task.train.dataset


def test_a_target_may_carry_a_split_file(tmp_path: Path) -> None:
    make_fixture("dtd", tmp_path)
    split = json.loads((tmp_path / "dtd" / "split_zhou_DescribableTextures.json").read_text())
    few = {part: [each for each in items if each[1] < 10] for part, items in split.items()}
    (tmp_path / "dtd" / "few.json").write_text(json.dumps(few))
    whole, half = (
        load_task("digits", 2, 1, "cross-dataset", root=tmp_path, targets=[target]).tests["dtd"]
        for target in ("dtd", "dtd=few.json")
    )
    assert [item.key for item in half.items] == [item.key for item in whole.items if item.label < 10]
    assert half.class_names == whole.class_names[:10]
    assert (whole.split, half.split) == (None, "few.json")
    assert part_names("cross-dataset", "digits", ["dtd=few.json"]) == ["test", "dtd"]
    with pytest.raises(UserError, match="each once"):
        targets_of("cross-dataset", "digits", ["dtd", "dtd=few.json"])
    with pytest.raises(UserError, match="trained on"):
        targets_of("cross-dataset", "dtd", ["dtd=few.json"])


def test_the_published_targets() -> None:
    assert len(targets_of("cross-dataset", "imagenet")) == 10
    assert len(targets_of("domain-generalization", "imagenet")) == 4
    mixed = [key.partition("/")[2] for key in METHODS["mmrl++"].recipes.variants if key.startswith("cross-dataset/")]
    assert set(mixed) == {"imagenet", *TARGETS["cross-dataset"]}  # spelled as the methods spell them
    assert published("mmrl++", "domain-generalization", TARGETS["domain-generalization"][1])[0]["mix"] == 0.7


@pytest.mark.parametrize(
    ("protocol", "data", "targets", "message"),
    [
        ("cross-datset", "digits", None, "did you mean 'cross-dataset'"),
        ("cross-dataset", "digits", None, "name the data sets to test on"),
        ("cross-dataset", "digits", [], "name at least one"),
        ("cross-dataset", "digits", ["shapes", "shapes"], "each once"),
        ("cross-dataset", "digits", ["digits"], "is the data set trained on"),
        ("few-shot", "digits", ["shapes"], "has no targets"),
        ("cross-dataset", "digits", ["shape"], "did you mean 'shapes'"),
    ],
)
def test_targets_that_make_no_sense_are_refused(protocol: str, data: str, targets, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_task(data, protocol=protocol, targets=targets)


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name not in TARGETS])
def test_part_names_are_those_of_the_task(protocol: str) -> None:
    assert part_names(protocol, "toy") == list(load_task(toy(), protocol=protocol).tests)


@pytest.mark.parametrize("protocol", ["base-to-novel", "few-shot"])
def test_one_class_is_no_task(protocol: str) -> None:
    with pytest.raises(UserError, match="has one class, 'class 0'"):
        load_task(toy(1), protocol=protocol)


def test_a_target_without_test_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS.known, "untested", Made("untested", lambda: replace(toy(), test=[]), "registered"))
    with pytest.raises(UserError, match="target 'untested' has no test images"):
        load_task("digits", protocol="cross-dataset", targets=["untested"])


def test_no_test_images_are_refused() -> None:
    with pytest.raises(UserError, match="test_images = 0"):
        load_task(toy(), test_images=0)
