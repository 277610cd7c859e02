"""The interface of every learner, prompts and heads.

A learner holds only its own parameters; the frozen dual encoder stays outside. It maps images to an `Output`
(logits and named feature clouds) and an output with labels to its mean loss. It knows nothing of optimisers,
cycles or data sets.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, States, clean_class_names
from rebapl.data.dataset import check_template
from rebapl.data.features import StoredFeatures
from rebapl.errors import UserError, unknown
from rebapl.randomness import generator as random_stream
from rebapl.settings import Settings

if TYPE_CHECKING:
    from rebapl.learnable import Learnable

DEFAULT_TEMPLATE = "a photo of a {}."

SEQUENCES = 4096
"""The most texts in one pass where each image or prompt has texts of its own: more would take too much memory."""

AT_ONCE = 64
"""The most images in one pass through the frozen tower."""

Frozen = TypeVar("Frozen", bound=Tensor | States)
"""The result of the part of the image pass that does not depend on the parameters: features, or states on their way."""

AnyLearner = TypeVar("AnyLearner", bound="Learner[Any]")
Module = TypeVar("Module", bound=nn.Module)


class Recipe(Settings):
    """How the authors of a method train it. This is only data: the loop reads it, and the learner does not act on it.

    `averaging`: the mean and the standard deviation, in epochs, of the Gaussian weights for averaging the parameters.
    `inference`: the name of the inference that the authors train with. `inference_settings`: their settings of it; they
    do not apply with another inference.
    """

    lr: float = Field(ge=0)
    epochs: int = Field(ge=0)
    batch: int = Field(ge=1)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    warmup_epochs: int = Field(default=1, ge=0)
    warmup_lr: float = Field(default=1e-5, ge=0)
    crop_scale: tuple[float, float] = Field(default=(0.08, 1.0), strict=False)
    averaging: tuple[float, float] | None = Field(default=None, strict=False)
    inference: str = "mle"
    inference_settings: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """The logits and features of a batch of B images among C classes.

    `per_image` holds clouds with a row per image, and `per_class` clouds with a row per class. Among them are `image`
    and `text`, the normalised features (B, e) and (C, e) from which the logits are computed.
    """

    logits: Tensor
    per_image: Mapping[str, Tensor] = field(default_factory=dict)
    per_class: Mapping[str, Tensor] = field(default_factory=dict)

    def rows(self, rows: slice | Tensor) -> Output:
        """The output for some of the images. With it, reference images can share a pass with the training batch."""
        return replace(self, logits=self.logits[rows], per_image={name: x[rows] for name, x in self.per_image.items()})

    def cloud(self, space: str) -> Tensor:
        """The points (n, d) of a named space: one of the clouds, `both`, `logits` or `probabilities`."""
        clouds = {**self.per_class, **self.per_image, "logits": self.logits}
        if space in clouds:
            return clouds[space]
        if space == "probabilities":
            return self.logits.softmax(-1)
        has_both = "text" in self.per_class  # not where every image has its own text features
        if space == "both" and has_both:
            return torch.cat([self.per_image["image"], self.per_class["text"]])
        raise unknown("feature space", space, [*clouds, "probabilities", *(["both"] if has_both else [])])


class Learner(nn.Module, Generic[Frozen]):
    """A method that learns prompts or a head: `Learner(encoder, config)` has its parameters, `bind` gives class names.

    A subclass first calls `super().__init__(encoder, config)` and then makes its parameters without giving them values;
    `reset` draws the values. The constructor calls no method that a subclass may replace. `prepare_text`, which `bind`
    calls, computes everything that depends on the class names. `adopt` makes everything that depends on the classes for
    which a learner is built.

    The pass has three parts, so that each is computed as rarely as possible: `frozen` depends on the images alone and
    is computed once for all samples; `encode_classes` depends on the parameters and the class names and is computed
    once per sample; `respond` needs the results of both.
    """

    recipe: ClassVar[Recipe]
    """How its authors train it. `register` sets this attribute if the method has a recipe file."""

    registered_as: ClassVar[str | None] = None
    """The name that `register` gave to exactly this class; see `method`."""

    repels_in: ClassVar[str | None]
    """The feature space in which its samples repel each other by default; None if it learns nothing."""

    repels_per_image: bool = True
    """Whether that space has a row per image; otherwise it has one per class. A setting may decide it: `per_image`."""

    uses_template: ClassVar[bool] = True
    """Whether its predictions depend on the template. A setting may decide this: `reads_template`."""

    shared_parameters: ClassVar[frozenset[str]] = frozenset()
    """The names of parameters, or of modules with parameters, that all particles share; see `SVGD`."""

    learns_from_features: ClassVar[bool] = False
    """Whether it is a head: it learns from the features of un-augmented images, which are encoded once. See `see`."""

    template: str = DEFAULT_TEMPLATE

    transfer: bool = False
    """Whether it is bound to another data set than the one it was trained on. A method may predict differently then."""

    noise: torch.Generator | None = None
    """The random stream that `use_noise` was given."""

    @classmethod
    def per_image(cls, config: Settings) -> bool:  # noqa: ARG003
        """The `repels_per_image` that a learner with these settings would have."""
        return cls.repels_per_image

    @classmethod
    def reads_template(cls, config: Settings) -> bool:  # noqa: ARG003
        """The `uses_template` that a learner with these settings would have."""
        return cls.uses_template

    def __init__(self, encoder: DualEncoder, config: Settings) -> None:
        super().__init__()
        self.encoder = encoder
        self.config = config
        self._class_names: list[str] | None = None
        self._drawn: dict[Any, Tensor] = {}

    @property
    def logits_are_products(self) -> bool:
        """Whether its logits are, like CLIP's, the scaled products of image features with one vector per class.

        Logits that are log-probabilities, or sums of such products and other terms, do not show how near an image is to
        the classes.
        """
        return True

    @property
    def method(self) -> str | None:
        """The name under which its class is registered, or None."""
        return vars(type(self)).get("registered_as")

    @property
    def class_names(self) -> list[str]:
        """The class names it is bound to, in the order of the logits; a `UserError` before the first `bind`."""
        if self._class_names is None:
            raise UserError(
                f"this {type(self).__name__} has no class names yet: call learner.bind(class_names), and use the "
                f"learner that it returns"
            )
        return self._class_names

    def bind(
        self: AnyLearner, class_names: Sequence[str], template: str | None = None, transfer: bool = False
    ) -> AnyLearner:
        """A learner for these class names. It uses the `template`, or this learner's template if that is None.

        Both learners hold the same parameter tensors, so optimising one optimises the other. Assigning another tensor
        to a parameter of one does not change the other. The first `bind` of a learner decides for which classes it is
        built (see `adopt`); later ones change only what it predicts. `transfer` says that the images come from another
        data set than the training images, even if the classes are the same.
        """
        bound = self.twin()
        bound.template = self.template if template is None else template
        check_template(bound.template)
        bound._class_names = clean_class_names(class_names)
        bound.transfer = transfer
        if self._class_names is None:
            bound.adopt(bound._class_names)
        bound.prepare_text()
        return bound

    def twin(self: AnyLearner) -> AnyLearner:
        """A copy that holds the same tensors. Assigning another tensor to the copy does not change this learner."""
        return _sharing_tensors(self, {})

    def adopt(self, class_names: Sequence[str]) -> None:
        """Become a learner that is built for these classes. The first `bind` calls this once, before `prepare_text`.

        Here a method makes parameters whose shape depends on the classes, or stores the names of the classes that it is
        trained on. Most methods do nothing here.
        """

    def prepare_text(self) -> None:
        """Tokenise the class names and compute the constant part of their text. Every `bind` calls this."""
        raise NotImplementedError

    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Learn directly from the normalised features (N, e) and labels (N,) of all training images.

        This sets the parameters that need no gradient: no sampler moves them, and they are stored with each sample. If
        `learns_from_features`, this is called once, before the sampling. It returns the examples from which the
        parameters with a gradient are learned afterwards: the same ones, unless the method adds some.
        """
        return features, labels

    def shape_like(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Give parameters whose shape depends on the number of training images these stored shapes, by name.

        Called before stored values are read. Most methods do nothing here.
        """

    def fixed_parameters(self) -> dict[str, Tensor]:
        """The parameters that `see` has set, by name."""
        return {name: p.detach().clone() for name, p in self.named_parameters() if not p.requires_grad}

    def sentences(self) -> list[str]:
        """The class names in the template."""
        return [self.template.replace("{}", name) for name in self.class_names]

    def text_of_template(self) -> Tensor:
        """The normalised features (C, e) of the `sentences` from the frozen text tower."""
        return self.encoder.text_features(self.encoder.tokenize([[sentence] for sentence in self.sentences()]))

    def reset(self, generator: torch.Generator) -> None:
        """Draw new values of the parameters from their initial distribution."""
        raise NotImplementedError

    def frozen(self, images: Tensor) -> Frozen:
        """The part of the pass of preprocessed images (B, 3, H, W) that does not depend on the parameters."""
        raise NotImplementedError

    def encode_classes(self) -> Mapping[str, Tensor]:
        """The feature clouds with a row per class, among them the normalised `text` features (C, e)."""
        raise NotImplementedError

    def respond(self, frozen: Frozen, classes: Mapping[str, Tensor]) -> Output:
        """Logits and features, from the results of `frozen` and `encode_classes`."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Output:
        """The whole pass for preprocessed images (B, 3, H, W), which consists of these three parts alone."""
        _ = self.class_names  # an error if the learner is not bound
        classes = self.encode_classes()
        return self.respond(self.frozen(images), classes)

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        """The mean loss: cross-entropy, unless the method has another loss."""
        return F.cross_entropy(output.logits, labels)

    def in_portions(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """`function(rows)` for rows that each need a text of every class: at most `SEQUENCES` texts in one pass."""
        return torch.cat([function(part) for part in rows.split(max(1, SEQUENCES // len(self.class_names)))])

    @torch.no_grad()
    def frozen_cloud(self, space: str, images: Tensor | None) -> Tensor | None:
        """The frozen model's points in a named space, for preprocessed images (P, 3, H, W) or their features.

        None if the frozen model does not have this space, or cannot read the class names in the template.
        """
        if space == "text" and self.repels_in == "text" and self.repels_per_image:
            return None  # every image has its own text features
        try:
            text = self.text_of_template()
            if space == "text":
                return text
            if images is None:
                return None
            image = images
            if images.ndim > 2:  # pixels, not features
                image = torch.cat([self.encoder.image_features(part) for part in images.split(AT_ONCE)])
            return Output(self.encoder.logits(image, text), {"image": image}, {"text": text}).cloud(space)
        except UserError:
            return None

    def use_noise(self, generator: torch.Generator) -> None:
        """Use this random stream for all draws in training mode. The loop calls this before it trains."""
        self.noise = generator

    def noise_stream(self) -> torch.Generator:
        """The random stream from which a stochastic method draws.

        In training mode this is the stream given to `use_noise`, or else a stream of the learner's own that continues
        from call to call. In evaluation mode it is a stream that starts afresh at each call, so that predictions are
        repeatable.
        """
        if not self.training:
            return random_stream(0, "prediction", type(self).__name__)
        if self.noise is None:
            self.noise = random_stream(0, "training", type(self).__name__)
        return self.noise

    def standard_normal(self, *shape: int) -> Tensor:
        """Random numbers of this shape from `noise_stream`, on the encoder's device.

        In evaluation mode they are drawn once and kept, because a pass that is captured cannot draw them anew.
        """
        key = shape, self.encoder.device
        if not self.training and key in self._drawn:
            return self._drawn[key]
        noise = self.noise_stream()
        drawn = torch.randn(shape, generator=noise, device=noise.device).to(self.encoder.device)
        if not self.training:
            self._drawn[key] = drawn
        return drawn


class TextLearner(Learner[Tensor]):
    """A learner that does not change the image tower, so that frozen features (B, e) represent the images.

    Wherever it takes images, it also takes their normalised features, which it uses unchanged.
    """

    @torch.no_grad()
    def frozen(self, images: Tensor) -> Tensor:
        return self.encoder.image_features(images)

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        return Output(self.encoder.logits(frozen, classes["text"]), {"image": frozen}, classes)


def takes_features(learner: Learner[Any]) -> bool:
    """Whether a learner needs only the frozen tower's features of images, not the images themselves."""
    return isinstance(learner, TextLearner) and type(learner).frozen is TextLearner.frozen


def check_features(learner: Learner[Any], stored: StoredFeatures) -> None:
    """Raise an error if the features come from another backbone, or if the learner needs the images themselves."""
    if not takes_features(learner):
        raise UserError(
            f"{learner.method or type(learner).__name__} changes how images are read, so that it needs the images "
            f"themselves and not the features in {stored.folder}: take a method that leaves the image tower as it is, "
            f"such as coop"
        )
    stored.check(learner.encoder.fingerprint, learner.encoder.name)


def rows_of(owners: Sequence[str], class_names: Sequence[str]) -> list[int | None]:
    """For each class, its index among the `owners`, the classes of training, or None if it is not among them.

    If two owners have the same name, the classes of that name are matched with them in order. Upper and lower case
    matter only where two owners differ in nothing else, because backbones read both alike.

    >>> rows_of(["cat", "dog", "cat"], ["dog", "cat", "fish", "cat"])
    [1, 0, None, 2]
    >>> rows_of(["Coast", "Forest"], ["forest", "coast"])
    [1, 0]
    """
    indices: dict[str, list[int]] = {}
    alike: dict[str, list[int]] = {}
    for index, name in enumerate(owners):
        indices.setdefault(name, []).append(index)
        alike.setdefault(name.casefold(), indices[name])
    matches = (indices.get(name, alike.get(name.casefold())) for name in class_names)
    return [None if rows is None else rows.pop(0) if len(rows) > 1 else rows[0] for rows in matches]


def _sharing_tensors(module: Module, copies: dict[int, Any]) -> Module:
    """A copy of a module that holds the same tensors in dictionaries of its own. Its sub-modules are copied likewise.

    `copies` has the copies made so far, by the id of the original.
    """
    if id(module) not in copies:
        copies[id(module)] = twin = copy.copy(module)
        for name, value in vars(module).items():
            if isinstance(value, dict):
                vars(twin)[name] = copy.copy(value)
        for name, child in module._modules.items():
            twin._modules[name] = None if child is None else _sharing_tensors(child, copies)
    return copies[id(module)]


if TYPE_CHECKING:
    _learners_can_be_sampled: type[Learnable[Output]] = Learner
