"""CoOp: learnable context vectors around the class name.

Zhou et al., Learning to Prompt for Vision-Language Models, 2022. The text of a class is

    [start] v₁ … v_b name . [end]

with context vectors v that all classes share, or with a set of them for each class. The name may also stand in the
middle of the vectors or in front of them. The image tower is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rebapl.backbones import DualEncoder
from rebapl.backbones.text import Piece
from rebapl.errors import UserError
from rebapl.learners.base import TextLearner, rows_of
from rebapl.learners.initial import ContextConfig, context_ids, draw_tokens
from rebapl.learners.registry import register

Position = Literal["end", "middle", "front"]


def pieces(name: str, tokens: int, position: Position) -> list[Piece]:
    """The text of a class: its name at the end of, in the middle of or in front of `tokens` context tokens."""
    half = tokens // 2
    around: dict[Position, list[Piece]] = {
        "end": [tokens, f"{name}."],
        "middle": [half, name, tokens - half, "."],
        "front": [name, tokens, "."],
    }
    return around[position]


class CoOpConfig(ContextConfig):
    """The `position` of the class name, and whether each class has a context of its own, `class_specific`."""

    position: Position = "end"
    class_specific: bool = False


@register("coop", CoOpConfig)
class CoOp(TextLearner):
    config: CoOpConfig
    context: nn.Parameter
    repels_in = "text"
    uses_template = False
    repels_per_image = False
    owners: Sequence[str] = ()
    """The classes that have a class-specific context, in the order of their contexts."""

    def __init__(self, encoder: DualEncoder, config: CoOpConfig) -> None:
        super().__init__(encoder, config)
        self.tokens, self.init_ids = context_ids(encoder, config.tokens, config.init, otherwise=16)
        # `adopt` makes class-specific contexts; registering None now fixes their place among the parameters.
        self.register_parameter("context", None if config.class_specific else self._undrawn())

    def _undrawn(self, *classes: int) -> nn.Parameter:
        shape = (*classes, self.tokens, self.encoder.text.width)
        return nn.Parameter(torch.empty(shape, device=self.encoder.device))

    def adopt(self, class_names: Sequence[str]) -> None:
        """With class-specific context, give each of these classes one. Other classes cannot be bound later."""
        if self.config.class_specific:
            self.owners = tuple(class_names)
            self.context = self._undrawn(len(class_names))

    def prepare_text(self) -> None:
        self.rows = self._rows() if self.owners else None
        position = self.config.position
        self.text = self.encoder.tokenize([pieces(name, self.tokens, position) for name in self.class_names])

    def _rows(self) -> Tensor:
        """For each bound class, the index (C,) of its context."""
        rows = rows_of(self.owners, self.class_names)
        if None in rows:
            name = self.class_names[rows.index(None)]
            raise UserError(
                f"class-specific context belongs to the {len(self.owners)} classes it was built with, and {name!r} "
                f"is none of them: use the shared context (class_specific=False)"
            )
        return torch.tensor(rows, device=self.encoder.device)

    @property
    def contexts(self) -> Tensor:
        """The context vectors: (b, d) shared by all classes, or (C, b, d)."""
        return self.context if self.rows is None else self.context[self.rows]

    def reset(self, generator: torch.Generator) -> None:
        if self.context is None:
            raise UserError("class-specific context has no classes yet: call learner.bind(class_names) before reset")
        draw_tokens(self.context, self.encoder, self.init_ids, generator)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.encoder.text_features(self.text, self.contexts)}
