"""What all heads share: they learn from the frozen features of images, and classes without images keep their text.

A head has parameters for the T classes that it was built for. Bound to other class names, a class that was trained on
keeps what was learned of it, wherever it stands now, and every other class has its text feature alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rebapl.learners.base import TextLearner, rows_of
from rebapl.learners.templates import mean_features


class Head(TextLearner):
    """A learner on frozen features. A subclass makes its parameters in `adopt`, after `super().adopt(…)`."""

    learns_from_features = True
    owners: Sequence[str] = ()
    """The classes that it was built for, in the order of its parameters."""

    def adopt(self, class_names: Sequence[str]) -> None:
        self.owners = tuple(class_names)

    def found(self, *shape: int) -> nn.Parameter:
        """A parameter of that shape that `see` fills in, zero until then, and that no sampler moves."""
        return nn.Parameter(torch.zeros(shape, device=self.encoder.device), requires_grad=False)

    def prepare_text(self) -> None:
        self.text_features = mean_features(self.encoder, self.class_names, self.template, normalised=True)
        rows, device = rows_of(self.owners, self.class_names), self.encoder.device
        self.rows = torch.tensor([row or 0 for row in rows], device=device)
        self.trained = torch.tensor([float(row is not None) for row in rows], device=device)
        """1 for the bound classes that were trained on and 0 for the others (C,)."""

    def placed(self, learned: Tensor) -> Tensor:
        """What was learned of each class (…, T) for the classes bound to (…, C); 0 for those not trained on."""
        return learned[..., self.rows] * self.trained

    def reset(self, generator: torch.Generator) -> None:
        """Nothing is drawn: what `see` finds stays, and all else starts at zero."""
        for parameter in self.parameters():
            if parameter.requires_grad:
                nn.init.zeros_(parameter)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.text_features}
