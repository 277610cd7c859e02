"""What a run says about its own uncertainty: fitted on validation images, measured on test images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rebapl.data.catalogue import load_dataset
from rebapl.data.fewshot import spread
from rebapl.data.task import Part, Task, split_of
from rebapl.errors import UserError
from rebapl.evaluation import Diversity, all_outside_scores, measure_diversity
from rebapl.evaluation.diversity import IMAGES
from rebapl.evaluation.tasks import bound_to, part_labels, part_views, predict_part
from rebapl.posterior import Posterior


def fit_on_validation(
    posterior: Posterior,
    task: Task,
    *,
    weights: bool = False,
    risk: float | None = None,
    coverage: float | None = None,
    by: str = "max-probability",
) -> Posterior:
    """With sample weights, or a threshold for `risk` or `coverage`, or both, fitted on the task's validation images."""
    if not task.val.items:
        raise UserError(f"data set '{task.dataset.name}' has no validation images to fit on")
    views, labels = part_views(posterior, task.val), part_labels(task.val)
    bound = posterior.bind(task.val.class_names, task.dataset.template)
    if weights:
        bound = bound.fit_weights(views, labels)
    if risk is not None or coverage is not None:
        bound = bound.fit_threshold(views, labels, risk=risk, coverage=coverage, by=by)
    return bound


def score_outside(
    posterior: Posterior, task: Task, outside: str = "novel", root: Path | None = None
) -> dict[str, dict[str, Any]]:
    """AUROC and FPR95 by kind of uncertainty: test images of the trained classes against those of others.

    `outside` is a test part of the task with other classes (`novel`), or another data set (below `root`, if it is
    read from files; NAME=FILE with another split file). Both kinds are predicted among the trained class names.
    """
    names = list(task.train.class_names)
    inside = next((part for part in task.tests.values() if list(part.class_names) == names), None)
    if inside is None:
        raise UserError("this task has no test images of the trained classes")
    bound = posterior.bind(names, task.dataset.template)
    outside, split = split_of(outside)
    if outside in task.tests and list(task.tests[outside].class_names) != names:
        other = task.tests[outside]
    elif outside in (task.dataset.name, *task.tests, "novel"):
        raise UserError(
            f"outside '{outside}' is no outside here: the trained classes are among it, or this protocol has no such "
            "part; name another data set"
        )
    else:
        dataset = load_dataset(outside, root, split=split)
        other = Part(dataset.class_names, dataset.test, dataset)
    return all_outside_scores(predict_part(bound, inside), predict_part(bound, other))


def diversity_on_test(posterior: Posterior, task: Task) -> Diversity:
    """Of the samples, on (at most 100) test images of the first part, that of the trained classes."""
    part = next(iter(task.tests.values()))
    part = dataclasses.replace(part, items=[part.items[place] for place in spread(len(part.items), IMAGES)])
    return measure_diversity(bound_to(posterior, task, part), part_views(posterior, part))


def diversity_record(diversity: Diversity) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "space": diversity.space,
        "images": diversity.images,
        "mean_distance": diversity.mean_distance,
        "mean_disagreement": diversity.mean_disagreement,
        "effective_by_weights": diversity.by_weights,
        "effective_by_answers": diversity.by_answers,
        "distance": diversity.distance.tolist(),
        "disagreement": diversity.disagreement.tolist(),
    }
