"""Prompt depths: published for 12 layers, scaled to the backbone at hand."""

from __future__ import annotations

from rebapl.errors import UserError

PUBLISHED_LAYERS = 12


def scaled_depth(published: int, layers: int) -> int:
    """A depth J stated for 12 layers on a backbone with `layers`: round(J·layers/12), at least 1.

    >>> [scaled_depth(9, layers) for layers in (12, 24, 4, 1)]
    [9, 18, 3, 1]
    """
    return max(1, round(published * layers / PUBLISHED_LAYERS))


def checked_depth(given: int | None, published: int, layers: int) -> int:
    """The depth a person gave, refused unless it fits; without one, the published depth scaled.

    >>> checked_depth(None, 9, 12), checked_depth(4, 9, 12)
    (9, 4)
    """
    if given is None:
        if not 1 <= published <= PUBLISHED_LAYERS:
            raise UserError(f"depth of {PUBLISHED_LAYERS} layers = {published}: give one from 1 to {PUBLISHED_LAYERS}")
        return scaled_depth(published, layers)
    if not 1 <= given <= layers:
        raise UserError(f"depth = {given}: this backbone has {layers} layers, so give a depth from 1 to {layers}")
    return given
