"""Answers for any number of images in shards, each of which is a piece of work by itself, so that stopped work goes on.

Shards lie in a folder:

    shard-000000.csv, shard-000001.csv, …       the rows, each file written whole or not at all (or .jsonl, .parquet)
    .shard-000000.json, …                       the checksum of a shard, and which of its images cannot be read
    .images.jsonl                               the images of each shard, a line per shard
    .work/                                      how far shards are, and tracebacks; removed when all are done

Where the answers are to be one file, the folder is called `<file>.shards`. When all shards are done they are joined
into the file, and the folder is removed. Where they are to be a folder, the shards are Parquet files and stay. What the
answers are made with stands in `<file>.about.json`, or in `_about.json` in the folder, with the checksum of the file;
answers that were made with anything else are refused. New images become new shards.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rebapl import __version__
from rebapl.errors import UserError, printable
from rebapl.files import clear_refusals, read_json, remove_leftovers, sha256, write_atomically, write_json
from rebapl.posterior import Posterior, load_posterior
from rebapl.posterior.answers import Pace, Question, answer_files
from rebapl.posterior.records import Record, as_text, head_of
from rebapl.runs.answer_formats import images_in, import_parquet, join, rows_bytes
from rebapl.runs.jobs import Work
from rebapl.runs.machine import LoadBackbone

if TYPE_CHECKING:
    from rebapl.training import Progress

IMAGES, WORK = ".images.jsonl", ".work"

SIZE = 2048
"""Images in a shard: seconds of work on a GPU, which is what a process that is killed costs at most."""

CPU_SIZE = 128
"""The same where one process works on a CPU."""

NotRead = list[tuple[str, str]]
"""Images that cannot be read, and why."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where answers go: into the file `out`, or into the folder `out` if they are not `joined`."""

    out: Path
    form: str
    joined: bool

    @property
    def folder(self) -> Path:
        """The folder of the shards."""
        return self.out.with_name(f"{self.out.name}.shards") if self.joined else self.out

    @property
    def about(self) -> Path:
        """The file that says what the answers are made with."""
        return self.out.with_name(f"{self.out.name}.about.json") if self.joined else self.out / "_about.json"

    def check(self) -> None:
        """Refuse, before any work, a place where there is something else than answers."""
        shown = printable(str(self.out))
        if self.form == "parquet":
            import_parquet()
        if not self.joined and self.out.exists() and not self.out.is_dir():
            raise UserError(f"--out {shown} is a file, and shards go into a folder: name a folder")
        if not self.about.exists() and (self.out.exists() if self.joined else any(self.out.glob("[!.]*"))):
            anew = f"name another --out, or delete {shown}" if self.joined else "name another --out"
            raise UserError(f"{shown} is there already, and no {self.about.name} says that it is answers: {anew}")

    def check_about(self, about: Mapping[str, Any]) -> None:
        """Refuse answers that are not made as `about` says, or that were changed since they were written."""
        shown, anew = printable(str(self.out)), f"name another --out, or delete {printable(str(self.out))}"
        if not self.about.exists():
            return
        there = read_json(self.about, "a place of answers")
        if there.get("posterior") != about["posterior"]:
            raise UserError(f"{shown} holds answers of another run or of other weights ({there.get('run')}): {anew}")
        for key in about:
            if key not in ("rebapl", "run") and there.get(key) != about[key]:
                theirs, ours = (json.dumps(each, ensure_ascii=False) for each in (there.get(key), about[key]))
                raise UserError(f"{shown} was made with {key} = {theirs}, not {ours}: {anew}")
        if self.joined and self.out.exists() and sha256(self.out) not in there.get("sha256", ()):
            raise UserError(f"{shown} was changed since it was written: {anew}")


