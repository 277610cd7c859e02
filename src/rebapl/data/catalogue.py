"""Data sets by name: embedded, published, registered from outside, or any folder or list of images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rebapl.data.dataset import Dataset, check_template
from rebapl.data.embedded import EMBEDDED
from rebapl.data.own_images import load_csv, load_folder
from rebapl.data.published import PUBLISHED, load_published
from rebapl.errors import UserError, unknown
from rebapl.plugins import load_plugins

ROOT_VARIABLE = "REBAPL_DATA"
"""The environment variable with the data root, for those who do not want to give it every time."""

REGISTERED: dict[str, Callable[[], Dataset]] = {}
"""Data sets from outside the package, by name; see `register_dataset`."""


def register_dataset(name: str, load: Callable[[], Dataset]) -> None:
    """Make a data set from outside known by a name; `load` is called when it is asked for.

    An installed package does so for all programs: it names the module that calls this function under the entry point
    `rebapl.datasets` in its `pyproject.toml`.

    >>> register_dataset("my digits", lambda: replace(load_dataset("digits"), name="my digits"))
    >>> load_dataset("my digits").class_names[:2], kind_of("my digits")
    (['zero', 'one'], 'registered')
    >>> del REGISTERED["my digits"]
    """
    if name in EMBEDDED or name in PUBLISHED or REGISTERED.get(name, load) is not load:
        raise UserError(f"data set '{name}' is known already: register it under another name")
    if not name or set(name) & set("/\\=,"):
        raise UserError(f"data set name {name!r} must not be empty or hold any of / \\ = and the comma")
    REGISTERED[name] = load


def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    split: str | None = None,
    template: str | None = None,
    keep_split: bool = False,
    whole: bool = False,
) -> Dataset:
    """The data set of that name. Images are drawn or read when they are asked for.

    `name` is an embedded task, a published data set below `root` (None: the folder in $REBAPL_DATA), a data set
    registered from outside, or the path of a folder of images or of a CSV file. `split` names another split file in
    the data set's folder, or its path. `template` replaces the data set's own. With `keep_split`,
    a split that is made of somebody's own images is written beside them, which only training should do: a reader must
    not write where a file says. With `whole`, images that have no split are not split: all of them train.

    >>> load_dataset("digits").class_names[:3]
    ['zero', 'one', 'two']
    """
    if template is not None:
        check_template(template)
    kind = kind_of(name)
    if kind in ("embedded", "registered"):
        if split is not None:
            raise UserError(f"data set '{name}' is {kind}: it has no split file to replace by {split}")
        dataset = (EMBEDDED if kind == "embedded" else REGISTERED)[name]()
        return dataset if template is None else replace(dataset, template=template)
    if kind == "published":
        return load_published(PUBLISHED[name], data_root(name, root), split, template)
    path = Path(name).expanduser()
    load = load_csv if kind == "csv" else load_folder
    return load(path, split, template, keep_split=keep_split, whole=whole)


def kind_of(name: str) -> Literal["embedded", "published", "registered", "csv", "folder"]:
    """Which kind of data set a name means. A name of the catalogue counts before a file or folder of that name.

    >>> kind_of("digits"), kind_of("eurosat")
    ('embedded', 'published')
    """
    if name in EMBEDDED:
        return "embedded"
    if name in PUBLISHED:
        return "published"
    if name in registered_datasets():
        return "registered"
    path = Path(name).expanduser()
    csv = path.suffix.lower() == ".csv"
    if csv and path.is_file():
        return "csv"
    if path.is_dir():
        return "folder"
    if csv or path.name != name:
        raise UserError(f"{name}: no such folder or CSV file")
    accepted = (*EMBEDDED, *PUBLISHED, *REGISTERED)
    raise unknown("data set", name, accepted, more=", or the path of a folder of images or a CSV file")


def is_own(name: str) -> bool:
    """Whether a name is not in the catalogue, and so is the path of somebody's own images, which may not exist.

    >>> is_own("digits"), is_own("photos/")
    (False, True)
    """
    return name not in EMBEDDED and name not in PUBLISHED and name not in registered_datasets()


def registered_datasets() -> list[str]:
    """The names of the data sets from outside, those of installed packages among them."""
    load_plugins("rebapl.datasets")
    return list(REGISTERED)


def data_root(name: str, root: str | Path | None = None) -> Path:
    """The folder that holds the published data sets: `root`, or that of $REBAPL_DATA."""
    folder = given_root(root)
    if folder is None:
        entry = PUBLISHED[name]
        raise UserError(
            f"data set '{name}' is read from files: say where with --root DIR (or root=…, or ${ROOT_VARIABLE}); "
            f"DIR/{entry.folder}/{entry.images} is expected there, as `rebapl data list {name}` describes"
        )
    return folder


def given_root(root: str | Path | None = None) -> Path | None:
    """The data root: `root`, or that of $REBAPL_DATA; None if there is neither."""
    given = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise UserError(f"data root {folder} is not a folder")
    return folder
