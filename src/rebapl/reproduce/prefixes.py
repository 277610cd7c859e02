"""Scores of the first cycles of a long chain: one chain of twenty cycles answers for every smaller number."""

from __future__ import annotations

from collections.abc import Sequence

from rebapl.evaluation import base_novel_scores, scores
from rebapl.evaluation.tasks import bound_to, part_labels, predict_part
from rebapl.files import read_json, write_json
from rebapl.reproduce.target import Context
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import load_trained, run_folder

PREFIXES = "prefixes.json"
"""The file in the run's folder."""


def prefix_scores(context: Context, config: RunConfig, counts: Sequence[int]) -> dict[int, dict[str, float]]:
    """Base, novel and HM of a finished run by the number of its first cycles that predict together.

    They are computed once and kept in the run's folder.
    """
    out = run_folder(config, context.runs)
    path = out / PREFIXES
    stored = read_json(path, "scores by cycles")["cycles"] if path.exists() else {}
    if any(str(count) not in stored for count in counts):
        stored |= _computed(context, config, counts)
        write_json(path, {"cycles": dict(sorted(stored.items(), key=lambda item: int(item[0])))})
    return {count: base_novel_scores(stored[str(count)]["base"], stored[str(count)]["novel"]) for count in counts}


def _computed(context: Context, config: RunConfig, counts: Sequence[int]) -> dict[str, dict[str, dict[str, float]]]:
    task = config.task(context.root)
    posterior = load_trained(run_folder(config, context.runs), device=context.device, backbone=config.backbone)
    per_cycle = config.resolved()["inference"]["samples_per_cycle"]
    found: dict[str, dict[str, dict[str, float]]] = {str(count): {} for count in counts}
    for name, part in task.tests.items():
        prediction, labels = predict_part(bound_to(posterior, task, part), part), part_labels(part)
        for count in counts:
            first = prediction.per_sample[: count * per_cycle]  # of equal weights, as sampled
            found[str(count)][name] = scores(first.mean(0), labels)
    return found
