"""Samples of a learner's parameters, and prediction by all of them together.

p(y|x) = Σ_s ω_s p(y|x, θ_s): probabilities are averaged, with uniform weights ω unless others were fitted.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rebapl.backbones import Dtype, DualEncoder, clean_class_names
from rebapl.backbones.features import encode
from rebapl.data.dataset import refuse_repeats
from rebapl.errors import UserError, printable
from rebapl.learners import Learner, takes_features
from rebapl.posterior.conformal import Conformal, choose_conformal
from rebapl.posterior.fitting import PRIOR, EarlierWeights, choose_threshold, stacking_weights
from rebapl.posterior.images import Images, read_images
from rebapl.posterior.outside import FEATURE_SCORES, RATE, Bank, check_outside, choose_outside, logit_scores
from rebapl.posterior.passes import CHUNK, Finish, Label, Passes, Spread, in_order
from rebapl.posterior.prediction import Average, Outside, Prediction, Threshold, averaged, check_average
from rebapl.posterior.selective import CONFIDENCE, check_promise
from rebapl.posterior.storage import CHOICES, about_learner, check_weights
from rebapl.posterior.temperature import PRIOR as TEMPERATURE_PRIOR
from rebapl.posterior.temperature import Temperature, fit_temperature, text_factor
from rebapl.posterior.views import mean_over_views, several_views
from rebapl.wording import number_of

Views = Tensor | Iterable[Tensor]
"""Test-time views, uint8 (N, 3, H, W), or portions of them, of which only one is in memory at a time."""

NOTHING_CHOSEN: dict[str, Any] = {**dict.fromkeys(CHOICES), "bank": {}, "folds": ()}
"""The fields that hold only for the probabilities they were chosen for, each with its empty value."""


class Passed(NamedTuple):
    """The results of the passes of N images: the samples' logits (S, N, C), and two tensors that choices may need.

    `features` (N, e) are the frozen image features, which an outside score may need, and `by_fold` (K, N, C) the
    probabilities by the posteriors of the folds, which prediction sets may need. They are None if nothing needs them.
    """

    logits: Tensor
    features: Tensor | None
    by_fold: Tensor | None

    @classmethod
    def joined(cls, portions: Sequence[Passed]) -> Passed:
        """The results of several portions as one."""
        logits, features, by_fold = zip(*portions, strict=True)
        rows = None if features[0] is None else torch.cat(features)
        return cls(torch.cat(logits, dim=1), rows, None if by_fold[0] is None else torch.cat(by_fold, dim=1))


@dataclass(frozen=True, repr=False)
class Posterior:
    """Stacked samples of the parameters of `learner`: name → (S, …), with weights (S,) that sum to one.

    Samples are not changed in place: what predictions share is computed from them once.
    `about` describes how it was made: the class names and the template of the training, the method and the inference
    with all their settings, the seed and the data set.
    `threshold` decides when to answer "I don't know"; see `fit_threshold`.
    `earlier_weights` are weights that were replaced, oldest first.
    `conformal` decides which classes are in the prediction set of an image; see `fit_conformal`.
    `temperature` softens or sharpens the probabilities; see `fit_temperature`.
    `outside` decides when to answer "none of these", and `bank` has the tensors of the training images that its score
    compares new images with; see `fit_outside`.
    """

    learner: Learner
    samples: Mapping[str, Tensor]
    weights: Tensor
    about: Mapping[str, Any] = field(default_factory=dict)
    threshold: Threshold | None = None
    earlier_weights: tuple[EarlierWeights, ...] = ()
    conformal: Conformal | None = None
    temperature: Temperature | None = None
    outside: Outside | None = None
    bank: Bank = field(default_factory=dict)
    folds: tuple[Posterior, ...] = field(default=(), compare=False)
    """Posteriors that each held out a part of the training images; `conformal` compares new images with these parts."""
    copies: tuple[DualEncoder, ...] = field(default=(), compare=False)
    """Copies of its backbone on further devices, which share the work; see `spread`."""

    def __post_init__(self) -> None:
        weights = torch.as_tensor(self.weights, dtype=torch.float32, device="cpu").detach()
        object.__setattr__(self, "weights", weights)  # float32 on the CPU, as the logits that they are multiplied with
        object.__setattr__(self, "about", {**about_learner(self.learner), **self.about})
        if weights.ndim != 1:
            raise UserError(f"weights are one number per sample; got shape {tuple(weights.shape)}")
        check_weights(weights.tolist())
        for name, stack in self.samples.items():
            if len(stack) != len(self.weights):
                raise UserError(f"{len(self.weights)} weights for {len(stack)} samples of '{name}': one each is needed")

    @cached_property
    def passes(self) -> Passes | Spread:
        """The passes of images through the backbone. They keep the encoded class names of this posterior alone."""
        if not self.copies:
            return Passes(self.learner, self.samples, len(self))
        learners = [self.learner, *(self._learner_on(encoder) for encoder in self.copies)]
        return Spread(learners, self.samples, len(self))

    @classmethod
    def of(
        cls, learner: Learner, samples: Sequence[Mapping[str, Tensor]], about: Mapping[str, Any] | None = None
    ) -> Posterior:
        """Make a posterior of samples with equal weights. Each sample has values of the learner's parameters by name.

        Entries missing from `about` are taken from the learner: its method and settings, its class names and template.
        """
        if not samples:
            raise UserError("a posterior needs at least one sample")
        stacked = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
        uniform = torch.full((len(samples),), 1 / len(samples))
        return cls(learner, stacked, uniform, about or {})

    def push_to_hub(self, repository: str, *, private: bool = False, **card: Any) -> str:
        """Upload it to a repository of the Hugging Face hub, such as `"somebody/digits"`, with a model card.

        The repository is made if it does not exist, and the commit is returned:
        `load_posterior("hf://somebody/digits@COMMIT")` reads exactly these files. `card` may have your `licence`, the
        `scores` that `evaluate` returned, and `facts`, further rows for the card's table. The backbone is not uploaded.
        If it was loaded from a folder, give its hub id as `backbone`.
        """
        from rebapl.posterior.hub import upload, write_for_hub

        with tempfile.TemporaryDirectory() as temporary:
            return upload(write_for_hub(self, Path(temporary) / "posterior", repository, **card), repository, private)

    def export(self, path: Path | str) -> Path:
        """Write it for programs that do not use rebapl, with the class names that it is bound to.

        The ending of `path` decides the format. `.safetensors` and `.npy` hold class embeddings, for methods that
        learn text only. `.onnx` and `.pt2` hold the whole predictor with all samples.
        """
        from rebapl.posterior.export import write_export

        return write_export(self, Path(path))

    def __len__(self) -> int:
        return len(self.weights)

    def __repr__(self) -> str:
        inference = self.about.get("inference", {}).get("name", "unknown inference")
        parts = (number_of(len(self), "sample"), number_of(len(self.class_names), "class"))
        method = self.about.get("method") or type(self.learner).__name__
        return f"Posterior({method} · {inference}, {', '.join(parts)}, backbone {self.learner.encoder.name})"

    @property
    def average(self) -> Average:
        """Whether predictions average probabilities or logits by default: a setting of the inference."""
        return self.about.get("inference", {}).get("average", "probabilities")

    @property
    def views(self) -> int:
        """The number of views of each image that are averaged: a setting of the inference; see `with_views`."""
        return self.about.get("inference", {}).get("views", 1)

    @property
    def logits_are_products(self) -> bool:
        """Whether logits are scaled products of features, as `energy` and `mcm` need them; see `Learner`."""
        return self.learner.logits_are_products and self.views == 1

    @property
    def class_names(self) -> list[str]:
        return self.learner.class_names

    @property
    def device_count(self) -> int:
        """The number of devices that share the work; see `spread`."""
        return 1 + len(self.copies)

    def bind(self, class_names: Sequence[str], template: str | None = None, transfer: bool = False) -> Posterior:
        """The same samples for other class names. If nothing changes, itself, with the texts that it has encoded.

        `transfer` means that the images are of another data set. The thresholds, the prediction sets and the
        temperature are kept only if the template and `transfer` stay the same. Thresholds and sets act only for the
        class names that they were chosen for; a temperature acts for others as well, see `temperature_for`.
        """
        alike = template in (None, self.learner.template) and transfer == self.learner.transfer
        if alike and clean_class_names(class_names) == self.class_names:
            return self
        bound = self.learner.bind(class_names, template, transfer)
        return replace(self, learner=bound, **({} if alike else NOTHING_CHOSEN))

    def among(self, class_names: Sequence[str] | None = None, template: str | None = None) -> Posterior:
        """The posterior that answers among other class names, without repeats; itself if no argument is given."""
        if class_names is None and template is None:
            return self
        bound = self.bind(self.class_names if class_names is None else class_names, template)
        if bound.class_names != self.class_names:
            refuse_repeats(bound.class_names, "class_names")
        return bound

    def to(self, device: str | torch.device, dtype: Dtype | None = None) -> Posterior:
        """The same posterior on another device, with a copy of the backbone there. If nothing changes, itself.

        The backbone computes in the same type as here, or in `dtype`: `auto` takes the quickest type that suits the
        device.
        """
        encoder = self.learner.encoder.to(device, dtype)
        return self if encoder is self.learner.encoder and not self.copies else self._on(encoder)

    def _on(self, encoder: DualEncoder) -> Posterior:
        """The same posterior, with its folds, on this copy of its backbone."""
        samples = {name: stack.to(encoder.device) for name, stack in self.samples.items()}
        folds = tuple(fold._on(encoder) for fold in self.folds)
        return replace(self, learner=self._learner_on(encoder), samples=samples, folds=folds, copies=())

    def spread(self, devices: Sequence[str | torch.device]) -> Posterior:
        """The same posterior, predicting on several devices at once, such as `["cuda:0", "cuda:1"]`.

        Each device has a copy of the backbone, which computes in the same type as here. Images are split over the
        devices; if there are fewer images than devices, the samples are. The numbers are the same up to rounding.
        """
        if not devices:
            raise UserError("to spread a posterior, name at least one device")
        first = self.to(devices[0])
        return replace(first, copies=tuple(first.learner.encoder.to(device) for device in devices[1:]))

    def _learner_on(self, encoder: DualEncoder) -> Learner:
        """The learner on another copy of its backbone, bound to the same class names."""
        own = self.learner
        if encoder is own.encoder:
            return own
        copied = type(own)(encoder, own.config).bind(self.about["class_names"], self.about["template"])
        values = own.state_dict()
        copied.shape_like({name: value.shape for name, value in values.items()})
        copied.load_state_dict(values)
        return copied.bind(own.class_names, own.template, own.transfer).train(own.training)

    def sample(self, index: int) -> Posterior:
        """One of the samples as a posterior of its own."""
        alone = {name: stack[index : index + 1] for name, stack in self.samples.items()}
        return replace(self, samples=alone, weights=torch.ones(1), earlier_weights=(), **NOTHING_CHOSEN)

    def sample_logits(self, views: Views) -> Tensor:
        """Logits (S, N, C) of every sample for test-time views."""
        portions = [views] if isinstance(views, Tensor) else views
        return torch.cat([logits for _, logits in self._portion_logits((None, each) for each in portions)], dim=1)

    def _portion_logits(self, portions: Iterable[tuple[Label, Tensor]]) -> Iterator[tuple[Label, Tensor]]:
        """The logits of portions (label, views), one portion after the other, with their labels.

        On a GPU, the next portion begins before a portion is yielded, so that the GPU has work in the meantime.
        """
        begin = self.passes.begin if self.views == 1 else self._begin_several
        return in_order(portions, begin, 0 if self.learner.encoder.device.type == "cpu" and not self.copies else 1)

    def portion_passes(self, portions: Iterable[tuple[Label, Tensor]]) -> Iterator[tuple[Label, Passed]]:
        """The results of the passes of portions (label, views), with their labels."""
        extended = (((label, self._features_and_folds(views)), views) for label, views in portions)
        return ((label, Passed(logits, *extra)) for (label, extra), logits in self._portion_logits(extended))

    def _features_and_folds(self, views: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """`Passed.features` and `Passed.by_fold` for views, each None if no choice for these class names needs it."""
        outside, sets, names = self.outside, self.conformal, self.class_names
        by_features = outside is not None and outside.by in FEATURE_SCORES and outside.suits(names, outside.average)
        features = self.image_features(views) if by_features else None
        if sets is None or not self.folds or not sets.suits(names, sets.average):
            return features, None
        shared = self.views == 1 and takes_features(self.learner)  # one pass of an image then serves all folds
        images = self.image_features(views) if shared else views
        answers = [averaged(fold.sample_logits(images), fold.weights, sets.average)[0] for fold in self.folds]
        return features, torch.stack(answers)

    def _begin_several(self, views: Tensor) -> Finish:
        """Begin the passes of `self.views` versions of each image."""
        if not len(views):
            return self.passes.begin(views)
        finish = self.passes.begin(torch.cat(several_views(views, self.views)))
        return lambda: mean_over_views(finish(), self.views)

    def predict(
        self,
        images: Images,
        *,
        class_names: Sequence[str] | None = None,
        template: str | None = None,
        average: Average | None = None,
    ) -> Prediction:
        """Predict images (a file, a folder, pictures or uint8 arrays, see `read_images`) with all samples together.

        `class_names` and `template` replace those that it is bound to. Only one portion of the images is in memory at a
        time.
        """
        check_average(average or self.average)
        names, views = read_images(images, self.learner.encoder.preprocessing, CHUNK * self.device_count)
        bound = self.among(class_names, template)
        return bound.predict_views(views, average=average, names=names)

    def predict_views(
        self,
        views: Views,
        *,
        average: Average | None = None,
        names: Sequence[str] | None = None,
    ) -> Prediction:
        """Predict test-time views: images that are resized and cropped."""
        portions = [views] if isinstance(views, Tensor) else views
        passed = Passed.joined([of_portion for _, of_portion in self.portion_passes((None, each) for each in portions)])
        names = [f"image {index}" for index in range(passed.logits.shape[1])] if names is None else names
        return self.predict_passes(passed, names, average)

    def predict_portions(
        self, portions: Iterable[tuple[Sequence[str], Tensor]], average: Average | None = None
    ) -> Iterator[Prediction]:
        """Predict any number of images in portions: names (n) and views (n, 3, H, W).

        For each portion, it yields the prediction that `predict_views` returns for these views.
        """
        return (self.predict_passes(passed, names, average) for names, passed in self.portion_passes(portions))

    def image_features(self, views: Tensor) -> Tensor:
        """The frozen, normalised features (N, e) of views (N, 3, H, W); stored features (N, e) stay unchanged."""
        if views.ndim == 2:
            return views.float().cpu()
        encoder, portions = self.learner.encoder, views.split(CHUNK) if len(views) else ()
        return torch.cat([torch.empty(0, encoder.joint_width), *(encode(encoder, some) for some in portions)])

    def predict_passes(self, passed: Passed, names: Sequence[str], average: Average | None = None) -> Prediction:
        """The prediction for the images with these names, from the results of their passes."""
        average = average or self.average
        tau, chosen = self.temperature_for(average), self.chosen_for(average)
        together, per_sample = averaged(passed.logits, self.weights, average, tau)
        if bool((broken := together.isnan().any(-1)).any()):
            raise UserError(
                f"the answer to {printable(names[int(broken.int().argmax())])} is no number: the samples, or what the "
                "backbone computes, are not finite. In float16 numbers can be too large: take float32 or bfloat16"
            )
        scores: dict[str, Tensor] = {}
        if self.logits_are_products:
            scores = logit_scores(passed.logits, self.weights, self.learner.encoder.logit_scale)
        if "outside" in chosen and (by := chosen["outside"].by) in FEATURE_SCORES:
            assert passed.features is not None
            scores[by] = FEATURE_SCORES[by].score(passed.features, self.bank)
        return Prediction(
            list(self.class_names),
            list(names),
            together,
            per_sample,
            self.weights,
            average,
            temperature=tau,
            scores=scores,
            by_fold=passed.by_fold if "conformal" in chosen else None,
            **chosen,
        )

    def chosen_for(self, average: Average | None = None) -> dict[str, Any]:
        """Those of `threshold`, `conformal` and `outside` that were chosen for its class names and this averaging."""
        choices = {"threshold": self.threshold, "conformal": self.conformal, "outside": self.outside}
        return {
            name: choice
            for name, choice in choices.items()
            if choice is not None and choice.suits(self.class_names, average or self.average)
        }

    def temperature_for(self, average: Average | None = None) -> float:
        """The temperature of predictions among the class names that it is bound to, with this averaging.

        It is 1 if none was fitted for this averaging. For class names that it was not fitted with, the temperature is
        scaled by the distances of their texts, if these do not depend on the image; see `rebapl.posterior.temperature`.
        """
        fitted = self.temperature
        if fitted is None or fitted.average != (average or self.average):
            return 1.0
        return fitted.value / self._text_factor

    @cached_property
    def _text_factor(self) -> float:
        """γ of the class names that it is bound to: 1 if the temperature was fitted with all of them."""
        assert self.temperature is not None
        return text_factor(self.learner, self.samples, self.weights, self.temperature.class_names)

    def said_of_temperature(self, average: Average | None = None) -> str:
        """The temperature of its probabilities in words; empty if none was fitted."""
        fitted, now = self.temperature, self.temperature_for(average)
        if fitted is None or fitted.average != (average or self.average):
            return ""
        return str(fitted) + ("" if now == fitted.value else f"; {now:.2f} for these class names, by their distance")

    @property
    def fingerprint(self) -> str:
        """A checksum of the backbone, the method with its settings, the samples, their weights and the number of views.

        It does not depend on class names, template, averaging, temperature and thresholds.
        """
        learner = self.learner
        about = (learner.encoder.fingerprint, learner.method, learner.config.plain(), self.weights.tolist(), self.views)
        checksum = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for name in sorted(self.samples):
            checksum.update(name.encode() + self.samples[name].detach().cpu().contiguous().numpy().tobytes())
        return checksum.hexdigest()

    def with_weights(self, weights: Tensor, why: str = "weights given by hand") -> Posterior:
        """The same samples with other weights; the present ones are added to `earlier_weights`, with the reason `why`.

        The temperature, thresholds and prediction sets are removed, because they were chosen for other probabilities.
        If the weights equal the present ones, nothing changes.
        """
        changed = replace(self, weights=weights, **NOTHING_CHOSEN)
        if torch.equal(changed.weights, self.weights):
            return self
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        earlier = EarlierWeights(tuple(self.weights.tolist()), replaced_by=why, replaced_at=now)
        return replace(changed, earlier_weights=(*self.earlier_weights, earlier))

    def with_views(self, count: int) -> Posterior:
        """The same posterior, whose answers average over `count` views of each image; see `rebapl.posterior.views`.

        If this changes the number of views, the temperature, thresholds and prediction sets are removed.
        """
        if count < 1:
            raise UserError(f"views = {count}: an answer needs at least one view of an image")
        if count == self.views:
            return self
        inference = {**self.about.get("inference", {}), "views": count}
        return replace(self, about={**self.about, "inference": inference}, **NOTHING_CHOSEN)

    def with_uniform_weights(self) -> Posterior:
        """The same samples with equal weights, as before any fit; see `with_weights`."""
        return self.with_weights(torch.full((len(self),), 1 / len(self)), "uniform weights")

    def fit_weights(self, views: Views, labels: Tensor, prior: float = PRIOR) -> Posterior:
        """The same samples with weights that make held-out labels (N,) of views likely; see `stacking_weights`."""
        log_probabilities = self.sample_logits(views).log_softmax(-1)
        weights = stacking_weights(log_probabilities, labels, prior)
        return self.with_weights(weights, f"stacking on {len(labels)} images, prior {prior:g}")

    def with_temperature(self, value: float) -> Posterior:
        """The same posterior at this temperature, whatever was fitted; 1 removes a fitted temperature.

        Thresholds and prediction sets are removed, because they were chosen for other probabilities. If `value` is the
        present temperature, nothing changes.
        """
        if not 0 < value < math.inf:
            raise UserError(f"temperature = {value}: it is a number above 0, and 1 changes nothing")
        return self._at(Temperature(value, self.average, tuple(self.class_names), images=0))

    def fit_temperature(self, views: Views, labels: Tensor, prior: float = TEMPERATURE_PRIOR) -> Posterior:
        """The same posterior at the temperature that makes held-out labels (N,) of views likely, with a prior near 1.

        See `rebapl.posterior.temperature`. Thresholds and prediction sets are removed, as by `with_temperature`.
        """
        probabilities = replace(self, temperature=None).predict_views(views).probabilities
        tau = fit_temperature(probabilities, labels, prior)
        return self._at(Temperature(tau, self.average, tuple(self.class_names), images=len(labels)))

    def _at(self, fitted: Temperature) -> Posterior:
        before = self.temperature
        if (fitted.value == 1) if before is None else (replace(fitted, images=before.images) == before):
            return self
        return replace(self, **{**NOTHING_CHOSEN, "temperature": None if fitted.value == 1 else fitted})

    def fit_threshold(self, views: Views, labels: Tensor, **how: Any) -> Posterior:
        """The same posterior with a threshold chosen on held-out labels (N,) of views; see `choose_threshold`.

        `how` are its `risk`, `coverage`, `by` and `confidence`.
        """
        if (risk := how.get("risk")) is not None:  # a promise that is not possible is refused before the passes
            check_promise(risk, how.get("confidence", CONFIDENCE), len(labels))
        return replace(self, threshold=choose_threshold(self.predict_views(views), labels, **how))

    def fit_outside(
        self, views: Views, by: str = "energy", rate: float = RATE, train: tuple[Tensor, Tensor] | None = None
    ) -> Posterior:
        """The same posterior with a threshold of "none of these", chosen on held-out views of the classes.

        An image like these is then called "none of these" with probability ≤ `rate`; see `rebapl.posterior.outside`.
        The scores of image features need `train`: the views (or features) and labels of training images.
        """
        check_outside(by, rate, len(views) if isinstance(views, Tensor) else None, self.logits_are_products)
        bank: Bank = {}
        if by in FEATURE_SCORES:
            if train is None:
                raise UserError(f"{by} compares images with training images: give train=(views, labels)")
            bank = FEATURE_SCORES[by].keep(self.image_features(train[0]), train[1])
        never = Outside(by, math.inf, rate, self.average, tuple(self.class_names), images=0)  # so that it is scored
        prediction = replace(self, outside=never, bank=bank).predict_views(views)
        return replace(self, outside=choose_outside(prediction, by, rate), bank=bank)

    def fit_conformal(self, views: Views, labels: Tensor, level: float = 0.9, **how: Any) -> Posterior:
        """The same posterior with prediction sets chosen on held-out labels (N,) of views; see `choose_conformal`.

        `how` are its `score`, `by_class` or `ratios`.
        """
        plain = replace(self, conformal=None, folds=())
        return replace(plain, conformal=choose_conformal(plain.predict_views(views), labels, level, **how))
