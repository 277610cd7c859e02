"""Settings given on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rebapl.errors import UserError, unknown

SECTIONS = ("method", "inference")


def parse_settings(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`section.name=value` words by section; values are read as JSON where they can be, else as text.

    >>> parse_settings(["method.tokens=16", "method.init=null", "inference.restart=warm"])
    {'method': {'tokens': 16, 'init': None}, 'inference': {'restart': 'warm'}}
    """
    settings: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for word in given:
        key, equals, value = word.partition("=")
        section, dot, name = key.partition(".")
        if not equals or not dot or not name:
            raise UserError(f"--set {word}: write section.name=value, such as method.tokens=16")
        if section not in settings:
            raise unknown("section of --set", section, SECTIONS)
        settings[section][name] = _parse(value)
    return settings


def parse_threshold(given: str) -> dict[str, Any]:
    """What a threshold is to hold, and on which uncertainty.

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


def _parse(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
