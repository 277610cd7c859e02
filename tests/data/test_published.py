"""The catalogue against the protocols, and all fifteen loaders on drawn files and on the real ones there are."""

import json
import re
from pathlib import Path

import pytest
from drawn_published import make_fixture

from rebapl.data.catalogue import load_dataset
from rebapl.data.checking import check_dataset
from rebapl.data.published import NAME_RULES, PUBLISHED, place_last, year_first
from rebapl.data.task import few_shot
from rebapl.errors import UserError

# name: (train, val, test images, a train or test key, its label, its class name)
DRAWN = {
    "imagenet": (2000, 0, 1000, "train/n01000000/n01000000_1.JPEG", 0, "zero zero zero"),
    "caltech101": (200, 100, 100, "Faces/image_0001.jpg", 1, "face"),
    "oxford_pets": (74, 37, 37, "Zero_three_1.jpg", 3, "zero_three"),
    "stanford_cars": (392, 196, 196, "cars_train/00003.jpg", 1, "2011 Zero Zero One Coupe"),
    "oxford_flowers": (204, 102, 102, "image_00001.jpg", 76, "zero seven six lily"),
    "food101": (202, 101, 101, "zero_zero_one/1000003.jpg", 1, "zero_zero_one"),
    "fgvc_aircraft": (200, 100, 100, "0000003.jpg", 1, "F/A-18"),
    "sun397": (794, 397, 397, "z/zero_zero_one/indoor/sun_0000000000000003.jpg", 1, "indoor zero_zero_one"),
    "dtd": (94, 47, 47, "zero-one/zero-one_0001.jpg", 1, "zero-one"),
    "eurosat": (20, 10, 10, "SeaLake/SeaLake_1.jpg", 9, "Sea or Lake"),
    "ucf101": (202, 101, 101, "Zero_Zero_One/v_ZeroZeroOne_g01_c01.jpg", 1, "Zero_Zero_One"),
    "imagenetv2": (0, 0, 1000, f"837/{837:040x}.jpeg", 837, "sunglasses"),
    "imagenet_sketch": (0, 0, 1000, "n01001013/n01001013_1.JPEG", 1, "zero zero one"),
    "imagenet_a": (0, 0, 200, "n01005065/n01005065_5.jpg", 1, "zero zero five"),
    "imagenet_r": (0, 0, 200, "n01005065/n01005065_5.jpg", 1, "zero zero five"),
}


def test_all_fifteen_are_there() -> None:
    assert sorted(DRAWN) == sorted(PUBLISHED)
    assert len(PUBLISHED) == 15


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_data_set_is_read_in_its_published_layout(tmp_path: Path, name: str) -> None:
    *counts, key, label, class_name = DRAWN[name]
    entry = PUBLISHED[name]
    make_fixture(name, tmp_path)
    dataset = load_dataset(name, tmp_path)
    assert [len(dataset.train), len(dataset.val), len(dataset.test)] == counts
    assert len(dataset.class_names) == entry.classes
    (item,) = [item for item in (*dataset.train, *dataset.test) if item.key == key]
    assert (item.label, item.class_name) == (label, class_name)
    assert dataset.load(key).size == (16, 16)
    report = check_dataset(name, tmp_path, read=entry.classes < 1000)
    assert report.ok, report.problems
    assert ("class names are those of the files" in report.fine) == (entry.layout == "split")
    assert any(note.startswith("the published split has") for note in report.notes)
    assert (dataset.name, dataset.template, dataset.folder) == (
        name,
        entry.template,
        tmp_path / entry.folder / entry.images,
    )
    if dataset.train:
        assert [item.label for item in few_shot(dataset, 1, seed=1)[0]] == list(
            dict.fromkeys(item.label for item in dataset.train)
        )
    for needed in entry.lists:
        made_up = "" if needed == "classnames.txt" else r"Splits are never made up\."
        (tmp_path / entry.folder / needed).rename(tmp_path / "away")
        with pytest.raises(UserError, match=f"{entry.title} is not complete .*{needed}.*To get it: .*{made_up}$"):
            load_dataset(name, tmp_path)
        (tmp_path / "away").rename(tmp_path / entry.folder / needed)


