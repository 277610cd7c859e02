"""Answers for any number of image files, which are read and predicted one portion at a time.

The next images are read while the images before them are predicted. At each moment the prediction waits for one of
three things. The thing that it waits for longest limits its pace; see `Pace`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rebapl.data.features import StoredFeatures
from rebapl.data.images import UnreadableImageError, read_image
from rebapl.data.transforms import Preprocessing, stacked
from rebapl.data.workers import portions_ahead
from rebapl.errors import UserError
from rebapl.learners import check_features
from rebapl.posterior.passes import CHUNK, Label
from rebapl.posterior.posterior import Posterior
from rebapl.posterior.prediction import NO_SETS, NO_THRESHOLD, Average, check_average
from rebapl.posterior.records import Record, head_of, record_of_broken

CPU_PORTION = 32
"""The number of images in a portion on a CPU, where larger passes are not quicker."""

DECODING, MODEL, WRITING = "decoding", "the model", "writing"
"""What a prediction may wait for: reading and resizing images, passes through the model, making and writing records."""

Item = TypeVar("Item")

RECENT = 8
"""The pace is measured over this number of latest portions."""


@dataclass(frozen=True)
class Question:
    """The question that a posterior answers for every image.

    The answer is one of `class_names`, put into the words of `template` (None: the names and the template of the
    training), and the `top` likeliest classes are listed. `average` says whether probabilities or logits are averaged
    over samples (None: as in the training). With `abstain`, the answer is None for an image above one of the
    posterior's thresholds. With `sets`, each record has a prediction set. Both may be None: then thresholds and sets
    are used if the posterior has them for these class names. With `strict`, an image that cannot be read is an error.
    """

    class_names: list[str] | None = None
    template: str | None = None
    top: int = 3
    average: Average | None = None
    abstain: bool | None = None
    sets: bool | None = None
    strict: bool = False

    def put_to(self, posterior: Posterior) -> tuple[Posterior, Question]:
        """The posterior bound to the class names, and the question with every None replaced by the value in use.

        A question that the posterior cannot answer is refused.
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
            bound = replace(bound, folds=())  # only prediction sets need the folds, and each fold costs passes
        if bound.outside is not None and not abstain:
            bound = replace(bound, outside=None)  # its score may cost a pass of each image
        return bound, replace(self, top=top, average=average, abstain=abstain, sets=sets)

    def head(self, bound: Posterior) -> Record:
        """The head of the records (see `head_of`), for the posterior that `put_to` returned."""
        conformal, temperature = bound.conformal if self.sets else None, bound.temperature_for(self.average)
        return head_of(bound.class_names, str(self.average), len(bound), conformal, temperature)


class Pace:
    """Measures what a prediction has waited for lately, and how many images it answers per second.

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
        """Note that the prediction waits for this part from now on."""
        now = self._clock()
        self._seconds[self._part] += now - self._since
        self._since, self._part = now, part

    def answered(self, images: int) -> None:
        """Note that a portion with this number of images is answered."""
        self.waits_for(self._part)
        self._images += images
        self._recent.append((self._images, dict(self._seconds)))

    def said(self) -> str:
        """What limits the prediction and how quick it is, in words; empty before the first portion."""
        (images_before, seconds_before), (images, seconds) = self._recent[0], self._recent[-1]
        spent = {part: seconds[part] - seconds_before[part] for part in seconds}
        if images == images_before or not any(spent.values()):
            return ""
        limit, pace = max(spent, key=spent.__getitem__), (images - images_before) / sum(spent.values())
        digits = 0 if pace >= 10 else 1
        return f"limited by {limit}: {pace:.{digits}f} images/s"


def answer_files(
    posterior: Posterior,
    files: Iterable[Path] | StoredFeatures,
    question: Question | None = None,
    pace: Pace | None = None,
    shards: Iterable[int] | None = None,
) -> Iterator[list[Record]]:
    """Yield the records of image files, or of stored features, in their order, one portion at a time.

    Only a few portions are in memory. The numbers are those of `Posterior.predict`, up to rounding. A file that cannot
    be read has a record with the `error`; if the question is `strict`, the error is raised instead, after the portions
    before that file. `shards` selects some of the shards of stored features; None takes all. Stored features are
    refused if the posterior's method needs the images themselves, or if they come from another backbone. `pace`
    measures what the prediction waits for.
    """
    bound, resolved = (question or Question()).put_to(posterior)
    encoder, pace = bound.learner.encoder, pace or Pace()

    if not isinstance(files, StoredFeatures):
        size = (CPU_PORTION if encoder.device.type == "cpu" else CHUNK) * bound.device_count
        read = partial(_read_file, encoder.preprocessing, resolved.strict)
        portions = read_ahead(read, files, size, pace, processes=encoder.device.type != "cpu")
    else:
        check_features(bound.learner, files)
        stored = waited_for(files.portions(CHUNK * bound.device_count, shards), pace)
        portions = (([(name, "") for name in names], features) for names, features in stored)

    def answers() -> Iterator[list[Record]]:
        for portion, passed in bound.portion_passes(portions):
            pace.waits_for(WRITING)
            readable = [name for name, reason in portion if not reason]
            prediction = bound.predict_passes(passed, readable, resolved.average)
            records = iter(prediction.records(resolved.top, resolved.abstain, resolved.sets))
            pace.answered(len(portion))
            yield [record_of_broken(name, reason) if reason else next(records) for name, reason in portion]
            pace.waits_for(MODEL)

    yield from by_one_torch_thread(answers()) if encoder.device.type == "cuda" else answers()


def _read_file(preprocessing: Preprocessing, strict: bool, file: Path) -> tuple[str, np.ndarray | None, str]:
    """The name of a file, its view or None, and the reason why it could not be read (empty if it could)."""
    try:
        return str(file), preprocessing.centre(read_image(file)).numpy(), ""
    except UnreadableImageError as error:
        if strict:
            raise
        return str(file), None, error.reason


def read_ahead(
    read: Callable[[Item], tuple[Label, np.ndarray | None, str]],
    items: Iterable[Item],
    size: int,
    pace: Pace,
    processes: bool = False,
) -> Iterator[tuple[list[tuple[Label, str]], Tensor]]:
    """Read images at least `size` images ahead, and yield portions of `size` images.

    Threads read them and, with `processes`, many images are read by processes; see `mapped_ahead`. `read` turns an item
    into its label, its view or None, and the reason why it could not be read (empty if it could). A portion has the
    label and this reason for every image, and the views (n, 3, H, W) of those that could be read.
    """
    for portion in waited_for(portions_ahead(read, items, size, processes), pace):
        views = [view for _, view, _ in portion if view is not None]
        yield [(label, reason) for label, _, reason in portion], stacked(views) if views else torch.empty(0)


def waited_for(portions: Iterable[Item], pace: Pace) -> Iterator[Item]:
    """The same portions. `pace` notes the wait for each of them, and between them the wait for the model."""
    pace.waits_for(DECODING)
    for portion in portions:
        pace.waits_for(MODEL)
        yield portion
        pace.waits_for(DECODING)
    pace.waits_for(MODEL)


def by_one_torch_thread(portions: Iterator[list[Item]]) -> Iterator[list[Item]]:
    """The same portions, each computed while torch uses a single CPU thread; meant for work on a GPU.

    There the CPU cores are busy decoding images, and work that torch divides among threads would wait for a free core.
    Between two portions, torch has all of its threads again.
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
