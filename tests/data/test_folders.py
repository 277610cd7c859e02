"""Any folder as a data set: read as it lies, split once by the stated rule, refused where it is not clear."""

import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from drawn_folder import class_folders, draw
from drawn_published import make_fixture
from PIL import Image

from rebapl.data import dataset as dataset_module
from rebapl.data.catalogue import load_dataset
from rebapl.data.own_images import SPLIT_FILE, has_classes, is_flat, passed_over
from rebapl.data.task import load_task
from rebapl.errors import UserError
from rebapl.files import NotWrittenError

as_training_does = partial(load_dataset, keep_split=True)


def keys(items) -> list[str]:
    return [item.key for item in items]


def test_split_folders_are_read_as_they_lie(tmp_path: Path) -> None:
    draw(tmp_path / "train/wild dog/b/3.jpg", tmp_path / "train/wild dog/.hidden/4.jpg")
    for part, count in (("train", 3), ("val", 1), ("test", 2)):
        class_folders(tmp_path / part, **{"wild dog": count, "ñandú_bird": count})
    (tmp_path / "train" / "ñandú_bird" / "notes.txt").write_text("not an image")
    dataset = load_dataset(str(tmp_path))
    assert dataset.class_names == ["wild dog", "ñandú_bird"]
    assert keys(dataset.train)[:4] == [f"train/wild dog/{name}" for name in ("0.png", "1.png", "2.png", "b/3.jpg")]
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (7, 2, 4)
    assert dataset.load(dataset.test[3].key).size == (10, 8)
    assert (dataset.name, dataset.template, dataset.folder) == (tmp_path.name, "a photo of a {}.", tmp_path)
    assert not (tmp_path / SPLIT_FILE).exists()


def test_hidden_images_beside_class_folders_change_nothing(tmp_path: Path) -> None:
    """macOS writes a file such as `._x.jpg` for each file that it copies to a disk of another system."""
    for part in ("train", "test"):
        class_folders(tmp_path / part, cat=3, dog=3)
        draw(tmp_path / part / "._x.jpg", tmp_path / part / "cat" / "._0.jpg")
    dataset = load_dataset(str(tmp_path))
    assert dataset.class_names == ["cat", "dog"]
    assert (len(dataset.train), len(dataset.test)) == (6, 6)
    assert passed_over(tmp_path / "train") == ""
    assert has_classes(tmp_path / "train")
    (tmp_path / "flat").mkdir()
    draw(tmp_path / "flat" / "._x.jpg")
    assert not is_flat(tmp_path / "flat")


def test_class_folders_are_split_once_by_the_rule(tmp_path: Path) -> None:
    class_folders(tmp_path, cat=20, dog=3, emu=5)
    dataset = as_training_does(str(tmp_path))
    counts = [Counter(item.class_name for item in items) for items in (dataset.train, dataset.val, dataset.test)]
    assert counts == [
        {"cat": 10, "dog": 1, "emu": 2},  # the rest
        {"cat": 4, "dog": 1, "emu": 1},  # 20 %, at least one
        {"cat": 6, "dog": 1, "emu": 2},  # 30 %, at least one
    ]
    everything = keys((*dataset.train, *dataset.val, *dataset.test))
    assert sorted(everything) == sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*.png"))
    written = json.loads((tmp_path / SPLIT_FILE).read_text())
    assert [tuple(entry) for entry in written["test"]] == list(dataset.test)
    kept = (tmp_path / SPLIT_FILE).stat().st_mtime_ns
    assert as_training_does(str(tmp_path)).test == dataset.test
    assert (tmp_path / SPLIT_FILE).stat().st_mtime_ns == kept
    (tmp_path / SPLIT_FILE).unlink()
    assert as_training_does(str(tmp_path)).test == dataset.test  # the rule gives the same again


def test_reading_writes_no_split_and_finds_the_same(tmp_path: Path) -> None:
    class_folders(tmp_path, cat=4, dog=4)
    before = sorted(tmp_path.rglob("*"))
    read = load_dataset(str(tmp_path)).splits, load_task(str(tmp_path), protocol="few-shot").dataset.splits
    assert sorted(tmp_path.rglob("*")) == before
    assert read == (as_training_does(str(tmp_path)).splits,) * 2


def test_a_kept_split_is_used_even_if_the_rule_says_otherwise(tmp_path: Path) -> None:
    class_folders(tmp_path, cat=4, dog=4)
    as_training_does(str(tmp_path))
    content = json.loads((tmp_path / SPLIT_FILE).read_text())
    content["train"], content["test"] = content["test"], content["train"]
    (tmp_path / SPLIT_FILE).write_text(json.dumps(content))
    assert [list(item) for item in as_training_does(str(tmp_path)).train] == content["train"]


