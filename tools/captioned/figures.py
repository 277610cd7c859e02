"""Coloured, textured shapes: one, several alike, or two different ones, with captions."""

import numpy as np

from captioned.backgrounds import background
from captioned.example import Example, Facts
from captioned.shapes import ALL_OUTLINES, ALL_TEXTURES, BLACK, HOLES, WHITE, mask_with_hole
from captioned.wording import caption, on_background, pick, plural, with_article
from rebapl.data.drawing.canvas import (
    COLOURS,
    SIZE,
    Colour,
    Picture,
    add_noise,
    blend,
    blur,
    contrast,
    lay,
    polygon_mask,
    shade_of,
    to_pixels,
)
from rebapl.data.drawing.shapes import place, textured
from rebapl.data.embedded import NUMBER_WORDS

RADII = {"small": (6.5, 10.0), "medium": (13.0, 18.0), "large": (22.0, 29.0)}
"""Range of a shape's radius in pixels by the name of its size."""

SEE_THROUGH = 0.1
"""Share of textured shapes that have no second tone, so that the ground shows between the marks."""

_WITH_TEXTURE = {
    "striped": "with stripes",
    "dotted": "with dots",
    "checkered": "with a checkered pattern",
    "gridded": "with a grid",
    "zigzag": "with zigzag lines",
    "shaded": "with soft shading",
    "speckled": "with speckles",
}

_CORNERS = {
    "top left": (0.25, 0.25),
    "top right": (0.75, 0.25),
    "bottom left": (0.25, 0.75),
    "bottom right": (0.75, 0.75),
    "middle": (0.5, 0.5),
}


def second_tone(rng: np.random.Generator, colour: Colour) -> Colour:
    """White, black, or a lighter or darker shade, far enough from `colour` to show a texture."""
    share = rng.uniform(0.5, 0.8)
    tones = [WHITE, BLACK, blend(colour, WHITE, share), blend(colour, BLACK, share)]
    while True:
        tone = tones[rng.integers(len(tones))]
        if contrast(tone, colour) > 0.35:
            return tone


def paint_shape(
    rng: np.random.Generator,
    picture: Picture,
    shape: str,
    colours: tuple[Colour, Colour],
    pattern: str,
    centre: tuple[float, float],
    radius: float,
) -> Picture:
    """The picture with one filled shape on it, a little turned and stretched; some let the ground show through."""
    turn, stretch = rng.normal(0, 0.15), rng.uniform(0.85, 1.15)
    outline = ALL_OUTLINES[shape]
    covered = place(outline, centre, radius, turn, stretch)
    if shape in HOLES:
        coverage = mask_with_hole(covered, place(HOLES[shape], centre, radius, turn, stretch))
    else:
        coverage = polygon_mask(covered)
    period = float(np.clip(radius * rng.uniform(0.4, 0.7), 3.5, 12))
    share = textured(rng, ALL_TEXTURES[pattern], period, centre, rng.uniform(0, np.pi))
    if pattern not in ("solid", "shaded") and rng.random() < SEE_THROUGH:
        rim = coverage - polygon_mask(place(outline, centre, radius - 2, turn, stretch))
        return lay(picture, np.maximum(coverage * (1 - share), rim), colours[0])
    paint = lay(np.broadcast_to(colours[0], (SIZE, SIZE, 3)), share, colours[1])
    picture = lay(picture, coverage, paint)
    if rng.random() < 0.25:
        rim = coverage - polygon_mask(place(outline, centre, radius - 1.2, turn, stretch))
        picture = lay(picture, np.clip(rim, 0, 1), blend(colours[0], colours[1], rng.random() * 0.6))
    return picture


def finish(rng: np.random.Generator, picture: Picture) -> Picture:
    """The camera's faults, in mild form: blur and noise on some pictures."""
    if rng.random() < 0.2:
        picture = blur(picture, 1)
    if rng.random() < 0.4:
        picture = add_noise(rng, picture, rng.uniform(0, 0.06))
    return picture


def _describe(rng: np.random.Generator, seen: Facts) -> tuple[str, Facts]:
    """A phrase for identical shapes that keeps some of the facts, and the facts it keeps."""
    said = seen._replace(
        colour=seen.colour if rng.random() < 0.88 else "",
        texture=seen.texture if rng.random() < (0.3 if seen.texture == "solid" else 0.88) else "",
        size=seen.size if rng.random() < 0.3 else "",
        background=seen.background if seen.background != "neutral" and rng.random() < 0.3 else "",
        position=seen.position if rng.random() < 0.4 else "",
    )
    if (said.colour or said.texture) and rng.random() < 0.06:
        said = said._replace(thing="")
    several = seen.amount != "one"
    if not several and rng.random() < 0.85:
        said = said._replace(amount="")
    noun = said.thing or "shape"
    words = [said.colour, said.texture]
    after = ""
    if said.texture in _WITH_TEXTURE and rng.random() < 0.2:
        words, after = [said.colour], " " + _WITH_TEXTURE[said.texture]
    elif rng.random() < 0.3:
        words.reverse()
    phrase = " ".join(word for word in (said.size, *words, plural(noun) if several else noun) if word) + after
    phrase = f"{said.amount} {phrase}" if said.amount else with_article(phrase)
    if said.position:
        phrase += f" in the {said.position}"
    if said.background:
        phrase += on_background(rng, said.background)
    return phrase, said


