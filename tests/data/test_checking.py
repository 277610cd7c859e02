"""What `check_dataset` finds: everything in order, or each thing that is not."""

import json
from pathlib import Path

import pytest
from drawn_folder import class_folders
from drawn_published import make_fixture

from rebapl.data.catalogue import load_dataset
from rebapl.data.checking import check_dataset
from rebapl.data.published import PUBLISHED


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "split", "images"),
    [("eurosat", "split_subset_EuroSAT.json", 1594), ("caltech101", "split_subset_Caltech101.json", 4915)],
)
def test_real_files_are_complete(shared: Path, name: str, split: str, images: int) -> None:
    seen: list[tuple[int, int]] = []
    report = check_dataset(name, shared / "data", split=split, progress=lambda *count: seen.append(count))
    assert report.ok, report.problems
    assert f"all {images} images can be read" in report.fine
    assert "class names are those of the files" in report.fine
    assert seen[-1] == (images, images)


@pytest.fixture
def eurosat(tmp_path: Path) -> Path:
    return make_fixture("eurosat", tmp_path)


def problems(root: Path, **options: object) -> str:
    report = check_dataset("eurosat", root, **options)  # type: ignore[arg-type]
    assert not report.ok
    return "\n".join(report.problems)


def test_a_missing_split_says_where_to_get_it(eurosat: Path) -> None:
    (eurosat / "split_zhou_EuroSAT.json").unlink()
    report = check_dataset("eurosat", eurosat.parent)
    assert report.problems == [f"{eurosat / 'split_zhou_EuroSAT.json'} is missing"]
    (note,) = report.notes  # the images are there, so that nothing is said of them
    assert "split_zhou_EuroSAT.json: linked in DATASETS.md" in note


def test_missing_images_are_counted(eurosat: Path) -> None:
    for name in ("River/River_1.jpg", "River/River_4.jpg"):
        (eurosat / "2750" / name).unlink()
    found = problems(eurosat.parent)
    assert "1 of 20 train images are missing: River/River_1.jpg" in found
    assert "1 of 10 test images are missing: River/River_4.jpg" in found


def test_unreadable_images_are_named(eurosat: Path) -> None:
    (eurosat / "2750" / "River" / "River_1.jpg").write_bytes(b"")
    (eurosat / "2750" / "Forest" / "Forest_1.jpg").write_bytes(b"nothing")
    found = problems(eurosat.parent)
    assert "2 images cannot be read" in found
    assert "River_1.jpg cannot be read as an image (the file is empty)" in found
    assert check_dataset("eurosat", eurosat.parent, read=False).ok


def test_a_wrong_class_name_is_noticed(eurosat: Path) -> None:
    file = eurosat / "split_zhou_EuroSAT.json"
    file.write_text(file.read_text().replace("Sea or Lake", "Sea"))
    assert "4 class names are not those of the files: SeaLake/SeaLake_1.jpg is Sea or Lake, not Sea" in problems(
        eurosat.parent
    )


@pytest.mark.parametrize(("name", "word"), [("stanford_cars", "Coupe"), ("oxford_flowers", "lily")])
def test_wrong_names_where_other_files_have_them(tmp_path: Path, name: str, word: str) -> None:
    folder = make_fixture(name, tmp_path)
    file = folder / PUBLISHED[name].lists[0]
    raw = json.loads(file.read_text())
    changed = {part: [[k, n, c.replace(word, "x") if n == 3 else c] for k, n, c in raw[part]] for part in raw}
    file.write_text(json.dumps(changed))
    (problem,) = check_dataset(name, tmp_path, read=False).problems
    assert problem.startswith("1 class names are not those of the files: class 3 is")


def test_images_in_no_split_and_scarce_classes_are_noted(tmp_path: Path) -> None:
    make_fixture("caltech101", tmp_path)
    (tmp_path / "caltech-101" / "101_ObjectCategories" / "circle").symlink_to(tmp_path / "caltech-101")
    notes = "\n".join(check_dataset("caltech101", tmp_path, read=False).notes)
    assert "more images below" in notes
    assert "(100 of 100 classes)" in notes


def test_own_folders_too(tmp_path: Path) -> None:
    class_folders(tmp_path, cat=4, dog=4)
    assert check_dataset(str(tmp_path)).ok
    load_dataset(str(tmp_path), keep_split=True)
    (tmp_path / "cat" / "0.png").write_bytes(b"x")
    assert "1 images cannot be read" in check_dataset(str(tmp_path)).problems[0]
    (tmp_path / "cat" / "0.png").unlink()
    assert "are gone: cat/0.png" in check_dataset(str(tmp_path)).problems[0]


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_a_check_writes_nothing(tmp_path: Path, kind: str) -> None:
    class_folders(tmp_path, cat=4, dog=4)
    (tmp_path / "cat" / "0.png").write_bytes(b"broken")
    if kind == "csv":
        rows = [f"{name}/{number}.png,{name}" for name in ("cat", "dog") for number in range(4)]
        (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    before = sorted(tmp_path.rglob("*"))
    report = check_dataset(str(tmp_path / "list.csv" if kind == "csv" else tmp_path))
    assert "0.png cannot be read" in report.problems[0]
    assert sorted(tmp_path.rglob("*")) == before
