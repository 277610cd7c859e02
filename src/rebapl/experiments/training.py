"""From a task, a backbone, a method and a kind of inference to a posterior; and from that to scores."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rebapl.backbones import DualEncoder
from rebapl.data.batches import LabelledImages, TrainBatches
from rebapl.data.task import Part, Task
from rebapl.evaluation import scores
from rebapl.experiments.checkpoint import load_checkpoint, save_checkpoint
from rebapl.learners import build_learner, published
from rebapl.posterior import Posterior
from rebapl.randomness import generator
from rebapl.sampling import SVGD, Chain, Inference, begin, preset

Progress = Callable[[int, int, float], None]
"""Called now and then with the steps done, the steps in all, and the latest loss."""

CHECKPOINT_SECONDS = 30
"""How much work an interruption may cost."""


def fit(
    task: Task,
    encoder: DualEncoder,
    method: str = "coop",
    inference: str = "mle",
    *,
    seed: int | None = None,
    epochs: int | None = None,
    method_settings: Mapping[str, Any] | None = None,
    inference_settings: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> Posterior:
    """Learn the prompts of `method` from the task's training images, by `inference`.

    Settings default to those the method was published with, for this protocol and data set; `epochs` (per cycle)
    and the two mappings override them. With a `checkpoint` path, interrupted work goes on where it was. `seed`
    defaults to the task's.
    """
    seed = task.seed if seed is None else seed
    settings, recipe = published(method, task.protocol, task.dataset.name)
    settings |= method_settings or {}
    learner = build_learner(
        method, encoder, task.train.class_names, task.dataset.template, generator(seed, "initialisation"), settings
    )
    about = {"method": method, "method_settings": settings, "seed": seed, "data": task.dataset.name}
    if not any(True for _ in learner.parameters()):
        return Posterior.of(learner.eval(), [{}], {**about, "inference": {"name": "none"}})
    changes = {**({} if epochs is None else {"epochs": epochs}), **(inference_settings or {})}
    chosen = preset(inference, recipe, method, **changes)
    data = LabelledImages(task.dataset, task.train.items)
    batches = TrainBatches(data, encoder.preprocessing, chosen.batch, recipe.crop_scale, seed, encoder.device)
    chain = begin(
        learner.train(),
        chosen,
        batches,
        num_data=len(data),
        steps_per_epoch=batches.steps_per_epoch,
        seed=seed,
        reference=_reference_images(data, encoder, chosen, seed),
        held_out=_held_out(task, encoder, chosen),
    )
    if checkpoint is not None and checkpoint.exists():
        chain.load_state_dict(load_checkpoint(checkpoint))
    _run(chain, checkpoint, progress)
    about["inference"] = {"name": inference, **dataclasses.asdict(chosen)}
    return Posterior.of(learner.eval(), [sample.parameters for sample in chain.samples], about)


def _run(chain: Chain | SVGD, checkpoint: Path | None, progress: Progress | None) -> None:
    saved = time.monotonic()
    while not chain.done:
        chain.step()
        if progress is not None:
            progress(chain.steps_done, chain.steps_in_all, chain.last_loss)
        if checkpoint is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
            save_checkpoint(chain.state_dict(), checkpoint)
            saved = time.monotonic()


def _reference_images(
    data: LabelledImages, encoder: DualEncoder, inference: Inference, seed: int
) -> torch.Tensor | None:
    """The pool of un-augmented training images that the repulsion compares features on, in random order."""
    if inference.repulsion is None:
        return None
    views = data.views(encoder.preprocessing)
    order = torch.randperm(len(views), generator=generator(seed, "reference"))
    return encoder.preprocessing.normalize(views[order[: inference.repulsion.pool_size]]).to(encoder.device)


def _held_out(task: Task, encoder: DualEncoder, inference: Inference) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The validation images and labels, where the number of cycles depends on them."""
    if inference.adaptive is None:
        return None
    data = LabelledImages(task.dataset, task.val.items)
    return encoder.preprocessing.normalize(data.views(encoder.preprocessing)), data.labels


def evaluate(posterior: Posterior, task: Task) -> dict[str, dict[str, float]]:
    """Scores of the posterior on each test part of a task: name → accuracy, nll, ece and number of images."""
    return {name: _evaluate_part(posterior, task, part) for name, part in task.tests.items()}


def _evaluate_part(posterior: Posterior, task: Task, part: Part) -> dict[str, float]:
    data = LabelledImages(task.dataset, part.items)
    views = data.views(posterior.learner.encoder.preprocessing)
    probabilities = posterior.bind(part.class_names, task.dataset.template).probabilities(views)
    return {**scores(probabilities, data.labels), "images": len(data)}
