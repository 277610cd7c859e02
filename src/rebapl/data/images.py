"""Find image files in folders, and read them as RGB pictures. An error names the file that cannot be read."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from rebapl.data.tars import files_in_tar, read_from_tar, tar_of
from rebapl.errors import UserError, printable
from rebapl.files import sha256
from rebapl.wording import number_of

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif")
"""The endings of image files in a folder. A file that is named itself may have any format that Pillow reads."""

HEIC = (".heic", ".heif")
"""Further endings of image files, which count if pillow-heif is installed."""

HEIC_ADVICE = "HEIC photos need pillow-heif: pip install 'rebapl[heic]'"

BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    Image.DecompressionBombError,
)
"""The errors that Pillow raises for broken files of one format or another."""

LARGE = 64 * 2**20
"""Pillow reads a file of more bytes from the disk, and only the part that it needs: few files so large are images."""

MOST_ELONGATED = 100
"""The largest ratio of an image's long side to its short side; see `refuse_elongated`."""

NO_FILE = "no file"
"""The key under which broken links, pipes and devices are counted."""

NO_IMAGES = ".nomedia"
"""A folder with a file of this name is passed over, as on a phone: its images are neither learned nor answered for."""


ImageLike = str | Path | Image.Image | np.ndarray
"""One image: the path of a file, a Pillow image, or uint8 of shape (H, W) or (H, W, 3)."""

Picture = Callable[[], Image.Image]
"""A function that reads or converts a picture when it is called."""


class UnreadableImageError(UserError):
    """An image is missing or broken; `reason` says why, without the name of the image."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[UnreadableImageError], tuple[str, str]]:
        return type(self), (str(self), self.reason)  # both arguments, so that it can come from another process


def is_image(path: Path) -> bool:
    """Whether a path is a file with the ending of an image, and not hidden."""
    return not path.name.startswith(".") and is_called_image(path) and path.is_file()


def is_called_image(path: Path) -> bool:
    """Whether a path has the ending of an image, such as `.png`."""
    ending = path.suffix.lower()
    return ending in EXTENSIONS or (ending in HEIC and reads_heic())


@cache
def reads_heic() -> bool:
    """Whether HEIC photos can be read. If so, this call makes Pillow read them."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def files_below(folder: Path, inside: tuple[str, ...] = ()) -> Iterator[Path]:
    """All files in a folder and in the folders below it, in the order of their paths.

    Hidden files and folders are left out, and so are folders with the file `.nomedia`. Links to folders are followed,
    unless they lead back to one of the folders that contain them, whose real paths are `inside`.
    """
    real = os.path.realpath(folder)
    if real in inside:
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            yield path
        elif not (path / NO_IMAGES).exists():
            yield from files_below(path, (*inside, real))


def walk_images(folder: Path, passed_over: Counter[str] | None = None) -> Iterator[Path]:
    """The images among the `files_below` a folder.

    The other files are counted in `passed_over` by their endings, and broken links, pipes and devices as `NO_FILE`.
    """
    for path in files_below(folder):
        if is_image(path):
            yield path
        elif passed_over is not None:
            passed_over[path.suffix.lower() if path.is_file() else NO_FILE] += 1


def images_in_tar(tar: Path) -> Iterator[Path]:
    """The images in a tar archive, in their order there. Its other files, which describe the images, are left out."""
    return (path for path in files_in_tar(tar) if is_called_image(path))


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted; hidden ones are left out."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def is_set_aside(folder: Path) -> bool:
    """Whether a folder among class folders is not a class, because it has the file `.nomedia`.

    A folder without images is not a class either if a folder in it has that file, or if it holds only hidden files.
    """
    names = {path.name for path in folder.iterdir()}
    if NO_IMAGES in names:
        return True
    if not names or next(walk_images(folder), None) is not None:
        return False
    return all(name[0] == "." for name in names) or any((folder / name / NO_IMAGES).exists() for name in names)


def said_of_endings(passed_over: Counter[str]) -> str:
    """A sentence on the files that `walk_images` passed over, with their endings; empty if there are none.

    >>> said_of_endings(Counter({".txt": 2, "": 1, NO_FILE: 1}))
    '3 files whose ending is not that of an image: 2 .txt, 1 without one; broken links, pipes or devices: 1'
    """
    endings, parts = Counter(passed_over), []
    no_files = endings.pop(NO_FILE, 0)
    if total := endings.total():
        counts = ", ".join(f"{count} {printable(end) or 'without one'}" for end, count in endings.most_common())
        advice = f" ({HEIC_ADVICE})" if any(ending in endings for ending in HEIC) else ""
        parts.append(f"{number_of(total, 'file')} whose ending is not that of an image: {counts}{advice}")
    if no_files:
        parts.append(f"broken links, pipes or devices: {no_files}")
    return "; ".join(parts)


