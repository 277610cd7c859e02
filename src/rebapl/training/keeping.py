"""Keeping what a training has done: checkpoints, the log, and going on from what was kept before."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rebapl.errors import UserError
from rebapl.interruption import HeldBack, Interrupted
from rebapl.sampling import Loop, Sample
from rebapl.training.checkpoint import Checkpoints, load_checkpoint
from rebapl.training.log import EVERY, read_log, write_log
from rebapl.training.tracking import Tracker

Progress = Callable[[int, int, float], None]
"""Called now and then with the steps done, the steps in all, and the latest loss."""

CHECKPOINT_SECONDS = 30
"""How many seconds of work the loss of a machine may cost."""

_UNFIT = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError)
"""What a state that does not fit makes a loop raise."""

_log = logging.getLogger(__name__)


class Keeping:
    """Keeps what a loop has done, in checkpoints and a log, and first goes on from what was kept before.

    `images` identifies the training images: work on other ones is not continued. A `tracker` hears of the log's rows.
    """

    def __init__(
        self, loop: Loop, checkpoint: Path | None, images: str, log: Path | None, tracker: Tracker | None = None
    ) -> None:
        self.loop, self.images, self.log, self.tracker = loop, images, log, tracker
        self.checkpoints = None if checkpoint is None else Checkpoints(checkpoint)
        self._before = 0.0 if self.checkpoints is None else self._resume(self.checkpoints)
        self.rows = [] if log is None else [row for row in read_log(log) if row.get("step", math.inf) < loop.steps_done]
        loop.record_every = 0 if log is None and tracker is None else EVERY
        self._start = self._saved = time.monotonic()
        self._saved_step = -1

    @property
    def seconds(self) -> float:
        """How long the training has taken, including the time before an interruption."""
        return self._before + time.monotonic() - self._start

    def between_steps(self, held: HeldBack, progress: Progress | None) -> None:
        """Report the step, write a checkpoint if it is time to or if somebody wants to end, and then let them."""
        loop = self.loop
        try:
            if progress is not None:
                progress(loop.steps_done, loop.steps_in_all, loop.last_loss)
            if held.pending or time.monotonic() - self._saved > CHECKPOINT_SECONDS:
                self._keep()
            held.deliver()
        except (KeyboardInterrupt, SystemExit) as error:
            if self.checkpoints is None:
                raise
            if self._saved_step != loop.steps_done:
                self._keep()
            if isinstance(error, SystemExit):
                raise
            number = error.signal if isinstance(error, Interrupted) else signal.SIGINT
            raise Interrupted(number, f"step {loop.steps_done} of {loop.steps_in_all} is kept") from error

    def took_over(self, cycles: Mapping[int, Mapping[str, Any]]) -> bool:
        """Take over the cycle that begins now, if it was sampled elsewhere from the same images."""
        schedule = self.loop.schedule
        part = cycles.get(schedule.cycle) if schedule.at_cycle_start else None
        if part is None or part["images"] != self.images:
            return False
        self.write_log()
        try:
            self.rows += part["rows"]
            self.loop.samples += [Sample(**sample) for sample in part["samples"]]
            self._before += part["seconds"]
            self.loop.begin_at(schedule.cycle + 1)
            self.loop.check_restored()
        except _UNFIT as error:
            raise UserError(
                f"the samples of cycle {schedule.cycle} do not fit this run ({error}): delete them"
            ) from error
        return True

    def write_log(self) -> None:
        """Move what the loop has recorded to the rows so far, and write them all. The tracker hears of the new ones."""
        new = self.loop.rows()
        self.rows += new
        if self.tracker is not None:
            for row in new:
                self.tracker.log(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
        if self.log is not None:
            write_log(self.log, self.rows)

    def _keep(self) -> None:
        if self.checkpoints is not None:
            self.loop.refuse_what_is_not_finite()
        self.write_log()
        if self.checkpoints is not None:
            self.checkpoints.save({"loop": self.loop.state_dict(), "seconds": self.seconds, "images": self.images})
        self._saved, self._saved_step = time.monotonic(), self.loop.steps_done

    def _resume(self, checkpoints: Checkpoints) -> float:
        """Go on from the last checkpoint that is whole. Return the seconds that were spent before it was written."""
        there = checkpoints.there()
        for index, path in enumerate(there):
            try:
                return self._load(path)
            except UserError as error:
                if index + 1 == len(there):
                    raise
                _log.warning("%s; the one before it is taken", error)
                path.unlink()
        return 0.0

    def _load(self, path: Path) -> float:
        state = load_checkpoint(path)
        if not isinstance(state, dict) or state.keys() != {"loop", "seconds", "images"}:
            raise UserError(f"{path} is of another version of rebapl: delete it to begin this run anew")
        if state["images"] != self.images:
            raise UserError(
                f"{path} was made with other training images: put back those that this run began with, or delete it to "
                "begin anew"
            )
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
