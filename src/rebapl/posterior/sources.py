"""Which image files were asked for: files, folders, lists of paths, and paths that come through a pipe."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from rebapl.data.images import said_of_endings, walk_images
from rebapl.errors import UserError, printable
from rebapl.files import read_lines

PATH_COLUMNS = ("path", "image")
"""The column of a CSV list that holds the paths: that of data sets, or that of `rebapl predict`."""


class ImageFiles:
    """The image files in `paths` (files, and folders to their bottom), in `lists`, and in lines that are `piped`.

    Going through it gives them in this order, and finds the files of a folder when it gets there. `known` is how many
    there are without those piped. `passed_over` counts what in folders is not called an image, see `walk_images`.
    A path that is not there is refused, unless it stands in a list or is piped: reading the image will say so.
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
            named = read_list(file)
            if not any(path.exists() for path in named):
                raise UserError(
                    f"{printable(str(file))}: none of the {len(named)} paths in it is there; they are taken from "
                    "the folder of the list"
                )
        self.known = sum(1 for _ in self._found(self.passed_over))
        if paths and not lists and not self.known:
            raise UserError(f"no images in {printable(', '.join(map(str, paths)))}{self._others()}")

    def __iter__(self) -> Iterator[Path]:
        lines = (line.strip() for line in self.piped)
        return chain(self._found(Counter()), _all_below((Path(line) for line in lines if line), Counter()))

    def _found(self, passed_over: Counter[str]) -> Iterator[Path]:
        return _all_below(chain(self.paths, *map(read_list, self.lists)), passed_over)

    def _others(self) -> str:
        return f": there are {self.said_of_others()}" if self.passed_over else ": it is empty"

    def said_of_others(self) -> str:
        """How many files of which endings are not called images; nothing if there are none."""
        return said_of_endings(self.passed_over)


def read_list(file: Path) -> list[Path]:
    """The paths in a list, taken from the folder of the list.

    It has one path per line. If it ends in .csv, it has a first line with column names, and the paths stand in the
    column `path` or `image`.
    """
    if file.suffix.lower() != ".csv":
        named = read_lines(file)
    else:
        try:
            with file.open(encoding="utf-8-sig", newline="") as stream:
                rows = csv.DictReader(stream, strict=True)
                column = next((each for each in PATH_COLUMNS if each in (rows.fieldnames or ())), None)
                if column is None:
                    raise UserError(
                        f"{printable(str(file))} must begin with a line of column names, one of them "
                        f"{' or '.join(PATH_COLUMNS)}"
                    )
                named = [name for row in rows if (name := (row[column] or "").strip())]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(
                f"{printable(str(file))} cannot be read ({error}): a CSV file in UTF-8 is needed"
            ) from error
    if not named:
        raise UserError(f"{printable(str(file))} lists no images")
    return [file.parent / name for name in named]


def _all_below(paths: Iterable[Path], passed_over: Counter[str]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from walk_images(path, passed_over)
        else:
            yield path
