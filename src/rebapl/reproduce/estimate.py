"""Before any run starts: which data are missing, and a rough estimate of how long the runs will take here.

The paces of two machines are known. How much slower or quicker this machine is, is measured: by the time that the image
tower of the backbone takes here, if the backbone is on this machine.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import torch

from rebapl.backbones import load_backbone
from rebapl.backbones.hub import fetched_before
from rebapl.data.catalogue import given_root, is_own, load_dataset
from rebapl.data.checking import needed_files
from rebapl.data.embedded import EMBEDDED
from rebapl.data.published import PUBLISHED
from rebapl.data.task import target_names, target_splits
from rebapl.runs.config import RunConfig
from rebapl.runs.machine import best_device
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


IMAGES, REPEATS = 8, 3
"""How many images the measurement has, and how often; the quickest time counts."""


def measured_pace(backbone: str, device: str) -> Pace | None:
    """The pace of this machine: the known one, times how much longer an image takes here. None if it is unknown.

    It is unknown if the backbone would have to be fetched first.
    """
    if backbone != "mini" and not Path(backbone).expanduser().is_dir() and fetched_before(backbone) is None:
        return None
    known, times = pace(backbone), []
    encoder = load_backbone(backbone, best_device(device))
    side = encoder.preprocessing.crop
    pixels = torch.zeros(IMAGES, 3, side, side, device=device)
    with torch.no_grad():
        for _ in range(1 + REPEATS):  # the first does not count
            start = time.perf_counter()
            encoder.image_features(pixels).sum().item()
            times.append(1000 * (time.perf_counter() - start) / IMAGES)
    test = min(times[1:])
    parts = ("step", "by_class", "by_image", "by_reference")
    slower = {part: getattr(known, part) * test / known.test for part in parts}
    return replace(known, machine=f"this machine (an image takes {test:.1f} ms)", test=test, **slower)


def missing_data(configs: Iterable[RunConfig], root: Path | None) -> list[str]:
    """What is missing of the data sets that these runs need, a line each."""
    folder = given_root(root)
    wanted: dict[str, str | None] = {}
    for config in configs:
        wanted.setdefault(config.data, config.split)
        splits = target_splits(config.targets)
        for target in target_names(config.protocol, config.data, config.targets):
            wanted.setdefault(target, splits.get(target))
    lines = []
    for data, split in wanted.items():
        if data in PUBLISHED and folder is None:
            lines.append(f"{data}: no --root is given")
        elif data in PUBLISHED and folder is not None:
            gone = [path for path in needed_files(PUBLISHED[data], folder, split) if not path.exists()]
            lines += [f"{data}: there is no {path}" for path in gone]
        elif is_own(data) and not Path(data).expanduser().exists():
            lines.append(f"{data}: there is no such folder or file")
    return lines


def seconds(config: RunConfig, of: Pace | None = None, *, trained: bool = False) -> float:
    """The seconds that a run may take from start to stored results; without its training if it is `trained` already.

    `of` is the pace of the machine, the known one if not given.
    """
    of = of or pace(config.backbone_name)
    settings = config.resolved().training.inference
    training = 0.0
    samples = 1
    if settings is not None:
        step = of.step + of.by_class * _trained_classes(config) + of.by_image * settings.batch
        if settings.repulsion is not None:
            acting = 1.0 if settings.repulsion.stage == "both" else getattr(settings.sampler, "exploration", 1.0)
            share = acting * (settings.cycles - 1) / settings.cycles / settings.repulsion.every
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
