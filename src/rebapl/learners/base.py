"""What every prompt learner is, and what its authors say about training it.

A learner holds only its own parameters; the frozen dual encoder stays outside. It maps images to an `Output`
(logits and named feature clouds) and an output with labels to its mean loss. It knows nothing of optimisers,
cycles or data sets.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, States, clean_class_names
from rebapl.data.dataset import check_template
from rebapl.errors import unknown


@dataclass(frozen=True)
class Recipe:
    """How the method was published to be trained. Data only: the loop reads it, the learner does not act on it."""

    lr: float
    epochs: int
    batch: int
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: int = 1
    warmup_lr: float = 1e-5
    crop_scale: tuple[float, float] = (0.08, 1.0)
    averaging: tuple[float, float] | None = None
    """Mean and standard deviation, in epochs, of the Gaussian weights with which parameters are averaged."""


@dataclass(frozen=True)
class Variant:
    """What the authors change for a protocol or a data set: settings of the method, fields of its recipe."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """What a learner says about a batch of B images among C classes.

    `per_image` holds clouds with a row per image, `per_class` clouds with a row per class; among them `image`
    and `text`, the normalised features (B, e) and (C, e) behind the logits.
    """

    logits: Tensor
    per_image: Mapping[str, Tensor] = field(default_factory=dict)
    per_class: Mapping[str, Tensor] = field(default_factory=dict)

    def rows(self, rows: slice | Tensor) -> Output:
        """The same for some of the images: how reference images share a pass with the training batch."""
        return replace(self, logits=self.logits[rows], per_image={name: x[rows] for name, x in self.per_image.items()})

    def cloud(self, space: str) -> Tensor:
        """The points (n, d) of a named space: any cloud here, `both`, `logits` or `probabilities`."""
        derived = {
            "logits": lambda: self.logits,
            "probabilities": lambda: self.logits.softmax(-1),
        }
        if "text" in self.per_class:  # not where every image has its own text features
            derived["both"] = lambda: torch.cat([self.per_image["image"], self.per_class["text"]])
        if space in derived:
            return derived[space]()
        clouds = {**self.per_class, **self.per_image}
        if space not in clouds:
            raise unknown("feature space", space, [*clouds, *derived])
        return clouds[space]


class Learner(nn.Module):
    """A prompt learner bound to class names.

    Its pass has three parts, so that each is computed as rarely as it can be: `frozen` (depends on the images
    alone: once for all samples), `encode_classes` (on the parameters and the class names: once per sample)
    and `respond`, which needs both. A subclass states its `recipe` and, in `repels_in`, the feature space in
    which its posterior repels by default.
    """

    recipe: ClassVar[Recipe]
    repels_in: ClassVar[str | None]
    variants: ClassVar[Mapping[str, Variant]] = {}
    """By protocol (`cross-dataset`), data set (`eurosat`), or both (`cross-dataset/eurosat`)."""

    transfer: bool = False
    """Bound to another data set than the one it was trained on, where a method may predict differently."""

    noise: torch.Generator | None = None
    """The stream a stochastic method draws from while training; the loop gives it."""

    def __init__(self, encoder: DualEncoder, class_names: Sequence[str], template: str) -> None:
        super().__init__()
        self.encoder = encoder
        self._set_classes(class_names, template)

    def _set_classes(self, class_names: Sequence[str], template: str) -> None:
        check_template(template)
        self.template = template
        self.class_names = clean_class_names(class_names)
        self.prepare_text()

    def bind(self, class_names: Sequence[str], template: str | None = None, transfer: bool = False) -> Learner:
        """The same learner for other class names; its parameters are shared, not copied.

        `transfer` says that the images are of another data set than those trained on, even if classes are not.
        """
        other = copy.copy(self)
        other.transfer = transfer
        other._set_classes(class_names, self.template if template is None else template)
        return other

    def sentences(self) -> list[str]:
        """The class names in the template."""
        return [self.template.replace("{}", name) for name in self.class_names]

    def prepare_text(self) -> None:
        """Tokenise the class names and compute what of their way is constant. Called whenever they change."""
        raise NotImplementedError

    def reset(self, generator: torch.Generator) -> None:
        """Draw the parameters anew from their initial distribution."""
        raise NotImplementedError

    def frozen(self, images: Tensor) -> Tensor | States:
        """Preprocessed images (B, 3, H, W) as far as they go without the parameters."""
        raise NotImplementedError

    def encode_classes(self) -> Mapping[str, Tensor]:
        """The clouds with a row per class, among them the normalised `text` features (C, e)."""
        raise NotImplementedError

    def respond(self, frozen: Any, classes: Mapping[str, Tensor]) -> Output:
        """Logits and features from what `frozen` and `encode_classes` gave."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Output:
        """The whole pass for preprocessed images (B, 3, H, W)."""
        return self.respond(self.frozen(images), self.encode_classes())

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        """The mean loss: cross-entropy, unless the method says otherwise."""
        return F.cross_entropy(output.logits, labels)

    def cosine_logits(self, image: Tensor, text: Tensor) -> Tensor:
        """Logits (B, C) of normalised features (B, e) and (C, e)."""
        return self.encoder.logits(image, text)
