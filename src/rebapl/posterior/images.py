"""Reading images in whatever form a person has them, and making test-time views of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from rebapl.data.images import BROKEN, EXTENSIONS, as_rgb, read_image, unreadable, walk_images
from rebapl.data.transforms import Preprocessing, stacked
from rebapl.data.workers import mapped_ahead
from rebapl.errors import UserError, printable

Source = str | Path | Image.Image | np.ndarray
Images = Source | Tensor | Sequence[Source]
Picture = Path | Image.Image | np.ndarray

AT_ONCE = 256
"""How many images are read before they are predicted, as many as go into one pass."""


def read_images(
    images: Images, preprocessing: Preprocessing, at_once: int = AT_ONCE
) -> tuple[list[str], Iterator[Tensor]]:
    """Give the names (N) of images, and their test-time views in portions of uint8 (n, 3, H, W), n ≤ `at_once`.

    a file or a folder (searched to the bottom, in the order of paths), an image of Pillow, a sequence of these,
    an array uint8 (N, H, W, 3) or (H, W, 3), or a tensor uint8 (N, 3, H, W) or (3, H, W).
    Files and images of Pillow are turned upright as their EXIF orientation says; arrays and tensors have none. All
    are resized and cropped as the backbone wants, by threads that are a portion ahead. The first that cannot be read is
    named in the error.
    """
    names, pictures = _named(images)
    if not names:
        raise UserError("no images were given: at least one is needed")

    def view(index: int) -> Tensor:
        return _centre(pictures[index], names[index], preprocessing)

    def portions() -> Iterator[Tensor]:
        if len(names) == 1:
            yield view(0)[None]
            return
        views = mapped_ahead(view, range(len(names)), at_once)
        while portion := list(islice(views, at_once)):
            yield stacked(portion)

    return names, portions()


def image_files(path: Path) -> list[Path]:
    """The file itself, or all images below a folder in the order of their paths. Hidden ones are left out."""
    if not path.is_dir():
        if not path.exists():
            raise UserError(f"{printable(str(path))}: no such image or folder")
        return [path]
    found = list(walk_images(path))
    if not found:
        raise UserError(f"folder {path} has no images: files that end in {' '.join(EXTENSIONS)} are looked for")
    return found


def _named(images: Images) -> tuple[list[str], Sequence[Picture]]:
    """Each picture with its name. None of them is read yet."""
    if isinstance(images, np.ndarray | Tensor):
        array = _channels_last(images)
        return [f"image {index}" for index in range(len(array))], list(array)
    names: list[str] = []
    pictures: list[Picture] = []
    for index, source in enumerate([images] if isinstance(images, str | Path | Image.Image) else images):
        if isinstance(source, Image.Image):
            names.append(str(getattr(source, "filename", "")) or f"image {index}")
            pictures.append(source)
        elif isinstance(source, np.ndarray):
            pictures += list(_channels_last(source))
            names += [f"image {index}"] * (len(pictures) - len(names))
        elif isinstance(source, str | Path):
            files = image_files(Path(source))
            names += map(str, files)
            pictures += files
        else:
            raise UserError(
                f"image {index} is a {type(source).__name__}: give files, folders, images of Pillow, or arrays"
            )
    return names, pictures


def _centre(picture: Picture, name: str, preprocessing: Preprocessing) -> Tensor:
    if isinstance(picture, np.ndarray):
        return preprocessing.centre(Image.fromarray(np.ascontiguousarray(picture)))
    if isinstance(picture, Path):
        return preprocessing.centre(read_image(picture))
    try:
        if 0 in picture.size:
            raise ValueError("it has no pixels")
        return preprocessing.centre(as_rgb(picture))
    except BROKEN as error:
        raise unreadable(name, error) from error


def _channels_last(images: np.ndarray | Tensor) -> np.ndarray:
    """The pictures (N, H, W, 3) of an array with channels last, or of a tensor with channels first."""
    tensor = isinstance(images, Tensor)
    array = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
    array = array[None] if array.ndim == 3 else array
    channels = 1 if tensor else 3
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[channels] != 3 or 0 in array.shape[1:]:
        wanted = "a tensor of images is uint8 (N, 3, H, W)" if tensor else "an array of images is uint8 (N, H, W, 3)"
        raise UserError(f"{wanted}, with values from 0 to 255; got {array.dtype} of shape {tuple(images.shape)}")
    return array.transpose(0, 2, 3, 1) if tensor else array
