"""Answers for many images in a folder of Parquet files, each of which is a piece of work by itself: a shard.

    shard-000000.parquet, shard-000001.parquet, …    the answers, each file written whole or not at all
    _about.json                                      what the answers are made with, and how many rows there are
    .images.jsonl                                    the images in their order, a JSON text per line
    .work/                                           how far shards are, and tracebacks; removed when all are done

Shard i has the images from i·size on, `size` of them, in their order. So the rows of all shards, in the order of the
names of their files, are the rows of one file of answers.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, ClassVar

from rebapl.errors import UserError, printable
from rebapl.files import clear_refusals, read_json, remove_leftovers, write_atomically, write_json
from rebapl.posterior import Posterior
from rebapl.posterior.answers import Asked, answer_files
from rebapl.posterior.records import Record, as_text
from rebapl.runs.answer_file import ENDINGS, import_parquet, parquet_bytes, refuse_others
from rebapl.runs.engine import Work
from rebapl.runs.folder import ERROR, load_trained
from rebapl.runs.machine import LoadBackbone
from rebapl.training import Progress

ABOUT, IMAGES, WORK = "_about.json", ".images.jsonl", ".work"

SIZE = 2048
"""Images in a shard: minutes of work, which is what a lost process costs at most."""


@dataclasses.dataclass(frozen=True)
class Shard(Work):
    """The answers for `count` images from number `first` on. `question` is a `Question` as plain data.

    It works in a folder of its own below `.work`, and leaves one file in the folder of the answers.
    """

    question: Mapping[str, Any]
    first: int
    count: int
    noun: ClassVar[str] = "shard"
    unit: ClassVar[str] = "image"

    @property
    def name(self) -> str:
        """The name of its file, without the ending."""
        return self.folder.name

    @property
    def kept_in(self) -> Path:
        """The folder of the answers."""
        return self.folder.parents[1]

    @property
    def file(self) -> Path:
        """What it leaves."""
        return self.kept_in / f"{self.name}.parquet"

    def is_done(self) -> bool:
        """Whether its file is there with a row for each image. A damaged file is not, and is written again."""
        try:
            return self.file.is_file() and import_parquet().read_metadata(self.file).num_rows == self.count
        except (ValueError, OSError):  # what pyarrow raises for a file that is not as it should be
            return False

    def do(self, device: str, load: LoadBackbone, progress: Progress | None) -> None:
        """Predict the images and write the file."""
        if self.is_done():
            return
        with clear_refusals(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        moved = progress or (lambda *_: None)
        moved(0, self.count, math.nan)
        question = Question(**self.question)
        posterior = question.posterior_on(device, load)
        names = list(islice(_read_images(self.kept_in), self.first, self.first + self.count))
        records: list[Record] = []
        for portion in answer_files(posterior, [question.path(name) for name in names], question.asked()):
            records += portion
            moved(len(records), self.count, math.nan)
        rows = [{**record, "image": as_text(name)} for record, name in zip(records, names, strict=True)]
        write_atomically(self.file, parquet_bytes(rows, min(question.top, len(posterior.class_names))))
        shutil.rmtree(self.folder, ignore_errors=True)

    def place_for_error(self, bad_input: bool) -> Path | None:
        """A file in its own folder; what is wrong with bad input is said in a line."""
        return None if bad_input else self.folder / ERROR


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked about every image, and of which posterior, in plain values.

    `run` is the full path of its folder, `fingerprint` says what it must be there, `backbone` where its backbone is.
    `class_names` and `template` are others than the trained ones, if there are any. Paths of images are taken from the
    folder `start`.
    """

    run: str
    backbone: str
    fingerprint: str
    class_names: list[str] | None
    template: str | None
    start: str
    top: int
    average: str
    abstain: bool
    strict: bool
    sets: bool

    def posterior_on(self, device: str, load: LoadBackbone) -> Posterior:
        """The posterior, if it is still the one that was asked."""
        posterior = load_trained(Path(self.run), device=device, backbone=self.backbone, load=load)
        if posterior.fingerprint != self.fingerprint:
            raise UserError(f"{self.run} has changed since the prediction began: answer with it in another folder")
        return posterior.among(self.class_names, self.template)

    def path(self, name: str) -> Path:
        """Where an image is."""
        return Path(self.start) / name

    def asked(self) -> Asked:
        """What is asked about every image."""
        average: Any = self.average
        return Asked(self.top, average, self.abstain, self.strict, self.sets)