@pytest.mark.shared
def test_folders_templates_and_class_counts_are_those_of_the_protocols(shared: Path) -> None:
    page = (shared / "reference" / "protocols.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) \| (\S+).* \| (.*\{\}.*) \|$", page, re.MULTILINE)
    assert len(rows) == 15
    by_title = {entry.title: entry for entry in PUBLISHED.values()}
    for title, folder, template in rows:
        entry = by_title[title]
        assert template == entry.template
        first = re.sub(r"\{(\w+),.*", r"\1", folder.rstrip(","))  # one of "images/{train,val}"
        assert Path(entry.folder, entry.images) in (Path(first), Path(first).parent)
    halves = re.findall(r"(\w+) (\d+)/(\d+)", page.split("## Base and novel")[1].split("##")[0])
    assert len(halves) == 11
    for title, base, novel in halves:
        assert by_title[title].classes == int(base) + int(novel)


@pytest.mark.shared
def test_counts_are_those_of_the_published_files(shared: Path) -> None:
    for entry in PUBLISHED.values():
        file = shared / "splits" / entry.lists[0]
        if file.is_file():
            raw = json.loads(file.read_text())
            assert [len(raw[part]) for part in ("train", "val", "test")] == entry.counts


@pytest.fixture(scope="module")
def imagenets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for name in ("imagenet", "imagenet_a"):
        make_fixture(name, root)
    return root


def test_the_published_list_repeats_two_names(imagenets: Path) -> None:
    names = load_dataset("imagenet", imagenets).class_names
    assert sorted({name for name in names if names.count(name) > 1}) == ["missile", "sunglasses"]


def test_items_are_sorted_by_class_and_path(imagenets: Path) -> None:
    train = load_dataset("imagenet", imagenets).train
    assert list(train) == sorted(train, key=lambda item: (item.label, item.key))


def test_variants_may_use_the_list_of_imagenet(imagenets: Path) -> None:
    own = imagenets / "imagenet-adversarial" / "classnames.txt"
    names = load_dataset("imagenet_a", imagenets).class_names
    own.unlink()
    assert load_dataset("imagenet_a", imagenets).class_names == names


def test_missing_and_strange_class_folders_are_named(imagenets: Path) -> None:
    train = imagenets / "imagenet" / "images" / "train"
    (train / "n01001013").rename(train / "n99999999")
    with pytest.raises(UserError, match=r"lacks class folders of classnames.txt: n01001013"):
        load_dataset("imagenet", imagenets)
    (train / "n99999999").rename(train / "n01001013")
    (train / "extra").mkdir()
    with pytest.raises(UserError, match=r"does not name: extra"):
        load_dataset("imagenet", imagenets)
    (train / "extra").rmdir()


def test_a_class_folder_too_few_is_noticed(imagenets: Path) -> None:
    place = imagenets / "imagenet-adversarial" / "imagenet-a"
    (place / "n01005065").rename(imagenets / "away")
    with pytest.raises(UserError, match="has 199 classes; ImageNet-A has 200"):
        load_dataset("imagenet_a", imagenets)
    (imagenets / "away").rename(place / "n01005065")


def test_a_split_without_a_class_is_not_the_published_one(tmp_path: Path) -> None:
    folder = make_fixture("eurosat", tmp_path)
    file = folder / "split_zhou_EuroSAT.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps({part: [e for e in items if e[1] < 9] for part, items in raw.items()}))
    with pytest.raises(UserError, match=r"has 9 classes; EuroSAT has 10: see `rebapl data list eurosat`"):
        load_dataset("eurosat", tmp_path)
    file.rename(folder / "mine.json")
    assert len(load_dataset("eurosat", tmp_path, split="mine.json").class_names) == 9  # asked for