def test_a_split_is_announced_when_it_is_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class_folders(tmp_path, cat=4, dog=4)
    as_training_does(str(tmp_path))
    assert caplog.messages == [f"images split into train : val : test = 4 : 2 : 2, kept in {tmp_path / SPLIT_FILE}"]
    as_training_does(str(tmp_path))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("lies", ["class folders", "split folders"])
def test_a_split_that_was_named_must_be_there(tmp_path: Path, lies: str) -> None:
    """A slip of the pen must not make another split."""
    for place in (tmp_path,) if lies == "class folders" else (tmp_path / "train", tmp_path / "test"):
        class_folders(place, cat=4, dog=4)
    with pytest.raises(UserError, match=r"there is no split file .*my_splt\.json"):
        as_training_does(str(tmp_path), split="my_splt.json")
    assert not list(tmp_path.glob("*.json"))


def test_images_that_came_or_went_after_the_split_are_named(tmp_path: Path) -> None:
    class_folders(tmp_path, cat=4, dog=4)
    as_training_does(str(tmp_path))
    draw(tmp_path / "cat" / "new.png")
    with pytest.raises(
        UserError, match=rf"1 images are new .*cat/new.png. Take .*, remove .*{SPLIT_FILE} to split anew"
    ):
        as_training_does(str(tmp_path))
    assert len(as_training_does(str(tmp_path), split=SPLIT_FILE).train) == 4  # asked for as it is
    (tmp_path / "cat" / "new.png").rename(tmp_path / "cat" / "0.png")
    assert as_training_does(str(tmp_path)).train
    (tmp_path / "cat" / "0.png").unlink()
    with pytest.raises(UserError, match=r"1 images of the split are gone: cat/0\.png"):
        as_training_does(str(tmp_path))


def test_names_and_template_from_files(tmp_path: Path) -> None:
    class_folders(tmp_path, **{"n01": 3, "n01 b": 3, "other": 3})
    (tmp_path / "classnames.txt").write_text("n99 unused\nn01 b\tgiant panda\nother\nn01   red fox\n", encoding="utf-8")
    (tmp_path / "template.txt").write_text("a sketch of a {}.\n")
    dataset = as_training_does(str(tmp_path))
    assert dataset.class_names == ["red fox", "giant panda", "other"]
    assert dataset.template == "a sketch of a {}."
    assert as_training_does(str(tmp_path), template="{}!").template == "{}!"
    (tmp_path / "classnames.txt").write_text("n01 fox\nn01 b panda\nother other\n")
    with pytest.raises(UserError, match="has another name or number in the split"):
        as_training_does(str(tmp_path))
    (tmp_path / "classnames.txt").write_text("n01 fox\n")
    with pytest.raises(UserError, match="no line for n01 b, other"):
        as_training_does(str(tmp_path))
    (tmp_path / "classnames.txt").write_text("n01 fox\nn01 b Fox\nother x\n")
    with pytest.raises(UserError, match="'Fox' is given twice"):
        as_training_does(str(tmp_path))
    (tmp_path / "classnames.txt").unlink()
    (tmp_path / "template.txt").write_text("no place\n")
    (tmp_path / SPLIT_FILE).unlink()
    with pytest.raises(UserError, match=r"template\.txt must have one line"):
        as_training_does(str(tmp_path))


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path / "photos", cat=4, dog=4)
    elsewhere = tmp_path / "mine" / "split.json"
    write = dataset_module.write_atomically

    def read_only(path: Path, content: str) -> None:
        if path.parent == tmp_path / "photos":
            raise NotWrittenError(path, "Permission denied")
        write(path, content)

    monkeypatch.setattr(dataset_module, "write_atomically", read_only)
    with pytest.raises(UserError, match=r"split_rebapl.json, which cannot be written .*Permission denied.*split="):
        as_training_does(str(tmp_path / "photos"))
    made = as_training_does(str(tmp_path / "photos"), split=str(elsewhere))
    assert elsewhere.is_file()
    assert as_training_does(str(tmp_path / "photos"), split=str(elsewhere)) == made


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    class_folders(tmp_path, train=3, plane=3)
    assert load_dataset(str(tmp_path)).class_names == ["plane", "train"]


