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


def _parse(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
