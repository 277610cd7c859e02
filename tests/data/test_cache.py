"""The cache of images on disk: the same pictures, made once, made anew when the file changed, shared between runs."""

import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rebapl.data.batches import LabelledImages
from rebapl.data.cache import cache_contents, cache_folder, cached
from rebapl.data.catalogue import load_dataset
from rebapl.data.dataset import Dataset, Item
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError

SIZES = {"cats/a cat.png": (90, 60), "cats/ø.png": (50, 200), "dogs/small.png": (20, 31)}


def noise(size: tuple[int, int], seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8))


class Counting:
    """Opens files and counts how often each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: Counter[str] = Counter()

    def __call__(self, key: str) -> Image.Image:
        self.opened[key] += 1
        try:
            with Image.open(self.folder / key) as image:
                return image.convert("RGB")
        except FileNotFoundError as error:
            raise UserError(f"{key}: no such image") from error


@pytest.fixture
def photos(tmp_path: Path) -> Dataset:
    folder = tmp_path / "photos"
    for seed, (key, size) in enumerate(SIZES.items()):
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        noise(size, seed).save(folder / key)
    items = tuple(Item(key, index, key) for index, key in enumerate(SIZES))
    return Dataset("my photos", "{}.", items, (), items, Counting(folder), folder=folder)


def opened(dataset: Dataset) -> Counter[str]:
    assert isinstance(dataset.load, Counting)
    return dataset.load.opened


def test_images_come_shrunk_and_are_decoded_once(photos: Dataset, tmp_path: Path) -> None:
    small = cached(photos, 40, tmp_path / "cache")
    assert (small.name, small.train, small.template, small.folder) == ("my photos", photos.train, "{}.", photos.folder)
    for _ in range(3):
        for key in SIZES:
            image = small.load(key)
            assert image.mode == "RGB"
            wanted = {"cats/a cat.png": (60, 40), "cats/ø.png": (40, 160), "dogs/small.png": (20, 31)}[key]
            with Image.open(photos.folder / key) as original:  # type: ignore[operator]
                assert np.array_equal(image, original.resize(wanted, Image.Resampling.BICUBIC))
    assert opened(photos) == dict.fromkeys(SIZES, 1)


def test_cached_files_are_pictures_that_anyone_can_open(photos: Dataset, tmp_path: Path) -> None:
    small = cached(photos, 40, tmp_path / "cache")
    image = small.load("cats/a cat.png")
    (file,) = (tmp_path / "cache").rglob("*.ppm")
    assert file.name == "a cat.png.ppm"
    assert file.parts[-3].startswith("my_photos-40px-")
    with Image.open(file) as again:
        assert np.array_equal(again, image)


def test_a_size_another_folder_and_another_name_have_entries_of_their_own(photos: Dataset, tmp_path: Path) -> None:
    cache, key = tmp_path / "cache", "cats/a cat.png"
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "cats").mkdir(parents=True)
    noise((90, 60), 9).save(elsewhere / key)
    other = replace(photos, folder=elsewhere, load=Counting(elsewhere))
    images = [cached(each, size, cache).load(key) for each, size in ((photos, 40), (photos, 30), (other, 40))]
    assert [image.size for image in images] == [(60, 40), (45, 30), (60, 40)]
    assert not np.array_equal(images[0], images[2])
    assert [entry.images for entry in cache_contents(cache)] == [1, 1, 1]


@pytest.mark.parametrize("change", ["content", "date"])
def test_a_changed_file_is_read_again(photos: Dataset, tmp_path: Path, change: str) -> None:
    assert photos.folder is not None
    small, key = cached(photos, 40, tmp_path / "cache"), "cats/a cat.png"
    before = small.load(key)
    source = photos.folder / key
    if change == "content":
        noise((80, 80), 5).save(source)
    else:
        os.utime(source, (1, 1))
    after = small.load(key)
    assert opened(photos)[key] == 2
    assert (after.size == (40, 40)) == (change == "content")
    assert np.array_equal(before, after) == (change == "date")
    assert np.array_equal(small.load(key), after)
    assert opened(photos)[key] == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "longer", "not a picture", "other head"])
def test_a_damaged_entry_is_made_again(photos: Dataset, tmp_path: Path, damage: str) -> None:
    small, key = cached(photos, 40, tmp_path / "cache"), "cats/a cat.png"
    good = small.load(key)
    (file,) = (tmp_path / "cache").rglob("*.ppm")
    content = file.read_bytes()
    file.write_bytes(
        {
            "cut": content[:-1],
            "empty": b"",
            "longer": content + b"x",
            "not a picture": b"hello",
            "other head": content.replace(b"60 40", b"-60 -40"),
        }[damage]
    )
    assert np.array_equal(small.load(key), good)
    assert file.read_bytes() == content


def test_a_missing_file_is_the_data_sets_own_error_even_if_it_was_cached(photos: Dataset, tmp_path: Path) -> None:
    assert photos.folder is not None
    small, key = cached(photos, 40, tmp_path / "cache"), "cats/a cat.png"
    small.load(key)
    (photos.folder / key).unlink()
    with pytest.raises(UserError, match="no such image"):
        small.load(key)


def test_no_key_leads_out_of_the_cache(photos: Dataset, tmp_path: Path) -> None:
    small = cached(photos, 40, tmp_path / "cache")
    for key in ("../photos/cats/a cat.png", str(tmp_path / "photos/cats/a cat.png")):
        with pytest.raises(UserError, match="leads outside the data folder"):
            small.load(key)
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_written_says_what_to_do(photos: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot keep a cached image in .*REBAPL_CACHE.*or leave the cache out"):
        cached(photos, 40, tmp_path / "file").load("cats/a cat.png")


@pytest.mark.parametrize("size", [0, -3, 2.5, True, "256"])
def test_a_size_that_is_none_is_refused(photos: Dataset, size: int) -> None:
    with pytest.raises(UserError, match="short side of the cached images in pixels"):
        cached(photos, size)


def test_threads_that_read_the_same_image_at_once_all_get_it(photos: Dataset, tmp_path: Path) -> None:
    small, together = cached(photos, 40, tmp_path / "cache"), threading.Barrier(8)
    found: list[bytes] = []

    def read() -> None:
        together.wait(600)
        found.extend(small.load(key).tobytes() for _ in range(10) for key in SIZES)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(found) == {small.load(key).tobytes(): 80 for key in SIZES}
    assert not list((tmp_path / "cache").rglob(".*"))


def test_contents_show_what_is_there(photos: Dataset, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert cache_contents(cache) == []
    LabelledImages(cached(photos, 40, cache), photos.train).views(Preprocessing(16, 16, (0.5,) * 3, (0.5,) * 3))
    (entry,) = cache_contents(cache)
    assert entry.images == 3
    assert entry.size == sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    pixels = 3 * (60 * 40 + 40 * 160 + 20 * 31)
    assert pixels < entry.size < pixels + 300


def test_the_folder_is_the_one_named_or_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REBAPL_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("REBAPL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "rebapl" / "images"


def test_drawn_data_sets_need_no_cache() -> None:
    digits = load_dataset("digits")
    assert cached(digits, 32) is digits


def test_views_are_the_same_when_the_cache_has_the_backbones_size(photos: Dataset, tmp_path: Path) -> None:
    preprocessing = Preprocessing(resize=40, crop=36, mean=(0.5,) * 3, std=(0.5,) * 3)
    without = LabelledImages(photos, photos.train).views(preprocessing)
    through = LabelledImages(cached(photos, 40, tmp_path / "cache"), photos.train).views(preprocessing)
    assert torch.equal(without, through)
