"""Which images are held out, so that all of them are learned from in the end."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from drawn_folder import class_folders

from rebapl.data.catalogue import load_dataset
from rebapl.data.checking import copy_remarks
from rebapl.data.folds import ENOUGH, folded, folds_for
from rebapl.data.task import load_task
from rebapl.errors import UserError


def test_every_image_is_held_out_once_and_every_class_is_always_learned(tmp_path: Path) -> None:
    data = load_dataset(str(class_folders(tmp_path, cat=7, dog=2, emu=1)), whole=True)
    parts = [folded(data, fold) for fold in folds_for(data)]
    assert len(parts) == 3
    tested = Counter(item for part in parts for item in part.test)
    assert set(tested.values()) == {1}
    assert {item.key for item in data.train} - {item.key for item in tested} == {"emu/0.png"}  # its class's only image
    for part in parts:
        assert not set(part.train) & set(part.test)
        assert set(part.train) | set(part.test) == set(data.train)
        assert {item.class_name for item in part.train} == {"cat", "dog", "emu"}
    assert max(len(part.test) for part in parts) - min(len(part.test) for part in parts) <= 1
    assert not (tmp_path / "split_rebapl.json").exists()


def test_how_images_are_measured_on_depends_on_how_many_there_are(tmp_path: Path) -> None:
    few = load_dataset(str(class_folders(tmp_path / "few", cat=1, dog=1)), whole=True)
    two = load_dataset(str(class_folders(tmp_path / "two", cat=2, dog=1)), whole=True)
    assert (folds_for(few), folds_for(two)) == ([], ["1/2", "2/2"])
    many = load_dataset(str(class_folders(tmp_path / "many", cat=3 * ENOUGH // 2, dog=3 * ENOUGH // 2)), whole=True)
    assert folds_for(many) == ["1/3"]
    own = class_folders(tmp_path / "own" / "train", cat=2, dog=2).parent
    class_folders(own / "test", cat=1, dog=1)
    assert folds_for(load_dataset(str(own), whole=True)) == ["test"]


@pytest.mark.parametrize("fold", ["2", "0/3", "4/3", "1/1", "none"])
def test_a_word_that_is_no_fold_is_refused(fold: str) -> None:
    with pytest.raises(UserError, match="write a part such as 2/5"):
        load_task("digits", protocol="few-shot", fold=fold)


def test_a_fold_that_would_have_no_effect_is_refused() -> None:
    with pytest.raises(UserError, match="is for the protocol few-shot"):
        load_task("digits", fold="1/3")


def test_a_fold_without_images_is_refused(tmp_path: Path) -> None:
    dataset = load_dataset(str(class_folders(tmp_path, cat=2, dog=2)), whole=True)
    with pytest.raises(UserError, match="has no test images of its own: choose a fold such as 1/3"):
        folded(dataset, "test")
    with pytest.raises(UserError, match="no images in fold 9/9: choose a fold of fewer parts"):
        folded(dataset, "9/9")


def test_copies_of_a_photo_are_one_image_and_never_on_both_sides(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", cat=7, dog=5)
    plain = load_dataset(str(photos), whole=True)
    assert plain.copies() == []
    expected = {fold: {item.key for item in folded(plain, fold).test} for fold in folds_for(plain)}
    for original in ("cat/0.png", "cat/1.png", "dog/0.png"):
        shutil.copy(photos / original, (photos / original).with_suffix(".copy.png"))
    dataset = load_dataset(str(photos), whole=True)
    contents = {item.key: (photos / item.key).read_bytes() for item in dataset.items}
    for fold in folds_for(dataset):
        part = folded(dataset, fold)
        tested = [contents[item.key] for item in part.test]
        assert len(set(tested)) == len(tested), "each photo is asked once"
        assert not {contents[item.key] for item in part.train} & set(tested)
        assert {contents[key] for key in expected[fold]} == set(tested), "the parts are those without the copies"
    assert len(folded(dataset, "all").train) == 15
    assert copy_remarks(dataset) == [
        "images that lie in their class several times; each counts once in estimates: 3 (cat/0.copy.png = cat/0.png, "
        "cat/1.copy.png = cat/1.png, dog/0.copy.png = dog/0.png)"
    ]
    shutil.copy(photos / "cat/2.png", photos / "dog/like a cat.png")
    assert copy_remarks(load_dataset(str(photos), whole=True))[1:] == [
        "images that lie in several classes: 1 (cat/2.png = dog/like a cat.png)"
    ]
    only = class_folders(tmp_path / "only", cat=1, dog=1)
    shutil.copy(only / "cat/0.png", only / "cat/1.png")
    assert folds_for(load_dataset(str(only), whole=True)) == [], "two copies are no two images"


def test_copies_of_test_images_are_not_trained_on_where_these_are_asked(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos" / "train", cat=3, dog=3).parent
    class_folders(photos / "test", cat=2, dog=2)
    shutil.copy(photos / "test/cat/0.png", photos / "train/cat/copy.png")
    dataset = load_dataset(str(photos), whole=True)
    part = folded(dataset, "test")
    train, test = ({(photos / item.key).read_bytes() for item in items} for items in (part.train, part.test))
    assert (len(dataset.train), len(test)) == (7, 4)
    assert not train & test


def test_a_class_whose_training_images_are_all_copies_of_its_test_images_is_still_learned(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos" / "test", cat=2, dog=1, emu=1).parent
    class_folders(photos / "train", emu=2)
    for photo in ("cat/0.png", "cat/1.png", "dog/0.png"):
        (photos / "train" / photo).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / "test" / photo, photos / "train" / photo)
    dataset = load_dataset(str(photos), whole=True)
    assert folds_for(dataset) == ["test"]
    part = folded(dataset, "test")
    assert [item.key for item in part.test] == ["test/cat/1.png", "test/emu/0.png"], "one of each class is left"
    assert {item.class_name for item in part.train} == {"cat", "dog", "emu"}
    contents = [{(photos / item.key).read_bytes() for item in items} for items in (part.train, part.test)]
    assert not contents[0] & contents[1]
    for folder in ("train", "test"):
        shutil.rmtree(photos / folder / "emu")
        (photos / folder / "cat" / "1.png").unlink()
    assert folds_for(load_dataset(str(photos), whole=True)) == [], "no class has two images"
