"""Code from outside that plugs in by the entry points of installed packages."""

from importlib.metadata import entry_points


def load_plugins(group: str) -> None:
    """Import what installed packages announce under an entry-point group; importing it registers it."""
    for entry in entry_points(group=group):
        entry.load()
