"""The record of each image: a dictionary of plain values, which tables show as a flat row.

    image               the path or name of the image
    answer              the likeliest class; None if the posterior should not answer
    outside             whether there is no answer because the image belongs to none of the classes; None if no
                        threshold for this was fitted, or if the posterior should always answer
    entropy, expected_entropy, mutual_information, disagreement        see `Prediction`
    set                 the classes of the prediction set, likeliest first; None if no sets were fitted or requested
    top                 the likeliest classes: class, probability, and the ends low and high of its interval
    error               the reason why the image could not be read, and then the other values are None; None otherwise

A flat row has the likeliest classes in columns numbered from 1: class_1, probability_1, low_1, high_1, class_2 …, and
the names of a set in one column, with "; " between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebapl.posterior.conformal import Conformal

Record = dict[str, Any]

MEASURES = ("entropy", "expected_entropy", "mutual_information", "disagreement")
RANKED = ("class", "probability", "low", "high")
LEVEL = 0.9
"""The level of intervals."""

UNSURE, NONE_OF_THESE = "I don't know", "none of these"


def said(record: Record) -> str:
    """The answer of a record, or words for why it has no answer."""
    return (NONE_OF_THESE if record["outside"] else UNSURE) if record["answer"] is None else str(record["answer"])


def head_of(
    class_names: Sequence[str], average: str, samples: int, conformal: Conformal | None, temperature: float
) -> Record:
    """The head of the records: class names, averaging, temperature, level of intervals and number of samples.

    If there are prediction sets, it also has their level, score and quantile.
    """
    sets = None if conformal is None else {key: getattr(conformal, key) for key in ("level", "score", "quantile")}
    return {
        "class_names": list(class_names),
        "average": average,
        "temperature": temperature,
        "interval_level": LEVEL,
        "samples": samples,
        "conformal": sets,
    }


def record_of_broken(name: str, error: str) -> Record:
    """The record of an image that cannot be read."""
    nothing = dict.fromkeys(("answer", "outside", *MEASURES, "set"))
    return {"image": as_text(name), **nothing, "top": [], "error": error}


def as_text(name: str) -> str:
    r"""The name as valid text: bytes of a file name that are not valid text become escapes.

    >>> print(as_text("caf\udce9.png"))
    caf\udce9.png
    """
    return name.encode("utf-8", "backslashreplace").decode()


def columns(top: int) -> list[str]:
    """The names of a row's columns, with `top` classes.

    >>> columns(1)[7:]
    ['set', 'class_1', 'probability_1', 'low_1', 'high_1', 'error']
    """
    return [
        "image",
        "answer",
        "outside",
        *MEASURES,
        "set",
        *(f"{key}_{rank + 1}" for rank in range(top) for key in RANKED),
        "error",
    ]


def row_of(record: Record, top: int) -> list[Any]:
    """The values of `columns(top)`."""
    best: Sequence[Record] = record["top"] or [dict.fromkeys(RANKED)] * top
    ranked = [of_class[key] for of_class in best for key in RANKED]
    names = None if record["set"] is None else "; ".join(record["set"])
    plain = [record[key] for key in ("image", "answer", "outside", *MEASURES)]
    return [*plain, names, *ranked, record["error"]]