def test_an_unknown_aircraft_is_named(tmp_path: Path) -> None:
    folder = make_fixture("fgvc_aircraft", tmp_path)
    with (folder / "images_variant_val.txt").open("a") as file:
        file.write("0000001 Paper Plane\n")
    with pytest.raises(UserError, match=r"images_variant_val.txt, line 101: '0000001 Paper Plane' is not"):
        load_dataset("fgvc_aircraft", tmp_path)


def test_where_the_root_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REBAPL_DATA", raising=False)
    with pytest.raises(UserError, match=r"--root DIR .*REBAPL_DATA.*DIR/eurosat/2750"):
        load_dataset("eurosat")
    with pytest.raises(UserError, match=r"nowhere is not a folder"):
        load_dataset("eurosat", tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no .*eurosat/2750\. To get it: images: github.com/phelber/EuroSAT"):
        load_dataset("eurosat", tmp_path)
    make_fixture("eurosat", tmp_path)
    monkeypatch.setenv("REBAPL_DATA", str(tmp_path))
    assert len(load_dataset("eurosat").train) == 20
    assert load_dataset("eurosat", template="seen from above: {}.").template == "seen from above: {}."
    with pytest.raises(UserError, match=r"template 'no place'"):
        load_dataset("eurosat", template="no place")
    with pytest.raises(UserError, match=r"no split file .*eurosat/other\.json"):
        load_dataset("eurosat", split="other.json")
    with pytest.raises(UserError, match="did you mean 'eurosat'"):
        load_dataset("eurosta")


def test_other_files_in_imagenet_s_class_folders_are_passed_over(tmp_path: Path) -> None:
    place = make_fixture("imagenet_a", tmp_path) / "imagenet-a" / "n01005065"
    before = len(load_dataset("imagenet_a", tmp_path).test)
    (place / "Thumbs.db").write_bytes(b"x")
    assert len(load_dataset("imagenet_a", tmp_path).test) == before
    (place / "n01005065_5.jpg").unlink()
    with pytest.raises(UserError, match=r"n01005065 \(zero zero five\) has no images"):
        load_dataset("imagenet_a", tmp_path)


def test_another_list_of_a_published_data_set_may_repeat_a_name_too(tmp_path: Path) -> None:
    folder = make_fixture("imagenet_a", tmp_path)
    test = [[f"n0100{n}/n0100{n}_{k}.jpg", label, "missile"] for label, (n, k) in enumerate(((5065, 5), (0, 0)))]
    (folder / "two.json").write_text(json.dumps({"train": [], "val": [], "test": test}))
    assert load_dataset("imagenet_a", tmp_path, split="two.json").class_names == ["missile", "missile"]


@pytest.mark.shared
@pytest.mark.parametrize("name", ["caltech101", "dtd", "eurosat", "oxford_pets", "ucf101"])
def test_paths_give_the_published_names(shared: Path, name: str) -> None:
    raw = json.loads((shared / "splits" / PUBLISHED[name].lists[0]).read_text())
    entries = [entry for items in raw.values() for entry in items]
    assert len({label for _, label, _ in entries}) == PUBLISHED[name].classes
    for key, _, published in entries:
        assert NAME_RULES[name](key) == published


def test_rules_without_a_published_file_here() -> None:
    assert year_first("AM General Hummer SUV 2000") == "2000 AM General Hummer SUV"
    assert place_last("t/theater/indoor_procenium") == "indoor_procenium theater"
    assert NAME_RULES["sun397"]("a/apartment_building/outdoor/sun_x.jpg") == "outdoor apartment_building"
    assert NAME_RULES["sun397"]("a/abbey/sun_x.jpg") == "abbey"
    assert NAME_RULES["food101"]("apple_pie/1005649.jpg") == "apple_pie"
    assert NAME_RULES["caltech101"]("BACKGROUND_Google/image_0001.jpg") is None
    assert NAME_RULES["eurosat"]("Desert/Desert_1.jpg") is None
    assert "stanford_cars" not in NAME_RULES
