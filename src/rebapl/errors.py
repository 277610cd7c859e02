"""`UserError`, the exception whose message is for a person: it says what was wrong and what is accepted instead."""

import difflib
import unicodedata
import warnings
from collections.abc import Iterable

_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")  # control characters, bytes that are no text, line and paragraph separators
_DIRECTIONS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # change the direction of writing


class UserError(ValueError):
    """Bad input. The command line prints its message without a traceback."""


class FailedError(UserError):
    """Work failed for a reason other than bad input. The command line then ends with another exit code."""


def unknown(kind: str, name: str, accepted: Iterable[str], more: str = "") -> UserError:
    """The error for a name that is not among the accepted ones. Its message suggests the nearest one.

    >>> print(unknown("method", "cop", ["coop", "maple"]))
    unknown method 'cop': did you mean 'coop'? Accepted: coop, maple
    """
    names = list(accepted)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {kind} '{printable(name)}':{hint} Accepted: {', '.join(names)}{more}")


def printable(text: str, keep: str = "") -> str:
    r"""The text, with characters that move the cursor, colour the terminal or reverse the writing shown as escapes.

    >>> print(printable("cat\x1b[31m\n.png"), printable("one\ntwo\x07", keep="\n").splitlines())
    cat\x1b[31m\n.png ['one', 'two\\x07']
    """

    def hidden(char: str) -> bool:
        return char not in keep and (char in _DIRECTIONS or unicodedata.category(char) in _CATEGORIES)

    return "".join(char.encode("unicode_escape").decode() if hidden(char) else char for char in text)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or the name of its class if the message is empty.

    >>> first_line(RuntimeError("no room\\nat all")), first_line(KeyError())
    ('no room', 'KeyError')
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


def warn_slower(what: str, error: BaseException) -> None:
    """Warn that the calling function has to do its work in a slower way, and show the first line of the error."""
    warnings.warn(f"{what}, which is slower ({first_line(error)})", RuntimeWarning, stacklevel=4)
