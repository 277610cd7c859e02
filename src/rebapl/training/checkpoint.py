"""A training that can be interrupted: it writes checkpoints and a log, and a later process goes on from them.

A checkpoint holds nested tensors and plain values in one safetensors file, and is never a pickle. Its metadata hold the
outline of the nested state (its structure and the plain values), and a checksum of the outline and the tensors.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from rebapl.errors import UserError
from rebapl.files import refuse_special, write_atomically
from rebapl.interruption import HeldBack, Interrupted
from rebapl.sampling import Loop
from rebapl.training.log import EVERY, Tracker, read_log, track_rows, write_log

Progress = Callable[[int, int, float], None]
"""A function that is called during a training with the steps done, the steps in all, and the latest loss."""

CHECKPOINT_SECONDS = 30
"""The seconds between two checkpoints: how much work is lost, at most, when a machine fails."""

_UNFIT = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
"""The errors that occur when a file that is no checkpoint of this loop is read, or its state is put into the loop."""

_log = logging.getLogger(__name__)


def checkpoints_at(path: Path) -> tuple[Path, Path]:
    """The paths of the checkpoints of a training: the last one at `path`, and the one before it in the same folder.

    >>> [path.name for path in checkpoints_at(Path("checkpoint.safetensors"))]
    ['checkpoint.safetensors', 'checkpoint.previous.safetensors']
    """
    return path, path.with_suffix(f".previous{path.suffix}")


def save_checkpoint(state: Any, path: Path, previous: Path | None = None) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers, strings, booleans and None, whole or not at all.

    If `previous` is given, the old file at `path` is renamed to it.
    """
    leaves, structure = tree_flatten(state)
    tensors = {
        str(number): leaf.detach().cpu().clone().contiguous()
        for number, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor)
    }
    plain = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    outline = json.dumps([treespec_dumps(structure), plain], default=_refuse)
    metadata = {"outline": outline, "sha256": _checksum(outline, tensors)}
    write_atomically(path, save(tensors, metadata), previous)


def load_checkpoint(path: Path) -> Any:
    """Read the state that `save_checkpoint` wrote. A file whose content has changed since is refused."""
    try:
        refuse_special(path)
        with safe_open(path, framework="pt") as file:  # it compares the header with the size of the file
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        if metadata["sha256"] != _checksum(metadata["outline"], tensors):
            raise ValueError("its checksum differs")
        structure, plain = json.loads(metadata["outline"])
        leaves = [tensors.get(str(number), value) for number, value in enumerate(plain)]
        return tree_unflatten(leaves, treespec_loads(structure))
    except (*_UNFIT, OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it to begin this run anew") from error


def _checksum(outline: str, tensors: dict[str, Tensor]) -> str:
    return hashlib.sha256(outline.encode() + save(tensors)).hexdigest()


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


class ForeignCheckpointError(UserError):
    """A checkpoint is undamaged but belongs to another training. No checkpoint is changed or deleted then."""


class ResumableLoop:
    """Drives a loop and writes its state to checkpoints and a log. If there are any already, it goes on from them.

    `run` identifies the run, and `images` the training images: a checkpoint of another run or of other images is
    refused. A `tracker` receives the rows of the log.
    """

    def __init__(
        self,
        loop: Loop,
        checkpoint: Path | None,
        run: str,
        images: str,
        log: Path | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        self.loop, self.log, self.tracker = loop, log, tracker
        self.made_for = {"run": run, "images": images}
        self.checkpoint = checkpoint
        self._seconds_before = 0.0 if checkpoint is None else self._resume(checkpoint)
        self.rows = (
            [] if log is None else [row for row in read_log(log) if row.get("step", math.inf) < loop.schedule.steps]
        )
        loop.record_every = 0 if log is None and tracker is None else EVERY
        self._start = self._saved = time.monotonic()
        self._saved_step = -1

    @property
    def seconds(self) -> float:
        """How long the training has taken, including the time before an interruption."""
        return self._seconds_before + time.monotonic() - self._start

    def run_until(self, end: int, progress: Progress | None) -> None:
        """Do the steps up to `end`."""
        try:
            with HeldBack(active=self.checkpoint is not None) as held:
                while not self.loop.done and self.loop.schedule.steps < end:
                    self.loop.step()
                    self._between_steps(held, progress)
        finally:
            self._write_log()

    def _between_steps(self, held: HeldBack, progress: Progress | None) -> None:
        """Report the step; write a checkpoint if one is due or a signal came; then deliver the signal."""
        loop = self.loop
        try:
            if progress is not None:
                progress(loop.schedule.steps, loop.steps_in_all, loop.last_loss)
            if held.pending or time.monotonic() - self._saved > CHECKPOINT_SECONDS:
                self._save()
            held.deliver()
        except (KeyboardInterrupt, SystemExit) as error:
            if self.checkpoint is None:
                raise
            if self._saved_step != loop.schedule.steps:
                self._save()
            if isinstance(error, SystemExit):
                raise
            number = error.signal if isinstance(error, Interrupted) else signal.SIGINT
            raise Interrupted(number, f"step {loop.schedule.steps} of {loop.steps_in_all} is kept") from error

    def _write_log(self) -> None:
        """Add the loop's new rows to the log and write all rows. The tracker receives the new rows."""
        new = self.loop.rows()
        self.rows += new
        if self.tracker is not None:
            track_rows(self.tracker, new)
        if self.log is not None:
            write_log(self.log, self.rows)

    def _save(self) -> None:
        self._write_log()
        if self.checkpoint is not None:
            self.loop.refuse_what_is_not_finite()
            state = {"loop": self.loop.state_dict(), "seconds": self.seconds, **self.made_for}
            save_checkpoint(state, *checkpoints_at(self.checkpoint))
        self._saved, self._saved_step = time.monotonic(), self.loop.schedule.steps

    def _resume(self, checkpoint: Path) -> float:
        """Go on from the last undamaged checkpoint. Return the seconds that were spent before it was written."""
        paths = [path for path in checkpoints_at(checkpoint) if path.exists()]
        for path in paths:
            try:
                return self._load(path)
            except ForeignCheckpointError:
                raise
            except UserError as error:
                if path == paths[-1]:
                    raise
                _log.warning("%s; the one before it is taken", error)
                path.unlink()
        return 0.0

    def _load(self, path: Path) -> float:
        state = load_checkpoint(path)
        if not isinstance(state, dict) or state.keys() != {"loop", "seconds", *self.made_for}:
            raise ForeignCheckpointError(f"{path} is of another version of rebapl: delete it to begin this run anew")
        if state["images"] != self.made_for["images"]:
            raise ForeignCheckpointError(
                f"{path} was made with other training images: put back those that this run began with, or delete it to "
                "begin anew"
            )
        if state["run"] != self.made_for["run"]:
            raise ForeignCheckpointError(f"{path} is of a run with other settings: delete it to begin this run anew")
        try:
            self.loop.load_state_dict(state["loop"])
            self.loop.check_restored()
            return float(state["seconds"])
        except torch.OutOfMemoryError:
            raise
        except _UNFIT as error:
            raise UserError(
                f"{path} does not fit this run ({type(error).__name__}: {' '.join(str(error).split())}): delete it to "
                "begin this run anew"
            ) from error
