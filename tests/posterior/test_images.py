"""Images in every form that is accepted, and those that are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from rebapl.data.images import read_image, reads_heic
from rebapl.data.own_images import dataset_of
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError
from rebapl.posterior import images as module
from rebapl.posterior.images import ImageFiles

SIZES = Preprocessing(resize=16, crop=16, mean=(0.5,) * 3, std=(0.5,) * 3)


def picture(seed: int, width: int = 20, height: int = 16) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    picture(0).save(tmp_path / "a.png")
    picture(1).save(tmp_path / "b" / "c.PNG")
    picture(2).convert("L").save(tmp_path / "d.bmp")
    picture(3).save(tmp_path / ".hidden" / "e.png")
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def read_images(images: Any, preprocessing: Preprocessing) -> tuple[list[str], Tensor]:
    """All portions together."""
    names, views = module.read_images(images, preprocessing)
    return names, torch.cat(list(views))


def views_of(*seeds: int) -> Tensor:
    return torch.stack([SIZES.centre(picture(seed)) for seed in seeds])


def test_a_folder_is_searched_to_the_bottom_in_order(folder: Path) -> None:
    names, views = read_images(folder, SIZES)
    assert names == [str(folder / "a.png"), str(folder / "b" / "c.PNG"), str(folder / "d.bmp")]
    assert torch.equal(views[:2], views_of(0, 1))
    assert torch.equal(views[2], SIZES.centre(picture(2).convert("L")))


def test_files_folders_and_pictures_together(folder: Path) -> None:
    names, views = read_images([str(folder / "a.png"), picture(5), folder / "b"], SIZES)
    assert names == [str(folder / "a.png"), "image 1", str(folder / "b" / "c.PNG")]
    assert torch.equal(views, views_of(0, 5, 1))
    assert torch.equal(read_images(picture(5), SIZES)[1], views_of(5))


def test_arrays_have_channels_last_and_tensors_first() -> None:
    array = np.stack([np.array(picture(seed)) for seed in (0, 1)])
    names, views = read_images(array, SIZES)
    assert names == ["image 0", "image 1"]
    assert torch.equal(views, views_of(0, 1))
    assert torch.equal(read_images(torch.from_numpy(array).permute(0, 3, 1, 2), SIZES)[1], views_of(0, 1))
    assert torch.equal(read_images(array[0], SIZES)[1], views_of(0))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "no images"),
        (np.zeros((0, 8, 8, 3), np.uint8), "no images"),
        (np.zeros((2, 8, 8, 3), np.float32), "uint8 .N, H, W, 3.*float32"),
        (np.zeros((2, 8, 8), np.uint8), "uint8 .N, H, W, 3"),
        (np.zeros((2, 3, 8, 8), np.uint8), "uint8 .N, H, W, 3"),
        (torch.zeros(2, 8, 8, 3, dtype=torch.uint8), "uint8 .N, 3, H, W"),
        (torch.zeros(2, 3, 8, 8), "uint8 .N, 3, H, W"),
        ([3], "image 0 is a int"),
        (3, "image 0 is a int"),
        (None, "image 0 is a NoneType"),
        (Image.new("RGB", (0, 5)), "image 0 cannot be read as an image .it has no pixels"),
        ("nowhere/x.png", "nowhere/x.png: no such image or folder"),
    ],
)
def test_what_is_no_image_is_refused(images: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_images(images, SIZES)


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_files_and_pictures_are_turned_upright_alike(tmp_path: Path, ending: str) -> None:
    sideways = Image.Exif()
    sideways[0x0112] = 6
    file = tmp_path / f"x.{ending}"
    picture(0).save(file, exif=sideways)
    with Image.open(file) as stored:
        upright = SIZES.centre(stored.convert("RGB").rotate(-90, expand=True))
    assert torch.equal(read_images(file, SIZES)[1][0], upright)
    with Image.open(file) as opened:
        assert torch.equal(read_images(opened, SIZES)[1][0], upright)
        dataset = dataset_of([opened, file], [0, 1], ["cat", "dog"])
        assert all(torch.equal(SIZES.centre(dataset.load(item.key)), upright) for item in dataset.train)


@pytest.mark.parametrize("kind", ["text", "empty", "truncated"])
def test_an_unreadable_file_is_named_before_any_work(
    make: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    bad = folder / "b" / "zz.png"
    content = (folder / "a.png").read_bytes()
    bad.write_bytes({"text": b"hello", "empty": b"", "truncated": content[: len(content) // 2]}[kind])
    posterior = make("coop")
    monkeypatch.setattr(type(posterior.learner), "frozen", lambda *_: pytest.fail("worked before reading all"))
    with pytest.raises(UserError, match=r"zz\.png cannot be read as an image"):
        posterior.predict(folder)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"no images in .*: there are 1 file .*; files that end in \.png"):
        read_images(tmp_path, SIZES)


def test_portions_are_read_when_they_are_asked_for(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(5):
        picture(seed).save(tmp_path / f"{seed}.png")
    read: list[str] = []
    monkeypatch.setattr("rebapl.data.images.read_image", lambda path: (read.append(path.name), read_image(path))[1])
    posterior = make("coop")
    whole = posterior.predict(tmp_path)
    read.clear()
    names, views = module.read_images(tmp_path, SIZES, 2)
    assert (len(names), read) == (5, [])
    assert torch.equal(next(views), views_of(0, 1))
    assert {"0.png", "1.png"} <= set(read) <= {"0.png", "1.png", "2.png", "3.png"}, "threads are a portion ahead"
    assert [len(portion) for portion in views] == [2, 1]
    monkeypatch.setattr("rebapl.posterior.posterior.CHUNK", 2)
    parted = posterior.predict(tmp_path)
    assert parted.names == whole.names
    torch.testing.assert_close(parted.probabilities, whole.probabilities, atol=1e-6, rtol=1e-5)


def test_heic_photos_are_read_where_pillow_heif_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reads_heic()
    Image.new("RGB", (64, 48), (200, 30, 30)).save(tmp_path / "a.HEIC", quality=90)
    assert [path.name for path in ImageFiles([tmp_path])] == ["a.HEIC"]
    red, green, _ = np.asarray(read_image(tmp_path / "a.HEIC")).mean((0, 1))
    assert red > 150 > 80 > green
    monkeypatch.setattr("rebapl.data.images.reads_heic", lambda: False)
    with pytest.raises(UserError, match=r"1 \.heic \(HEIC photos need pillow-heif: pip install 'rebapl\[heic\]'\)"):
        ImageFiles([tmp_path])
    with pytest.raises(UserError, match=r"a\.HEIC cannot be read as an image \(HEIC photos need pillow-heif"):
        read_image(tmp_path / "a.HEIC")


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    picture(0).save(tmp_path / "far" / "a.png")
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far")
    (tmp_path / "near" / "back").symlink_to(tmp_path / "near")
    files = ImageFiles([tmp_path / "near"])
    assert list(files) == [tmp_path / "near" / "link" / "a.png"]
    assert files.known == 1
