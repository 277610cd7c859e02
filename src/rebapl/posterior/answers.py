"""Answers for any number of image files: read, predicted and given a portion at a time.

Threads read the next images while those before them are predicted. At each moment it waits for one of three things, and
what it waits for most is what limits the pace: see `Pace`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from rebapl.data.images import UnreadableImageError, read_image
from rebapl.data.transforms import stacked
from rebapl.data.workers import mapped_ahead
from rebapl.posterior.pace import MODEL, READING, WRITING, Pace
from rebapl.posterior.passes import CHUNK
from rebapl.posterior.posterior import Posterior
from rebapl.posterior.prediction import Average, check_average
from rebapl.posterior.records import Record, record_of_broken, records_of

CPU_PORTION = 32
"""Images in a portion on a CPU, where larger passes are not quicker; an interruption costs a few portions at most."""

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


def answer_files(
    posterior: Posterior, files: Iterable[Path], asked: Asked, pace: Pace | None = None
) -> Iterator[list[Record]]:
    """Give the records of image files in their order, a portion at a time. Only a few portions are in memory.

    The numbers are those of `Posterior.predict`, up to rounding. A file that cannot be read has a record with the
    `error`; if `strict` is asked, it is raised instead, after the portions before it were given. `pace` is told what
    is waited for.
    """
    check_average(asked.average or posterior.average)
    encoder, pace = posterior.learner.encoder, pace or Pace()
    size = (CPU_PORTION if encoder.device.type == "cpu" else CHUNK) * posterior.passes.device_count

    def read(file: Path) -> tuple[str, Tensor | UnreadableImageError]:
        try:
            return str(file), encoder.preprocessing.centre(read_image(file))
        except UnreadableImageError as error:
            if asked.strict:
                raise
            return str(file), error

    held: deque[Read] = deque()

    def readable() -> Iterator[tuple[list[str], Tensor]]:
        found = mapped_ahead(read, files, size)
        while True:
            pace.waits_for(READING)
            portion = list(islice(found, size))
            pace.waits_for(MODEL)
            if not portion:
                return
            held.append(portion)
            good = [(name, found) for name, found in portion if isinstance(found, Tensor)]
            views = stacked([view for _, view in good]) if good else torch.empty(0)
            yield [name for name, _ in good], views

    def answered() -> Iterator[list[Record]]:
        for prediction in posterior.predict_portions(readable(), asked.average):
            pace.waits_for(WRITING)
            answers, portion = iter(records_of(prediction, asked.top, asked.abstain, asked.sets)), held.popleft()
            pace.answered(len(portion))
            yield [
                record_of_broken(name, found.reason) if isinstance(found, UnreadableImageError) else next(answers)
                for name, found in portion
            ]
            pace.waits_for(MODEL)

    yield from by_one_torch_thread(answered()) if encoder.device.type == "cuda" else answered()


def by_one_torch_thread(portions: Iterator[list[Record]]) -> Iterator[list[Record]]:
    """The same portions, for work beside a GPU: what little torch computes on the CPU is not shared among threads.

    The cores are busy decoding, and a part of it would wait until the core that it was given to is free. Whoever takes
    the portions has all of torch's threads between them.
    """
    while True:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            portion = next(portions, None)
        finally:
            torch.set_num_threads(before)
        if portion is None:
            return
        yield portion
