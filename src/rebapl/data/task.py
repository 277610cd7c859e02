"""A few-shot task: the training images and the test images of a data set, chosen by the published rules."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rebapl.data.catalogue import load_dataset
from rebapl.data.dataset import Dataset, Item, by_label
from rebapl.data.folds import check_fold, folded
from rebapl.data.published import PUBLISHED, TEST_ONLY
from rebapl.errors import UserError, unknown
from rebapl.numbers import spread

if TYPE_CHECKING:
    from rebapl.data.corruptions import Corruption

VAL_SHOTS = 4
"""The largest number of validation images of a class in a few-shot task, as in the published lists."""

PROTOCOLS = ("base-to-novel", "few-shot", "cross-dataset", "domain-generalization", "selection")

SOURCE = "imagenet"
"""The data set that the published transfers are trained on."""

TARGETS: dict[str, tuple[str, ...]] = {
    "cross-dataset": tuple(name for name, entry in PUBLISHED.items() if entry.layout in ("split", "aircraft")),
    "domain-generalization": tuple(name for name, entry in PUBLISHED.items() if entry.layout in TEST_ONLY),
}
"""The published targets of the two protocols that test on other data sets, in the order of the tables."""


@dataclass(frozen=True)
class Part:
    """Items of a data set, with labels 0 … n−1 for n class names.

    `split` is a target's own split file, if any. A `corruption`, if there is one, is applied to the test-time views.
    """

    class_names: Sequence[str]
    items: Sequence[Item]
    dataset: Dataset
    split: str | None = None
    corruption: Corruption | None = None


@dataclass(frozen=True)
class Task:
    """A task. `train` and `val` have the same classes. `tests` has the parts to score, trained classes first."""

    dataset: Dataset
    protocol: str
    shots: int
    seed: int
    train: Part
    val: Part
    tests: Mapping[str, Part]


def load_task(
    data: str | Dataset,
    shots: int | None = 16,
    seed: int = 1,
    protocol: str = "base-to-novel",
    test_images: int | None = None,
    *,
    root: Path | None = None,
    split: str | None = None,
    template: str | None = None,
    targets: Sequence[str] | None = None,
    fold: str | None = None,
    keep_split: bool = False,
) -> Task:
    """Make a task from a data set, which is an object, a name or a path.

    The task trains on `shots` images of each class, or on all images if `shots` is None; see `few_shot`. `root`,
    `split`, `template` and `keep_split` are as in `load_dataset`. `protocol` is one of these:

    * `base-to-novel` trains on the first half of the classes. It tests that half among its own names (`base`), and the
      other half among its own names (`novel`).
    * `few-shot` trains and tests on all classes (`test`).
    * `cross-dataset` and `domain-generalization` also train on all classes. They test on the data set's own test images
      (`test`) and on all classes of each target, under the target's name. For ImageNet the default `targets` are the
      published ones. A target is the name of a data set, or NAME=FILE to use another split file of it.
    * `selection` is for choosing settings. It is base-to-novel within the base classes, tested on all *validation*
      images of these classes. It uses no test image and no novel class.

    `test_images` is the largest number of images in a test part; they are spread evenly over its list. With a `fold`
    (only for `few-shot`), the images of the fold are tested and all others train; see `rebapl.data.folds`. The fold
    `all` leaves no test part.

    >>> task = load_task("digits", shots=16, seed=1)
    >>> len(task.train.items), list(task.tests), task.tests["novel"].class_names
    (80, ['base', 'novel'], ['five', 'six', 'seven', 'eight', 'nine'])
    >>> load_task("digits", protocol="selection").tests["novel"].class_names
    ['three', 'four']
    """
    if test_images is not None and test_images < 1:
        raise UserError(f"test_images = {test_images}: at least one is needed")
    target_splits = targets_of(protocol, data if isinstance(data, str) else data.catalogue_name, targets)
    if fold is not None:
        check_fold_use(fold, protocol, split)
    whole = fold is not None
    dataset = data
    if isinstance(dataset, str):
        dataset = load_dataset(dataset, root, split=split, template=template, keep_split=keep_split, whole=whole)
    dataset = dataset if fold is None else folded(dataset, fold)
    train, val = few_shot(dataset, shots, seed)
    names = dataset.class_names
    if len(names) < 2:
        raise UserError(f"data set '{dataset.name}' has one class, {names[0]!r}: there is nothing to tell apart")
    labels = list(range(len(names)))
    trained, tested, source = labels, {"test": labels}, dataset.test
    if protocol == "base-to-novel":
        trained, novel = base_novel(names)
        tested = {"base": trained, "novel": novel}
    elif protocol == "selection":
        if len(names) < 7:
            raise UserError(
                f"selection halves the base classes once more and needs seven classes; there are {len(names)}"
            )
        trained, novel = base_novel(names[: len(base_novel(names)[0])])
        tested, source = {"base": trained, "novel": novel}, dataset.val
        if not source:
            raise UserError(f"data set '{dataset.name}' has no validation images to select settings on")
    tests = {name: _part(dataset, source, chosen, test_images) for name, chosen in tested.items() if source}
    for name, file in target_splits.items():
        target = load_dataset(name, root, split=file)
        if not target.test:
            raise UserError(f"target '{name}' has no test images: name a data set that has some")
        part = _part(target, target.test, range(len(target.class_names)), test_images)
        tests[name] = replace(part, split=file)
    shots = shots or max(Counter(item.label for item in train).values())
    return Task(dataset, protocol, shots, seed, _part(dataset, train, trained), _part(dataset, val, trained), tests)


def task_of(dataset: Dataset, seed: int = 1, shots: int | None = None) -> Task:
    """A task that trains on all classes and all training images of a data set, or on `shots` images of each class.

    If the data set has test images, they are the only test part, `test`. Otherwise there is nothing to score.

    >>> from rebapl.data.catalogue import load_dataset
    >>> task = task_of(load_dataset("digits"))
    >>> len(task.train.items), len(task.val.items), list(task.tests)
    (908, 358, ['test'])
    """
    return load_task(dataset, shots, seed, "few-shot")


def few_shot(dataset: Dataset, shots: int | None, seed: int) -> tuple[Sequence[Item], Sequence[Item]]:
    """The train and val items of the published lists for these shots and this seed; all items if `shots` is None.

    One random stream is seeded with `seed`. For each label, in the order in which labels first appear, it draws `shots`
    items (all if there are fewer) from train. Then, without seeding again, it draws `min(shots, 4)` items of each label
    from val. It draws from all classes; base or novel classes are chosen afterwards.
    """
    if shots is not None and shots < 1:
        raise UserError(f"shots = {shots}: at least one image per class is needed")
    if not dataset.train:
        raise UserError(f"data set '{dataset.name}' has no training images: it is for testing only")
    if shots is None:
        return dataset.train, dataset.val
    rng = random.Random(seed)
    return _sample(dataset.train, shots, rng), _sample(dataset.val, min(shots, VAL_SHOTS), rng)


def _sample(items: Sequence[Item], shots: int, rng: random.Random) -> list[Item]:
    chosen: list[Item] = []
    for group in by_label(items).values():
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


def check_fold_use(fold: str, protocol: str, split: str | None = None) -> None:
    """Refuse a word that is not a fold, and a fold together with a protocol or a split file, where it has no effect."""
    check_fold(fold)
    if protocol != "few-shot" or split is not None:
        raise UserError(f"fold {fold} is for the protocol few-shot without a split file: leave it out here")


def targets_of(protocol: str, data: str, targets: Sequence[str] | None = None) -> dict[str, str | None]:
    """The other data sets on which a protocol tests after training on `data`: the `targets`, or the published ones.

    Each name is mapped to the split file that was named with it, or to None.

    >>> list(targets_of("domain-generalization", "imagenet"))
    ['imagenetv2', 'imagenet_sketch', 'imagenet_a', 'imagenet_r']
    >>> targets_of("cross-dataset", "caltech101", ["dtd", "eurosat=split_subset_EuroSAT.json"])
    {'dtd': None, 'eurosat': 'split_subset_EuroSAT.json'}
    """
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if protocol not in TARGETS:
        if targets:
            raise UserError(f"protocol '{protocol}' has no targets: leave them out, or choose {' or '.join(TARGETS)}")
        return {}
    if targets is None:
        if data != SOURCE:
            raise UserError(
                f"{protocol} has published targets only for {SOURCE}: name the data sets to test on, as in "
                "targets=shapes,letters"
            )
        targets = TARGETS[protocol]
    split_by_name = dict(map(split_of, targets))
    for name in (data, "test"):
        if name in split_by_name:
            raise UserError(f"target '{name}' is the data set trained on, which is tested anyway: leave it out")
    if not split_by_name or len(split_by_name) < len(targets):
        raise UserError(f"targets are {', '.join(targets) or 'none'}: name at least one data set, and each once")
    return split_by_name


def split_of(data: str) -> tuple[str, str | None]:
    """The name of a data set, and the split file that was named with it, as in NAME=FILE.

    >>> split_of("eurosat=split_subset_EuroSAT.json"), split_of("dtd"), split_of("my/run=2")
    (('eurosat', 'split_subset_EuroSAT.json'), ('dtd', None), ('my/run=2', None))
    """
    name, _, file = data.partition("=")
    return (name, file) if file and name in PUBLISHED else (data, None)


def part_names(protocol: str, data: str, targets: Sequence[str] | None = None) -> list[str]:
    """The names of a task's test parts, without loading anything.

    >>> part_names("base-to-novel", "digits"), part_names("cross-dataset", "digits", ["shapes"])
    (['base', 'novel'], ['test', 'shapes'])
    """
    own = ["base", "novel"] if protocol in ("base-to-novel", "selection") else ["test"]
    return [*own, *targets_of(protocol, data, targets)]


def _part(dataset: Dataset, items: Sequence[Item], labels: Sequence[int], limit: int | None = None) -> Part:
    """The items with these labels, which are renumbered from 0 in their order; at most `limit` items, evenly spread."""
    number = {label: index for index, label in enumerate(labels)}
    chosen = [item._replace(label=number[item.label]) for item in items if item.label in number]
    if limit is not None:
        chosen = [chosen[index] for index in spread(len(chosen), limit)]
    names = dataset.class_names
    return Part([names[label] for label in labels], chosen, dataset)
