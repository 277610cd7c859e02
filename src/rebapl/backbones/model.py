"""The parts that CLIP and SigLIP share: sizes that are read from a checkpoint, and modules that hold its weights.

Names are those of `transformers`, in whose format checkpoints are, so that its models can take the place of ours. Its
own classes are not used because to import them takes seconds, twice as long as everything else that a command imports.
A model only holds tensors and embeds images; its layers are computed by `Block`, and texts embedded by `DualEncoder`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from rebapl.backbones.tower import ACTIVATIONS
from rebapl.errors import UserError, first_line

LARGEST = {"num_hidden_layers": 512, "image_size": 8192, "layer_norm_eps": 1}
LARGEST_OTHERS = 2**20
"""Larger sizes are in no checkpoint, and would take for ever to build."""

WHOLE = ("model.safetensors", "pytorch_model.bin")
"""Files that hold all weights. The first that is there is taken; one of tensors alone before one of Python objects."""

IN_PARTS = tuple(f"{name}.index.json" for name in WHOLE)
"""Files that say which other files hold which weights."""


class NamedModules(nn.Module):
    """Modules and parameters by name, of which nothing is computed here. A whole model has a `config` as well."""

    config: SimpleNamespace

    def __init__(self, **parts: nn.Module | nn.Parameter | SimpleNamespace) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def read_tower(name: str, given: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> SimpleNamespace:
    """The settings of one tower: those `given` in its section of config.json, and the `defaults` of its architecture.

    A value of another type than the default, a size below one or beyond all reason, an activation that is not known,
    and heads that do not divide the width are errors.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise UserError(f"{name} is {given!r} and should be a mapping of settings")
    values = {key: checked(f"{name}.{key}", given.get(key, default), default) for key, default in defaults.items()}
    tower = SimpleNamespace(**values)
    if tower.hidden_act not in ACTIVATIONS:
        raise UserError(f"{name}.hidden_act is {tower.hidden_act!r}; known are {', '.join(ACTIVATIONS)}")
    if tower.hidden_size % tower.num_attention_heads:
        raise UserError(
            f"{name}.hidden_size is {tower.hidden_size}, no multiple of its {tower.num_attention_heads} attention heads"
        )
    return tower


def checked(name: str, value: Any, default: Any) -> Any:
    """A setting of config.json, which must be of the type of its default and, if it is a number, above 0 and sane."""
    kinds = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not isinstance(default, bool)):
        raise UserError(f"{name} is {value!r} and should be such as {default!r}")
    if not isinstance(value, str | bool):
        largest = LARGEST.get(name.rpartition(".")[2], LARGEST_OTHERS)
        if not 0 < value <= largest:
            raise UserError(f"{name} is {value} and should be above 0 and at most {largest}")
    return value


def layers(tower: SimpleNamespace) -> NamedModules:
    """The layers of a tower, as they lie in a checkpoint: `layers.0.self_attn.q_proj` and so on."""
    width, projections = tower.hidden_size, ("q_proj", "k_proj", "v_proj", "out_proj")
    made = nn.ModuleList(
        NamedModules(
            layer_norm1=norm(tower),
            self_attn=NamedModules(**{name: nn.Linear(width, width) for name in projections}),
            layer_norm2=norm(tower),
            mlp=mlp(tower),
        )
        for _ in range(tower.num_hidden_layers)
    )
    return NamedModules(layers=made)


def mlp(tower: SimpleNamespace) -> NamedModules:
    """The two linear maps behind attention."""
    width, inner = tower.hidden_size, tower.intermediate_size
    return NamedModules(fc1=nn.Linear(width, inner), fc2=nn.Linear(inner, width))


def norm(tower: SimpleNamespace) -> nn.LayerNorm:
    """A layer norm of a tower's states."""
    return nn.LayerNorm(tower.hidden_size, eps=tower.layer_norm_eps)


def embedding(count: int, width: int) -> nn.Embedding:
    """Vectors by number. They are not drawn, as torch would do: without memory, that makes it import its compiler."""
    return nn.Embedding.from_pretrained(torch.empty(count, width))


def text_embeddings(tower: SimpleNamespace) -> NamedModules:
    """The embeddings of texts: a vector for each token and one for each position."""
    return NamedModules(
        token_embedding=embedding(tower.vocab_size, tower.hidden_size),
        position_embedding=embedding(tower.max_position_embeddings, tower.hidden_size),
    )


class ImageEmbeddings(nn.Module):
    """Images (B, 3, H, W) as tokens (B, L, d): a class token, if there is one, and patches, with positions added."""

    class_embedding: nn.Parameter | None

    def __init__(self, tower: SimpleNamespace, class_token: bool) -> None:
        super().__init__()
        width, patch, self.size = tower.hidden_size, tower.patch_size, tower.image_size
        self.class_embedding = nn.Parameter(torch.empty(width)) if class_token else None
        self.patch_embedding = nn.Conv2d(tower.num_channels, width, patch, patch, bias=not class_token)
        self.position_embedding = embedding((tower.image_size // patch) ** 2 + class_token, width)

    def forward(self, pixels: Tensor) -> Tensor:
        if pixels.dim() != 4 or pixels.shape[-2:] != (self.size, self.size):
            raise UserError(
                f"images have shape {tuple(pixels.shape)} and should have (B, 3, {self.size}, {self.size}), as the "
                "preprocessing of the backbone gives them"
            )
        tokens = self.patch_embedding(pixels.to(self.patch_embedding.weight.dtype)).flatten(2).transpose(1, 2)
        if self.class_embedding is not None:
            tokens = torch.cat([self.class_embedding.expand(tokens.shape[0], 1, -1), tokens], dim=1)
        return tokens + self.position_embedding.weight


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


def all_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite. By the extremes, which takes no memory and a thirtieth of the time.

    >>> all_finite(torch.tensor([1.0, -2.0])), all_finite(torch.tensor([1.0, float("nan")])), all_finite(torch.empty(0))
    (True, False, True)
    """
    return not tensor.numel() or all(bool(end.isfinite()) for end in torch.aminmax(tensor))


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
