"""Answers for any number of image files: read, predicted and given a portion at a time.

Threads read the next images while those before them are predicted. At each moment it waits for one of three things, and
what it waits for most is what limits the pace: see `Pace`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from rebapl.data.features import StoredFeatures
from rebapl.data.images import UnreadableImageError, read_image
from rebapl.data.transforms import stacked
from rebapl.data.workers import mapped_ahead
from rebapl.errors import UserError
from rebapl.learners import check_features
from rebapl.posterior.passes import CHUNK
from rebapl.posterior.posterior import Posterior
from rebapl.posterior.prediction import NO_SETS, NO_THRESHOLD, Average, check_average
from rebapl.posterior.records import Record, head_of, record_of_broken

CPU_PORTION = 32
"""Images in a portion on a CPU, where larger passes are not quicker."""

DECODING, MODEL, WRITING = "decoding", "the model", "writing"
"""What is waited for: images that are read and resized, their passes, and records that are made and written."""

Given = TypeVar("Given")
Named = TypeVar("Named")

RECENT = 8
"""The number of portions, the latest ones, by which the pace is judged."""


@dataclass(frozen=True)
class Question:
    """The question that is put for every image.

    The answer is one of `class_names`, in the words of `template` (None: those of the training), and the `top`
    likeliest classes are listed. `average` is what is averaged over samples (None: as in training). With `abstain`, the
    answer is None above the posterior's thresholds, and with `sets` there are prediction sets (None: where the
    posterior has them for these class names). With `strict`, an image that cannot be read is an error.
    """

    class_names: list[str] | None = None
    template: str | None = None
    top: int = 3
    average: Average | None = None
    abstain: bool | None = None
    sets: bool | None = None
    strict: bool = False

    def put_to(self, posterior: Posterior) -> tuple[Posterior, Question]:
        """The posterior bound to the class names, and the question with nothing left open, so that it is plain data.

        What the posterior cannot answer is refused.
        """
        learner = posterior.learner
        if self.template is not None and not learner.reads_template(learner.config):
            raise UserError(
                f"the template has no effect: {learner.method} does not use it as it was trained; leave it out"
            )
        average = self.average or posterior.average
        check_average(average)
        bound = posterior.among(self.class_names, self.template)
        chosen, top = bound.chosen_for(average), min(self.top, len(bound.class_names))
        has_threshold, has_sets = "threshold" in chosen or "outside" in chosen, "conformal" in chosen
        if self.abstain and not has_threshold:
            raise UserError(NO_THRESHOLD)
        if self.sets and not has_sets:
            raise UserError(NO_SETS)
        abstain = has_threshold if self.abstain is None else self.abstain
        sets = has_sets if self.sets is None else self.sets
        if bound.folds and not sets:
            bound = replace(bound, folds=())  # which only sets compare images by, and which cost passes of their own
        return bound, replace(self, top=top, average=average, abstain=abstain, sets=sets)

    def head(self, bound: Posterior) -> Record:
        """What stands at the head of the records, where this question was put to a posterior."""
        conformal, temperature = bound.conformal if self.sets else None, bound.temperature_for(self.average)
        return head_of(bound.class_names, str(self.average), len(bound), conformal, temperature)


class Pace:
    """What a prediction has waited for lately, and how many images it answers a second.

    >>> ticks = iter([0.0, 0.0, 4.0, 5.0])
    >>> pace = Pace(lambda: next(ticks))
    >>> pace.waits_for(DECODING)
    >>> pace.waits_for(MODEL)
    >>> pace.answered(10)
    >>> pace.said()
    'limited by decoding: 2.0 images/s'
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._since, self._part = clock, clock(), DECODING
        self._images, self._seconds = 0, dict.fromkeys((DECODING, MODEL, WRITING), 0.0)
        self._recent: deque[tuple[int, dict[str, float]]] = deque([(0, dict(self._seconds))], maxlen=RECENT + 1)

    def waits_for(self, part: str) -> None:
        """From now on it waits for this."""
        now = self._clock()
        self._seconds[self._part] += now - self._since
        self._since, self._part = now, part

    def answered(self, images: int) -> None:
        """A portion with this number of images is answered."""
        self.waits_for(self._part)
        self._images += images
        self._recent.append((self._images, dict(self._seconds)))

    def said(self) -> str:
        """What limits it and how quick it is, in words; nothing before the first portion."""
        (images, before), (answered, now) = self._recent[0], self._recent[-1]
        spent = {part: now[part] - before[part] for part in now}
        if answered == images or not any(spent.values()):
            return ""
        limit, pace = max(spent, key=spent.__getitem__), (answered - images) / sum(spent.values())
        return f"limited by {limit}: {pace:.0f} images/s" if pace >= 10 else f"limited by {limit}: {pace:.1f} images/s"


