"""A CSV file as a data set."""

from pathlib import Path

import pytest
from drawn_folder import draw

from rebapl.data.catalogue import load_dataset
from rebapl.data.own_images import has_classes, own_rows
from rebapl.errors import UserError

WITH_SPLITS = """\ufeffPath,Label,Split
"a, b.png",wild cat,train
ü/1.png,dog,train
./2.png,dog,test
3.png,wild cat,test

4.png,dog,val
"""


def write(folder: Path, text: str) -> str:
    (folder / "list.csv").write_text(text, encoding="utf-8")
    return str(folder / "list.csv")


def test_rows_are_read_in_their_order(tmp_path: Path) -> None:
    draw(tmp_path / "a, b.png", tmp_path / "ü" / "1.png")
    dataset = load_dataset(write(tmp_path, WITH_SPLITS))
    assert dataset.class_names == ["dog", "wild cat"]
    assert [tuple(item) for item in dataset.train] == [("a, b.png", 1, "wild cat"), ("ü/1.png", 0, "dog")]
    assert [item.key for item in dataset.test] == ["2.png", "3.png"]
    assert [item.key for item in dataset.val] == ["4.png"]
    assert dataset.load("a, b.png").size == dataset.load("ü/1.png").size == (10, 8)
    assert (dataset.name, dataset.folder) == ("list", tmp_path)


@pytest.mark.parametrize("header", ["path,label", " Path , Label ", '"path","label"'])
def test_a_list_with_labels_has_classes_however_its_header_is_written(tmp_path: Path, header: str) -> None:
    (tmp_path / "list.csv").write_text(f"{header}\na.png,cat\nb.png,dog\n")
    assert list(own_rows(tmp_path / "list.csv")[1]) == ["cat", "dog"]
    assert has_classes(tmp_path / "list.csv")


def test_without_splits_one_is_made_and_kept(tmp_path: Path) -> None:
    rows = [f"{number}.png,{name}" for name in ("cat", "dog") for number in range(10 * len(name), 10 * len(name) + 5)]
    rows += ["50.png,cat", "51.png,cat", "52.png,dog", "53.png,dog"]
    rows = list(dict.fromkeys(f"{name}/{row}" for row in rows for name in [row.split(",")[1]]))
    given = write(tmp_path, "path,label\n" + "\n".join(rows) + "\n")
    dataset = load_dataset(given, keep_split=True)
    assert (tmp_path / "list.split.json").is_file()
    assert len(dataset.train) + len(dataset.val) + len(dataset.test) == len(rows)
    assert load_dataset(given).test == dataset.test
    write(tmp_path, "path,label\n" + "\n".join(rows[1:]) + "\n")
    with pytest.raises(UserError, match="1 images of the split are gone"):
        load_dataset(given)


def test_numbers_that_skip_are_named_and_renumbered(tmp_path: Path) -> None:
    given = write(
        tmp_path, "path,label,split\n" + "".join(f"{n}{s},{n},{s}\n" for n in (10, 2, 7) for s in ("train", "test"))
    )
    with pytest.raises(UserError, match=r"labels in .*list.csv are numbers: write names, or .*classnames.txt"):
        load_dataset(given)
    (tmp_path / "classnames.txt").write_text("2 cat\n7 dog\n10 fox\n")
    dataset = load_dataset(given)
    assert dataset.class_names == ["cat", "dog", "fox"]
    assert [(item.key, item.label) for item in dataset.train] == [("10train", 2), ("2train", 0), ("7train", 1)]


def test_another_split_replaces_that_of_the_file_only_if_it_is_there(tmp_path: Path) -> None:
    given = write(tmp_path, WITH_SPLITS)
    with pytest.raises(UserError, match=r"there is no split file .*other\.json"):
        load_dataset(given, split=str(tmp_path / "other.json"))
    (tmp_path / "other.json").write_text('{"train": [["2.png", 0, "a"]], "val": [], "test": [["3.png", 0, "a"]]}')
    assert load_dataset(given, split="other.json").class_names == ["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin with the line path,label"),
        ("file,class\na.png,cat\n", "must begin with the line path,label"),
        ("path,label\n", "lists no images"),
        ("path,label\na.png\n", "line 2"),
        ("path,label\na.png, \n", "line 2"),
        ("path,label\na.png,cat\n./a.png,dog\n", "line 3: a.png is listed already in line 2"),
        ("path,label\n../a.png,cat\n", "line 2: path '../a.png' leads outside"),
        ("path,label\n/tmp/a.png,cat\n", "line 2: path '/tmp/a.png' leads outside"),
        ("path,label,split\na.png,cat,training\n", r"unknown split in .*line 2, 'training': did you mean 'train'"),
        ("path,label,split\na.png,cat,train\nb.png,cat,\n", "line 3 has no split, but others have"),
        ("path,label,split\na.png,cat,train\n", "has no test images"),
        ("path,label,split\na.png,cat,test\n", "lists no training images"),
        ("path,label,split\na.png,cat,train\nb.png,dog,test\n", "no train image of dog"),
        ("path,label,split\na.png,big_cat,train\nb.png,big cat,test\n", "given twice"),
        ("path,label\na.png,cat\nb.png,cat\n", "class 'cat' has 2 images"),
        ('path,label\n"a.png,cat\n', "cannot be read"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_dataset(write(tmp_path, text))


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes("path,label\nü.png,cat\n".encode("latin-1"))
    with pytest.raises(UserError, match="UTF-8"):
        load_dataset(str(tmp_path / "list.csv"))
