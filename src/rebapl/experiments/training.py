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
from rebapl.evaluation import prediction_scores
from rebapl.experiments.checkpoint import load_checkpoint, save_checkpoint
from rebapl.learners import build_learner, published
from rebapl.posterior import Posterior
from rebapl.randomness import generator
from rebapl.sampling import SVGD, Chain, Inference, begin, preset

Progress = Callable[[int, int, float], None]
"""Called now and then with the steps done, the steps in all, and the latest loss."""

CHECKPOINT_SECONDS = 30
"""How much work an interruption may cost."""


class Training:
    """Everything that `fit` needs, checked and built before any work starts; `run` does the work."""

    def __init__(
        self,
        task: Task,
        encoder: DualEncoder,
        method: str = "coop",
        inference: str = "mle",
        *,
        seed: int | None = None,
        epochs: int | None = None,
        method_settings: Mapping[str, Any] | None = None,
        inference_settings: Mapping[str, Any] | None = None,
    ) -> None:
        seed = task.seed if seed is None else seed
        settings, recipe = published(method, task.protocol, task.dataset.name)
        settings |= method_settings or {}
        changes = {**({} if epochs is None else {"epochs": epochs}), **(inference_settings or {})}
        self.learner = build_learner(
            method, encoder, task.train.class_names, task.dataset.template, generator(seed, "initialisation"), settings
        )
        self.about = {"method": method, "method_settings": settings, "seed": seed, "data": task.dataset.name}
        self.chain: Chain | SVGD | None = None
        if not any(True for _ in self.learner.parameters()):
            self.about["inference"] = {"name": "none"}
            return
        chosen = preset(inference, recipe, method, **changes)
        self.about["inference"] = {"name": inference, **dataclasses.asdict(chosen)}
        data = LabelledImages(task.dataset, task.train.items)
        batches = TrainBatches(data, encoder.preprocessing, chosen.batch, recipe.crop_scale, seed, encoder.device)
        self.chain = begin(
            self.learner.train(),
            chosen,
            batches,
            num_data=len(data),
            steps_per_epoch=batches.steps_per_epoch,
            seed=seed,
            reference=_reference_images(data, encoder, chosen, seed),
            held_out=_held_out(task, encoder, chosen),
        )

    def run(self, checkpoint: Path | None = None, progress: Progress | None = None) -> Posterior:
        """Train, going on from the checkpoint if there is one, and keeping one meanwhile."""
        if self.chain is None:
            return Posterior.of(self.learner.eval(), [{}], self.about)
        if checkpoint is not None and checkpoint.exists():
            self.chain.load_state_dict(load_checkpoint(checkpoint))
        saved = time.monotonic()
        while not self.chain.done:
            self.chain.step()
            if progress is not None:
                progress(self.chain.steps_done, self.chain.steps_in_all, self.chain.last_loss)
            if checkpoint is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                save_checkpoint(self.chain.state_dict(), checkpoint)
                saved = time.monotonic()
        return Posterior.of(self.learner.eval(), [sample.parameters for sample in self.chain.samples], self.about)


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
    training = Training(
        task,
        encoder,
        method,
        inference,
        seed=seed,
        epochs=epochs,
        method_settings=method_settings,
        inference_settings=inference_settings,
    )
    return training.run(checkpoint, progress)


def _reference_images(
    data: LabelledImages, encoder: DualEncoder, inference: Inference, seed: int
) -> torch.Tensor | None:
    """The pool of un-augmented training images that the repulsion compares features on, in random order."""
    if inference.repulsion is None:
        return None
    order = torch.randperm(len(data), generator=generator(seed, "reference")).tolist()
    views = data.views(encoder.preprocessing, order[: inference.repulsion.pool_size])
    return encoder.preprocessing.normalize(views).to(encoder.device)


def _held_out(task: Task, encoder: DualEncoder, inference: Inference) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The validation images and labels, where the number of cycles depends on them."""
    if inference.adaptive is None:
        return None
    data = LabelledImages(task.dataset, task.val.items)
    return encoder.preprocessing.normalize(data.views(encoder.preprocessing)), data.labels


def evaluate(posterior: Posterior, task: Task) -> dict[str, dict[str, Any]]:
    """Scores of the posterior on each test part of a task: name → accuracy, nll, ece …; see `prediction_scores`."""
    return {name: _evaluate_part(posterior, task, part) for name, part in task.tests.items()}


def _evaluate_part(posterior: Posterior, task: Task, part: Part) -> dict[str, Any]:
    views, labels = part_views(posterior, task, part)
    prediction = posterior.bind(part.class_names, task.dataset.template).predict_views(views)
    return prediction_scores(prediction, labels)


def part_views(posterior: Posterior, task: Task, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
    """The test-time views, uint8 (N, 3, H, W), and labels (N,) of a part, as the posterior's backbone wants them."""
    data = LabelledImages(task.dataset, part.items)
    return data.views(posterior.learner.encoder.preprocessing), data.labels
