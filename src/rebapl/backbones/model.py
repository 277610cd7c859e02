"""The parts that CLIP and SigLIP share: sizes that are read from a checkpoint, and modules that hold its weights.

Checkpoints have the format of `transformers`, and so the modules have the same names. A model of `transformers` can
therefore be used instead. Its classes are not used here, because importing them takes seconds, twice as long as all
other imports of a command. A model only holds tensors and embeds images: `Block` computes the layers, and `DualEncoder`
embeds texts.
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
"""The largest allowed values of some settings, and of all others. A model of larger sizes would fill the memory."""

WHOLE = ("model.safetensors", "pytorch_model.bin")
"""Files that hold all weights. The first that exists is read; the safer one, which holds only tensors, comes first."""

IN_PARTS = tuple(f"{name}.index.json" for name in WHOLE)
"""Files that list in which other files the weights are."""


class NamedModules(nn.Module):
    """Modules and parameters by name, without a computation. A whole model also has a `config`."""

    config: SimpleNamespace

    def __init__(self, **parts: nn.Module | nn.Parameter | SimpleNamespace) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def read_tower(name: str, section: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> SimpleNamespace:
    """The settings of one tower: those in its section of config.json, and for all others the defaults.

    These are errors: a value whose type is not that of the default, a size below one or absurdly large, an unknown
    activation, and a number of heads that does not divide the width.
    """
    section = {} if section is None else section
    if not isinstance(section, Mapping):
        raise UserError(f"{name} is {section!r} and should be a mapping of settings")
    values = {key: checked(f"{name}.{key}", section.get(key, default), default) for key, default in defaults.items()}
    tower = SimpleNamespace(**values)
    if tower.hidden_act not in ACTIVATIONS:
        raise UserError(f"{name}.hidden_act is {tower.hidden_act!r}; known are {', '.join(ACTIVATIONS)}")
    if tower.hidden_size % tower.num_attention_heads:
        raise UserError(
            f"{name}.hidden_size is {tower.hidden_size}, no multiple of its {tower.num_attention_heads} attention heads"
        )
    return tower


def checked(name: str, value: Any, default: Any) -> Any:
    """Check a setting of config.json: it must have the type of its default, and a number must be above 0 and sane."""
    kinds = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not isinstance(default, bool)):
        raise UserError(f"{name} is {value!r} and should be such as {default!r}")
    if not isinstance(value, str | bool):
        largest = LARGEST.get(name.rpartition(".")[2], LARGEST_OTHERS)
        if not 0 < value <= largest:
            raise UserError(f"{name} is {value} and should be above 0 and at most {largest}")
    return value


def layers(tower: SimpleNamespace) -> NamedModules:
    """The layers of a tower, with the names in a checkpoint: `layers.0.self_attn.q_proj` and so on."""
    width, projections = tower.hidden_size, ("q_proj", "k_proj", "v_proj", "out_proj")
    modules = nn.ModuleList(
        NamedModules(
            layer_norm1=norm(tower),
            self_attn=NamedModules(**{name: nn.Linear(width, width) for name in projections}),
            layer_norm2=norm(tower),
            mlp=mlp(tower),
        )
        for _ in range(tower.num_hidden_layers)
    )
    return NamedModules(layers=modules)


def mlp(tower: SimpleNamespace) -> NamedModules:
    """The two linear maps of an MLP. In a layer, it follows the attention."""
    width, inner = tower.hidden_size, tower.intermediate_size
    return NamedModules(fc1=nn.Linear(width, inner), fc2=nn.Linear(inner, width))


def norm(tower: SimpleNamespace) -> nn.LayerNorm:
    """A layer norm of a tower's states."""
    return nn.LayerNorm(tower.hidden_size, eps=tower.layer_norm_eps)


def embedding(count: int, width: int) -> nn.Embedding:
    """Vectors by number, not initialised: on the device `meta`, initialising makes PyTorch import its compiler."""
    return nn.Embedding.from_pretrained(torch.empty(count, width))


def text_embeddings(tower: SimpleNamespace) -> NamedModules:
    """The embeddings of texts: one vector for each token and one for each position."""
    return NamedModules(
        token_embedding=embedding(tower.vocab_size, tower.hidden_size),
        position_embedding=embedding(tower.max_position_embeddings, tower.hidden_size),
    )


class ImageEmbeddings(nn.Module):
    """Turns images (B, 3, H, W) into tokens (B, L, d): a class token, if there is one, and patches, plus positions."""

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
    """The files that hold the weights of a checkpoint, if it has any. Files that an index names may be missing."""
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
    """Give a model on the device `meta`, which has no memory, the weights of a checkpoint, as float32.

    Tensors that the model does not have are ignored. It is an error if a tensor is missing, has another shape or is not
    finite.
    """
    expected, files = model.state_dict(), weight_files(folder)
    prefix = f"{model.config.model_type}."  # all names have it if the checkpoint is of a larger model around this one
    weights: dict[str, Tensor] = {}
    try:
        if not files:
            raise FileNotFoundError(f"there is no {' or '.join(WHOLE)}")
        for file in files:
            for full_name, tensor in _tensors(file):
                name = full_name.removeprefix(prefix)
                if name in expected:
                    # Also float32 is copied: the address at which a tensor begins affects how sums are rounded.
                    weights[name] = tensor.to(torch.float32, copy=True)
    except Exception as error:  # broken files, and those that would execute code, raise errors of any type
        raise UserError(
            f"the weights of backbone '{folder}' cannot be read ({type(error).__name__}: {first_line(error)}): the "
            "file is missing, truncated or of another model; fetch it again"
        ) from error
    missing = sorted(expected.keys() - weights.keys())
    if missing:
        raise UserError(
            f"the weights of backbone '{folder}' lack {len(missing)} tensors of its configuration (first: "
            f"{missing[0]}): config.json and the weights do not belong together"
        )
    for name, tensor in expected.items():
        if weights[name].shape != tensor.shape:
            raise UserError(
                f"the weights of backbone '{folder}' are of another model: {name} has shape "
                f"{tuple(weights[name].shape)}, and config.json asks for {tuple(tensor.shape)}"
            )
        if not all_finite(weights[name]):
            raise UserError(
                f"the weights of backbone '{folder}' hold NaN or infinity (first: {name}): fetch the checkpoint again"
            )
    model.load_state_dict(weights, assign=True)


def all_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite. Checking only the extremes takes no memory and a thirtieth of the time.

    >>> all_finite(torch.tensor([1.0, -2.0])), all_finite(torch.tensor([1.0, float("nan")])), all_finite(torch.empty(0))
    (True, False, True)
    """
    return not tensor.numel() or all(bool(end.isfinite()) for end in torch.aminmax(tensor))


def _tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """The names and tensors in a file, one after the other. A tensor is not kept here once the next one is read."""
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  it is not a mapping
                yield name, opened.get_tensor(name)
    else:
        content = torch.load(file, map_location="cpu", weights_only=True)
        while content:
            yield content.popitem()
