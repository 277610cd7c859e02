"""The answers of `rebapl predict` as rows of shards, for images or for stored features."""

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
from rebapl.runs.shards import Entry

SIZE = 2048
"""Images in a shard. They take some seconds on a GPU, and a process that is killed loses at most one shard."""

CPU_SIZE = 128
"""Images in a shard if one process computes on a CPU."""


def entries_of(images: Iterable[Path] | StoredFeatures) -> dict[str, Entry]:
    """The entry of each image by its name. A shard of stored features has one entry: its first image, number, rows."""
    if isinstance(images, StoredFeatures):
        return {as_text(first): [first, number, rows] for number, first, rows in images.shards()}
    entries = {as_text(str(file)): str(file) for file in images}
    if not entries:
        raise UserError("no path came through the pipe: write one per line")
    return entries


@dataclasses.dataclass(frozen=True)
class AnswerMaker:
    """The `RowMaker` of answers: a posterior that is `bound` to the class names of a question, and this question.

    `about` describes both as plain values, from which `open` makes the same object in any process. In its entry `work`,
    paths of images are relative to the folder `start`; if `features` is given, the images are those of the stored
    features in that folder.
    """

    about: Mapping[str, Any]
    bound: Posterior
    question: Question

    @classmethod
    def of(
        cls, source: str, bound: Posterior, question: Question, form: str, stored: StoredFeatures | None = None
    ) -> AnswerMaker:
        """The maker of answers by the posterior in `source`, which is already bound, in the format `form`."""
        outside = bound.outside if question.abstain else None
        threshold = bound.threshold if question.abstain else None
        about = {
            "format": form,
            "rebapl": __version__,
            "run": source if source.startswith("hf:") else str(Path(source).absolute()),
            "posterior": bound.fingerprint,
            "template": bound.learner.template,
            **question.head(bound),
            "top": question.top,
            "threshold": None if threshold is None else {"by": threshold.by, "value": threshold.value},
            "outside": None if outside is None else {"by": outside.by, "value": outside.value},
            "work": {
                "backbone": bound.learner.encoder.name,
                "start": str(Path.cwd()),
                "features": None if stored is None else str(stored.folder.absolute()),
                "question": dataclasses.asdict(question),
            },
        }
        return cls(about, bound, question)

    @classmethod
    def open(cls, about: Mapping[str, Any], device: str) -> AnswerMaker:
        """The maker that `about` describes. A posterior that has changed since is refused."""
        work, source = about["work"], about["run"]
        posterior = load_posterior(source, kept_backbone(work["backbone"], device), device)
        if posterior.fingerprint != about["posterior"]:
            raise UserError(f"{source} has changed since the prediction began: answer with it in another place")
        return cls(about, *Question(**work["question"]).put_to(posterior))

    def count(self, entries: Sequence[Entry]) -> int:
        """The number of images behind these entries."""
        return len(entries) if self.about["work"]["features"] is None else sum(rows for _, _, rows in entries)

    def portions(self, entries: Iterable[Entry], pace: Pace) -> Iterator[list[Record]]:
        """The records of these images, a portion at a time."""
        work = self.about["work"]
        if work["features"] is not None:
            stored = StoredFeatures.read(Path(work["features"]))
            yield from answer_files(self.bound, stored, self.question, pace, [number for _, number, _ in entries])
            return
        listed = list(entries)
        names, files = iter(listed), (Path(work["start"]) / name for name in listed)
        for portion in answer_files(self.bound, files, self.question, pace):
            yield [{**record, "image": as_text(next(names))} for record in portion]

    def contents(self, records: Sequence[Record]) -> list[bytes]:
        """The content of the file of a shard with these records."""
        return [rows_bytes(records, self.about["format"], self.question.top)]
