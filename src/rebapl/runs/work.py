"""What an engine needs to know of a piece of work, whether it is a run or a shard of a prediction.

It is plain data, which can travel to any process or machine as JSON. What it makes are files, and they say whether it
is done. So it can be done anywhere, and be tried again by anybody.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from rebapl.runs.backbone import LoadBackbone
from rebapl.training.keeping import Progress


@dataclasses.dataclass(frozen=True)
class Work(ABC):
    """A piece of work. Its `folder` is its own while it is being done: two pieces that share one are not done at once.

    `noun` is what a person calls it, and `unit` what its progress counts.
    """

    folder: Path
    noun: ClassVar[str]
    unit: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called among others of its kind."""

    @property
    @abstractmethod
    def kept_in(self) -> Path:
        """The folder in which a person finds what it and others of its kind have made."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether everything that it is to make is there."""

    @abstractmethod
    def do(self, device: str, load: LoadBackbone, progress: Progress | None) -> None:
        """Do it in this process, as far as that is not done."""

    @abstractmethod
    def place_for_error(self, bad_input: bool) -> Path | None:
        """The file for the traceback of a failure, or None where none should be written."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Plain values, for the way to another process."""

    def absolute(self) -> Work:
        """The same for a process that works in another folder."""
        return dataclasses.replace(self, folder=self.folder.absolute())
