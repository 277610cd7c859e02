"""Answers to images that come at any time from many clients, computed by one thread.

Requests wait in a queue. The thread takes all that wait and answers those with the same class names together. The
posteriors for the latest class names are kept, so that these are encoded once. Each image goes through the model in a
pass of its own, because the rounding of a pass depends on how many images are in it. So an answer has the same digits
as `rebapl predict RUN IMAGE` gives, whoever else asks.
"""

from __future__ import annotations

import io
import queue
import threading
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from rebapl.data.dataset import Dataset, Item
from rebapl.data.images import BROKEN, as_rgb, unreadable
from rebapl.data.task import Task
from rebapl.data.transforms import Preprocessing
from rebapl.data.workers import portions
from rebapl.errors import UserError
from rebapl.evaluation.tasks import part_views
from rebapl.numbers import spread
from rebapl.posterior import Posterior, Prediction
from rebapl.reports.pictures import embedded

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""The formats of images that are read. Others of Pillow's are seldom used, and less well kept."""

MAX_PIXELS = 50_000_000
WAITING = 64
"""How many requests may wait; further ones are refused until some are answered."""

TOGETHER = 32
"""How many requests are answered together at most."""

KEPT = 8
"""For how many lists of class names, the latest ones, the encoded texts are kept; each may take some GPU memory."""

COMPARED = 2000
"""How many training images an image is compared with at most, evenly spread over all."""

NEAREST = 4
"""How many training images are shown beside an answer."""


class RefusedError(UserError):
    """A request that is refused: the status of the response, and the sentence in it."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Upload:
    """An image, as its test-time view (3, H, W), and the class names to answer among (None: those of the training)."""

    view: Tensor
    class_names: Sequence[str] | None = None
    top: int = 3
    nearest: bool = False
    answer: Future[dict[str, Any]] = field(default_factory=Future, compare=False)


def view_of(content: bytes, preprocessing: Preprocessing) -> Tensor:
    """The test-time view (3, H, W) of an image file's content, read as `rebapl predict` reads the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images and of damaged EXIF
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            if image.width * image.height > MAX_PIXELS:
                raise UserError(f"the image has {image.width} × {image.height} pixels: at most {MAX_PIXELS} are read")
            return preprocessing.centre(as_rgb(image))
    except UserError:
        raise
    except BROKEN as error:
        reason = unreadable("image", error).reason
        raise UserError(f"the image cannot be read ({reason}): send a {', '.join(FORMATS)} file") from error


class Answering:
    """A posterior that answers `Upload`s in a thread of its own, from `start` to `stop`."""

    def __init__(self, posterior: Posterior, task: Task | None = None) -> None:
        self.posterior = posterior
        self.nearby = None if task is None else Nearby(posterior, task)
        self.together: Counter[int] = Counter()
        """How often each number of requests was answered together."""
        self._bound: OrderedDict[tuple[str, ...], Posterior] = OrderedDict()
        self._waiting: queue.Queue[Upload | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="answering", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer what waits, and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def ask(self, question: Upload) -> Future[dict[str, Any]]:
        """Let a question wait for its answer."""
        try:
            self._waiting.put_nowait(question)
        except queue.Full:
            raise RefusedError(503, f"{WAITING} requests wait already: try again in a moment") from None
        return question.answer

    def _work(self) -> None:
        if self.posterior.learner.encoder.device.type == "cpu":
            torch.set_num_threads(quickest_threads(self.posterior))
        ended = False
        while not ended:
            questions = [self._waiting.get()]
            while len(questions) < TOGETHER and not self._waiting.empty():
                questions.append(self._waiting.get())
            ended = None in questions
            self._answer([question for question in questions if question is not None])

    def _answer(self, questions: Sequence[Upload]) -> None:
        by_names: dict[tuple[str, ...], list[Upload]] = {}
        for question in questions:
            if question.answer.set_running_or_notify_cancel():  # False where the client has gone meanwhile
                by_names.setdefault(tuple(question.class_names or ()), []).append(question)
        for names, group in by_names.items():
            self.together[len(group)] += 1
            try:
                bound = self._among(names)
                views = ((["image"], question.view[None]) for question in group)
                for question, prediction in zip(group, bound.predict_portions(views), strict=True):
                    question.answer.set_result(self._said(question, prediction))
            except Exception as error:  # whatever it is, those who asked are told, and the next are answered
                for question in group:
                    if not question.answer.done():
                        question.answer.set_exception(error)

    def _among(self, names: tuple[str, ...]) -> Posterior:
        """The posterior that answers among these class names, perhaps one that did so before."""
        if not names:
            return self.posterior
        bound = self._bound.pop(names, None) or self.posterior.among(list(names))
        self._bound[names] = bound
        if len(self._bound) > KEPT:
            self._bound.popitem(last=False)
        return bound

    def _said(self, question: Upload, prediction: Prediction) -> dict[str, Any]:
        """What `rebapl predict --format json` says of one image, and what each sample says."""
        opinions = [
            {
                "class": prediction.class_names[int(alone[0].argmax())],
                "probability": alone[0].max().item(),
                "weight": weight,
            }
            for alone, weight in zip(prediction.per_sample, prediction.weights.tolist(), strict=True)
        ]
        nearest = self.nearby.to(question.view) if question.nearest and self.nearby is not None else []
        return {**prediction.to_dict(question.top), "opinions": opinions, "nearest": nearest}


def quickest_threads(posterior: Posterior, clock: Callable[[], float] = time.perf_counter) -> int:
    """The number of threads of torch with which one image is answered sooner: one, or as many as there are cores.

    For a small backbone, to share the work among threads takes longer than the work. It is tried on a black image.
    """
    side, cores = posterior.learner.encoder.preprocessing.crop, torch.get_num_threads()
    view, seconds = torch.zeros(1, 3, side, side, dtype=torch.uint8), {}
    for threads in dict.fromkeys((1, cores)):
        torch.set_num_threads(threads)
        posterior.sample_logits(view)
        begun = clock()
        posterior.sample_logits(view)
        seconds[threads] = clock() - begun
    torch.set_num_threads(cores)
    return min(seconds, key=lambda threads: seconds[threads])


class Nearby:
    """Training images, to find those whose frozen features are nearest to an image's. Of many, some are taken."""

    def __init__(self, posterior: Posterior, task: Task) -> None:
        self.posterior = posterior
        self.dataset: Dataset = task.dataset
        items = task.train.items
        self.items: Sequence[Item] = [items[index] for index in spread(len(items), COMPARED)]
        self.features = torch.cat(
            [
                posterior.image_features(part_views(posterior, replace(task.train, items=some)))
                for some in portions(self.items, TOGETHER)
            ]
        )

    def to(self, view: Tensor) -> list[dict[str, Any]]:
        """The nearest training images of a view (3, H, W): class, cosine, and the picture."""
        cosines = self.features @ self.posterior.image_features(view[None])[0]
        found = cosines.topk(min(NEAREST, len(self.items)))
        return [
            {
                "class": self.items[index].class_name,
                "cosine": cosine,
                "picture": embedded(self.dataset, self.items[index].key, "").uri,
            }
            for cosine, index in zip(found.values.tolist(), found.indices.tolist(), strict=True)
        ]
