"""Images in tar archives, as webdataset packs them. The path of an image includes the archive: `a.tar/000001.jpg`.

Files of an archive whose names are equal up to the first dot belong together: `000001.cls` holds the label of
`000001.jpg`, a word or a number. Archives must not be compressed, so that each file in them can be read by itself.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from rebapl.errors import UserError, printable
from rebapl.files import stamp

ENDING = ".tar"


def is_tar(path: Path) -> bool:
    """Whether a path is a file with the ending `.tar`."""
    return path.suffix.lower() == ENDING and path.is_file()


def tar_of(path: Path) -> Path | None:
    """The archive that a path leads through, or None."""
    return next((parent for parent in path.parents if is_tar(parent)), None)


def files_in_tar(tar: Path) -> Iterator[Path]:
    """The paths of all files in an archive, in their order; hidden ones are left out."""
    return (tar / name for name in _places(stamp(tar)) if not any(part[0] == "." for part in PurePosixPath(name).parts))


def read_from_tar(tar: Path, path: Path) -> bytes:
    """The content of the file at a path that leads through an archive."""
    places = _places(stamp(tar))
    name = path.relative_to(tar).as_posix()
    if name not in places:
        raise FileNotFoundError(2, "No such file in the archive", str(path))
    offset, size = places[name]
    with tar.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def labels_in_tar(tar: Path) -> dict[str, str]:
    """The labels in an archive. The label of an image is found under `sample_of` its path."""
    files = (path for path in files_in_tar(tar) if path.suffix == ".cls")
    return {sample_of(path): read_from_tar(tar, path).decode("utf-8", "replace").strip() for path in files}


def sample_of(path: Path) -> str:
    """The path of a file up to the first dot of its name. Files that belong together share it.

    >>> sample_of(Path("a.tar/000001.seg.png"))
    'a.tar/000001'
    """
    return str(path.parent / path.name.partition(".")[0])


@lru_cache(maxsize=8)
def _places(stamped: tuple[str, int, int]) -> Mapping[str, tuple[int, int]]:
    """The offset and the size of each file in an archive. They are cached until the stamp of the archive changes."""
    try:
        with tarfile.open(stamped[0], "r:") as archive:
            return {
                PurePosixPath(member.name).as_posix(): (member.offset_data, member.size)
                for member in archive
                if member.isreg() and not member.issparse()
            }
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(
            f"{printable(stamped[0])} cannot be read as a tar archive ({error}): one that is not compressed is needed"
        ) from error