def _centres(rng: np.random.Generator, count: int, radius: float) -> list[tuple[float, float]]:
    """Centres for `count` shapes that keep apart: the cells of a two-by-two board in random order, jittered."""
    slack = max(SIZE / 4 - radius, 0) * 0.6
    cells = rng.permutation([(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)])[:count] * SIZE
    return [(float(x), float(y)) for x, y in cells + rng.uniform(-slack, slack, cells.shape)]


def draw_alike(rng: np.random.Generator) -> Example:
    """One to four shapes of the same kind, colour, texture and size."""
    shape, colour, pattern = pick(rng, tuple(ALL_OUTLINES)), pick(rng, tuple(COLOURS)), pick(rng, tuple(ALL_TEXTURES))
    count = int(rng.choice([1, 2, 3, 4], p=[0.7, 0.1, 0.1, 0.1]))
    size = pick(rng, ("small", "medium", "large", "large") if count == 1 else ("small", "medium"))
    tint = shade_of(rng, colour)
    ground, picture = background(rng, tint)
    radius = rng.uniform(*RADII[size])
    position = ""
    if count > 1:
        centres = _centres(rng, count, radius)
    elif size == "large":
        free = SIZE / 2 - radius
        centres = [(float(SIZE / 2 + rng.uniform(-free, free)), float(SIZE / 2 + rng.uniform(-free, free)))]
    else:
        position = pick(rng, tuple(_CORNERS))
        x, y = _CORNERS[position]
        centres = [(x * SIZE + rng.uniform(-3, 3), y * SIZE + rng.uniform(-3, 3))]
    second = second_tone(rng, tint)
    for centre in centres:
        picture = paint_shape(rng, picture, shape, (tint, second), pattern, centre, radius)
    seen = Facts("shapes", shape, colour, pattern, size, NUMBER_WORDS[count], ground, position)
    phrase, said = _describe(rng, seen)
    return Example(to_pixels(finish(rng, picture)), caption(rng, phrase), seen, said)


def draw_pair(rng: np.random.Generator) -> Example:
    """Two different shapes side by side or one above the other, with a long caption that tells both."""
    beside = rng.random() < 0.5
    relation = pick(rng, ("to the left of", "next to")) if beside else pick(rng, ("above", "on top of"))
    centres = [(0.27, 0.5), (0.73, 0.5)] if beside else [(0.5, 0.27), (0.5, 0.73)]
    shapes = rng.permutation(list(ALL_OUTLINES))[:2]
    colours = rng.permutation(list(COLOURS))[:2]
    tints = [shade_of(rng, str(colour)) for colour in colours]
    while True:
        ground, picture = background(rng, tints[0])
        if contrast(picture.mean((0, 1)), tints[1]) > 0.3:
            break
    phrases = []
    for shape, colour, tint, (x, y) in zip(shapes, colours, tints, centres, strict=True):
        pattern, size = pick(rng, tuple(ALL_TEXTURES)), pick(rng, ("small", "medium"))
        centre = (x * SIZE + rng.uniform(-3, 3), y * SIZE + rng.uniform(-3, 3))
        colour_pair = (tint, second_tone(rng, tint))
        picture = paint_shape(rng, picture, str(shape), colour_pair, pattern, centre, rng.uniform(*RADII[size]))
        words = [size if rng.random() < 0.4 else "", str(colour), pattern if rng.random() < 0.6 else "", str(shape)]
        phrases.append(with_article(" ".join(word for word in words if word)))
    phrase = f"{phrases[0]} {relation} {phrases[1]}"
    if rng.random() < 0.4:
        sides = ("on the left", "on the right") if beside else ("at the top", "at the bottom")
        first, second = (pick(rng, ("there is {}", "you can see {}", "stands {}")).format(part) for part in phrases)
        phrase = f"two different things: {sides[0]} {first}, and {sides[1]} {second}"
    seen = Facts("pair", phrase, background=ground)
    said = seen._replace(background="")
    if ground != "neutral" and rng.random() < 0.4:
        phrase, said = phrase + on_background(rng, ground), seen
    return Example(to_pixels(finish(rng, picture)), caption(rng, phrase), seen, said)