def read_image(path: Path, upright: bool = True) -> Image.Image:
    """The picture (H, W) in a file, as RGB with 8 bits a channel.

    Of an animation it is the first frame. 16-bit grey is divided by 256. Pillow converts CMYK, palettes and grey.
    Transparency is dropped. `upright` turns a photo as its EXIF orientation says. The published data sets are read
    without turning, because their published scores were measured so. The path may lead through a tar archive; see
    `rebapl.data.tars`.
    """
    try:
        if (tar := tar_of(path)) is not None:
            with Image.open(io.BytesIO(read_from_tar(tar, path))) as image:
                return as_rgb(image, upright)
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe might never end
            raise OSError("it is a folder, a pipe or a device")
        if status.st_size == 0:
            raise OSError("the file is empty")
        if path.suffix.lower() in HEIC and not reads_heic():
            raise OSError(HEIC_ADVICE)
        # All bytes at once: when several threads read, each small read would wait for Python's lock.
        with Image.open(path if status.st_size > LARGE else io.BytesIO(path.read_bytes())) as image:
            return as_rgb(image, upright)
    except BROKEN as error:
        raise unreadable(str(path), error) from error


def image_sha256(path: Path) -> str:
    """The SHA-256 of the file of an image, which is not decoded. The path may lead through a tar archive."""
    try:
        tar = tar_of(path)
        return sha256(path) if tar is None else hashlib.sha256(read_from_tar(tar, path)).hexdigest()
    except OSError as error:
        raise unreadable(str(path), error) from error


def picture_of(source: object, name: str) -> Picture:
    """A function that gives the RGB picture of a path, a Pillow image, or an array uint8 of shape (H, W) or (H, W, 3).

    The type and the shape are checked now, the rest when the picture is needed. `name` names it in errors; the path of
    a file names itself. Photos are turned upright as their EXIF orientation says.
    """
    if isinstance(source, str | Path):
        return partial(read_image, Path(source))
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or not (source.ndim == 2 or (source.ndim == 3 and source.shape[2] == 3)):
            raise UserError(
                f"{name} is {source.dtype} of shape {source.shape}: give uint8 of shape (H, W) or (H, W, 3)"
            )
        if not source.size:
            raise UserError(f"{name} of shape {source.shape} has no pixels: leave it out")
    elif not isinstance(source, Image.Image):
        raise UserError(f"{name} is a {type(source).__name__}: give a path, a Pillow image or a uint8 array")
    return partial(_converted, source, name)


def _converted(source: Image.Image | np.ndarray, name: str) -> Image.Image:
    try:
        image = source if isinstance(source, Image.Image) else Image.fromarray(np.ascontiguousarray(source))
        if 0 in image.size:
            raise ValueError("it has no pixels")
        return as_rgb(image)
    except BROKEN as error:
        raise unreadable(name, error) from error


def unreadable(name: str, error: Exception) -> UnreadableImageError:
    """The error for a missing or broken image `name`, whose reading raised `error`."""
    if isinstance(error, FileNotFoundError):
        return UnreadableImageError(f"{printable(name)}: no such image", "no such image")
    if isinstance(error, UnidentifiedImageError):
        reason = "it is in no format of images that is known"
    elif isinstance(error, OSError) and error.strerror is not None:
        reason = error.strerror
    else:
        reason = printable(" ".join(str(error).split())) or type(error).__name__
    return UnreadableImageError(
        f"{printable(name)} cannot be read as an image ({reason}): remove it or replace it", reason
    )


def as_rgb(image: Image.Image, upright: bool = True) -> Image.Image:
    """The picture as 8-bit RGB; `upright` turns it as its EXIF orientation says.

    16-bit grey is divided by 256. Pillow alone would make all but the darkest 16-bit greys white.
    """
    refuse_elongated(image)
    image.load()
    if upright:
        image = _turned_upright(image)
    if image.mode == "RGB":
        return image
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of no agreed range")
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("its pixels are not within 16 bits")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the same colours, without Pillow's warning
    return image.convert("RGB")


def refuse_elongated(image: Image.Image) -> None:
    """Refuse an image that is so thin that its long side would fill the memory once its short side is resized.

    It would not help to crop the centre before resizing: the edges of the crop lie between pixels, and Pillow, which
    stores a box in single precision, gives other pixels for a box than for the whole image. At the allowed limit, an
    image that is resized for a backbone of 224 px takes 15 MB.
    """
    short, long = sorted(image.size)
    if long > MOST_ELONGATED * short:
        raise UserError(
            f"the image has {image.width} × {image.height} pixels, and no side may be over {MOST_ELONGATED} times as "
            "long as the other"
        )


def _turned_upright(image: Image.Image) -> Image.Image:
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image  # Pillow would copy it
        return ImageOps.exif_transpose(image)
    except BROKEN:  # a photo with damaged EXIF is still a photo
        return image


@dataclass(frozen=True)
class FileImages:
    """A function that reads the image of a key, which is its path below `folder`; see `read_image`."""

    folder: Path
    upright: bool

    def __call__(self, key: str) -> Image.Image:
        return read_image(self.folder / key, self.upright)
