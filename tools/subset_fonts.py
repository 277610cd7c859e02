"""Writes the font files of tools/captioned/fonts: matplotlib's text faces, cut down to digits and Latin letters.

    python tools/subset_fonts.py      # with matplotlib 3.11.2, which brings fonttools

The licences of the fonts, in the same folder, allow this. The reduced faces have names of their own, as two of the
licences require.
"""

from pathlib import Path

import matplotlib
from fontTools import subset
from fontTools.ttLib import TTFont

from captioned.glyphs import DIGITS, FACES, FONTS, SMALL_LETTERS
from rebapl.data.drawing.letters import CAPITALS

for face in FACES:
    font = TTFont(
        Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf", recalcBBoxes=False, recalcTimestamp=False
    )
    options = subset.Options(hinting=True, layout_features=[], name_IDs=[0, 13], notdef_outline=True)
    subsetter = subset.Subsetter(options)
    subsetter.populate(text=DIGITS + CAPITALS + SMALL_LETTERS)
    subsetter.subset(font)
    name = f"Drawn {FACES.index(face) + 1}"
    for number, text in ((1, name), (2, "Regular"), (4, name), (6, name.replace(" ", ""))):
        font["name"].setName(text, number, 3, 1, 0x409)
    font.save(FONTS / f"{face}.ttf")
