"""The command line."""

from rebapl.cli.app import main

__all__ = ["main"]
