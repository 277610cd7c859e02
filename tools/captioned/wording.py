"""Captions: templates, articles, plurals and backgrounds in words."""

from collections.abc import Sequence

import numpy as np

TEMPLATES = (
    "{}",
    "{}.",
    "a photo of {}.",
    "a photo of {}.",
    "a photo of {}",
    "a drawing of {}.",
    "an image of {}.",
    "a picture of {}.",
    "an illustration of {}.",
    "a rendering of {}.",
    "a close-up of {}.",
    "a blurry photo of {}.",
    "a low resolution picture of {}.",
    "a clean drawing of {}.",
    "this is {}.",
    "here we see {}.",
    "one can see {} in this picture.",
    "the image shows {}.",
    "{}, drawn by a program.",
    "this picture was drawn to show {} and nothing else.",
)

_PLURALS = {"cross": "crosses"}


def with_article(phrase: str) -> str:
    """
    >>> with_article("orange circle"), with_article("red circle")
    ('an orange circle', 'a red circle')
    """
    return ("an " if phrase[0] in "aeio" else "a ") + phrase


def plural(noun: str) -> str:
    """
    >>> plural("cross"), plural("circle")
    ('crosses', 'circles')
    """
    return _PLURALS.get(noun, noun + "s")


def pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    """One of the options at random."""
    return options[int(rng.integers(len(options)))]


def on_background(rng: np.random.Generator, name: str) -> str:
    """The words for a background: " on a white background", " in front of a cluttered background"."""
    return f" {pick(rng, ('on', 'on', 'in front of'))} {with_article(name + ' background')}"


def caption(rng: np.random.Generator, phrase: str) -> str:
    """The phrase in a random template."""
    return pick(rng, TEMPLATES).format(phrase)
