"""Scores of a posterior on corrupted test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rebapl.data.task import Task
from rebapl.errors import UserError
from rebapl.evaluation.scores import scores
from rebapl.evaluation.tasks import Predicted, bound_to, part_labels, predict_part, tempered_scores, trained_part
from rebapl.posterior import Posterior

if TYPE_CHECKING:
    from rebapl.data.corruptions import Corruption


def check_corruptible(task: Task) -> None:
    """Refuse a task of stored features, because only images can be corrupted."""
    if (stored := task.dataset.features) is not None:
        raise UserError(f"corruptions spoil images, and {stored.folder} has only features of them: name the images")


def score_corruptions(
    posterior: Posterior,
    task: Task,
    corruptions: Sequence[Corruption],
    temperature: float | None = None,
    progress: Predicted | None = None,
) -> dict[str, dict[str, dict[str, float]]]:
    """The `scores` by corruption and severity on the test images of the trained classes.

    Random corruptions are the same for every posterior, as if the corrupted images were a published data set. With a
    `temperature`, which should be fitted on clean images, there are also the scores of tempered probabilities.
    """
    check_corruptible(task)
    part = trained_part(task)
    bound, labels, images = bound_to(posterior, task, part), part_labels(part), len(part.items)
    by_corruption: dict[str, dict[str, dict[str, float]]] = {}
    for number, corruption in enumerate(corruptions):
        prediction = predict_part(bound, replace(part, corruption=corruption))
        softer = {} if temperature is None else tempered_scores(prediction, labels, temperature)
        of_severity = {**scores(prediction.probabilities, labels), **softer}
        by_corruption.setdefault(corruption.name, {})[str(corruption.severity)] = of_severity
        if progress is not None:
            progress((number + 1) * images, len(corruptions) * images)
    return by_corruption
