"""What limits the pace of a prediction: at each moment it waits for one thing, and most for the slowest."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

READING, MODEL, WRITING = "decoding", "the model", "writing"
"""What may be waited for: images that are read and resized, their passes, and records that are made and written."""

RECENT = 8
"""The last portions, by which the pace is judged."""


class Pace:
    """What a prediction has waited for lately, and how many images it answers a second.

    >>> ticks = iter([0.0, 0.0, 4.0, 5.0])
    >>> pace = Pace(lambda: next(ticks))
    >>> pace.waits_for(READING)
    >>> pace.waits_for(MODEL)
    >>> pace.answered(10)
    >>> pace.said()
    'limited by decoding: 2.0 images/s'
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._since, self._part = clock, clock(), READING
        self._images, self._seconds = 0, dict.fromkeys((READING, MODEL, WRITING), 0.0)
        self._recent: deque[tuple[int, dict[str, float]]] = deque([(0, dict(self._seconds))], maxlen=RECENT + 1)

    def waits_for(self, part: str) -> None:
        """From now on it waits for this."""
        now = self._clock()
        self._seconds[self._part] += now - self._since
        self._since, self._part = now, part

    def answered(self, images: int) -> None:
        """A portion of so many images is answered."""
        self.waits_for(self._part)
        self._images += images
        self._recent.append((self._images, dict(self._seconds)))

    def said(self) -> str:
        """What limits it and how quick it is, in words; nothing before the first portion."""
        (images, before), (answered, now) = self._recent[0], self._recent[-1]
        spent = {part: now[part] - before[part] for part in now}
        if answered == images or not any(spent.values()):
            return ""
        limit, pace = max(spent, key=lambda part: spent[part]), (answered - images) / sum(spent.values())
        return f"limited by {limit}: {pace:.0f} images/s" if pace >= 10 else f"limited by {limit}: {pace:.1f} images/s"