def answer_files(
    posterior: Posterior,
    files: Iterable[Path] | StoredFeatures,
    question: Question | None = None,
    pace: Pace | None = None,
    shards: Iterable[int] | None = None,
) -> Iterator[list[Record]]:
    """Give the records of image files, or of stored features, in their order, a portion at a time.

    Only a few portions are in memory. The numbers are those of `Posterior.predict`, up to rounding. A file that cannot
    be read has a record with the `error`; if the question is `strict`, it is raised instead, after the portions before
    it were given. Of stored features, those in some of their `shards` are taken, or all. They are refused by a
    posterior whose method needs the images themselves, or that has another backbone. `pace` hears what the stream
    waits for.
    """
    bound, asked = (question or Question()).put_to(posterior)
    encoder, pace = bound.learner.encoder, pace or Pace()

    def read(file: Path) -> tuple[str, Tensor | None, str]:
        """The name of a file and its view, or None and why it cannot be read."""
        try:
            return str(file), encoder.preprocessing.centre(read_image(file)), ""
        except UnreadableImageError as error:
            if asked.strict:
                raise
            return str(file), None, error.reason

    if isinstance(files, StoredFeatures):
        check_features(bound.learner, files)
        portions = _read_features(files.portions(CHUNK * bound.device_count, shards), pace)
    else:
        size = (CPU_PORTION if encoder.device.type == "cpu" else CHUNK) * bound.device_count
        portions = read_ahead(read, files, size, pace)

    def answered() -> Iterator[list[Record]]:
        for portion, passed in bound.portion_passes(portions):
            pace.waits_for(WRITING)
            names = [name for name, why in portion if not why]
            prediction = bound.predict_passes(passed, names, asked.average)
            records = iter(prediction.records(asked.top, asked.abstain, asked.sets))
            pace.answered(len(portion))
            yield [record_of_broken(name, why) if why else next(records) for name, why in portion]
            pace.waits_for(MODEL)

    yield from by_one_torch_thread(answered()) if encoder.device.type == "cuda" else answered()


def read_ahead(
    read: Callable[[Given], tuple[Named, Tensor | None, str]], items: Iterable[Given], size: int, pace: Pace
) -> Iterator[tuple[list[tuple[Named, str]], Tensor]]:
    """Read images in threads, which are `size` images ahead, and give a portion of as many at a time.

    A portion has what each image is called, with why it cannot be read or nothing, and the views of the others. `read`
    gives what an image is called and its view, or None and why it cannot be read.
    """
    images = mapped_ahead(read, items, size)
    while True:
        pace.waits_for(DECODING)
        portion = list(islice(images, size))
        pace.waits_for(MODEL)
        if not portion:
            return
        views = [view for _, view, _ in portion if view is not None]
        yield [(named, why) for named, _, why in portion], stacked(views) if views else torch.empty(0)


def _read_features(
    stored: Iterable[tuple[list[str], Tensor]], pace: Pace
) -> Iterator[tuple[list[tuple[str, str]], Tensor]]:
    """Portions of stored features and their names, in the form that `read_ahead` gives images."""
    pace.waits_for(DECODING)
    for names, features in stored:
        pace.waits_for(MODEL)
        yield [(name, "") for name in names], features
        pace.waits_for(DECODING)


def by_one_torch_thread(portions: Iterator[list[Given]]) -> Iterator[list[Given]]:
    """The same portions, for work beside a GPU: what little torch computes on the CPU is not shared among threads.

    The cores are busy decoding, and a share of the work would wait until its core is free. Whoever takes
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
