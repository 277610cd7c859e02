"""What a checkpoint's preprocessor_config.json says about images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError


def read_preprocessing(given: Mapping[str, Any], image_size: int, crops: bool) -> Preprocessing:
    """The preprocessing that `given` describes, for a model that sees `image_size` px.

    Sizes come as a number or `{"shortest_edge"}` (short side, then centre crop) or `{"height", "width"}` (both
    sides, whatever the shape). `crops` says whether a centre crop follows when that is not stated.
    """
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if given.get(step) is False:
            raise UserError(f"{step} is false; images are always resized, rescaled to 0 … 1 and normalised")
    size = given.get("size", image_size)
    square = isinstance(size, Mapping) and "height" in size
    resize = _edge("size", size)
    cropped = given.get("do_center_crop", crops)
    crop = _edge("crop_size", given.get("crop_size", image_size)) if cropped else resize
    if not cropped and not square:
        raise UserError(
            f"size is {size} without a centre crop, which leaves images that are not square: give size as "
            f"{{'height': …, 'width': …}}, or set do_center_crop"
        )
    if crop != image_size:
        raise UserError(f"images come out at {crop} px but the model sees {image_size} px (vision_config.image_size)")
    return Preprocessing(
        resize=resize,
        crop=crop,
        mean=_channels(given, "image_mean"),
        std=_channels(given, "image_std"),
        resample=int(given.get("resample", 3)),
        square=square,
    )


def _edge(key: str, value: Any) -> int:
    """The pixels of a size given as a number or as a mapping."""
    if isinstance(value, Mapping):
        if value.get("height") != value.get("width"):
            raise UserError(f"{key} is {dict(value)}: height and width must be equal")
        value = value.get("height", value.get("shortest_edge"))
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(
            f"{key} must be pixels, {{'shortest_edge': pixels}} or {{'height': …, 'width': …}}; got {value}"
        )
    return value


def _channels(given: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = given.get(key)
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(v, int | float) for v in values):
        raise UserError(f"{key} must be three numbers, one per colour; got {values}")
    return tuple(float(v) for v in values)
