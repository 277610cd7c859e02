"""Data sets by name: embedded tasks, published data sets, registered ones, and any folder or CSV file of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rebapl.data.dataset import Dataset, check_template
from rebapl.data.embedded import EMBEDDED
from rebapl.data.own_images import load_own
from rebapl.data.published import PUBLISHED, Entry
from rebapl.errors import UserError, unknown
from rebapl.plugins import Registry


@dataclass(frozen=True)
class Made:
    """A data set that a function makes, embedded or registered, as its `origin` says. It has no split file."""

    name: str
    make: Callable[[], Dataset]
    origin: str

    def load(self, root: str | Path | None = None, split: str | None = None, template: str | None = None) -> Dataset:  # noqa: ARG002
        """Call the function. A `template` replaces that of the data set."""
        if split is not None:
            raise UserError(f"data set '{self.name}' is {self.origin}: it has no split file to replace by {split}")
        dataset = self.make()
        return dataset if template is None else replace(dataset, template=template)


DATASETS: Registry[Made | Entry] = Registry("data set", "rebapl.datasets")
"""All data sets that have a name, including those of installed plugins."""

DATASETS.known |= {name: Made(name, make, "embedded") for name, make in EMBEDDED.items()}
DATASETS.known |= PUBLISHED


def register_dataset(name: str, load: Callable[[], Dataset]) -> None:
    """Register a data set from outside the package under a name; `load` is called when the data set is loaded.

    An installed package can register data sets for all programs: its `pyproject.toml` names the module that calls this
    function under the entry point `rebapl.datasets`.

    >>> register_dataset("my digits", lambda: replace(load_dataset("digits"), name="my digits"))
    >>> load_dataset("my digits").class_names[:2], is_own("my digits")
    (['zero', 'one'], False)
    >>> del DATASETS.known["my digits"]
    """
    source = Made(name, load, "registered")
    if DATASETS.known.get(name, source) != source:
        raise UserError(f"data set '{name}' is known already: register it under another name")
    if not name or set(name) & set("/\\=,"):
        raise UserError(f"data set name {name!r} must not be empty or hold any of / \\ = and the comma")
    DATASETS.known[name] = source


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
    if is_own(name):
        return load_own(own_path(name), split, template, keep_split=keep_split, whole=whole)
    return DATASETS[name].load(root, split, template)


def own_path(name: str) -> Path:
    """The folder or CSV file of that name, which must exist. `load_dataset` looks into the catalogue first."""
    path = Path(name).expanduser()
    is_list = path.suffix.lower() == ".csv"
    if path.is_dir() or (is_list and path.is_file()):
        return path
    if is_list or path.name != name:
        raise UserError(f"{name}: no such folder or CSV file")
    raise unknown("data set", name, tuple(DATASETS), more=", or the path of a folder of images or a CSV file")


def is_own(name: str) -> bool:
    """Whether a name is not in the catalogue. Then it is the path of somebody's own images, which may not exist.

    >>> is_own("digits"), is_own("photos/")
    (False, True)
    """
    return name not in DATASETS
