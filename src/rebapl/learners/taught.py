"""Images half-way through the frozen tower, with the features they would have at its end: the teacher of a loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.backbones import DualEncoder, States


@dataclass(frozen=True)
class TaughtStates(States):
    """States with the normalised features (B, e) of the untouched model; nobody needs them outside of training."""

    teacher: Tensor | None = None


@torch.no_grad()
def with_teacher(encoder: DualEncoder, states: States) -> TaughtStates:
    """The same image states, and what the frozen tower makes of them."""
    teacher = F.normalize(encoder.vision.features(encoder.vision.run(states)), dim=-1)
    return TaughtStates(states.hidden, states.read, states.layer, teacher)
