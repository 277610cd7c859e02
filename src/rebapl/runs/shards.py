"""Work on any number of images in shards. Each shard is a job of its own, so interrupted work continues.

The results are answers (`rebapl.runs.answer_shards`) or features (`rebapl.runs.embedding`); see `RowMaker`. Shards are
in a folder:

    shard-000000.csv, shard-000001.csv, …       the rows, each file written whole or not at all (or .jsonl, .parquet)
    .shard-000000.json, …                       the checksum of a shard, and the list of its unreadable images
    .images.jsonl                               the images of each shard, a line per shard
    .work/                                      the progress of shards, and tracebacks; removed when all are done

If the result is one file, the folder is called `<file>.shards`. When all shards are done, they are joined into the file
and the folder is removed. If the result is a folder, the shards stay in it. The settings with which the rows were made
are stored in `<file>.about.json`, with the checksum of the file, or in `_about.json` in the folder. A process that
computes a shard reads them from there. A place with rows that were made with other settings is refused. New images are
put into new shards.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pkgutil
import shutil
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rebapl.data.features import ABOUT, shard_files
from rebapl.data.features import WHAT as FEATURES
from rebapl.errors import UserError, printable
from rebapl.files import (
    clear_refusals,
    import_parquet,
    read_json,
    remove_leftovers,
    sha256,
    write_atomically,
    write_json,
)
from rebapl.posterior.answers import Pace
from rebapl.posterior.records import Record, as_text
from rebapl.runs.answer_formats import images_in, join
from rebapl.runs.jobs import Work

if TYPE_CHECKING:
    from rebapl.training import Progress

IMAGES, WORK, JOINED = ".images.jsonl", ".work", ".joined"

ANSWERS = "answers of rebapl predict"

MAKERS = {ANSWERS: "rebapl.runs.answer_shards:AnswerMaker", FEATURES: "rebapl.runs.embedding:FeatureMaker"}
"""The `RowMaker` of each kind of rows, by what a place holds. The process that makes the rows imports it."""

UNCOMPARED = ("rebapl", "run", "backbone", "revision", "work")
"""Entries in the description of rows that may differ between two commands that make the same rows."""

NotRead = list[tuple[str, str]]
"""Images that cannot be read, each with the reason."""


Entry = Any
"""An image in a list of images, as JSON: its name, or a list that begins with its name."""


class RowMaker(Protocol):
    """Makes the rows of images, whose entries are stored in the list of images of a shard.

    `about` describes the rows as plain values and is stored beside them. In any process, the class method `open` makes
    the same object from these values. The entry `work` is only for `open`: it may differ between two commands that
    make the same rows.
    """

    @property
    def about(self) -> Mapping[str, Any]: ...

    def count(self, entries: Sequence[Entry]) -> int:
        """The number of images behind these entries."""
        ...

    def portions(self, entries: Iterable[Entry], pace: Pace) -> Iterator[list[Record]]:
        """Yield a record for each image, a portion at a time, with its `image` and `error` (None if it was read)."""
        ...

    def contents(self, records: Sequence[Record]) -> list[bytes]:
        """The contents of the files of a shard with these records."""
        ...


@dataclasses.dataclass(frozen=True)
class Place:
    """Where rows are stored: the file `out` if they are `joined`, otherwise the folder `out`. `what` describes them."""

    out: Path
    form: str
    joined: bool
    what: str = ANSWERS

    @property
    def folder(self) -> Path:
        """The folder of the shards."""
        return self.out.with_name(f"{self.out.name}.shards") if self.joined else self.out

    def folder_of(self, number: int) -> Path:
        """The folder of a shard while it is computed."""
        return self.folder / WORK / f"shard-{number:06}"

    @property
    def about(self) -> Path:
        """The file that describes how the rows are made."""
        return self.out.with_name(f"{self.out.name}.about.json") if self.joined else self.out / ABOUT

    def check(self) -> None:
        """Refuse, before any work, a place that holds anything else than such rows."""
        shown, rows = printable(str(self.out)), self.what.partition(" ")[0]
        if self.form not in ("csv", "csv-escaped", "jsonl"):
            import_parquet()
        if not self.joined and self.out.exists() and not self.out.is_dir():
            raise UserError(f"--out {shown} is a file, and shards go into a folder: name a folder")
        if not self.about.exists() and (self.out.exists() if self.joined else any(self.out.glob("[!.]*"))):
            anew = f"name another --out, or delete {shown}" if self.joined else "name another --out"
            raise UserError(f"{shown} is there already, and no {self.about.name} says that it is {rows}: {anew}")

    def check_about(self, about: Mapping[str, Any]) -> None:
        """Refuse a place whose rows were made in another way than `about` describes, or were changed afterwards."""
        shown, anew = printable(str(self.out)), f"name another --out, or delete {printable(str(self.out))}"
        if not self.about.exists():
            return
        stored = read_json(self.about, "a place of rows")
        if stored.get("what") != self.what:
            raise UserError(f"{shown} holds {stored.get('what')}, not {self.what}: name another --out")
        if stored.get("posterior") != about.get("posterior"):
            raise UserError(f"{shown} holds answers of another run or of other weights ({stored.get('run')}): {anew}")
        if stored.get("fingerprint") != about.get("fingerprint"):
            raise UserError(
                f"{shown} holds features of the backbone {stored.get('backbone')} ({stored.get('fingerprint')}), not "
                f"of {about.get('backbone')} ({about.get('fingerprint')}): {anew}"
            )
        for key in about:
            if key not in UNCOMPARED and stored.get(key) != about[key]:
                theirs, ours = (json.dumps(value, ensure_ascii=False) for value in (stored.get(key), about[key]))
                raise UserError(f"{shown} was made with {key} = {theirs}, not {ours}: {anew}")
        if self.joined and self.out.exists() and sha256(self.out) not in stored.get("sha256", ()):
            raise UserError(f"{shown} was changed since it was written: {anew}")


class Shard(Work):
    """The job for the `count` images in line `number` of the list of images.

    The file `about` says what to compute, and `form` is the format of the rows. While it is computed it uses its own
    folder below `.work`. Its rows and their checksum are written into the folder of the shards.
    """

    about: Path
    form: str
    number: int
    count: int
    noun: ClassVar[str] = "shard"
    unit: ClassVar[str] = "image"

    @property
    def name(self) -> str:
        """The name of its file, without the ending."""
        return self.folder.name

    @property
    def kept_in(self) -> Path:
        """The folder of the shards."""
        return self.folder.parents[1]

    @property
    def files(self) -> Sequence[Path]:
        """The files with its rows: two in the layout `npy` of features, otherwise one."""
        return shard_files(self.kept_in, self.form, self.number)

    @property
    def _checksum(self) -> Path:
        return self.kept_in / f".{self.name}.json"

    def is_done(self) -> bool:
        """Whether its files exist and are as they were written. A damaged shard is computed again."""
        return self.not_read() is not None

    def not_read(self) -> NotRead | None:
        """The images of the shard that cannot be read, with the reasons; None if the shard is not done."""
        try:
            stored = json.loads(self._checksum.read_bytes())
            broken = [(str(image), str(error)) for image, error in stored["cannot_be_read"]]
            content = b"".join(file.read_bytes() for file in self.files)
            return broken if stored["sha256"] == _digest(content, broken, self.count) else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, contents: Sequence[bytes], broken: NotRead) -> None:
        """Write the contents of its `files`, and then the checksum, which marks them as complete."""
        for file, content in zip(self.files, contents, strict=True):
            write_atomically(file, content)
        digest = _digest(b"".join(contents), broken, self.count)
        write_json(self._checksum, {"sha256": digest, "cannot_be_read": broken})
        shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, device: str, progress: Progress | None) -> None:
        """Compute the shard in this process."""
        if self.is_done():
            return
        with clear_refusals(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        report, done = progress or (lambda *_: None), 0
        report(0, self.count, math.nan)
        about = read_json(self.about, "a place of rows")
        for portion in work_on([self], pkgutil.resolve_name(MAKERS[about["what"]]).open(about, device)):
            done += len(portion)
            report(done, self.count, math.nan)

    def place_for_error(self) -> Path | None:
        """A file in its own folder."""
        return self.folder / "error.txt"


class ShardedWork:
    """All shards of a place. `rows_in_file` is the number of images that have a row in the finished file.

    Which shards are done is looked up once, and again by `look`, because their files are read for that.
    """

    def __init__(self, place: Place, shards: Sequence[Shard], rows_in_file: int = 0) -> None:
        self.place, self.shards, self.rows_in_file = place, shards, rows_in_file
        self._done: dict[int, NotRead] = {}
        self.look()

    def look(self) -> None:
        """Look up which of the missing shards are done by now."""
        for shard in self.missing:
            if (broken := shard.not_read()) is not None:
                self._done[shard.number] = broken

    @property
    def missing(self) -> list[Shard]:
        """The shards that are not done."""
        return [shard for shard in self.shards if shard.number not in self._done]

    @property
    def rows(self) -> int:
        """The number of images that are done, in the file and in shards."""
        return self.rows_in_file + sum(shard.count for shard in self.shards if shard.number in self._done)

    @property
    def not_read(self) -> NotRead:
        """The images in shards that cannot be read."""
        return [image for number in sorted(self._done) for image in self._done[number]]

    def conclude(self) -> None:
        """If all shards are done, join them if the result is one file, and remove the files of the unfinished work."""
        self.look()
        place, about = self.place, read_json(self.place.about, "a place of rows")
        if not place.joined:
            counts = {"rows": self.rows, "cannot_be_read": len(self.not_read), "shards": len(self.shards)}
            write_json(place.about, {**about, **counts, "complete": not self.missing})
        if self.missing:
            return
        if place.joined and self.shards:
            files = [file for shard in self.shards for file in shard.files]
            whole = place.folder / JOINED
            join(place.out, files, place.form, about["top"], whole)
            # The checksums of the old and the new file are both stored: whenever this is stopped, the file is accepted.
            write_json(place.about, {**about, "sha256": [*about.get("sha256", ())[-1:], sha256(whole)]})
            with clear_refusals(place.out):
                whole.replace(place.out)
        shutil.rmtree(place.folder if place.joined else place.folder / WORK, ignore_errors=True)
        remove_leftovers(place.folder)


def plan_shards(place: Place, maker: RowMaker, entries: Mapping[str, Entry], size: int) -> ShardedWork:
    """The shards of a place: first those that exist, then those of new images, `size` entries to a shard.

    A place that holds anything else is refused. `entries` are by the name of the image: an image that is named twice
    counts once, and an image that has a row in the finished file is left out. The caller must hold the lock of the
    place (`alone_in`) from this call until the work is concluded.
    """
    about = json.loads(json.dumps(maker.about))
    place.check()
    place.check_about(about)
    in_file = images_in(place.out, place.form) if place.joined and place.out.exists() else []
    lists = list(read_images_of_shards(place.folder))
    known = {as_text(entry if isinstance(entry, str) else entry[0]) for images in lists for entry in images}
    if known.intersection(in_file):  # the work was stopped between joining the shards and removing them
        shutil.rmtree(place.folder)
        lists, known = [], set()
    known.update(in_file)
    new = [entry for name, entry in entries.items() if name not in known]
    lists += [new[first : first + size] for first in range(0, len(new), size)]
    if new:
        lines = ({"sha256": _digest(b"", images), "images": images} for images in lists)
        write_atomically(place.folder / IMAGES, "".join(f"{json.dumps(line)}\n" for line in lines))
    stored = read_json(place.about, "a place of rows") if place.about.exists() else {}
    if stored != (now := {"what": place.what, **stored, **about}):
        write_json(place.about, now)
    shards = [
        Shard(
            folder=place.folder_of(number),
            about=place.about,
            form=place.form,
            number=number,
            count=maker.count(images),
        )
        for number, images in enumerate(lists)
    ]
    return ShardedWork(place, shards, len(in_file))


def work_on(shards: Sequence[Shard], maker: RowMaker, pace: Pace | None = None) -> Iterator[list[Record]]:
    """Make the rows of shards of one place in one stream, and write each shard when it is complete.

    Yields the records of each portion of images.
    """
    if not shards:
        return
    numbers = {shard.number for shard in shards}
    entries = (entry for images in read_images_of_shards(shards[0].kept_in, numbers) for entry in images)
    waiting, unwritten = deque(shards), list[Record]()
    for portion in maker.portions(entries, pace or Pace()):
        unwritten += portion
        yield portion
        while waiting and len(unwritten) >= waiting[0].count:
            shard = waiting.popleft()
            records = unwritten[: shard.count]
            broken = [(record["image"], record["error"]) for record in records if record["error"] is not None]
            shard.write(maker.contents(records), broken)
            del unwritten[: shard.count]


def read_images_of_shards(folder: Path, numbers: Collection[int] | None = None) -> Iterator[list[Entry]]:
    """The images of each shard in a folder, or only of the shards with these numbers, which are the lines of a file."""
    path = folder / IMAGES
    if not path.exists():
        return
    try:
        with path.open(encoding="ascii") as lines:
            for number, line in enumerate(lines):
                if numbers is not None and number not in numbers:
                    continue
                stored = json.loads(line)
                if stored["sha256"] != _digest(b"", stored["images"]):
                    raise ValueError("its checksum differs")
                yield stored["images"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{printable(str(path))} cannot be read ({error}): begin in another place") from error


def _digest(content: bytes, *parts: object) -> str:
    return hashlib.sha256(content + json.dumps(parts).encode()).hexdigest()
