"""The one exception meant for a person: it says what was wrong and what is accepted instead."""

import difflib
import unicodedata
from collections.abc import Iterable

_HIDDEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, bytes that are no text, line and paragraph separators
_TURNING = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # change the direction of writing


class UserError(ValueError):
    """Bad input. The command line prints its message without a traceback."""


class FailedError(UserError):
    """Work failed, other than by bad input. The command line ends with another exit code then."""


def unknown(kind: str, given: str, accepted: Iterable[str], more: str = "") -> UserError:
    """The error for a name that is none of the accepted ones; suggests the nearest.

    >>> print(unknown("method", "cop", ["coop", "maple"]))
    unknown method 'cop': did you mean 'coop'? Accepted: coop, maple
    """
    names = list(accepted)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {kind} '{printable(given)}':{hint} Accepted: {', '.join(names)}{more}")


def printable(text: str, keep: str = "") -> str:
    r"""The text with what would move the cursor, colour the terminal or turn the writing shown as escapes.

    >>> print(printable("cat\x1b[31m\n.png"), printable("one\ntwo\x07", keep="\n").splitlines())
    cat\x1b[31m\n.png ['one', 'two\\x07']
    """
    hidden = (char not in keep and (char in _TURNING or unicodedata.category(char) in _HIDDEN) for char in text)
    return "".join(
        char.encode("unicode_escape").decode() if hide else char for char, hide in zip(text, hidden, strict=True)
    )


def first_line(error: BaseException) -> str:
    """What an exception of a library says in its first line, or its name if it says nothing.

    >>> first_line(RuntimeError("no room\\nat all")), first_line(KeyError())
    ('no room', 'KeyError')
    """
    return next(iter(str(error).splitlines()), type(error).__name__)
