"""Answers in shards: the rows of `rebapl predict`, for images or for stored features."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rebapl import __version__
from rebapl.data.features import StoredFeatures
from rebapl.errors import UserError
from rebapl.posterior import Posterior, load_posterior
from rebapl.posterior.answers import Pace, Question, answer_files
from rebapl.posterior.records import Record, as_text
from rebapl.runs.answer_formats import rows_bytes
from rebapl.runs.machine import kept_backbone
from rebapl.runs.shards import Entry, Place, Shard, entries_of, plan_lists, written

SIZE = 2048
"""Images in a shard. They take some seconds on a GPU, and a process that is killed loses at most one shard."""

CPU_SIZE = 128
"""Images in a shard if one process computes on a CPU."""


@dataclasses.dataclass(frozen=True)
class Inquiry:
    """A question and the places of the posterior and the images, as plain values that can be sent to any process.

    `source` is the place of the posterior, `fingerprint` is the fingerprint that it must have, and `backbone` is its
    backbone. Paths of images are relative to the folder `start`; if `features` is given, the images are those of the
    stored features in that folder. `form` is the format of the shards.
    """

    source: str
    backbone: str
    fingerprint: str
    start: str
    features: str | None
    form: str
    question: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class AnswerShard(Shard):
    """The answers for the images of a shard. `inquiry` is an `Inquiry`."""

    def portions(self, device: str) -> Iterator[list[Record]]:
        """Predict the images and write the file."""
        inquiry = Inquiry(**self.inquiry)
        posterior = load_posterior(inquiry.source, kept_backbone(inquiry.backbone, device), device)
        if posterior.fingerprint != inquiry.fingerprint:
            raise UserError(f"{inquiry.source} has changed since the prediction began: answer with it in another place")
        return answer_shards([self], posterior)


def answer_shards(
    shards: Sequence[AnswerShard], posterior: Posterior, pace: Pace | None = None
) -> Iterator[list[Record]]:
    """Answer the images of shards in one stream, and write each shard when it is complete. Yields each portion."""
    if not shards:
        return
    inquiry = Inquiry(**shards[0].inquiry)
    bound, question = Question(**inquiry.question).put_to(posterior)

    def write(shard: AnswerShard, records: list[Record]) -> None:
        broken = [(record["image"], record["error"]) for record in records if record["error"] is not None]
        shard.write([rows_bytes(records, inquiry.form, question.top)], broken)

    yield from written(_answered(bound, question, inquiry, list(entries_of(shards)), pace), shards, write)


def _answered(
    bound: Posterior, question: Question, inquiry: Inquiry, entries: Sequence[Entry], pace: Pace | None
) -> Iterator[list[Record]]:
    """The records of these images, a portion at a time."""
    if inquiry.features is not None:
        stored = StoredFeatures.read(Path(inquiry.features))
        yield from answer_files(bound, stored, question, pace, [number for _, number, _ in entries])
        return
    names = iter(entries)
    for portion in answer_files(bound, (Path(inquiry.start) / name for name in entries), question, pace):
        yield [{**record, "image": as_text(next(names))} for record in portion]


def plan_answers(
    place: Place,
    source: str,
    bound: Posterior,
    question: Question,
    images: Iterable[Path] | StoredFeatures,
    size: int,
) -> list[AnswerShard]:
    """The shards of a prediction by the posterior in `source`. A place with another prediction is refused.

    `bound` is this posterior, already bound to the class names of the question. Files are put into shards of `size`
    images; stored features keep their shards. See `plan_lists` for the rest.
    """
    stored = images if isinstance(images, StoredFeatures) else None
    inquiry = Inquiry(
        source=source if source.startswith("hf:") else str(Path(source).absolute()),
        backbone=bound.learner.encoder.name,
        fingerprint=bound.fingerprint,
        start=str(Path.cwd()),
        features=None if stored is None else str(stored.folder.absolute()),
        form=place.form,
        question=dataclasses.asdict(question),
    )
    outside = bound.outside if question.abstain else None
    threshold = bound.threshold if question.abstain else None
    about = {
        "format": place.form,
        "rebapl": __version__,
        "run": inquiry.source,
        "posterior": inquiry.fingerprint,
        "template": bound.learner.template,
        **question.head(bound),
        "top": question.top,
        "threshold": None if threshold is None else {"by": threshold.by, "value": threshold.value},
        "outside": None if outside is None else {"by": outside.by, "value": outside.value},
    }
    entries: dict[str, Entry]
    if isinstance(images, StoredFeatures):
        entries = {as_text(first): [first, number, rows] for number, first, rows in images.shards()}
        size = 1
    else:
        entries = {as_text(str(file)): str(file) for file in images}
        if not entries:
            raise UserError("no path came through the pipe: write one per line")
    lists = plan_lists(place, about, entries, size)
    counts = [len(listed) if stored is None else listed[0][2] for listed in lists]
    plain = dataclasses.asdict(inquiry)
    return [AnswerShard(place.folder_of(number), plain, number, count) for number, count in enumerate(counts)]
