"""Data sets by name: embedded tasks, published data sets, registered ones, and any folder or CSV file of images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rebapl.data.dataset import Dataset, check_template
from rebapl.data.embedded import EMBEDDED
from rebapl.data.own_images import load_own
from rebapl.data.published import PUBLISHED, load_published
from rebapl.errors import UserError, unknown
from rebapl.plugins import Registry

ROOT_VARIABLE = "REBAPL_DATA"
"""The environment variable that holds the data root, for people who do not want to pass it every time."""

REGISTERED: Registry[Callable[[], Dataset]] = Registry("data set", "rebapl.datasets")
"""Data sets from outside the package, by name; see `register_dataset`."""


def register_dataset(name: str, load: Callable[[], Dataset]) -> None:
    """Register a data set from outside the package under a name; `load` is called when the data set is loaded.

    An installed package can register data sets for all programs: its `pyproject.toml` names the module that calls this
    function under the entry point `rebapl.datasets`.

    >>> register_dataset("my digits", lambda: replace(load_dataset("digits"), name="my digits"))
    >>> load_dataset("my digits").class_names[:2], is_own("my digits")
    (['zero', 'one'], False)
    >>> del REGISTERED.known["my digits"]
    """
    if name in EMBEDDED or name in PUBLISHED or REGISTERED.known.get(name, load) is not load:
        raise UserError(f"data set '{name}' is known already: register it under another name")
    if not name or set(name) & set("/\\=,"):
        raise UserError(f"data set name {name!r} must not be empty or hold any of / \\ = and the comma")
    REGISTERED.known[name] = load


def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    split: str | None = None,
    template: str | None = None,
    keep_split: bool = False,
    whole: bool = False,
) -> Dataset:
    """Load the data set of that name. Its images are drawn or read only when they are needed.

    `name` is an embedded task, a published data set below `root` (None: the folder in $REBAPL_DATA), a data set
    registered from outside, or the path of a folder of images or of a CSV file. `split` is the name of another split
    file in the data set's folder, or the path of one. `template` replaces the data set's own. With `keep_split`, a
    split that is made for somebody's own images is written beside them. Only training should do so: a command that only
    reads must not write into a folder that a file names. With `whole`, images that have no split are not split: all of
    them train.

    >>> load_dataset("digits").class_names[:3]
    ['zero', 'one', 'two']
    """
    if template is not None:
        check_template(template)
    if name in PUBLISHED:
        return load_published(PUBLISHED[name], data_root(name, root), split, template)
    load = EMBEDDED.get(name) or REGISTERED.get(name)
    if load is None:
        return load_own(own_path(name), split, template, keep_split=keep_split, whole=whole)
    if split is not None:
        kind = "embedded" if name in EMBEDDED else "registered"
        raise UserError(f"data set '{name}' is {kind}: it has no split file to replace by {split}")
    dataset = load()
    return dataset if template is None else replace(dataset, template=template)


def own_path(name: str) -> Path:
    """The folder or CSV file of that name, which must exist. `load_dataset` looks into the catalogue first."""
    path = Path(name).expanduser()
    is_list = path.suffix.lower() == ".csv"
    if path.is_dir() or (is_list and path.is_file()):
        return path
    if is_list or path.name != name:
        raise UserError(f"{name}: no such folder or CSV file")
    accepted = (*EMBEDDED, *PUBLISHED, *REGISTERED)
    raise unknown("data set", name, accepted, more=", or the path of a folder of images or a CSV file")


def is_own(name: str) -> bool:
    """Whether a name is not in the catalogue. Then it is the path of somebody's own images, which may not exist.

    >>> is_own("digits"), is_own("photos/")
    (False, True)
    """
    return not any(name in known for known in (EMBEDDED, PUBLISHED, REGISTERED))


def data_root(name: str, root: str | Path | None = None) -> Path:
    """The folder that holds the published data sets: `root`, or the one in $REBAPL_DATA. Having neither is an error."""
    folder = given_root(root)
    if folder is None:
        entry = PUBLISHED[name]
        raise UserError(
            f"data set '{name}' is read from files: say where with --root DIR (or root=…, or ${ROOT_VARIABLE}); "
            f"DIR/{entry.folder}/{entry.images} is expected there, as `rebapl data list {name}` describes"
        )
    return folder


def given_root(root: str | Path | None = None) -> Path | None:
    """The data root: `root`, or the one in $REBAPL_DATA; None if there is neither."""
    path = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if not path:
        return None
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"data root {folder} is not a folder")
    return folder