@dataclasses.dataclass(frozen=True)
class Inquiry:
    """A question, and where the posterior and the images are, in plain values that any process understands.

    `source` is where the posterior is, `fingerprint` says what it must be there, `backbone` where its backbone is.
    Paths of images are taken from the folder `start`. `form` is the format of the shards.
    """

    source: str
    backbone: str
    fingerprint: str
    start: str
    form: str
    question: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Shard(Work):
    """The answers for the `count` images in line `number` of the list of images. `inquiry` is an `Inquiry`.

    It works in a folder of its own below `.work`, and leaves a file and its checksum in the folder of the shards.
    """

    inquiry: Mapping[str, Any]
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
    def file(self) -> Path:
        """The file with its rows."""
        return self.kept_in / f"{self.name}.{self.inquiry['form'].partition('-')[0]}"

    @property
    def _checksum(self) -> Path:
        return self.kept_in / f".{self.name}.json"

    def is_done(self) -> bool:
        """Whether its file is there as it was written. A damaged one is written again."""
        return self.not_read() is not None

    def not_read(self) -> NotRead | None:
        """The images of a shard that cannot be read, with the reasons; None if the shard is not done."""
        try:
            said = json.loads(self._checksum.read_bytes())
            broken = [(str(image), str(error)) for image, error in said["cannot_be_read"]]
            return broken if said["sha256"] == _digest(self.file.read_bytes(), broken, self.count) else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, records: Sequence[Record], top: int) -> None:
        """Write the rows, and then the checksum, which says that they are complete."""
        content = rows_bytes(records, self.inquiry["form"], top)
        broken = [(record["image"], record["error"]) for record in records if record["error"] is not None]
        write_atomically(self.file, content)
        write_json(self._checksum, {"sha256": _digest(content, broken, self.count), "cannot_be_read": broken})
        shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, device: str, load: LoadBackbone, progress: Progress | None) -> None:
        """Predict the images and write the file."""
        if self.is_done():
            return
        with clear_refusals(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        inquiry, moved, done = Inquiry(**self.inquiry), progress or (lambda *_: None), 0
        moved(0, self.count, math.nan)
        posterior = load_posterior(inquiry.source, load(inquiry.backbone, device), device)
        if posterior.fingerprint != inquiry.fingerprint:
            raise UserError(f"{inquiry.source} has changed since the prediction began: answer with it in another place")
        for records in answer_shards([self], posterior):
            done += len(records)
            moved(done, self.count, math.nan)

    def place_for_error(self, bad_input: bool) -> Path | None:
        """A file in its own folder; what is wrong with bad input is said in a line."""
        return None if bad_input else self.folder / "error.txt"


def answer_shards(shards: Sequence[Shard], posterior: Posterior, pace: Pace | None = None) -> Iterator[list[Record]]:
    """Answer the images of shards in one stream, and write each shard when it is complete. Each portion is given."""
    if not shards:
        return
    inquiry = Inquiry(**shards[0].inquiry)
    bound, question = Question(**inquiry.question).put_to(posterior)
    wanted = {shard.number for shard in shards}
    lists = [names for number, names in enumerate(read_images_of_shards(shards[0].kept_in)) if number in wanted]
    names = (name for images in lists for name in images)
    files = (Path(inquiry.start) / name for images in lists for name in images)
    waiting, held = list(reversed(shards)), list[Record]()
    for portion in answer_files(bound, files, question, pace):
        held += [{**record, "image": as_text(next(names))} for record in portion]
        yield held[len(held) - len(portion) :]
        while waiting and len(held) >= waiting[-1].count:
            shard = waiting.pop()
            shard.write(held[: shard.count], question.top)
            del held[: shard.count]


def plan_shards(
    place: Place, source: str, bound: Posterior, question: Question, files: Iterable[Path], size: int
) -> list[Shard]:
    """The shards of a prediction by the posterior in `source`. A place that is that of another prediction is refused.

    The question was put to the posterior already, which is `bound` to its class names. An image that is named twice
    counts once, and one that has a row in a finished file needs no other. Hold the lock of the place (`alone_in`) from
    here on until the shards are concluded.
    """
    inquiry = Inquiry(
        source=source if source.startswith("hf:") else str(Path(source).absolute()),
        backbone=bound.learner.encoder.name,
        fingerprint=bound.fingerprint,
        start=str(Path.cwd()),
        form=place.form,
        question=dataclasses.asdict(question),
    )
    outside = bound.outside if question.abstain else None
    threshold, conformal = bound.threshold if question.abstain else None, bound.conformal if question.sets else None
    about = {
        "format": place.form,
        "rebapl": __version__,
        "run": inquiry.source,
        "posterior": inquiry.fingerprint,
        "template": bound.learner.template,
        **head_of(
            bound.class_names, str(question.average), len(bound), conformal, bound.temperature_for(question.average)
        ),
        "top": question.top,
        "threshold": None if threshold is None else {"by": threshold.by, "value": threshold.value},
        "outside": None if outside is None else {"by": outside.by, "value": outside.value},
    }
    place.check()
    place.check_about(about)
    names = {as_text(str(file)): str(file) for file in files}
    if not names:
        raise UserError("no path came through the pipe: write one per line")
    in_file = images_in(place.out, place.form) if place.joined and place.out.exists() else []
    lists = list(read_images_of_shards(place.folder))
    there = {as_text(name) for images in lists for name in images}
    if there.intersection(in_file):  # it was stopped between joining the shards and removing them
        shutil.rmtree(place.folder)
        lists, there = [], set()
    there.update(in_file)
    new = [name for text, name in names.items() if text not in there]
    lists += [new[first : first + size] for first in range(0, len(new), size)]
    if new:
        lines = ({"sha256": _digest(b"", images), "images": images} for images in lists)
        write_atomically(place.folder / IMAGES, "".join(f"{json.dumps(line)}\n" for line in lines))
    if not place.about.exists():
        write_json(place.about, {"what": "answers of rebapl predict", **about})
    plain = dataclasses.asdict(inquiry)
    work = place.folder / WORK
    return [Shard(work / f"shard-{number:06}", plain, number, len(images)) for number, images in enumerate(lists)]


def count_rows(place: Place, shards: Sequence[Shard]) -> tuple[int, NotRead]:
    """The number of rows that there are, in the file and in shards, and the images in shards that cannot be read."""
    found = [(shard.count, broken) for shard in shards if (broken := shard.not_read()) is not None]
    rows = len(images_in(place.out, place.form)) if place.joined and place.out.exists() else 0
    return rows + sum(count for count, _ in found), [each for _, broken in found for each in broken]


def conclude(place: Place, shards: Sequence[Shard]) -> None:
    """If all shards are done, join them where the answers are to be a file, and remove what the work has left."""
    about = read_json(place.about, "a place of answers")
    if not place.joined:
        rows, not_read = count_rows(place, shards)
        write_json(place.about, {**about, "rows": rows, "cannot_be_read": len(not_read)})
    if not all(shard.is_done() for shard in shards):
        return
    if place.joined and shards:
        whole = join(place.out, [shard.file for shard in shards], place.form, about["top"])
        # The checksum before and the one after: whenever this is stopped, the file is known.
        write_json(place.about, {**about, "sha256": [*about.get("sha256", ())[-1:], sha256(whole)]})
        whole.replace(place.out)
    shutil.rmtree(place.folder if place.joined else place.folder / WORK, ignore_errors=True)
    remove_leftovers(place.folder)


def read_images_of_shards(folder: Path) -> Iterator[list[str]]:
    """The names of the images of each shard in a folder."""
    path = folder / IMAGES
    if not path.exists():
        return
    try:
        with path.open(encoding="ascii") as lines:
            for line in lines:
                said = json.loads(line)
                if said["sha256"] != _digest(b"", said["images"]):
                    raise ValueError("its checksum differs")
                yield said["images"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{printable(str(path))} cannot be read ({error}): begin in another place") from error


def _digest(content: bytes, *parts: object) -> str:
    return hashlib.sha256(content + json.dumps(parts).encode()).hexdigest()
