"""What the generator gives: a picture, its caption, and what both of them say."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Facts(NamedTuple):
    """What is to be seen in a picture or said in a caption; an empty string leaves the matter open."""

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

    image: (64, 64, 3). `seen` is all that is true of the image, `said` the part of it that the caption
    mentions, so that in a batch the caption of one example fits every image whose `seen` agrees with it.
    """

    image: NDArray[np.uint8]
    caption: str
    seen: Facts
    said: Facts

    @property
    def name(self) -> str:
        """What the image shows, in one line: equal for images of the same thing."""
        return " ".join(fact for fact in self.seen if fact)
