"""A person's own images: what folders and lists of them share, above all the split that is made once and kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rebapl.data.dataset import Dataset, Item
from rebapl.data.images import FileImages
from rebapl.data.splits import Splits, check_items, few, named_split, read_split, refuse_repeats, write_split
from rebapl.errors import UserError
from rebapl.files import read_lines
from rebapl.randomness import python_random

TEMPLATE = "a photo of a {}."
FEWEST = 3
"""Images a class needs to be split: one to train, one to validate, one to test."""

_log = logging.getLogger(__name__)


def make_split(groups: Mapping[str, Sequence[str]], names: Mapping[str, str]) -> Splits:
    """The stated rule: of each class, in a fixed random order, 20 % validate, 30 % test (at least one each), the rest
    train. The order depends on the class and on the paths of its images, on nothing else.

    `groups` has the keys of each class's images, `names` its name; labels follow the order of the classes.

    >>> splits = make_split({"cat": [f"cat/{n}.png" for n in range(10)]}, {"cat": "cat"})
    >>> [len(items) for items in splits]
    [5, 2, 3]
    """
    train: list[Item] = []
    val: list[Item] = []
    test: list[Item] = []
    for label, (group, keys) in enumerate(groups.items()):
        if len(keys) < FEWEST:
            raise UserError(f"class '{names[group]}' has {len(keys)} images: a split needs at least {FEWEST} of each")
        order = sorted(keys)
        python_random(0, "split", group).shuffle(order)
        items = [Item(key, label, names[group]) for key in order]
        validating, testing = max(1, round(0.2 * len(items))), max(1, round(0.3 * len(items)))
        val += items[:validating]
        test += items[validating : validating + testing]
        train += items[validating + testing :]
    return Splits(train, val, test)


def kept_split(
    folder: Path, default: str, split: str | None, groups: Mapping[str, Sequence[str]], names: Mapping[str, str]
) -> Splits:
    """The split kept in the folder's file `default`, or one made now and kept there; it must list exactly the images
    there are, under the present names.

    `split` is another file, used as it is: a name in the folder, which must be there, or a path, where a split is
    made as well if there is none.
    """
    file = folder / default if split is None else named_split(folder, split)
    if file.exists() or split == file.name:
        splits = read_split(file)
        if split is None:
            _check_whole(file, splits, groups, names)
        return splits
    splits = make_split(groups, names)
    try:
        write_split(file, splits)
    except OSError as error:
        raise UserError(
            f"the split is made once and kept in {file}, which cannot be written ({error}): let the first run "
            "write it, or say with --split PATH/FILE.json where to keep it"
        ) from error
    counts = " : ".join(str(len(items)) for items in splits)
    _log.warning("images split into train : val : test = %s, kept in %s", counts, file)
    return splits


def _check_whole(file: Path, splits: Splits, groups: Mapping[str, Sequence[str]], names: Mapping[str, str]) -> None:
    found = {Item(key, label, names[group]) for label, (group, keys) in enumerate(groups.items()) for key in keys}
    listed = {item for items in splits for item in items}
    anew = f"remove {file} to split anew by the same rule, or name another file with --split"
    keys = {item.key for item in found}
    if gone := sorted({item.key for item in listed} - keys):
        raise UserError(f"{len(gone)} images of the split are gone: {few(gone)}. Put them back, {anew}")
    if new := sorted(keys - {item.key for item in listed}):
        raise UserError(f"{len(new)} images are new since the split was made: {few(new)}. Take them out, {anew}")
    if changed := sorted(found - listed):
        raise UserError(f"class {changed[0].class_name!r} has another name or number in the split: {anew}")


def own_dataset(name: str, folder: Path, splits: Splits, template: str | None) -> Dataset:
    """The data set of these items below `folder`; without a template, that of `template.txt` or the plain one."""
    check_items(splits, str(folder))
    given = template or read_template(folder / "template.txt") or TEMPLATE
    return Dataset(name, given, *splits, FileImages(folder, upright=True), folder=folder)


def read_template(file: Path) -> str | None:
    """The one line of a `template.txt`, if there is such a file."""
    if not file.is_file():
        return None
    lines = read_lines(file)
    if len(lines) != 1 or lines[0].count("{}") != 1:
        raise UserError(f"{file} must have one line, with '{{}}' once, where the class name goes")
    return lines[0]


def read_names(file: Path, groups: Iterable[str]) -> dict[str, str]:
    """The class names of these folders or labels: their own, or those of `classnames.txt` if there is one.

    Its lines are a folder (or label), a space or tab, and the class name. Lines for others are passed over.
    """
    groups = list(groups)
    names = {group: group for group in groups}
    if file.is_file():
        by_length = sorted(groups, key=len, reverse=True)
        found = {}
        for line in read_lines(file):
            for group in by_length:
                if line.startswith((f"{group} ", f"{group}\t")) or line == group:
                    found[group] = line[len(group) :].strip() or group
                    break
        if lacking := [group for group in groups if group not in found]:
            raise UserError(f"{file} has no line for {few(lacking)}: write the folder or label, a space, and the name")
        names = found
    refuse_repeats((names[group] for group in groups), str(file if file.is_file() else file.parent))
    return {group: names[group] for group in groups}
