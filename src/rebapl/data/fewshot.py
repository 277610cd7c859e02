"""The published few-shot rule and the base/novel rule."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rebapl.data.dataset import Dataset, Item
from rebapl.errors import UserError

VAL_SHOTS = 4


def few_shot(dataset: Dataset, shots: int, seed: int) -> tuple[list[Item], list[Item]]:
    """The train and val items that the published lists hold for these shots and this seed.

    One random stream is seeded with `seed`. It goes through the labels in the order of their first appearance and draws
    `shots` items of each (all if there are fewer). Then, without seeding again, it draws `min(shots, 4)` of each from
    val. It draws from all classes; base or novel classes are chosen afterwards.
    """
    if shots < 1:
        raise UserError(f"shots = {shots}: at least one image per class is needed")
    if not dataset.train:
        raise UserError(f"data set '{dataset.name}' has no training images: it is for testing only")
    rng = random.Random(seed)
    return _sample(dataset.train, shots, rng), _sample(dataset.val, min(shots, VAL_SHOTS), rng)


def _sample(items: Sequence[Item], shots: int, rng: random.Random) -> list[Item]:
    by_label: dict[int, list[Item]] = {}
    for item in items:
        by_label.setdefault(item.label, []).append(item)
    chosen: list[Item] = []
    for group in by_label.values():
        chosen += rng.sample(group, shots) if len(group) >= shots else group
    return chosen


def base_novel(class_names: Sequence[str]) -> tuple[list[int], list[int]]:
    """The labels of the first ⌈n/2⌉ classes (base) and of the rest (novel)."""
    if len(class_names) < 4:
        raise UserError(
            f"base and novel need two classes each, so four in all; there are {len(class_names)}: to learn and test "
            "all classes, use --protocol few-shot"
        )
    middle = (len(class_names) + 1) // 2
    labels = list(range(len(class_names)))
    return labels[:middle], labels[middle:]


def relabelled(items: Sequence[Item], labels: Sequence[int]) -> list[Item]:
    """The items of these labels, renumbered from 0 in the order given."""
    number = {label: index for index, label in enumerate(labels)}
    return [item._replace(label=number[item.label]) for item in items if item.label in number]


def spread(count: int, limit: int) -> list[int]:
    """The indices of at most `limit` of `count` things, evenly spread over them.

    >>> spread(10, 4), spread(3, 4)
    ([0, 2, 5, 7], [0, 1, 2])
    """
    return [index * count // limit for index in range(limit)] if limit < count else list(range(count))
