"""Data sets by name."""

from __future__ import annotations

from rebapl.data.dataset import Dataset
from rebapl.data.embedded import EMBEDDED
from rebapl.errors import unknown


def load_dataset(name: str) -> Dataset:
    """The data set of that name; drawn images are drawn when they are asked for.

    >>> load_dataset("digits").class_names[:3]
    ['zero', 'one', 'two']
    """
    if name not in EMBEDDED:
        raise unknown("data set", name, EMBEDDED)
    return EMBEDDED[name]()
