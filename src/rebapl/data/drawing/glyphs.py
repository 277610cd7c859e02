"""Printed and written digits and letters, with captions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from rebapl.data.drawing import fonts as typefaces
from rebapl.data.drawing.backgrounds import LEAST_CONTRAST, background, flat
from rebapl.data.drawing.canvas import (
    SIZE,
    Field,
    Points,
    add_noise,
    blur,
    coarsen,
    lay,
    stroke_mask,
    to_pixels,
)
from rebapl.data.drawing.colours import COLOURS, Colour, shade_of, tone_apart_from
from rebapl.data.drawing.example import Example, Facts
from rebapl.data.drawing.skeletons import CAPITALS, DIGITS, strokes_of
from rebapl.data.drawing.wording import NUMBER_WORDS, caption, on_background, pick, with_article

WRITTEN = 0.25
"""Share of glyphs drawn as strokes rather than set in a typeface."""

COARSE = 0.35
"""Share of glyphs seen at a resolution of 10 to 18 pixels."""

_MANNERS = {"printed": ("printed", "typed"), "written": ("handwritten-looking", "handwritten", "hand-drawn")}


def distortion(rng: np.random.Generator, height: tuple[float, float]) -> Points:
    """A random 2×2 matrix: turn, slant, a narrower or wider figure, and a height as a share of the picture."""
    turn, slant, narrow = rng.normal(0, 0.13), rng.normal(0.05, 0.22), rng.uniform(0.6, 1.15)
    c, s = np.cos(turn), np.sin(turn)
    return rng.uniform(*height) * np.array([[c, -s], [s, c]]) @ np.array([[narrow, -slant], [0, 1]])


def fit(rng: np.random.Generator, strokes: Sequence[Points], matrix: Points, margin: float) -> list[Points]:
    """Strokes of a box 100 high, distorted and placed at random so that they stay `margin` pixels inside."""
    everything = np.concatenate(strokes)
    low, high = everything.min(0), everything.max(0)
    matrix = matrix * SIZE / max(high[1] - low[1], 60.0)
    moved = [(stroke - (low + high) / 2) @ matrix.T for stroke in strokes]
    everything = np.concatenate(moved)
    low, high = everything.min(0), everything.max(0)
    room = SIZE - 2 * margin
    shrink = min(1.0, room / max(float((high - low).max()), 1e-6))
    free = np.maximum(room - shrink * (high - low), 0) / 2
    centre = SIZE / 2 + rng.uniform(-1, 1, 2) * free * rng.choice([0.15, 0.8])
    return [(stroke - (low + high) / 2) * shrink + centre for stroke in moved]


def written(rng: np.random.Generator, glyph: str) -> Field:
    """The coverage of a glyph written with a pen of random width."""
    width = SIZE * rng.uniform(0.04, 0.2)
    strokes = strokes_of(rng, glyph, rng.uniform(1, 6))
    return stroke_mask(fit(rng, strokes, distortion(rng, (0.5, 1.0)), width / 2 + rng.uniform(0, 3)), width)


def printed(rng: np.random.Generator, glyph: str, face: Path) -> Field:
    """The coverage of a glyph of a typeface, distorted, sometimes heavier than the face has it."""
    font = typefaces.load(face, 160)
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


def draw_glyph(rng: np.random.Generator, glyphs: str, faces: Sequence[Path]) -> Example:
    """One of the glyphs, printed or written, in any colour, light on dark or dark on light."""
    glyph = glyphs[rng.integers(len(glyphs))]
    by_hand = rng.random() < WRITTEN
    coverage = written(rng, glyph) if by_hand else printed(rng, glyph, faces[int(rng.integers(len(faces)))])
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