def test_linked_folders_inside_a_class_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    class_folders(tmp_path / "disk", more=2)
    photos = class_folders(tmp_path / "photos", cat=1, dog=3)
    (photos / "cat" / "on another disk").symlink_to(tmp_path / "disk" / "more")
    (photos / "cat" / "circle").symlink_to(photos / "cat")
    found = load_dataset(str(photos), whole=True).train
    assert [item.key for item in found if item.class_name == "cat"] == [
        "cat/0.png",
        "cat/on another disk/0.png",
        "cat/on another disk/1.png",
    ]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "no class folders"),
        (["1.png"], "no class folders"),
        (["cat/1.png", "cat/2.png", "dog/1.png"], "class 'cat' has 2 images: a split needs at least 3"),
        (["cat/1.txt.png", "cat/2.png", "cat/3.png", "dog/x.tiff/"], "class folder .*dog has no images"),
        (["big_cat/1.png", "big cat/1.png"], "given twice"),
        (["train/cat/1.png", "train/dog/1.png"], "has train/ but no test/"),
        (["train/cat/1.png", "val/cat/1.png"], "if val/ is what is to be tested on, rename it"),
        (["train/cat/1.png", "test/cat/1.png", "valid/cat/1.png"], "has valid beside train/ and test/"),
        (["train/cat/1.png", "train/dog/1.png", "test/cat/1.png"], "lacks class folders that train/ has: dog"),
        (["train/cat/1.png", "test/cat/1.png", "test/dog/1.png"], "that train/ has not: dog"),
    ],
)
def test_what_is_not_clear_is_said(tmp_path: Path, images: list[str], message: str) -> None:
    for image in images:
        (tmp_path / image).mkdir(parents=True) if image.endswith("/") else draw(tmp_path / image)
    with pytest.raises(UserError, match=message):
        load_dataset(f"{tmp_path}/")


def test_a_name_in_another_encoding_is_named(tmp_path: Path) -> None:
    class_folders(tmp_path, cat=3, **{os.fsdecode(b"caf\xe9"): 3})
    with pytest.raises(UserError, match=r"'caf\\udce9/0.png' is not valid Unicode: rename"):
        load_dataset(str(tmp_path))


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    for name in (str(tmp_path / "nothing"), "nothing.csv"):
        with pytest.raises(UserError, match="no such folder or CSV file"):
            load_dataset(name)


def test_embedded_tasks_have_no_split_file_but_take_a_template() -> None:
    assert load_dataset("digits", template="{}.").template == "{}."
    with pytest.raises(UserError, match="'digits' is embedded"):
        load_dataset("digits", split="x.json")


def test_own_photos_are_upright_and_published_images_as_they_are_stored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90°
    turned = Image.new("RGB", (6, 4))
    class_folders(tmp_path / "own", cat=3, dog=3)
    turned.save(tmp_path / "own" / "cat" / "0.png", exif=exif)
    assert load_dataset(str(tmp_path / "own")).load("cat/0.png").size == (4, 6)
    turned.save(make_fixture("eurosat", tmp_path) / "2750" / "River" / "River_1.jpg", exif=exif)
    assert load_dataset("eurosat", tmp_path).load("River/River_1.jpg").size == (6, 4)


def test_folders_that_say_so_are_no_class(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class_folders(tmp_path, cat=3, dog=3)
    for name, mark in (("runs/photos-coop-s1", ".nomedia"), ("best", ".nomedia"), ("emu", "config.json")):
        draw(tmp_path / name / "diversity.png", tmp_path / name / "a.png", tmp_path / name / "b.png")
        (tmp_path / name / mark).touch()
    assert load_dataset(str(tmp_path), keep_split=True).class_names == ["cat", "dog", "emu"]
    assert f"{tmp_path}: passed over, since .nomedia in them says that they hold no images: best, runs" in caplog.text
    for part in ("train", "test"):
        class_folders(tmp_path / "split" / part, cat=1, dog=1)
    (tmp_path / "split" / "runs").mkdir()
    (tmp_path / "split" / "runs" / ".photos-coop-s1.lock").touch()  # a run has begun
    assert load_dataset(str(tmp_path / "split")).class_names == ["cat", "dog"]
    class_folders(tmp_path / "sports", runs=3, jumps=3)
    assert load_dataset(str(tmp_path / "sports")).class_names == ["jumps", "runs"]
    (tmp_path / "sports" / "runs" / "best").mkdir()
    (tmp_path / "sports" / "runs" / "best" / ".nomedia").touch()  # a class, and a run that lies in it
    assert load_dataset(str(tmp_path / "sports")).class_names == ["jumps", "runs"]
