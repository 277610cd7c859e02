"""From a posterior and a task to scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from rebapl.data.batches import LabelledImages
from rebapl.data.task import TARGETS, Part, Task
from rebapl.data.workers import portions
from rebapl.evaluation import prediction_scores
from rebapl.learners import build_learner, published, resolve_method
from rebapl.posterior import Posterior, Prediction

IMAGES_AT_ONCE = 4096
"""How many images are held decoded while a part is scored."""


def evaluate(posterior: Posterior, task: Task, parts: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """Scores of the posterior on the test parts of a task, or on some: name → accuracy, nll, ece …

    See `prediction_scores`. A part of another data set is predicted as a transfer, with what the method's authors
    change for that target; that (`target_settings`) and a `split` file of its own are kept with the scores.
    """
    scored = {}
    for name in task.tests if parts is None else parts:
        part = task.tests[name]
        scores = prediction_scores(predict_part(bound_to(posterior, task, part), part), part_labels(part))
        about = {"target_settings": _changed_for(posterior, task, part), "split": part.split}
        scored[name] = {**scores, **{key: value for key, value in about.items() if value}}
    return scored


def bound_to(posterior: Posterior, task: Task, part: Part) -> Posterior:
    """The posterior for the class names of a part; as a transfer where that is of another data set."""
    if part.dataset is task.dataset:
        return posterior.bind(part.class_names, part.dataset.template)
    about, changed = posterior.about, _changed_for(posterior, task, part)
    learner = posterior.learner
    if changed:
        learner = build_learner(
            about["method"],
            learner.encoder,
            about["class_names"],
            about["template"],
            torch.Generator(),
            {**about["method_settings"], **changed},
        ).eval()
    return dataclasses.replace(posterior, learner=learner).bind(part.class_names, part.dataset.template, transfer=True)


def predict_part(posterior: Posterior, part: Part) -> Prediction:
    """The prediction for all images of a part, which the posterior must be bound to; a portion of them at a time."""
    if not part.items:
        return posterior.predict_views(part_views(posterior, part))
    views = (
        part_views(posterior, dataclasses.replace(part, items=items)) for items in portions(part.items, IMAGES_AT_ONCE)
    )
    return posterior.predict_views(views, names=[item.key for item in part.items])


def part_views(posterior: Posterior, part: Part) -> torch.Tensor:
    """The test-time views, uint8 (N, 3, H, W), of a part, as the posterior's backbone wants them."""
    return LabelledImages(part.dataset, part.items).views(posterior.learner.encoder.preprocessing)


def part_labels(part: Part) -> torch.Tensor:
    """The labels (N,) of a part."""
    return torch.tensor([item.label for item in part.items], dtype=torch.long)


def target_settings(
    method: str, settings: Mapping[str, Any], protocol: str, source: str, target: str
) -> dict[str, Any]:
    """What is published to change of a method's `settings` when, trained on `source`, it predicts on `target`.

    A setting that somebody gave in place of the published one stays as it is.

    >>> target_settings("mmrl++", {"mix": 0.9, "consistency": 0.1}, "cross-dataset", "imagenet", "eurosat")
    {'mix': 0.3}
    """
    if protocol not in TARGETS:
        return {}
    defaults = resolve_method(method).plain()
    before, after = (published(method, protocol, data)[0] for data in (source, target))
    changed = {}
    for key in sorted(before.keys() | after.keys()):
        was, becomes = (each.get(key, defaults[key]) for each in (before, after))
        if was != becomes and settings.get(key, defaults[key]) == was:
            changed[key] = becomes
    return changed


def _changed_for(posterior: Posterior, task: Task, part: Part) -> dict[str, Any]:
    if part.dataset is task.dataset:
        return {}
    about = posterior.about
    return target_settings(
        about["method"], about["method_settings"], task.protocol, task.dataset.name, part.dataset.name
    )
