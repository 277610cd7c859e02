"""Image files of every odd kind: read as they should look, or refused by name."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from rebapl.data import images
from rebapl.data.batches import LabelledImages
from rebapl.data.dataset import Dataset, Item
from rebapl.data.images import read_image
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError

RAMP = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)


def noise(height: int = 6, width: int = 9) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("name", ["grey.png", "grey.tif", "grey.pgm"])
def test_sixteen_bits_keep_their_brightness(tmp_path: Path, name: str) -> None:
    """Pillow's own conversion would make 255 of every value above 255."""
    Image.fromarray(RAMP).save(tmp_path / name)
    read = np.asarray(read_image(tmp_path / name))
    assert read.shape == (8, 8, 3)
    assert np.abs(read[..., 0].astype(float) - RAMP / 257).max() <= 1


def test_cmyk_is_rgb(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "red.jpg", quality=95)
    red, green, blue = np.asarray(read_image(tmp_path / "red.jpg")).reshape(-1, 3).mean(0)
    assert red > 240
    assert max(green, blue) < 15


def test_an_animation_is_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for name in ("moving.gif", "moving.webp", "moving.png"):
        options = {"lossless": True} if name.endswith("webp") else {}
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
        assert np.asarray(read_image(tmp_path / name))[4, 4].tolist() == [255, 0, 0], name


@pytest.mark.parametrize("mode", ["L", "LA", "P", "1", "RGBA", "YCbCr"])
def test_other_modes_are_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("image.jpg" if mode == "YCbCr" else "image.png")
    noise().convert(mode).save(path)
    read = read_image(path)
    assert (read.mode, read.size) == ("RGB", (9, 6))


@pytest.mark.parametrize(
    ("ending", "orientation"),
    [*(("jpg", orientation) for orientation in range(1, 10)), ("png", 6), ("tif", 6), ("webp", 6)],  # 9 is none
)
def test_every_orientation_is_that_of_pillow(tmp_path: Path, ending: str, orientation: int) -> None:
    exif, path = Image.Exif(), tmp_path / f"turned.{ending}"
    exif[0x0112] = orientation
    noise().save(path, exif=exif)
    with Image.open(path) as image:
        assert np.array_equal(read_image(path), ImageOps.exif_transpose(image))
        assert np.array_equal(read_image(path, upright=False), image.convert("RGB"))


@pytest.mark.filterwarnings("error")
def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    noise().convert("P").save(tmp_path / "seen through.png", transparency=bytes(range(200)))
    with Image.open(tmp_path / "seen through.png") as image:
        colours = np.asarray(image.convert("RGBA"))[..., :3]
    assert np.array_equal(read_image(tmp_path / "seen through.png"), colours)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_photo_with_damaged_exif_is_read(tmp_path: Path) -> None:
    noise().save(tmp_path / "photo.jpg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff broken")
    assert read_image(tmp_path / "photo.jpg").size == (9, 6)
    exif = Image.Exif()
    exif[0x010E], exif[0x0112] = "a photo", 6
    noise().save(tmp_path / "unwritable.jpg", exif=exif)
    content = (tmp_path / "unwritable.jpg").read_bytes()
    # A text where a number should be: Pillow turns the photo and then cannot write the tag (struct.error).
    (tmp_path / "unwritable.jpg").write_bytes(content.replace(b"\x01\x0e\x00\x02", b"\x01\x52\x00\x02"))
    assert read_image(tmp_path / "unwritable.jpg").size == (9, 6)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jpg"
    noise(64, 64).save(whole)
    content = whole.read_bytes()
    broken = {
        "empty.jpg": b"",
        "text.jpg": b"no image at all",
        "half.jpg": content[: len(content) // 2],
        "header.png": b"\x89PNG\r\n\x1a\n",
    }
    for name, given in broken.items():
        (tmp_path / name).write_bytes(given)
        with pytest.raises(UserError, match=rf"{name} cannot be read as an image .*: remove it or replace it"):
            read_image(tmp_path / name)
    with pytest.raises(UserError, match=r"empty\.jpg cannot be read as an image .the file is empty"):
        read_image(tmp_path / "empty.jpg")
    with pytest.raises(UserError, match=r"gone\.jpg: no such image"):
        read_image(tmp_path / "gone.jpg")
    noise().save(tmp_path / "other.dds")
    content = bytearray((tmp_path / "other.dds").read_bytes())
    content[80:84] = bytes(4)  # a kind of pixels that Pillow answers with NotImplementedError
    (tmp_path / "other.dds").write_bytes(content)
    with pytest.raises(UserError, match=r"other\.dds cannot be read as an image"):
        read_image(tmp_path / "other.dds")
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(UserError, match=r"float\.tif.*floating-point"):
        read_image(tmp_path / "float.tif")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(UserError, match="it is a folder, a pipe or a device"):
        read_image(tmp_path / "pipe.jpg")


def test_a_large_file_is_not_read_before_it_is_known_to_be_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise().save(tmp_path / "large.png")
    (tmp_path / "film.jpg").touch()
    os.truncate(tmp_path / "film.jpg", 2**41)  # it takes no space on the disk
    with pytest.raises(UserError, match="in no format of images that is known"):
        read_image(tmp_path / "film.jpg")
    monkeypatch.setattr(images, "LARGE", 10)
    assert np.array_equal(read_image(tmp_path / "large.png"), noise())


@pytest.mark.parametrize("size", [(1, 200_000), (49_999_999, 1)])
def test_an_image_that_is_all_length_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    """Its long side would be resized to gigabytes: a file of a few hundred bytes could end a server."""
    Image.new("L", size).save(tmp_path / "line.png")
    monkeypatch.setattr(Image.Image, "resize", lambda *_: pytest.fail("it was resized"))
    width, height = size
    reason = f"the image has {width} × {height} pixels, and no side may be over 100 times as long as the other"
    with pytest.raises(
        images.UnreadableImageError, match=rf"line\.png cannot be read as an image \({reason}\)"
    ) as caught:
        read_image(tmp_path / "line.png")
    assert caught.value.reason == reason


def test_an_image_of_a_data_set_from_outside_is_refused_as_well() -> None:
    item = Item("line", 0, "line")
    dataset = Dataset("outside", "{}.", [item], [], [], lambda _: Image.new("RGB", (2, 201)))
    data = LabelledImages(dataset, [item])
    preprocessing = Preprocessing(resize=8, crop=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(UserError, match=r"line cannot be read as an image \(the image has 2 × 201 pixels"):
        _ = data.images
    with pytest.raises(UserError, match="the image has 2 × 201 pixels"):
        data.views(preprocessing)
    with pytest.raises(UserError, match="the image has 2 × 201 pixels"):
        preprocessing.centre(Image.new("RGB", (2, 201)))
    assert preprocessing.centre(Image.new("RGB", (2, 200))).shape == (3, 8, 8)
