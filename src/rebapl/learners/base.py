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
"""Texts in one pass, where each image or prompt has texts of its own: more would take too much memory."""

AT_ONCE = 64
"""Images in one pass through the frozen tower."""

Frozen = TypeVar("Frozen", bound=Tensor | States)
"""The part of the image pass that does not depend on the parameters: finished features, or states half-way."""

AnyLearner = TypeVar("AnyLearner", bound="Learner[Any]")
Module = TypeVar("Module", bound=nn.Module)


class Recipe(Settings):
    """How the method was published to be trained. Data only: the loop reads it, the learner does not act on it.

    `averaging`: mean and standard deviation, in epochs, of the Gaussian weights with which parameters are averaged.
    `inference`: the name of the inference that the authors train with, and `inference_settings` what they set of it.
    With another inference these settings do not count.
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
    """A prompt learner: `Learner(encoder, config)` has the parameters, and `bind` gives it class names.

    A subclass calls `super().__init__(encoder, config)` first and then makes its parameters, undrawn; `reset` draws
    them. The constructor calls no method that a subclass may replace. What depends on the class names is computed
    in `prepare_text`, which `bind` calls, and what depends on the classes that a learner is built for in `adopt`.

    The pass has three parts, so that each is computed as rarely as it can be: `frozen` (depends on the images
    alone: once for all samples), `encode_classes` (on the parameters and the class names: once per sample)
    and `respond`, which needs both.
    """

    recipe: ClassVar[Recipe]
    """How its authors train it. `register` sets it where the method has a recipe file."""

    registered_as: ClassVar[str | None] = None
    """The name that `register` gave to exactly this class; see `method`."""

    repels_in: ClassVar[str | None]
    """The feature space in which its posterior repels by default; None where nothing is learned."""

    repels_per_image: bool = True
    """Whether that space has a row per image; otherwise it has one per class. A setting may decide it: `per_image`."""

    uses_template: ClassVar[bool] = True
    """Whether its predictions depend on the template. A setting may decide it: `reads_template`."""

    shared_parameters: ClassVar[frozenset[str]] = frozenset()
    """Parameters, or modules with parameters, that particles side by side hold in common; see `SVGD`."""

    learns_from_features: ClassVar[bool] = False
    """Whether it learns from the features of un-augmented images, which are encoded once: a head; see `see`."""

    logits_are_products: ClassVar[bool] = True
    """Whether its logits are the scaled products of image features with a vector of each class, as those of CLIP are.

    Log-probabilities, or sums with something else, do not say how near an image is to the classes.
    """

    template: str = DEFAULT_TEMPLATE

    transfer: bool = False
    """Bound to another data set than the one it was trained on, where a method may predict differently."""

    noise: torch.Generator | None = None
    """The stream that `use_noise` gave."""

    @classmethod
    def per_image(cls, config: Settings) -> bool:  # noqa: ARG003
        """The `repels_per_image` of a learner with these settings, before there is one."""
        return cls.repels_per_image

    @classmethod
    def reads_template(cls, config: Settings) -> bool:  # noqa: ARG003
        """The `uses_template` of a learner with these settings, before there is one."""
        return cls.uses_template

    def __init__(self, encoder: DualEncoder, config: Settings) -> None:
        super().__init__()
        self.encoder = encoder
        self.config = config
        self._class_names: list[str] | None = None

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
        """A learner for these class names, in this template or in the one it had.

        Both learners hold the same parameter tensors: to optimise one is to optimise the other. To assign another
        parameter to one leaves the other as it is. The first `bind` of a learner says which classes it is built for
        (see `adopt`); later ones change only what it predicts. `transfer` says that the images are of another data
        set than those trained on, even if the classes are not.
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
        """The same learner once more. It holds the same tensors, and to assign one to it leaves this one as it is."""
        return _sharing_tensors(self, {})

    def adopt(self, class_names: Sequence[str]) -> None:
        """Become a learner that is built for these classes. Called once, by the first `bind`, before `prepare_text`.

        Here a method makes parameters whose shape depends on the classes, or keeps which classes it is trained on.
        Most have nothing to do.
        """

    def prepare_text(self) -> None:
        """Tokenise the class names, and compute the constant part of their text. `bind` calls it every time."""
        raise NotImplementedError

    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Learn at once what a head learns from the normalised features (N, e) and labels (N,) of all training images.

        What is learned here are parameters that need no gradient: no sampler moves them, and each sample is stored with
        them. Called once, before anything is sampled, if `learns_from_features`. Returns the examples that the
        parameters with a gradient are then learned from: these, unless the method adds some.
        """
        return features, labels

    def shape_like(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Give parameters whose shape depends on the number of training images the shapes that `see` gave them.

        Called before stored values are read. Most have nothing to do.
        """

    def fixed_parameters(self) -> dict[str, Tensor]:
        """The parameters that `see` found, by name."""
        return {name: p.detach().clone() for name, p in self.named_parameters() if not p.requires_grad}

    def sentences(self) -> list[str]:
        """The class names in the template."""
        return [self.template.replace("{}", name) for name in self.class_names]

    def text_of_template(self) -> Tensor:
        """The normalised features (C, e) that the frozen text tower gives of these sentences."""
        return self.encoder.text_features(self.encoder.tokenize([[sentence] for sentence in self.sentences()]))

    def reset(self, generator: torch.Generator) -> None:
        """Draw the parameters anew from their initial distribution."""
        raise NotImplementedError

    def frozen(self, images: Tensor) -> Frozen:
        """Preprocessed images (B, 3, H, W) as far as they go without the parameters."""
        raise NotImplementedError

    def encode_classes(self) -> Mapping[str, Tensor]:
        """The clouds with a row per class, among them the normalised `text` features (C, e)."""
        raise NotImplementedError

    def respond(self, frozen: Frozen, classes: Mapping[str, Tensor]) -> Output:
        """Logits and features from the results of `frozen` and `encode_classes`."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Output:
        """The whole pass for preprocessed images (B, 3, H, W): these three parts and nothing else."""
        assert self.class_names  # refuses a learner that is not bound
        classes = self.encode_classes()
        return self.respond(self.frozen(images), classes)

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        """The mean loss: cross-entropy, unless the method says otherwise."""
        return F.cross_entropy(output.logits, labels)

    def in_portions(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """`function(rows)`, where each row takes a text of every class: at most `SEQUENCES` texts in one pass."""
        return torch.cat([function(part) for part in rows.split(max(1, SEQUENCES // len(self.class_names)))])

    @torch.no_grad()
    def frozen_cloud(self, space: str, images: Tensor | None) -> Tensor | None:
        """The points of a named space as the frozen model gives them, for preprocessed images (P, 3, H, W) or features.

        None for spaces that the frozen model does not have, and where it cannot read the class names in the template.
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
            if images.ndim > 2:  # not features already
                image = torch.cat([self.encoder.image_features(part) for part in images.split(AT_ONCE)])
            return Output(self.encoder.logits(image, text), {"image": image}, {"text": text}).cloud(space)
        except UserError:
            return None

    def use_noise(self, generator: torch.Generator) -> None:
        """Draw from this stream whatever is random in training mode. The loop calls this before it trains."""
        self.noise = generator

    def noise_stream(self) -> torch.Generator:
        """Where a stochastic method draws from.

        In training mode that is the stream that the loop gave, or without one a stream of its own that goes on from
        call to call. In evaluation mode it is a stream that starts anew each time, so that predictions do not change.
        """
        if not self.training:
            return random_stream(0, "prediction", type(self).__name__)
        if self.noise is None:
            self.noise = random_stream(0, "training", type(self).__name__)
        return self.noise


