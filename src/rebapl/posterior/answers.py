"""Answers for any number of image files: read, predicted and given a portion at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from rebapl.data.images import UnreadableImageError, read_image
from rebapl.data.workers import in_threads, one_ahead
from rebapl.posterior.per_sample import CHUNK
from rebapl.posterior.posterior import Posterior
from rebapl.posterior.prediction import Average, check_average
from rebapl.posterior.records import Record, record_of_broken, records_of

CPU_PORTION = 32
"""Images in a portion on a CPU, where larger passes are not quicker; an interruption costs at most two portions."""

Read = list[tuple[str, Tensor | UnreadableImageError]]


@dataclass(frozen=True)
class Asked:
    """What is asked about every image: the `top` likeliest classes, averaged as said or as the posterior was trained.

    With `abstain`, the answer is None above the posterior's threshold. With `sets`, there are prediction sets. With
    `strict`, an image that cannot be read is an error.
    """

    top: int = 3
    average: Average | None = None
    abstain: bool = False
    strict: bool = False
    sets: bool = False


def answer_files(posterior: Posterior, files: Iterable[Path], asked: Asked) -> Iterator[list[Record]]:
    """Give the records of image files in their order, a portion at a time. Only two portions are in memory.

    The numbers are those of `Posterior.predict`, up to rounding. A file that cannot be read has a record with the
    `error`; if `strict` is asked, it is raised instead, after the portions before it were given.
    """
    check_average(asked.average or posterior.average)
    encoder = posterior.learner.encoder
    size = CPU_PORTION if encoder.device.type == "cpu" else CHUNK

    def view(file: Path) -> Tensor | UnreadableImageError:
        try:
            return encoder.preprocessing.centre(read_image(file))
        except UnreadableImageError as error:
            if asked.strict:
                raise
            return error

    def read(portion: Sequence[Path]) -> Read:
        return list(zip(map(str, portion), in_threads(view, portion), strict=True))

    held: deque[Read] = deque()

    def readable() -> Iterator[tuple[list[str], Tensor]]:
        for portion in one_ahead(read, _portions(files, size)):
            held.append(portion)
            good = [(name, found) for name, found in portion if isinstance(found, Tensor)]
            if good:
                yield [name for name, _ in good], torch.stack([found for _, found in good])

    for prediction in posterior.predict_portions(readable(), asked.average):
        answered = iter(records_of(prediction, asked.top, asked.abstain, asked.sets))
        while held:
            yield _records(held.popleft(), answered)
    while held:
        yield _records(held.popleft(), iter(()))


def _records(portion: Read, answered: Iterator[Record]) -> list[Record]:
    return [
        record_of_broken(name, found.reason) if isinstance(found, UnreadableImageError) else next(answered)
        for name, found in portion
    ]


def _portions(files: Iterable[Path], size: int) -> Iterator[list[Path]]:
    remaining = iter(files)
    while portion := list(islice(remaining, size)):
        yield portion
