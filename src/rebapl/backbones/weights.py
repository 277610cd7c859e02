"""The weights of a checkpoint: the files that hold them, and a model that is filled with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from rebapl.backbones.model import NamedModules
from rebapl.errors import UserError, first_line
from rebapl.numbers import all_finite

WHOLE = ("model.safetensors", "pytorch_model.bin")
"""Files that hold all weights. The first that is there is taken; one of tensors alone before one of Python objects."""

IN_PARTS = tuple(f"{name}.index.json" for name in WHOLE)
"""Files that say which other files hold which weights."""


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of a checkpoint, whether they are there or not; none if it names none."""
    for whole, index in zip(WHOLE, IN_PARTS, strict=True):
        if (folder / whole).is_file():
            return [folder / whole]
        if (folder / index).is_file():
            return [folder / part for part in _parts(folder / index)]
    return []


def _parts(index: Path) -> list[Path]:
    """The files that an index names, each within its folder."""
    try:
        parts = {Path(part) for part in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{index} does not say which files hold the weights ({type(error).__name__}: {first_line(error)}): fetch "
            "the checkpoint again"
        ) from error
    for part in parts:
        if part.is_absolute() or ".." in part.parts:
            raise UserError(f"{index} names '{part}', which is not in its folder: fetch the checkpoint again")
    return sorted(parts)


def fill_with_weights(model: NamedModules, folder: Path) -> None:
    """Give a model without memory (of the device `meta`) the weights of a checkpoint, as float32.

    Tensors that the model does not have are left out. One that is missing, of another shape or not finite is an error.
    """
    wanted, files = model.state_dict(), weight_files(folder)
    prefix = f"{model.config.model_type}."  # of all names, if the checkpoint is of a model around this one
    found: dict[str, Tensor] = {}
    try:
        if not files:
            raise FileNotFoundError(f"there is no {' or '.join(WHOLE)}")
        for file in files:
            for written, tensor in _tensors(file):
                name = written.removeprefix(prefix)
                if name in wanted:
                    # Copied, also from float32: where a tensor begins in memory decides how sums are rounded.
                    found[name] = tensor.to(torch.float32, copy=True)
    except Exception as error:  # whatever a broken file, or one that would execute code, makes the libraries raise
        raise UserError(
            f"the weights of backbone '{folder}' cannot be read ({type(error).__name__}: {first_line(error)}): the "
            "file is missing, truncated or of another model; fetch it again"
        ) from error
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise UserError(
            f"the weights of backbone '{folder}' lack {len(missing)} tensors of its configuration (first: "
            f"{missing[0]}): config.json and the weights do not belong together"
        )
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            raise UserError(
                f"the weights of backbone '{folder}' are of another model: {name} has shape "
                f"{tuple(found[name].shape)}, and config.json asks for {tuple(tensor.shape)}"
            )
        if not all_finite(found[name]):
            raise UserError(
                f"the weights of backbone '{folder}' hold NaN or infinity (first: {name}): fetch the checkpoint again"
            )
    model.load_state_dict(found, assign=True)


def _tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file by name, one after the other, none of which is kept here once the next is asked for."""
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  it is no mapping
                yield name, opened.get_tensor(name)
    else:
        content = torch.load(file, map_location="cpu", weights_only=True)
        while content:
            yield content.popitem()
