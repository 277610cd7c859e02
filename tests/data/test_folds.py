"""Which images are held out, so that all of them are learned from in the end."""

from collections import Counter
from pathlib import Path

import pytest
from drawn_folder import class_folders

from rebapl.data.catalogue import load_dataset
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
