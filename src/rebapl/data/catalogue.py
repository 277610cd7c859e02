"""Data sets by name: embedded, published, or any folder or list of images."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rebapl.data.csv_lists import load_csv
from rebapl.data.dataset import Dataset, check_template
from rebapl.data.embedded import EMBEDDED
from rebapl.data.folders import load_folder
from rebapl.data.layouts import load_published
from rebapl.data.published import PUBLISHED
from rebapl.errors import UserError, unknown

ROOT_VARIABLE = "REBAPL_DATA"
"""The environment variable with the data root, for those who do not want to give it every time."""


def load_dataset(
    name: str, root: str | Path | None = None, *, split: str | None = None, template: str | None = None
) -> Dataset:
    """The data set of that name. Images are drawn or read when they are asked for.

    `name`: an embedded task, a published data set below `root` (None: the folder in $REBAPL_DATA), or the path of a
    folder of images or a CSV file. `split` names another split file in the data set's folder, or its path.
    `template` replaces the published one.

    >>> load_dataset("digits").class_names[:3]
    ['zero', 'one', 'two']
    """
    if template is not None:
        check_template(template)
    kind = kind_of(name)
    if kind == "embedded":
        if split is not None:
            raise UserError(f"data set '{name}' is embedded: it has no split file to replace by {split}")
        dataset = EMBEDDED[name]()
        return dataset if template is None else replace(dataset, template=template)
    if kind == "published":
        return load_published(PUBLISHED[name], data_root(name, root), split, template)
    path = Path(name).expanduser()
    return load_csv(path, split, template) if kind == "csv" else load_folder(path, split, template)


def kind_of(name: str) -> Literal["embedded", "published", "csv", "folder"]:
    """What the name of a data set stands for; names of the catalogue come before files and folders.

    >>> kind_of("digits"), kind_of("eurosat")
    ('embedded', 'published')
    """
    if name in EMBEDDED:
        return "embedded"
    if name in PUBLISHED:
        return "published"
    path = Path(name).expanduser()
    csv = path.suffix.lower() == ".csv"
    if csv and path.is_file():
        return "csv"
    if path.is_dir():
        return "folder"
    if csv or path.name != name:
        raise UserError(f"{name}: no such folder or CSV file")
    raise unknown("data set", name, (*EMBEDDED, *PUBLISHED), more=", or the path of a folder of images or a CSV file")


def data_root(name: str, root: str | Path | None = None) -> Path:
    """The folder that holds the published data sets: the one given, or that of $REBAPL_DATA."""
    folder = given_root(root)
    if folder is None:
        entry = PUBLISHED[name]
        raise UserError(
            f"data set '{name}' is read from files: say where with --root DIR (or root=…, or ${ROOT_VARIABLE}); "
            f"DIR/{entry.folder}/{entry.images} is expected there, as `rebapl data list {name}` describes"
        )
    return folder


def given_root(root: str | Path | None = None) -> Path | None:
    """The data root, if one was given or is in $REBAPL_DATA."""
    given = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise UserError(f"data root {folder} is not a folder")
    return folder
