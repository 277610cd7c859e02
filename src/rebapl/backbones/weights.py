"""The weights of a checkpoint: the files that hold them, and a model that is filled with them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

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
            parts = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()
            return [folder / Path(part).name for part in sorted(set(parts))]
    return []


def fill_with_weights(model: nn.Module, folder: Path) -> None:
    """Give a model without memory (of the device `meta`) the weights of a checkpoint, as float32.

    Tensors that the model does not have are left out. One that is missing, of another shape or not finite is an error.
    """
    try:
        found = _read(weight_files(folder))
    except Exception as error:  # whatever a broken file, or one that would execute code, makes the libraries raise
        raise UserError(
            f"the weights of backbone '{folder}' cannot be read ({type(error).__name__}: {first_line(error)}): the "
            "file is missing, truncated or of another model; fetch it again"
        ) from error
    wanted = model.state_dict()
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
    # Copied, also from float32: where a tensor begins in memory decides how sums are rounded.
    model.load_state_dict({name: found[name].to(torch.float32, copy=True) for name in wanted}, assign=True)


def _read(files: list[Path]) -> dict[str, Tensor]:
    if not files:
        raise FileNotFoundError(f"there is no {' or '.join(WHOLE)}")
    found: dict[str, Tensor] = {}
    for file in files:
        if file.suffix == ".safetensors":
            found |= load_file(file)
        else:
            found |= torch.load(file, map_location="cpu", weights_only=True)
    return found
