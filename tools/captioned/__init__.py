"""Drawn pictures with captions, on which the embedded model `mini` is trained.

All randomness comes from the generator that the caller passes, so the seed determines the picture. The typefaces are in
`fonts/`, with their licences. FreeType, which comes with Pillow, draws their letters.
"""

import numpy as np

from captioned.example import Example, Facts
from captioned.figures import draw_alike, draw_pair
from captioned.glyphs import DIGITS, SMALL_LETTERS, draw_glyph
from rebapl.data.drawing.letters import CAPITALS

__all__ = ["Example", "Facts", "draw_example"]

ALIKE, PAIR, DIGIT = 0.47, 0.08, 0.22
"""Shares of the kinds of pictures; the rest are letters."""


def draw_example(rng: np.random.Generator) -> Example:
    """One captioned picture.

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
    return draw_glyph(rng, glyphs)
