"""Code from outside that plugs in: installed packages by their entry points, and modules named on the command line."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from rebapl.errors import UserError


@cache
def load_plugins(group: str) -> None:
    """Import what installed packages announce under an entry-point group, once; importing it registers it.

    A plugin that cannot be imported is named in a warning, and everything else goes on without it.
    """
    for entry in entry_points(group=group):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(f"the plugin '{entry.value}' ({group}) cannot be loaded: {error!r}", stacklevel=2)


def load_module(name: str) -> None:
    """Import a module that registers learners, distances, presets or data sets."""
    try:
        import_module(name)
    except ImportError as error:
        raise UserError(f"--plugin {name} cannot be imported ({error}): is it installed, or on PYTHONPATH?") from error
