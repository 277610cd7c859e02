"""Code from outside the package: entry points of installed packages, and modules that a person names.

A package with a learner, for example, declares it in its `pyproject.toml`,

    [project.entry-points."rebapl.learners"]
    my-method = "my_package.my_method"

and the module registers the learner when it is imported. The other groups are `rebapl.distances`, `rebapl.presets`,
`rebapl.datasets`, `rebapl.engines` and `rebapl.trackers`. Entry points are imported only when somebody looks up a name
that this package does not know, or lists all names.

A person names a module that is not installed by `rebapl --plugin MODULE`, or in the environment variable
`REBAPL_PLUGINS` (several are separated by commas). Worker processes inherit the variable and import the same modules.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from rebapl.errors import UserError, unknown

T = TypeVar("T")

VARIABLE = "REBAPL_PLUGINS"
"""The environment variable that names the modules to import in addition to the entry points."""

_loaded: set[str] = set()


def load_plugins(group: str) -> None:
    """Import the modules that a person named, and every entry point of a group, once per process.

    If an entry point fails, a warning names it. If a module that a person named fails, this is an error.
    """
    load_named_modules()
    if group in _loaded:
        return
    _loaded.add(group)  # before the imports, which may look up names themselves
    for entry in entry_points(group=group):
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else "an unknown package"
            warnings.warn(
                f"plugin '{entry.name}' ({entry.value}, of {package}) could not be loaded and is left out: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )


def load_module(name: str) -> ModuleType:
    """Import a module, which registers its methods, distances and so on. It may lie in the working folder.

    >>> load_module("rebapl.plugins").__name__
    'rebapl.plugins'
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UserError(
            f"plugin '{name}' cannot be imported ({type(error).__name__}: {error}): give the name of an installed "
            f"module, or of one in the working folder, without '.py'"
        ) from error


def use_modules(names: Sequence[str]) -> None:
    """Import modules in this process, and in every process that it starts from now on."""
    for name in names:
        load_module(name)
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*_named_modules(), *names]))


def load_named_modules() -> None:
    """Import the modules that the environment variable names."""
    for name in _named_modules():
        if name not in sys.modules:
            load_module(name)


def _named_modules() -> list[str]:
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


class Registry(Mapping[str, T]):
    """Objects by name. Plugins are loaded when a name is not known without them, or when all names are listed.

    `what` is the word for such an object in errors, and `group` is the group of entry points. `known` holds the objects
    registered so far; reading it loads nothing. `packaged` maps names to modules of this package that register them,
    each of which is imported when its name is looked up.
    """

    def __init__(self, what: str, group: str, packaged: Mapping[str, str] | None = None) -> None:
        self.what, self.group = what, group
        self.packaged = packaged or {}
        self.known: dict[str, T] = {}

    def register(self, name: str) -> Callable[[Any], Any]:
        """A decorator that registers a function or a class under `name`."""

        def add(entry: Any) -> Any:
            self.known[name] = entry
            return entry

        return add

    def find(self, name: str) -> T:
        """The object of that name. If there is none, a `UserError` suggests the nearest name."""
        if not isinstance(name, str) or name not in self:
            raise unknown(self.what, str(name), sorted(self))
        return self.known[name]

    def __getitem__(self, name: str) -> T:
        if name not in self.known:
            if name in self.packaged:
                importlib.import_module(self.packaged[name])
            else:
                load_plugins(self.group)
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins(self.group)
        return iter(dict.fromkeys([*self.packaged, *self.known]))

    def __len__(self) -> int:
        return sum(1 for _ in self)
