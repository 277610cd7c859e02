"""Code from outside the package: entry points of installed packages, and modules that a person names.

A package that brings a learner, say, declares it in its `pyproject.toml`,

    [project.entry-points."rebapl.learners"]
    my-method = "my_package.my_method"

and the module registers what it has when it is imported. The other groups are `rebapl.distances`, `rebapl.presets`,
`rebapl.datasets`, `rebapl.engines` and `rebapl.trackers`. Nothing is imported before a name is looked up that this
package does not know, or all names are listed.

A module that is not installed is named by `rebapl --plugin MODULE`, or in the environment variable `REBAPL_PLUGINS`
(several with commas). Processes that are started inherit the variable, so that workers import the same modules.
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
"""The environment variable with the modules that are imported in addition to the entry points."""

_loaded: set[str] = set()


def load_plugins(group: str) -> None:
    """Import the modules that were named, and every entry point of a group, once per process.

    An entry point that fails gives a warning that names it; a module that was named and fails is an error.
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
    """Import a module, which registers what it has. Modules in the working folder are found as well.

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
    """Import modules here, and in every process that is started from here."""
    for name in names:
        load_module(name)
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*_named_modules(), *names]))


def load_named_modules() -> None:
    """Import the modules that the environment names."""
    for name in _named_modules():
        if name not in sys.modules:
            load_module(name)


def _named_modules() -> list[str]:
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


class Registry(Mapping[str, T]):
    """Things by name; those of plugins are loaded when a name is not known otherwise, or when all are listed.

    `known` holds the things that are registered so far. Looking into it loads nothing. `packaged` has the modules of
    this package, by the names that they register; each is imported when its name is looked up.
    """

    def __init__(self, what: str, group: str, packaged: Mapping[str, str] | None = None) -> None:
        self.what, self.group = what, group
        self.packaged = packaged or {}
        self.known: dict[str, T] = {}

    def register(self, name: str) -> Callable[[Any], Any]:
        """A decorator that makes a function or a class known as `name`."""

        def add(made: Any) -> Any:
            self.known[name] = made
            return made

        return add

    def find(self, name: str) -> T:
        """The thing of that name; a `UserError` with the nearest name where there is none."""
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