class TextLearner(Learner[Tensor]):
    """A learner that leaves the image tower as it is: images are their frozen features (B, e).

    Wherever it takes images, it also takes such features, normalised, which are then passed on as they are.
    """

    @torch.no_grad()
    def frozen(self, images: Tensor) -> Tensor:
        return self.encoder.image_features(images)

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        return Output(self.encoder.logits(frozen, classes["text"]), {"image": frozen}, classes)


def takes_features(learner: Learner[Any]) -> bool:
    """Whether a learner sees an image through the frozen tower alone, so that the features of images suffice it."""
    return isinstance(learner, TextLearner) and type(learner).frozen is TextLearner.frozen


def check_features(learner: Learner[Any], stored: StoredFeatures) -> None:
    """Refuse stored features of another backbone, and a learner that needs the images themselves."""
    if not takes_features(learner):
        raise UserError(
            f"{learner.method or type(learner).__name__} changes how images are read, so that it needs the images "
            f"themselves and not the features in {stored.folder}: take a method that leaves the image tower as it is, "
            f"such as coop"
        )
    stored.check(learner.encoder.fingerprint, learner.encoder.name)


def rows_of(owners: Sequence[str], class_names: Sequence[str]) -> list[int | None]:
    """Which of the classes trained on, the `owners`, each class is: its index, or None if it was not trained.

    Where two owners have the same name, each class of that name has its own, in their order. Capital and small letters
    count only where owners differ by them alone: backbones read both alike.

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
    own = (indices.get(name, alike.get(name.casefold())) for name in class_names)
    return [None if each is None else each.pop(0) if len(each) > 1 else each[0] for each in own]


def _sharing_tensors(module: Module, made: dict[int, Any]) -> Module:
    """A copy of a module that holds the same tensors in dictionaries of its own; its sub-modules are copied alike."""
    if id(module) not in made:
        made[id(module)] = twin = copy.copy(module)
        for name, value in vars(module).items():
            if isinstance(value, dict):
                vars(twin)[name] = copy.copy(value)
        for name, child in module._modules.items():
            twin._modules[name] = None if child is None else _sharing_tensors(child, made)
    return made[id(module)]


if TYPE_CHECKING:
    _learners_can_be_sampled: type[Learnable[Output]] = Learner
