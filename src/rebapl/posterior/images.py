"""Images in whatever form a person has them, as test-time views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rebapl.data.images import BROKEN, EXTENSIONS, as_rgb, read_image, unreadable
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError

Source = str | Path | Image.Image
Images = Source | np.ndarray | Tensor | Sequence[Source]


def read_images(images: Images, preprocessing: Preprocessing) -> tuple[list[str], Tensor]:
    """Names (N) and test-time views, uint8 (N, 3, H, W), of

    a file or a folder (searched to the bottom, in the order of paths), an image of Pillow, a sequence of these,
    an array uint8 (N, H, W, 3) or (H, W, 3), or a tensor uint8 (N, 3, H, W) or (3, H, W).
    All are resized and cropped as the backbone wants. The first that cannot be read is named in the error.
    """
    if isinstance(images, np.ndarray | Tensor):
        pictures = list(_of_array(images))
        names = [f"image {index}" for index in range(len(pictures))]
        return _checked(names, [preprocessing.centre(picture) for picture in pictures])
    sources = [images] if isinstance(images, str | Path | Image.Image) else list(images)
    names, views = [], []
    for index, source in enumerate(sources):
        if isinstance(source, Image.Image):
            names.append(str(getattr(source, "filename", "")) or f"image {index}")
            views.append(_centre(source, names[-1], preprocessing))
        elif isinstance(source, str | Path):
            for path in image_files(Path(source)):
                names.append(str(path))
                views.append(preprocessing.centre(read_image(path)))
        else:
            raise UserError(
                f"image {index} is a {type(source).__name__}: give files, folders, images of Pillow, or one array"
            )
    return _checked(names, views)


def image_files(path: Path) -> list[Path]:
    """The file itself, or all images below a folder in the order of their paths; hidden ones are left out."""
    if not path.is_dir():
        if not path.exists():
            raise UserError(f"{path}: no such image or folder")
        return [path]
    below = (found for found in path.rglob("*") if found.suffix.lower() in EXTENSIONS and found.is_file())
    visible = [found for found in below if not any(part.startswith(".") for part in found.relative_to(path).parts)]
    if not visible:
        raise UserError(f"folder {path} has no images: files that end in {' '.join(EXTENSIONS)} are looked for")
    return sorted(visible)


def _centre(image: Image.Image, name: str, preprocessing: Preprocessing) -> Tensor:
    try:
        return preprocessing.centre(as_rgb(image))
    except BROKEN as error:
        raise unreadable(name, error) from error


def _of_array(images: np.ndarray | Tensor) -> Iterator[Image.Image]:
    """The pictures of an array with channels last, or of a tensor with channels first."""
    tensor = isinstance(images, Tensor)
    array = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
    array = array[None] if array.ndim == 3 else array
    channels = 1 if tensor else 3
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[channels] != 3 or 0 in array.shape[1:]:
        wanted = "a tensor of images is uint8 (N, 3, H, W)" if tensor else "an array of images is uint8 (N, H, W, 3)"
        raise UserError(f"{wanted}, with values from 0 to 255; got {array.dtype} of shape {tuple(images.shape)}")
    for picture in array:
        yield Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0) if tensor else picture))


def _checked(names: list[str], views: list[Tensor]) -> tuple[list[str], Tensor]:
    if not views:
        raise UserError("no images were given: at least one is needed")
    return names, torch.stack(views)
