"""Answers for images that arrive at any time from many clients, computed by one thread.

The posteriors for the latest lists of class names are cached, so that each list is encoded once. Each image has its own
pass through the model, because the rounding of a pass depends on the number of images in it. So an answer has the same
digits as that of `rebapl predict RUN IMAGE`, whatever other clients send.
"""

from __future__ import annotations

import io
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from rebapl.data.dataset import Dataset, Item
from rebapl.data.images import BROKEN, as_rgb, unreadable
from rebapl.data.task import Task
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError
from rebapl.evaluation.tasks import part_features
from rebapl.numbers import spread
from rebapl.posterior import Posterior
from rebapl.reports.pictures import embedded

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""The accepted image formats. The other formats of Pillow are rarely used, and their code is less well maintained."""

MAX_PIXELS = 50_000_000
"""The largest number of pixels of an image. Larger images are refused before they are decoded."""

WAITING = 64
"""The largest number of waiting requests. Further requests are refused until some have been answered."""

KEPT = 8
"""The number of lists of class names, the latest ones, whose encoded texts are cached. Each may take GPU memory."""

COMPARED = 2000
"""The largest number of training images with which an image is compared. They are evenly spread over all."""

NEAREST = 4
"""The number of training images that are shown with an answer."""


class RefusedError(UserError):
    """The refusal of a request: the HTTP status of the response, and the sentence in it."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def view_of(content: bytes, preprocessing: Preprocessing) -> Tensor:
    """The test-time view (3, H, W) of the content of an image file, read in the same way as by `rebapl predict`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about large images and damaged EXIF data
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
    """A posterior that answers about images in a separate thread. `start` prepares the thread, and `stop` ends it."""

    def __init__(self, posterior: Posterior, task: Task | None = None) -> None:
        self.posterior = posterior
        self.nearby = None if task is None else Nearby(posterior, task)
        self._among = lru_cache(KEPT)(lambda names: posterior.among(list(names)))
        self._room = threading.BoundedSemaphore(WAITING)
        self._thread = ThreadPoolExecutor(1, "answering")

    def start(self) -> None:
        """Choose the number of torch threads for the thread. If no image can be answered, the error is raised here."""
        if self.posterior.learner.encoder.device.type == "cpu":
            self._thread.submit(lambda: torch.set_num_threads(quickest_threads(self.posterior))).result()

    def stop(self) -> None:
        """Answer the waiting requests, and end the thread."""
        self._thread.shutdown()

    def ask(
        self, view: Tensor, class_names: Sequence[str] | None = None, top: int = 3, nearest: bool = False
    ) -> Future[dict[str, Any]]:
        """Let an image wait for its answer, and return the future of the answer.

        The image is given as its test-time view (3, H, W). Without `class_names`, they are those of the training.
        """
        if not self._room.acquire(blocking=False):
            raise RefusedError(503, f"{WAITING} requests wait already: try again in a moment")
        answer = self._thread.submit(self._answer, view, class_names, top, nearest)
        answer.add_done_callback(lambda _: self._room.release())  # also if the client has disconnected
        return answer

    def _answer(self, view: Tensor, class_names: Sequence[str] | None, top: int, nearest: bool) -> dict[str, Any]:
        """The output of `rebapl predict --format json` for one image, the answers of each sample, and near images."""
        bound = self._among(tuple(class_names)) if class_names else self.posterior
        prediction = bound.predict_views(view[None], names=["image"])
        opinions = [
            {
                "class": prediction.class_names[int(alone[0].argmax())],
                "probability": alone[0].max().item(),
                "weight": weight,
            }
            for alone, weight in zip(prediction.per_sample, prediction.weights.tolist(), strict=True)
        ]
        near = self.nearby.to(view) if nearest and self.nearby is not None else []
        return {**prediction.to_dict(top), "opinions": opinions, "nearest": near}


def quickest_threads(posterior: Posterior, clock: Callable[[], float] = time.perf_counter) -> int:
    """The number of torch threads with which one image is answered faster: one, or the number that torch uses now.

    For a small backbone, sharing the work among threads takes longer than the work itself. Both are timed on a black
    image.
    """
    side, all_threads = posterior.learner.encoder.preprocessing.crop, torch.get_num_threads()
    view, seconds = torch.zeros(1, 3, side, side, dtype=torch.uint8), {}
    for threads in dict.fromkeys((1, all_threads)):
        torch.set_num_threads(threads)
        posterior.sample_logits(view)
        start = clock()
        posterior.sample_logits(view)
        seconds[threads] = clock() - start
    torch.set_num_threads(all_threads)
    return min(seconds, key=lambda threads: seconds[threads])


class Nearby:
    """Up to `COMPARED` training images, among which those with frozen features nearest to an image's are found."""

    def __init__(self, posterior: Posterior, task: Task) -> None:
        self.posterior = posterior
        self.dataset: Dataset = task.dataset
        items = task.train.items
        self.items: Sequence[Item] = [items[index] for index in spread(len(items), COMPARED)]
        self.features = part_features(posterior, replace(task.train, items=self.items))

    def to(self, view: Tensor) -> list[dict[str, Any]]:
        """The training images nearest to a view (3, H, W): the class, the cosine and the picture of each."""
        cosines = self.features @ self.posterior.image_features(view[None])[0]
        nearest = cosines.topk(min(NEAREST, len(self.items)))
        return [
            {
                "class": self.items[index].class_name,
                "cosine": cosine,
                "picture": embedded(self.dataset, self.items[index].key, "").uri,
            }
            for cosine, index in zip(nearest.values.tolist(), nearest.indices.tolist(), strict=True)
        ]
