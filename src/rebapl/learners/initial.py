"""Initial values of parameters, drawn from a given generator, whatever the devices of the two are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor, nn

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.settings import Settings

STD = 0.02


@torch.no_grad()
def draw_normal(tensor: Tensor, generator: torch.Generator, std: float = STD) -> None:
    """Fill with N(0, std²)."""
    tensor.copy_(std * torch.randn(tensor.shape, generator=generator, device=generator.device))


@torch.no_grad()
def draw_uniform(tensor: Tensor, generator: torch.Generator, bound: float) -> None:
    """Fill uniformly between −bound and bound."""
    tensor.copy_(bound * (2 * torch.rand(tensor.shape, generator=generator, device=generator.device) - 1))


def draw_linear(linear: nn.Linear, generator: torch.Generator) -> None:
    """PyTorch's default for a linear layer: weight and bias uniform in ±1/√(inputs)."""
    for tensor in (linear.weight, linear.bias):
        if tensor is not None:
            draw_uniform(tensor, generator, bound=1 / math.sqrt(linear.in_features))


class ContextConfig(Settings):
    """The context starts from the embeddings of the words `init`.

    Without them, it starts from `tokens` vectors of N(0, 0.02²).
    """

    tokens: int | None = Field(default=None, ge=1, le=512)
    init: str | None = Field(default="a photo of a", min_length=1)


def context_ids(encoder: DualEncoder, tokens: int | None, init: str | None, otherwise: int) -> tuple[int, list[int]]:
    """The number of context tokens, and the ids that they start from: those of the words `init`, or none if random."""
    ids = encoder.tokenizer.words(init) if init else []
    count = tokens or len(ids) or otherwise
    if ids and count != len(ids):
        raise UserError(
            f"init = {init!r} is {len(ids)} tokens, but tokens = {count}: give one of the two (init=None draws the "
            f"context at random)"
        )
    return count, ids


@torch.no_grad()
def draw_tokens(tensor: Tensor, encoder: DualEncoder, ids: Sequence[int], generator: torch.Generator) -> None:
    """Fill a tensor (…, b, d) with the embeddings of b ids, or with Normal(0.02) if there are no ids."""
    if ids:
        embeddings = encoder.token_embeddings(torch.tensor(ids, device=encoder.device))
        tensor.copy_(embeddings.expand(tensor.shape))
    else:
        draw_normal(tensor, generator)


def undrawn_network(*widths: int, device: torch.device) -> nn.Sequential:
    """Linear layers between these widths, with ELUs between the layers; see `undrawn_linear`."""
    first, *others = (undrawn_linear(inputs, outputs, device) for inputs, outputs in pairwise(widths))
    return nn.Sequential(first, *(part for layer in others for part in (nn.ELU(), layer)))


def undrawn_linear(inputs: int, outputs: int, device: torch.device) -> nn.Linear:
    """A linear layer whose values have not been drawn yet. Building it does not touch the global random state."""
    return nn.utils.skip_init(nn.Linear, inputs, outputs, device=device)
