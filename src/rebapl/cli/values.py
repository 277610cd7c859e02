"""Reading values that are given on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rebapl.errors import UserError

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no progress and no notes; results, warnings and errors stay.")
]


TrackOption = Annotated[
    str | None,
    typer.Option(help="Also log to these trackers, with commas: tensorboard, mlflow, or those that plugins register."),
]


def parse_trackers(given: str | None) -> tuple[str, ...]:
    """Names of trackers with commas between them, if they can be used here."""
    from rebapl.training.log import check_trackers

    names = tuple(parse_names(given) or ())
    check_trackers(names)
    return names


def parse_seeds(given: str) -> list[int]:
    """Whole numbers with commas between them.

    >>> parse_seeds("1,2,3")
    [1, 2, 3]
    """
    try:
        seeds = [int(word) for word in given.split(",")]
    except ValueError as error:
        raise UserError(f"--seeds {given}: write whole numbers with commas between them, such as 1,2,3") from error
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {given}: each seed is one run; name it once")
    return seeds


def parse_names(given: str | None) -> list[str] | None:
    """Names with commas between them; None where none are given.

    >>> parse_names("imagenet_a, imagenet_r")
    ['imagenet_a', 'imagenet_r']
    """
    return None if given is None else [word.strip() for word in given.split(",") if word.strip()]


def parse_threshold(given: str) -> dict[str, Any]:
    """Read what a threshold is to keep (a risk or a coverage), and on which uncertainty.

    >>> parse_threshold("risk=0.05"), parse_threshold("coverage=0.9,by=entropy")
    ({'risk': 0.05}, {'coverage': 0.9, 'by': 'entropy'})
    """
    wanted = {
        key.strip(): _parse(value.strip()) for key, _, value in (word.partition("=") for word in given.split(","))
    }
    aims = [key for key in ("risk", "coverage") if isinstance(wanted.get(key), int | float)]
    if len(aims) != 1 or wanted.keys() - {*aims, "by"}:
        raise UserError(
            f"--fit-threshold {given}: write risk=0.05 (the share of wrong answers allowed) or coverage=0.9 (the share "
            "to answer), and after a comma, if you like, by=entropy"
        )
    return wanted


ClassesOption = Annotated[
    str | None, typer.Option(help="Other class names, separated by commas, or @FILE with one per line.")
]


def given_class_names(given: str | None) -> list[str] | None:
    """Class names with commas between them, or those in the lines of a file; None where none are given.

    >>> given_class_names("cat, big dog")
    ['cat', 'big dog']
    """
    from rebapl.files import read_lines

    if given is None:
        return None
    names = read_lines(Path(given[1:])) if given.startswith("@") else [name.strip() for name in given.split(",")]
    if len(names) == 1:
        raise UserError(f"one class name ({names[0]}) would be the answer to every image: give at least two")
    return names


def _parse(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
