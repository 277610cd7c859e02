"""A few-shot task: what is learned from and what is tested on, after the published rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rebapl.data.catalogue import load_dataset
from rebapl.data.dataset import Dataset, Item
from rebapl.data.fewshot import base_novel, few_shot, relabelled
from rebapl.errors import UserError, unknown

PROTOCOLS = ("base-to-novel", "few-shot")


@dataclass(frozen=True)
class Part:
    """Items with labels 0 … n−1 among n class names."""

    class_names: Sequence[str]
    items: Sequence[Item]


@dataclass(frozen=True)
class Task:
    """Train and val have the same classes; `tests` holds the parts to be scored, by name."""

    dataset: Dataset
    protocol: str
    shots: int
    seed: int
    train: Part
    val: Part
    tests: Mapping[str, Part]


def load_task(
    data: str | Dataset, shots: int = 16, seed: int = 1, protocol: str = "base-to-novel", test_images: int | None = None
) -> Task:
    """A task of a data set, or of the embedded one of that name.

    `base-to-novel` trains on the first half of the classes and tests `base` among their names and `novel` among
    the others'; `few-shot` trains and tests on all classes. `test_images` keeps that many per part, spread evenly
    over the list.

    >>> task = load_task("digits", shots=16, seed=1)
    >>> len(task.train.items), list(task.tests), task.tests["novel"].class_names
    (80, ['base', 'novel'], ['five', 'six', 'seven', 'eight', 'nine'])
    """
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if test_images is not None and test_images < 1:
        raise UserError(f"test_images = {test_images}: at least one is needed")
    dataset = load_dataset(data) if isinstance(data, str) else data
    train, val = few_shot(dataset, shots, seed)
    names = dataset.class_names

    def part(items: Sequence[Item], labels: Sequence[int], limit: int | None = None) -> Part:
        chosen = relabelled(items, labels)
        if limit is not None and limit < len(chosen):
            chosen = [chosen[index * len(chosen) // limit] for index in range(limit)]
        return Part([names[label] for label in labels], chosen)

    if protocol == "few-shot":
        trained, tested = list(range(len(names))), {"test": list(range(len(names)))}
    else:
        base, novel = base_novel(names)
        trained, tested = base, {"base": base, "novel": novel}
    return Task(
        dataset,
        protocol,
        shots,
        seed,
        part(train, trained),
        part(val, trained),
        {name: part(dataset.test, labels, test_images) for name, labels in tested.items()},
    )
