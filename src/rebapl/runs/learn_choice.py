"""The default methods of `rebapl learn`, and an estimate of how long they take on this machine.

A head on frozen features takes seconds: every image is encoded once, whatever the number of trainings and samples.
Prompts take longer, and are better on some tasks. Their time is estimated from a short measurement: let t_i be the time
of the image tower for one image, and t_c that of the text tower for all class names. A forward and backward pass takes
about three times as long as a forward pass, so

    seconds ≈ Σ over trainings of epochs · (images · 3·t_i + steps · 3·t_c).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from rebapl.backbones import DualEncoder
from rebapl.backbones.features import encode
from rebapl.data.batches import LabelledImages
from rebapl.data.checking import broken_images
from rebapl.errors import UserError
from rebapl.learners import METHODS
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import CONFIG
from rebapl.runs.learn import Lesson
from rebapl.runs.machine import kept_backbone
from rebapl.wording import number_of, roughly

HEAD = {"method": "tip-adapter-f", "inference": "mle"}
PROMPTS = {"method": "mmrl", "inference": "rebapl"}
"""The settings for a head and for prompts, as the benchmarks chose them (docs/benchmarks.md)."""

BEST = "-best"
"""The end of the name of the prompts' folder, which otherwise has the name of the head's folder."""

PATIENCE = 300
"""The most seconds for which prompts are learned on a GPU without being requested."""

TIMED = 8
"""The number of images that are encoded to measure the time for one."""


class Timing(NamedTuple):
    """Seconds to decode and encode an image (0 if its feature is stored), and to encode all class names."""

    image: float
    classes: float

    @classmethod
    def of(cls, lesson: Lesson, encoder: DualEncoder) -> Timing:
        """Measure both. An image is encoded once before, because the first pass may take longer."""
        image = 0.0
        if lesson.dataset.features is None:
            data = LabelledImages(lesson.dataset, lesson.dataset.items[:TIMED])
            if broken_images(data.dataset, data.items):
                lesson.refuse_broken()
            encode(encoder, data.views(encoder.preprocessing, [0]))
            begin = time.perf_counter()
            encode(encoder, data.views(encoder.preprocessing))
            image = (time.perf_counter() - begin) / len(data)
        text = encoder.tokenize([[name] for name in lesson.dataset.class_names])
        begin = time.perf_counter()
        with torch.no_grad():
            encoder.text_features(text).cpu()
        return cls(image, time.perf_counter() - begin)

    def head(self, lesson: Lesson) -> float:
        """Seconds to encode every image of a lesson once."""
        return self.image * len(lesson.dataset.items)

    def prompts(self, lesson: Lesson) -> float:
        """Seconds for all trainings of a lesson."""
        inference = lesson.final.resolved().training.inference
        if inference is None:
            return 0.0
        seconds = 0.0
        for images in (len(task.train.items) for task in lesson.tasks.values()):
            steps = max(1, images // inference.batch)
            seconds += 3 * inference.all_epochs * (images * self.image + steps * self.classes)
        return seconds

    def told(self, lesson: Lesson) -> str:
        """How long a lesson takes, in words: by `head` if it learns a head or nothing, and else by `prompts`."""
        if METHODS.find(lesson.final.method).learner.learns_from_features or not (seconds := self.prompts(lesson)):
            if lesson.dataset.features is not None:
                return "takes some seconds to learn, since the features are there"
            images = number_of(len(lesson.dataset.items), "image")
            seconds = max(1.0, self.head(lesson))
            return f"takes about {roughly(seconds)} here to encode {images}, and some seconds to learn"
        return f"takes about {roughly(max(1.0, seconds))} here to learn"


class Plan(NamedTuple):
    """The lessons in their order, and lines that tell the user why they were chosen and how long they take."""

    lessons: Sequence[Lesson]
    lines: Sequence[str]


def plan_lessons(config: RunConfig, out: Path, device: str, *, quick: bool, best: bool, anew: bool) -> Plan:
    """What to learn: the method or inference in `config`; with `quick` a head; with `best` a head and then prompts.

    Without any of these, a head is learned and, on a GPU where prompts take no longer than `PATIENCE`, prompts after
    it. Prompts that were started earlier are continued. With `anew`, earlier results do not count as done. A number of
    epochs holds for the prompts if they are learned, and for a head that was requested; otherwise it is refused.
    """
    if config.method or config.inference:
        lessons = [Lesson.of(config if config.method else config.changed(method=HEAD["method"]), out)]
    else:
        lessons = [Lesson.of(config.changed(**HEAD, epochs=config.epochs if quick else None), out)]
        if lessons[0].dataset.features is None:
            lessons.append(lessons[0].by(config.changed(**PROMPTS), out.with_name(out.name + BEST)))
        elif best:
            raise UserError(f"{config.data} has features, and prompts are learned from images: leave --best out")
    if len(lessons) == 1:
        if not anew and lessons[0].is_done():
            return Plan(lessons, [])
        told = Timing.of(lessons[0], kept_backbone(config.backbone_name, device)).told(lessons[0])
        return Plan(
            lessons, [f"chosen because you asked for it; {told}" if config.method or config.inference else told]
        )
    head, prompts = lessons
    both = best or (not quick and (prompts.out / CONFIG).exists())
    no_epochs = UserError("--epochs needs --quick (for the head), --best (for prompts after it) or --method")
    if config.epochs is not None and device == "cpu" and not (quick or both):
        raise no_epochs
    if not anew and all(lesson.is_done() for lesson in lessons[: 1 + both]):
        return Plan(lessons[: 1 + both], [])
    timing = Timing.of(head, kept_backbone(config.backbone_name, device))
    head_line, seconds = timing.told(head), timing.prompts(prompts)
    later = f"prompts ({PROMPTS['method']} · {PROMPTS['inference']})"
    if both or (not quick and device != "cpu" and seconds <= PATIENCE):
        return Plan(lessons, [f"{head_line}; then {later}, about {roughly(seconds)}"])
    if config.epochs is not None and not quick:
        raise no_epochs
    return Plan([head], [f"{head_line}; {later} would take about {roughly(seconds)}: --best learns them as well"])
