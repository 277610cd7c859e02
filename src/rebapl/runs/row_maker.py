"""The protocol `RowMaker`, by which shards are filled with rows of any kind, such as answers or features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from rebapl.posterior.answers import Pace
from rebapl.posterior.records import Record

Entry = Any
"""An image in a list of images, as JSON: its name, or a list that begins with its name."""


class RowMaker(Protocol):
    """Makes the rows of images, whose entries are stored in the list of images of a shard.

    `about` describes the rows as plain values and is stored beside them. In any process, the class method `open` makes
    the same object from these values. The entry `work` is only for `open`: it may differ between two commands that
    make the same rows.
    """

    @property
    def about(self) -> Mapping[str, Any]: ...

    def count(self, entries: Sequence[Entry]) -> int:
        """The number of images behind these entries."""
        ...

    def portions(self, entries: Iterable[Entry], pace: Pace) -> Iterator[list[Record]]:
        """Yield a record for each image, a portion at a time, with its `image` and `error` (None if it was read)."""
        ...

    def contents(self, records: Sequence[Record]) -> list[bytes]:
        """The contents of the files of a shard with these records."""
        ...
