"""The result of the generator: a picture, its caption, and the facts that each of them shows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Facts(NamedTuple):
    """The facts that a picture shows or a caption states. An empty string leaves a fact open."""

    kind: str
    thing: str = ""
    colour: str = ""
    texture: str = ""
    size: str = ""
    amount: str = ""
    background: str = ""
    position: str = ""


class Example(NamedTuple):
    """A captioned picture for contrastive training.

    image: (64, 64, 3). `seen` has all facts of the image, and `said` those that the caption mentions. In a batch, the
    caption of one example fits every image whose `seen` agrees with its `said`.
    """

    image: NDArray[np.uint8]
    caption: str
    seen: Facts
    said: Facts

    @property
    def name(self) -> str:
        """The facts of the image in one line. It is the same for images of the same thing."""
        return " ".join(fact for fact in self.seen if fact)
