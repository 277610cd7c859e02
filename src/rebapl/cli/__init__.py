"""The command line."""

from rebapl.cli.commands import main

__all__ = ["main"]
