"""Printed and written digits and letters, with captions."""

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from captioned.backgrounds import background
from captioned.example import Example, Facts
from captioned.wording import caption, on_background, pick, with_article
from rebapl.data.drawing.canvas import (
    COLOURS,
    LEAST_CONTRAST,
    SIZE,
    Colour,
    Field,
    add_noise,
    blur,
    flat,
    lay,
    shade_of,
    stroke_mask,
    to_pixels,
    tone_apart_from,
)
from rebapl.data.drawing.letters import CAPITALS, distortion, fit, strokes_of
from rebapl.data.embedded import NUMBER_WORDS

DIGITS = "0123456789"
SMALL_LETTERS = CAPITALS.lower()

FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "STIXGeneralBolIta",
    "cmb10",
    "cmr10",
    "cmss10",
    "cmti10",
    "cmtt10",
)
"""The typefaces of printed glyphs: matplotlib's with Latin letters and digits, shipped so that all draw the same."""

FONTS = Path(__file__).parent / "fonts"

WRITTEN = 0.25
"""Share of glyphs drawn as strokes rather than set in a typeface."""

COARSE = 0.35
"""Share of glyphs seen at a resolution of 10 to 18 pixels."""

_MANNERS = {"printed": ("printed", "typed"), "written": ("handwritten-looking", "handwritten", "hand-drawn")}


def written(rng: np.random.Generator, glyph: str) -> Field:
    """The coverage of a glyph written with a pen of random width."""
    width = SIZE * rng.uniform(0.04, 0.2)
    strokes = strokes_of(rng, glyph, rng.uniform(1, 6))
    return stroke_mask(fit(rng, strokes, distortion(rng, (0.5, 1.0)), width / 2 + rng.uniform(0, 3)), width)


@cache
def typeface(face: str, size: int) -> ImageFont.FreeTypeFont:
    """One of `FACES` at a size in pixels, laid out without Raqm, which not every Pillow has."""
    return ImageFont.truetype(FONTS / f"{face}.ttf", size)


def printed(rng: np.random.Generator, glyph: str, face: str) -> Field:
    """The coverage of a glyph of a typeface, distorted, sometimes heavier than the face has it."""
    font = typeface(face, 160)
    heavier = int(rng.integers(1, 12)) if rng.random() < 0.35 else 0
    left, top, right, bottom = font.getbbox(glyph, stroke_width=heavier)
    tile = Image.new("L", (int(right - left) + 2, int(bottom - top) + 2))
    ImageDraw.Draw(tile).text((1 - left, 1 - top), glyph, font=font, fill=255, stroke_width=heavier)
    corners = np.array([(0.0, 0.0), (tile.width, 0), (tile.width, tile.height), (0, tile.height)])
    placed = fit(rng, [corners], distortion(rng, (0.45, 1.0)), 0.5)[0] * 2
    # The affine map from the picture (twice as large as the end result) back into the tile.
    matrix = np.stack([(placed[1] - placed[0]) / tile.width, (placed[3] - placed[0]) / tile.height], axis=1)
    back = np.linalg.inv(matrix)
    offset = -back @ placed[0]
    size = (2 * SIZE, 2 * SIZE)
    data = (back[0, 0], back[0, 1], offset[0], back[1, 0], back[1, 1], offset[1])
    large = tile.transform(size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    return np.asarray(large.reduce(2), np.float32) / 255


def coarsen(field: Field, pixels: int, resample: Image.Resampling) -> Field:
    """A field reduced to `pixels` a side and brought back to full size, as by a poor scanner."""
    small = Image.fromarray(field).resize((pixels, pixels), Image.Resampling.BOX)
    return np.clip(np.asarray(small.resize((SIZE, SIZE), resample), np.float32), 0, 1)


def _ink(rng: np.random.Generator) -> tuple[str, Colour]:
    """A named colour, or a grey without a name."""
    if rng.random() < 0.55:
        name = pick(rng, tuple(COLOURS))
        return name, shade_of(rng, name)
    return "", np.full(3, rng.choice([rng.uniform(0, 0.3), rng.uniform(0.6, 1)]), np.float32)


def _degrade(rng: np.random.Generator, coverage: Field) -> Field:
    """Some glyphs seen at low resolution, others out of focus."""
    chance = rng.random()
    if chance < COARSE:
        resample = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
        return coarsen(coverage, int(rng.choice([10, 12, 14, 18])), resample[rng.integers(3)])
    if chance < COARSE + 0.2:
        return blur(coverage, int(rng.integers(1, 8)))
    return coverage


def _phrase(rng: np.random.Generator, seen: Facts, capital: bool) -> tuple[str, Facts]:
    """A phrase for a glyph that keeps some of the facts, and the facts it keeps."""
    said = Facts(seen.kind, seen.thing)
    if seen.kind == "digit":
        word = seen.thing if rng.random() < 0.7 else str(NUMBER_WORDS.index(seen.thing))
        noun = pick(rng, ("{}", "digit {}", "number {}", "number {}", "figure {}", "numeral {}")).format(word)
        bare = noun == word
    else:
        noun, bare = f"letter {seen.thing}", False
        chance = rng.random()
        if chance < 0.15:
            noun, bare = seen.thing, True
        elif chance < 0.45:
            noun = pick(rng, ("capital {}", "upper-case {}") if capital else ("small {}", "lower-case {}")).format(noun)
            said = said._replace(size=seen.size)
    before = ""
    if seen.colour and rng.random() < 0.35:
        before, said = seen.colour + " ", said._replace(colour=seen.colour)
    if rng.random() < 0.2:
        before += pick(rng, _MANNERS[seen.texture]) + " "
        said = said._replace(texture=seen.texture)
    phrase = before + noun
    if not bare:
        phrase = f"the {phrase}" if rng.random() < 0.75 else with_article(phrase)
    elif before or rng.random() < 0.3:
        phrase = with_article(phrase)
    if seen.background not in ("neutral", "") and rng.random() < 0.25:
        phrase, said = phrase + on_background(rng, seen.background), said._replace(background=seen.background)
    return phrase, said


def draw_glyph(rng: np.random.Generator, glyphs: str) -> Example:
    """One of the glyphs, printed or written, in any colour, light on dark or dark on light."""
    glyph = glyphs[rng.integers(len(glyphs))]
    by_hand = rng.random() < WRITTEN
    coverage = written(rng, glyph) if by_hand else printed(rng, glyph, FACES[int(rng.integers(len(FACES)))])
    coverage = _degrade(rng, coverage)
    colour, ink = _ink(rng)
    if rng.random() < 0.45:
        ground, picture = "", flat(tone_apart_from(rng, ink, 1.5 * LEAST_CONTRAST))
    else:
        ground, picture = background(rng, ink)
    picture = lay(picture, coverage, ink)
    if rng.random() < 0.5:
        picture = add_noise(rng, picture, rng.uniform(0, 0.1))
    capital = glyph in CAPITALS
    if glyph in DIGITS:
        seen = Facts("digit", NUMBER_WORDS[int(glyph)], colour, background=ground)
    else:
        seen = Facts("letter", glyph.lower(), colour, size="capital" if capital else "small", background=ground)
    seen = seen._replace(texture="written" if by_hand else "printed")
    phrase, said = _phrase(rng, seen, capital)
    return Example(to_pixels(picture), caption(rng, phrase), seen, said)
