"""The one exception meant for a person: it says what was wrong and what is accepted instead."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The command line prints its message without a traceback."""


def unknown(kind: str, given: str, accepted: Iterable[str], more: str = "") -> UserError:
    """The error for a name that is none of the accepted ones; suggests the nearest.

    >>> print(unknown("method", "cop", ["coop", "maple"]))
    unknown method 'cop': did you mean 'coop'? Accepted: coop, maple
    """
    names = list(accepted)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {kind} '{given}':{hint} Accepted: {', '.join(names)}{more}")
