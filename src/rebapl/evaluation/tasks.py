"""Scores of a posterior on a task: on its test parts and on outside images, and how much its samples differ."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rebapl.backbones.features import features_of
from rebapl.data.batches import LabelledImages
from rebapl.data.catalogue import is_own, load_dataset
from rebapl.data.embedded import NOISE, noise_images
from rebapl.data.own_images import is_flat, load_flat_folder
from rebapl.data.task import TARGETS, Part, Task, split_of
from rebapl.data.workers import portions
from rebapl.errors import UserError
from rebapl.evaluation.diversity import IMAGES, Diversity, disagreement_matrix, mean_of_pairs, measure_diversity
from rebapl.evaluation.outside import all_outside_scores
from rebapl.evaluation.scores import scores
from rebapl.learners import METHODS, build_learner, check_features, published, takes_features
from rebapl.numbers import harmonic_mean, spread
from rebapl.posterior import Posterior, Prediction
from rebapl.posterior.outside import FEATURE_SCORES
from rebapl.posterior.passes import CHUNK
from rebapl.posterior.temperature import fit_temperature, tempered
from rebapl.score_columns import SCORE_COLUMNS

Predicted = Callable[[int, int], None]
"""A function that is called now and then with the number of images predicted so far, and the number of all images."""


SHOWN = ("images", "accuracy", "nll", "ece", "brier")
"""The scores in the printed table."""


class ScoredPart(dict[str, Any]):
    """The scores of one test part by name, also as attributes.

    >>> part = ScoredPart(accuracy=60.0, images=9)
    >>> part["accuracy"], part.accuracy
    (60.0, 60.0)
    """

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"there is no '{name}': there are {', '.join(self)}")
        return self[name]


class Evaluation(ScoredPart):
    """The scores of a posterior by test part; printed, it is a short table.

    >>> scores = ScoredPart(images=9, accuracy=60.0, nll=0.5, ece=2.0, brier=0.5)
    >>> evaluation = Evaluation(base=scores, novel=ScoredPart(scores, accuracy=30.0))
    >>> evaluation
           images  accuracy    nll  ece  brier
    base        9     60.00  0.500  2.0  0.500
    novel       9     30.00  0.500  2.0  0.500
    harmonic mean of the accuracies: 40.0 %
    >>> evaluation.base.accuracy, evaluation.harmonic_mean
    (60.0, 40.0)
    """

    @property
    def harmonic_mean(self) -> float | None:
        """The harmonic mean of the accuracies on base and novel classes; None if one of them was not scored."""
        both = {"base", "novel"} <= self.keys()
        return harmonic_mean(self["base"]["accuracy"], self["novel"]["accuracy"]) if both else None

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The same as plain dictionaries, with all scores."""
        return {name: dict(part) for name, part in self.items()}

    def __repr__(self) -> str:
        rows = [["", *SHOWN]]
        for name, part in self.items():
            rows.append([name, *(f"{part[key]:.{SCORE_COLUMNS[key].digits}f}" if key in part else "" for key in SHOWN)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        mean = self.harmonic_mean
        return "\n".join([*lines, *([] if mean is None else [f"harmonic mean of the accuracies: {mean:.1f} %"])])


def evaluate(
    posterior: Posterior, task: Task, parts: Iterable[str] | None = None, progress: Predicted | None = None
) -> Evaluation:
    """Score the posterior on all test parts of a task, or on the named `parts`: name → accuracy, nll, ece …

    The scores are those of `prediction_scores`. A part of another data set is predicted as a transfer, with the
    settings that the method's authors change for that data set. These (`target_settings`) and the name of the part's
    own `split` file are stored with its scores. If the task has validation images that are not test images, a
    `temperature` is fitted on them, without a prior, and `tempered_nll` and `tempered_ece` are the scores with it.
    `progress` counts test and validation images.
    """
    evaluation = Evaluation()
    tests = {name: task.tests[name] for name in (task.tests if parts is None else parts)}
    fitting = bool(tests) and task.protocol != "selection" and bool(task.val.items)
    total = sum(len(part.items) for part in [*tests.values(), *([task.val] if fitting else [])])
    done = 0

    def predicted(part: Part) -> Prediction:
        nonlocal done
        before = done
        done += len(part.items)
        count = None if progress is None else lambda images: progress(before + images, total)
        return predict_part(bound_to(posterior, task, part), part, count)

    temperature = fit_temperature(predicted(task.val).probabilities, part_labels(task.val)) if fitting else None
    for name, part in tests.items():
        prediction, labels = predicted(part), part_labels(part)
        of_part = prediction_scores(prediction, labels)
        if temperature is not None:
            of_part["temperature"] = temperature
            of_part |= tempered_scores(prediction, labels, temperature)
        about = {"target_settings": _changed_for(posterior, task, part), "split": part.split}
        evaluation[name] = ScoredPart(of_part, **{key: value for key, value in about.items() if value})
    return evaluation


def prediction_scores(prediction: Prediction, labels: torch.Tensor) -> dict[str, Any]:
    """All scores of a prediction against labels (N,).

    They are the `scores` of the averaged probabilities; the mean entropies and mutual information in nats; the share of
    images, in percent, that two samples answer differently, averaged over pairs of samples; and in `per_sample` the
    `scores` of each sample alone.
    """
    answers = prediction.per_sample.argmax(-1)
    return {
        **scores(prediction.probabilities, labels),
        "entropy": prediction.predictive_entropy.mean().item(),
        "expected_entropy": prediction.expected_entropy.mean().item(),
        "mutual_information": prediction.mutual_information.mean().item(),
        "disagreement": 100 * mean_of_pairs(disagreement_matrix(answers)),
        "images": len(prediction),
        "per_sample": [scores(alone, labels) for alone in prediction.per_sample],
    }


def tempered_scores(prediction: Prediction, labels: torch.Tensor, temperature: float) -> dict[str, float]:
    """NLL and ECE of a prediction after its probabilities were tempered."""
    at_temperature = scores(tempered(prediction.probabilities, temperature), labels)
    return {f"tempered_{name}": at_temperature[name] for name in ("nll", "ece")}


def bound_to(posterior: Posterior, task: Task, part: Part) -> Posterior:
    """The posterior bound to the class names of a part; as a transfer if the part is of another data set."""
    if part.dataset is task.dataset:
        return posterior.bind(part.class_names, part.dataset.template)
    about, learner = posterior.about, posterior.learner
    if changed := _changed_for(posterior, task, part):
        learner = build_learner(
            about["method"],
            learner.encoder,
            about["class_names"],
            about["template"],
            torch.Generator(),
            {**about["method_settings"], **changed},
        ).eval()
    return dataclasses.replace(posterior, learner=learner).bind(part.class_names, part.dataset.template, transfer=True)


def predict_part(posterior: Posterior, part: Part, progress: Callable[[int], None] | None = None) -> Prediction:
    """Predict all images of a part, one portion at a time. The posterior must be bound to the part already.

    `progress` is called with the number of images done.
    """
    return posterior.predict_views(view_portions(posterior, part, progress), names=[item.key for item in part.items])


def view_portions(
    posterior: Posterior, part: Part, progress: Callable[[int], None] | None = None
) -> Iterator[torch.Tensor]:
    """The `part_views` of a part in portions, of which one is in memory at a time; see `predict_part`."""
    done = 0
    for items in list(portions(part.items, CHUNK)) or [[]]:
        yield part_views(posterior, dataclasses.replace(part, items=items))
        done += len(items)
        if progress is not None:
            progress(done)


def part_views(posterior: Posterior, part: Part) -> torch.Tensor:
    """The test-time views, uint8 (N, 3, H, W), of a part, as the posterior's backbone needs them.

    A posterior that uses only the frozen features of images gets these features (N, e), which may be stored already;
    see `features_of`. A posterior that averages over several views of an image needs its pixels.
    """
    learner, data = posterior.learner, LabelledImages(part.dataset, part.items, part.corruption)
    if part.dataset.features is not None:
        check_features(learner, part.dataset.features)
    if posterior.views == 1 and takes_features(learner):
        return features_of(learner.encoder, data)
    return data.views(learner.encoder.preprocessing)


def part_labels(part: Part) -> torch.Tensor:
    """The labels (N,) of a part."""
    return torch.tensor([item.label for item in part.items], dtype=torch.long)


def target_settings(
    method: str, settings: Mapping[str, Any], protocol: str, source: str, target: str
) -> dict[str, Any]:
    """The settings that a method's authors change when it was trained on `source` and predicts on `target`.

    If the user chose another value than the published one, this setting is not changed.

    >>> target_settings("mmrl++", {"mix": 0.9, "consistency": 0.1}, "cross-dataset", "imagenet", "eurosat")
    {'mix': 0.3}
    """
    if protocol not in TARGETS:
        return {}
    defaults = METHODS.find(method).settings().plain()
    before, after = (published(method, protocol, data)[0] for data in (source, target))
    changed = {}
    for key in sorted(before.keys() | after.keys()):
        old, new = (recipe.get(key, defaults[key]) for recipe in (before, after))
        if old != new and settings.get(key, defaults[key]) == old:
            changed[key] = new
    return changed


def _changed_for(posterior: Posterior, task: Task, part: Part) -> dict[str, Any]:
    about = posterior.about
    if part.dataset is task.dataset or about.get("method") not in METHODS:  # a learner that is not registered
        return {}
    names = task.dataset.catalogue_name, part.dataset.catalogue_name
    return target_settings(about["method"], about["method_settings"], task.protocol, *names)


FITTED = ("weights", "temperature", "threshold", "conformal", "outside")
"""The names of what can be fitted on validation images, in this order; NAME is fitted by `Posterior.fit_NAME`."""


def fit_on_validation(posterior: Posterior, task: Task, fits: Mapping[str, Mapping[str, Any]]) -> Posterior:
    """The posterior after the `fits` (name in `FITTED` → its arguments) on the task's validation images."""
    if not fits:
        return posterior
    if not task.val.items:
        raise UserError(f"data set '{task.dataset.name}' has no validation images to fit on")
    bound = posterior.bind(task.val.class_names, task.dataset.template)
    for name in sorted(fits, key=FITTED.index):
        views, how = view_portions(bound, task.val), fits[name]
        if name != "outside":
            bound = getattr(bound, f"fit_{name}")(views, part_labels(task.val), **how)
        else:
            compared = how.get("by") in FEATURE_SCORES
            train = (part_features(bound, task.train), part_labels(task.train)) if compared else None
            bound = bound.fit_outside(views, train=train, **how)
    return bound


def score_outside(
    posterior: Posterior, task: Task, outside: Iterable[str], root: Path | None = None
) -> dict[str, dict[str, dict[str, float]]]:
    """How well outside scores tell outside images from test images of the trained classes: the `all_outside_scores`.

    A name in `outside` is that of a test part of the task with other classes (`novel`), or of another data set. A data
    set that is read from files lies in the folder `root`, and NAME=FILE takes another split file. A name may also be a
    folder of images without classes, which are all taken, or `noise`, see `noise_images`. All images are predicted
    among the trained class names.
    """
    others = {name: outside_part(name, task, root) for name in outside}
    inside = trained_part(task)
    bound = bound_to(posterior, task, inside)
    features, labels = part_features(bound, task.train), part_labels(task.train)
    banks = {}
    for by, kind in FEATURE_SCORES.items():
        with contextlib.suppress(UserError):  # `mahalanobis` needs two different images of a class
            banks[by] = kind.keep(features, labels)

    def scored(part: Part) -> Prediction:
        prediction, features = predict_part(bound, part), part_features(bound, part)
        by_features = {by: FEATURE_SCORES[by].score(features, bank) for by, bank in banks.items()}
        return dataclasses.replace(prediction, scores={**prediction.scores, **by_features})

    known = scored(inside)
    return {name: all_outside_scores(known, scored(other)) for name, other in others.items()}


def part_features(posterior: Posterior, part: Part) -> torch.Tensor:
    """The frozen image features (N, e) of a part, for any method; see `features_of`."""
    return features_of(posterior.learner.encoder, LabelledImages(part.dataset, part.items))


def trained_part(task: Task) -> Part:
    """The test images of the trained classes."""
    names = list(task.train.class_names)
    for part in task.tests.values():
        if part.dataset is task.dataset and list(part.class_names) == names:
            return part
    raise UserError("this task has no test images of the trained classes")


def outside_part(outside: str, task: Task, root: Path | None = None) -> Part:
    """The images that a name of `score_outside` stands for. Those of the trained classes are refused."""
    name, split = split_of(outside)
    if name in task.tests and list(task.tests[name].class_names) != list(task.train.class_names):
        return task.tests[name]
    if name in (task.dataset.catalogue_name, *task.tests, "novel"):
        raise UserError(
            f"outside '{name}' is no outside here: the trained classes are among it, or this protocol has no such "
            "part; name another data set"
        )
    if outside == NOISE:
        return Part([NOISE], (noise := noise_images()).test, noise)
    flat = split is None and is_own(name) and is_flat(Path(name).expanduser())
    dataset = load_flat_folder(Path(name).expanduser()) if flat else load_dataset(name, root, split=split)
    return Part(dataset.class_names, dataset.test, dataset)


def diversity_on_test(posterior: Posterior, task: Task) -> Diversity:
    """The diversity of the samples on at most 100 images of the first test part, which has the trained classes."""
    part = next(iter(task.tests.values()), None)
    if part is None:
        raise UserError("there are no test images to compare samples on: this task learns from every image")
    part = dataclasses.replace(part, items=[part.items[index] for index in spread(len(part.items), IMAGES)])
    return measure_diversity(bound_to(posterior, task, part), part_views(posterior, part))