def refuse_folder(out: Path) -> None:
    """Refuse, before any work, a place that is no folder of answers and cannot become one."""
    shown = printable(str(out))
    if out.is_dir():
        if not (out / ABOUT).exists() and any(not each.name.startswith(".") for each in out.iterdir()):
            raise UserError(f"{shown} holds something else, and no {ABOUT} says that it is answers: name another --out")
    elif out.exists() or out.suffix.lower() in (*ENDINGS, ".json", ".txt"):
        raise UserError(f"--out {shown} is a file, and an engine writes shards into a folder: name a folder")
    import_parquet()


def shards_of(
    question: Question, about: Mapping[str, Any], files: Iterable[Path], out: Path, *, size: int
) -> list[Shard]:
    """The shards of a prediction. Their folder is made ready; if it is that of another prediction, it is refused.

    `about` is what `about_answers` says of it. An image that is named twice counts once. Hold the lock of the folder
    (`alone_in`) from here on until the shards are done.
    """
    names = list({as_text(str(file)): str(file) for file in files}.values())
    if not names:
        raise UserError("no path came through the pipe: write one per line")
    about = {**about, "shard": size}
    if (out / ABOUT).exists():
        anew = f"name another --out, or delete {printable(str(out))}"
        refuse_others(out, read_json(out / ABOUT, "a folder of answers"), about, anew)
        _refuse_other_images(out, names, anew)
    else:
        write_atomically(out / IMAGES, "".join(f"{json.dumps(name)}\n" for name in names))
        write_json(out / ABOUT, {"what": "answers of rebapl predict", **about, "images": len(names), "rows": 0})
    plain = dataclasses.asdict(question)
    return [
        Shard(out / WORK / f"shard-{first // size:06}", plain, first, min(size, len(names) - first))
        for first in range(0, len(names), size)
    ]


def _refuse_other_images(out: Path, names: Sequence[str], anew: str) -> None:
    for number, (theirs, ours) in enumerate(zip_longest(_read_images(out), names), start=1):
        if theirs != ours:
            was, now = ("there was none" if theirs is None else theirs), ("there is none" if ours is None else ours)
            raise UserError(
                f"{printable(str(out))} holds answers for another list of images (image {number}: {printable(was)}; "
                f"now {printable(now)}): {anew}"
            )


@dataclasses.dataclass(frozen=True)
class Written:
    """How many rows a folder of answers has, and the image and the error of those that cannot be read."""

    rows: int
    broken: list[tuple[str, str]]


def conclude(out: Path, shards: Sequence[Shard]) -> Written:
    """Count what is written and note it in `_about.json`. If that is all, what the work has left behind is removed."""
    parquet, rows, broken = import_parquet(), 0, []
    done = [shard for shard in shards if shard.is_done()]
    for shard in done:
        rows += shard.count
        table = parquet.read_table(shard.file, columns=["image", "error"])
        if table["error"].null_count < len(table):
            broken += [(row["image"], row["error"]) for row in table.to_pylist() if row["error"] is not None]
    if len(done) == len(shards):
        shutil.rmtree(out / WORK, ignore_errors=True)
        remove_leftovers(out)
    about = read_json(out / ABOUT, "a folder of answers")
    write_json(out / ABOUT, {**about, "rows": rows, "cannot_be_read": len(broken)})
    return Written(rows, broken)


def _read_images(out: Path) -> Iterator[str]:
    try:
        with (out / IMAGES).open(encoding="ascii") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise UserError(f"{printable(str(out / IMAGES))} cannot be read ({error}): begin in another folder") from error
