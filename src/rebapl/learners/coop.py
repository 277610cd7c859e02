"""CoOp: learnable context vectors around the class name.

Zhou et al., Learning to Prompt for Vision-Language Models, 2022. Text of a class:
`[start] v₁ … v_b name . [end]`, the v shared by all classes or one set per class; the name may also stand in
the middle or in front of them. Only the text tower is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rebapl.backbones import DualEncoder
from rebapl.backbones.text import Piece
from rebapl.errors import UserError, unknown
from rebapl.learners.base import Learner, Output, Recipe, Variant
from rebapl.learners.initial import context_ids, draw_tokens
from rebapl.learners.registry import register

POSITIONS = ("end", "middle", "front")


def pieces(name: str, tokens: int, position: str) -> list[Piece]:
    """The text of a class: its name at the end of, in the middle of or in front of `tokens` context tokens."""
    half = tokens // 2
    around: dict[str, list[Piece]] = {
        "end": [tokens, f"{name}."],
        "middle": [half, name, tokens - half, "."],
        "front": [name, tokens, "."],
    }
    return around[position]


@dataclass(frozen=True)
class CoOpConfig:
    """`init` gives words whose embeddings the context starts from; without it, `tokens` vectors of N(0, 0.02²)."""

    tokens: int | None = None
    init: str | None = "a photo of a"
    position: str = "end"
    class_specific: bool = False

    def __post_init__(self) -> None:
        if self.position not in POSITIONS:
            raise unknown("position of the class name", self.position, POSITIONS)
        if self.tokens is not None and self.tokens < 1:
            raise UserError(f"tokens = {self.tokens}: CoOp needs at least one context token")


@register("coop", CoOpConfig)
class CoOp(Learner):
    recipe = Recipe(lr=0.002, epochs=200, batch=32)
    repels_in = "text"
    variants = {
        "imagenet": Variant(recipe={"epochs": 50}),
        "few-shot": Variant(settings={"init": None, "tokens": 16}),
        "cross-dataset": Variant(settings={"init": None, "tokens": 16}),
        "domain-generalization": Variant(settings={"init": None, "tokens": 16}),
    }
    owners: Sequence[str] = ()
    """The classes that class-specific context belongs to; `bind` leaves them as they are."""

    def __init__(self, encoder: DualEncoder, class_names: Sequence[str], template: str, config: CoOpConfig) -> None:
        self.config = config
        self.tokens, self.init_ids = context_ids(encoder, config.tokens, config.init, otherwise=16)
        super().__init__(encoder, class_names, template)
        shape: tuple[int, ...] = (self.tokens, encoder.text.width)
        if config.class_specific:
            shape = (len(self.class_names), *shape)
            self.owners = self.class_names
        self.context = nn.Parameter(torch.empty(shape, device=encoder.device))

    def prepare_text(self) -> None:
        self.rows = self._rows() if self.owners else None
        position = self.config.position
        self.text = self.encoder.tokenize([pieces(name, self.tokens, position) for name in self.class_names])

    def _rows(self) -> Tensor:
        """Where the contexts (C,) of the classes bound to stand among those of the classes built with.

        Of a name that was built with twice, each class has its own, in their order.
        """
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self.owners):
            places.setdefault(name, []).append(place)
        rows = []
        for name in self.class_names:
            if name not in places:
                raise UserError(
                    f"class-specific context belongs to the {len(self.owners)} classes it was built with, and {name!r} "
                    f"is none of them: use the shared context (class_specific=False)"
                )
            own = places[name]
            rows.append(own.pop(0) if len(own) > 1 else own[0])
        return torch.tensor(rows, device=self.encoder.device)

    @property
    def contexts(self) -> Tensor:
        """The context vectors: (b, d) for all classes, or (C, b, d)."""
        return self.context if self.rows is None else self.context[self.rows]

    def reset(self, generator: torch.Generator) -> None:
        draw_tokens(self.context, self.encoder, self.init_ids, generator)

    @torch.no_grad()
    def frozen(self, images: Tensor) -> Tensor:
        return self.encoder.image_features(images)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.encoder.text_features(self.text, self.contexts)}

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        return Output(self.cosine_logits(frozen, classes["text"]), {"image": frozen}, classes)
