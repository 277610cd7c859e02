"""A rough estimate of how long runs will take, before any starts. It loads nothing but lists of embedded images."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import ceil

from rebapl.data.catalogue import load_dataset
from rebapl.data.embedded import EMBEDDED
from rebapl.data.published import PUBLISHED
from rebapl.data.task import target_names
from rebapl.runs.config import RunConfig
from rebapl.sampling.settings import SVGDSettings


@dataclass(frozen=True)
class Pace:
    """How quick a machine is: milliseconds of each part of the work, and seconds (`start`) before a run gets going.

    A training step takes `step`, and `by_class` and `by_image` more for each class and each image in it, and
    `by_reference` more for each reference image while repulsion acts. `test` is one image predicted by one sample.
    """

    machine: str
    step: float
    by_class: float
    by_image: float
    by_reference: float
    test: float
    start: float


PACES = {
    "mini": Pace("one core", 10, 0.6, 4.5, 5.0, 3.0, 3.0),
    "other": Pace("an H200", 3.0, 0.015, 0.4, 0.25, 0.7, 15.0),
}
"""`mini` was measured on one core of a server; `other` follows from steps of ViT-B/16 with 5 to 500 classes."""


@functools.cache
def size(data: str) -> tuple[int, int]:
    """The numbers of classes and of test images of a data set; for a folder of one's own a guess."""
    if data in PUBLISHED:
        return PUBLISHED[data].classes, PUBLISHED[data].counts[2]
    if data in EMBEDDED:
        dataset = load_dataset(data)
        return len(dataset.class_names), len(dataset.test)
    return 10, 1000


def steps(config: RunConfig) -> int:
    """The training steps of a run: whole mini-batches of its few-shot images, over all epochs and cycles.

    >>> steps(RunConfig("digits", "maple", "mle", backbone="mini", shots=8))
    50
    """
    settings = config.resolved().training.inference
    if settings is None:
        return 0
    per_epoch = max(1, _trained_classes(config) * config.shots // settings.batch)
    return per_epoch * settings.all_epochs


def pace(backbone: str) -> Pace:
    """The pace of a backbone: that of `mini`, or for any other that of ViT-B/16."""
    return PACES.get(backbone, PACES["other"])


def seconds(config: RunConfig, *, trained: bool = False) -> float:
    """The seconds that a run may take from start to stored results; without its training if it is `trained` already."""
    of = pace(config.backbone_name)
    settings = config.resolved().training.inference
    training = 0.0
    samples = 1
    if settings is not None:
        step = of.step + of.by_class * _trained_classes(config) + of.by_image * settings.batch
        if settings.repulsion is not None:
            acting = 1.0 if settings.repulsion.stage == "both" else getattr(settings.sampler, "exploration", 1.0)
            share = acting * (settings.cycles - 1) / settings.cycles
            step += share * of.by_reference * (settings.repulsion.images or 0)
        if isinstance(settings.sampler, SVGDSettings):
            step *= settings.sampler.particles
        training = 0.0 if trained else steps(config) * step
        samples = settings.samples
    tested = samples * of.test * _test_images(config)
    return of.start + (training + tested) / 1000


def _trained_classes(config: RunConfig) -> int:
    classes = size(config.data)[0]
    halvings = {"base-to-novel": 1, "selection": 2}.get(config.protocol, 0)
    for _ in range(halvings):
        classes = ceil(classes / 2)
    return classes


def _test_images(config: RunConfig) -> int:
    images = [size(config.data)[1] // 2] * 2 if config.protocol == "base-to-novel" else [size(config.data)[1]]
    images += [size(target)[1] for target in target_names(config.protocol, config.data, config.targets)]
    return sum(min(count, config.test_images or count) for count in images)
