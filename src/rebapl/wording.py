"""Words for people: a number with its noun, the first few of many values, and durations."""

from __future__ import annotations

from collections.abc import Iterable

from rebapl.errors import printable


def number_of(count: int, noun: str) -> str:
    """A count with its noun in the singular or plural.

    >>> number_of(1, "sample"), number_of(3, "class"), number_of(0, "image")
    ('1 sample', '3 classes', '0 images')
    """
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def roughly(seconds: float) -> str:
    """A duration in one unit, for estimates.

    >>> roughly(42), roughly(200), roughly(9000)
    ('42 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def in_two_units(seconds: float) -> str:
    """A duration in its two largest units, or in seconds below a minute.

    >>> in_two_units(7.25), in_two_units(112), in_two_units(3725)
    ('7.2 s', '1 min 52 s', '1 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def few(values: Iterable[object], limit: int = 5) -> str:
    """The first `limit` values, separated by commas, and how many more there are.

    >>> few("abcdefg"), few(["cat", "dog"])
    ('a, b, c, d, e and 2 more', 'cat, dog')
    """
    words = [printable(str(value)) for value in values]
    return ", ".join(words[:limit]) + (f" and {len(words) - limit} more" if len(words) > limit else "")
