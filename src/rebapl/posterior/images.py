"""Images in every form that a person may have them: in memory, as files and folders, in lists, or named by a pipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from rebapl.backbones.features import AT_ONCE
from rebapl.data.images import (
    EXTENSIONS,
    Picture,
    images_in_tar,
    picture_of,
    said_of_endings,
    walk_images,
)
from rebapl.data.tars import is_tar
from rebapl.data.transforms import Preprocessing, stacked
from rebapl.data.workers import portions_ahead
from rebapl.errors import UserError, printable
from rebapl.files import read_csv, read_lines

Source = str | Path | Image.Image | np.ndarray | Tensor
Images = Source | Sequence[Source]
PATH_COLUMNS = ("path", "image")
"""The accepted names for the column of paths in a CSV list: `path` as in data sets, `image` as in `rebapl predict`."""


def read_images(
    images: Images, preprocessing: Preprocessing, at_once: int = AT_ONCE
) -> tuple[list[str], Iterator[Tensor]]:
    """Return the names (N) of images, and their test-time views in portions of uint8 (n, 3, H, W), n ≤ `at_once`.

    Images are a file or a folder (with all folders inside it, in the order of paths), an image of Pillow, an array
    uint8 (N, H, W, 3) or (H, W, 3), a tensor uint8 (N, 3, H, W) or (3, H, W), or a sequence of these. Files and images
    of Pillow are turned upright by their EXIF orientation; arrays and tensors have none. All images are resized and
    cropped for the backbone, by threads that work one portion ahead. An error names the first image that cannot be
    read.
    """
    pictures = _named_pictures(images)
    if not pictures:
        raise UserError("no images were given: at least one is needed")

    def view(picture: tuple[str, Picture]) -> Tensor:
        return preprocessing.centre(picture[1]())

    def portions() -> Iterator[Tensor]:
        if len(pictures) == 1:
            yield view(pictures[0])[None]
            return
        yield from map(stacked, portions_ahead(view, pictures, at_once))

    return [name for name, _ in pictures], portions()


def _named_pictures(images: Images) -> list[tuple[str, Picture]]:
    """Each picture with its name, or with its number if it has no name. No picture is read yet."""
    pictures: list[tuple[str, Picture]] = []
    one_source = isinstance(images, str | Path | Image.Image | np.ndarray | Tensor)
    sources = [images] if one_source or not isinstance(images, Iterable) else images
    for source in sources:
        named: Iterable[tuple[str, object]]
        if isinstance(source, str | Path):
            named = ((str(file), file) for file in ImageFiles([Path(source)]))
        elif isinstance(source, np.ndarray | Tensor):
            arrays = enumerate(_channels_last(source), start=len(pictures))
            named = ((f"image {number}", array) for number, array in arrays)
        else:
            named = [(str(getattr(source, "filename", "")) or f"image {len(pictures)}", source)]
        pictures += [(name, picture_of(each, name)) for name, each in named]
    return pictures


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


class ImageFiles:
    """The image files in `paths` (files, folders with all folders inside, tar archives), `lists` and `piped` lines.

    Iterating over it yields the files in this order; a folder is searched when the iteration reaches it. So folders are
    searched twice, to count the images and to read them, but the list of their images is not kept in memory. `known` is
    the number of images in paths and lists, without the piped ones. `passed_over` counts the files in folders that are
    not images by their names; see `walk_images`. A path that does not exist is refused, unless it comes from a list or
    from the pipe: these paths fail when the image is read.
    """

    def __init__(self, paths: Sequence[Path], lists: Sequence[Path] = (), piped: Iterable[str] = ()) -> None:
        self.paths = paths
        self.lists = lists
        self.piped = piped
        self.passed_over: Counter[str] = Counter()
        for path in paths:
            if not path.exists():
                raise UserError(f"{printable(str(path))}: no such image or folder")
        for file in lists:
            listed = read_list(file)
            if not any(path.exists() for path in listed):
                raise UserError(
                    f"{printable(str(file))}: none of the {len(listed)} paths in it is there; they are taken from "
                    "the folder of the list"
                )
        self.known = sum(1 for _ in self._files(self.passed_over))
        if paths and not lists and not self.known:
            others = f"there are {self.said_of_others()}" if self.passed_over else "it is empty"
            raise UserError(
                f"no images in {printable(', '.join(map(str, paths)))}: {others}; files that end in "
                f"{' '.join(EXTENSIONS)} are looked for"
            )

    def __iter__(self) -> Iterator[Path]:
        lines = (line.strip() for line in self.piped)
        return chain(self._files(), _all_below(Path(line) for line in lines if line))

    def _files(self, passed_over: Counter[str] | None = None) -> Iterator[Path]:
        return _all_below(chain(self.paths, *map(read_list, self.lists)), passed_over)

    def said_of_others(self) -> str:
        """A text with the numbers of `passed_over` files by their endings; empty if there are none."""
        return said_of_endings(self.passed_over)


def read_list(file: Path) -> list[Path]:
    """The paths in a list. Relative paths start from the folder of the list.

    A list has one path per line. A list that ends in .csv begins with a line of column names, and its paths are in the
    column `path` or `image`. A list may name any file that you may read, also outside its folder.
    """
    if file.suffix.lower() != ".csv":
        names = read_lines(file)
    else:
        header, *rows = read_csv(file) or [[]]
        column = next((header.index(each) for each in PATH_COLUMNS if each in header), None)
        if column is None:
            raise UserError(
                f"{printable(str(file))} must begin with a line of column names, one of them "
                f"{' or '.join(PATH_COLUMNS)}"
            )
        names = [name for row in rows if column < len(row) and (name := row[column].strip())]
    if not names:
        raise UserError(f"{printable(str(file))} lists no images")
    return [file.parent / name for name in names]


def _all_below(paths: Iterable[Path], passed_over: Counter[str] | None = None) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from walk_images(path, passed_over)
        elif is_tar(path):
            yield from images_in_tar(path)
        else:
            yield path
