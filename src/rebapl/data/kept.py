"""Test-time views that a process keeps, so that its next run on the same images need not decode them again.

Many small runs in one process score the same test images, and decoding them takes as long as a short training. A view
is known by the file it was made from, with its size and time, and by the preprocessing; a file that has changed is read
again. The views that nobody has asked for longest are dropped first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from torch import Tensor

from rebapl.data.dataset import Dataset
from rebapl.data.embedded import EMBEDDED
from rebapl.data.transforms import Preprocessing

KEPT_BYTES = 256 * 2**20
"""What a process keeps: some 1 700 views of 224 px, or 13 000 of 80 px."""


class KeptViews:
    """Views uint8 (3, H, W) by what they are made of, at most `limit` bytes of them. Threads may share it."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self.limit = limit
        self._views: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def view(self, dataset: Dataset, key: str, preprocessing: Preprocessing, make: Callable[[], Tensor]) -> Tensor:
        """The view of an image, kept from before or made now."""
        source = _source(dataset, key)
        if source is None:
            return make()
        known = (*source, preprocessing)
        with self._lock:
            if known in self._views:
                self._views.move_to_end(known)
                return self._views[known]
        view = make()
        with self._lock:
            if known not in self._views:
                self._bytes += view.numel()
            self._views[known] = view
            while self._bytes > self.limit:
                self._bytes -= self._views.popitem(last=False)[1].numel()
        return view


VIEWS = KeptViews()
"""Those of this process."""


def _source(dataset: Dataset, key: str) -> tuple[Hashable, ...] | None:
    """What the image of a key is made from; None if that cannot be told from another."""
    if dataset.folder is None:
        return (dataset.name, key) if dataset.name in EMBEDDED else None
    path = dataset.folder / key
    try:
        about = path.stat()
    except OSError:
        return None
    return str(path), about.st_size, about.st_mtime_ns, getattr(dataset.load, "size", None)
