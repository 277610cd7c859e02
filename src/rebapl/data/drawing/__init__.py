"""Drawn, captioned pictures: what the embedded model is trained on, and the strokes of the embedded tasks.

Needs numpy and Pillow only (and matplotlib's font files for printed glyphs). All chance comes from the generator
that is handed in, so a picture is a function of its seed.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rebapl.data.drawing import fonts
from rebapl.data.drawing.example import Example, Facts
from rebapl.data.drawing.figures import draw_alike, draw_pair
from rebapl.data.drawing.glyphs import draw_glyph
from rebapl.data.drawing.skeletons import CAPITALS, DIGITS, SMALL_LETTERS

__all__ = ["Example", "Facts", "draw_example"]

ALIKE, PAIR, DIGIT = 0.47, 0.08, 0.22
"""Shares of the kinds of pictures; the rest are letters."""


def draw_example(rng: np.random.Generator, faces: Sequence[Path] | None = None) -> Example:
    """One captioned picture; `faces` are font files, by default the text faces of matplotlib.

    >>> example = draw_example(np.random.default_rng(0))
    >>> example.image.shape
    (64, 64, 3)
    """
    chance = rng.random()
    if chance < ALIKE:
        return draw_alike(rng)
    if chance < ALIKE + PAIR:
        return draw_pair(rng)
    glyphs = DIGITS if chance < ALIKE + PAIR + DIGIT else CAPITALS + SMALL_LETTERS
    return draw_glyph(rng, glyphs, fonts.faces() if faces is None else faces)
