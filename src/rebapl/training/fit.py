"""Training: from a task, a backbone, a method and an inference to a posterior."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.data.batches import LabelledImages, TrainBatches
from rebapl.data.dataset import Dataset
from rebapl.data.own import Picture, dataset_of
from rebapl.data.task import Task, load_task, task_of
from rebapl.errors import UserError
from rebapl.learners import Learner, build_learner
from rebapl.posterior import Posterior
from rebapl.randomness import generator
from rebapl.sampling import LOOPS, Inference, Loop
from rebapl.training.checkpoint import load_checkpoint, save_checkpoint
from rebapl.training.log import EVERY, read_log, write_log
from rebapl.training.resolution import ResolvedTraining, resolve_training, with_inference
from rebapl.training.tracking import Tracker

Progress = Callable[[int, int, float], None]
"""Called now and then with the steps done, the steps in all, and the latest loss."""

CHECKPOINT_SECONDS = 30
"""How many seconds of work an interruption may cost."""


class Training:
    """One training. The constructor checks and builds everything that it needs, and `run` does the work.

    If a `learner` is given, it is trained as it is. Otherwise a new one of the resolved method is built.
    """

    def __init__(
        self,
        task: Task,
        encoder: DualEncoder,
        resolved: ResolvedTraining,
        seed: int,
        learner: Learner[Any] | None = None,
    ) -> None:
        self.learner = learner or build_learner(
            resolved.method,
            encoder,
            task.train.class_names,
            task.dataset.template,
            generator(seed, "initialisation"),
            resolved.method_settings,
        )
        plain = resolved.plain()
        self.about = {
            "method": resolved.method,
            "method_settings": resolved.method_settings.plain(),
            "inference": plain["inference"],
            "crop_scale": plain["crop_scale"],
            "seed": seed,
            "data": task.dataset.name,
        }
        self.loop: Loop | None = None
        self.seconds = 0.0
        if resolved.inference is not None:
            self.loop = _build_loop(task, encoder, self.learner, resolved, resolved.inference, seed)

    def run(
        self,
        checkpoint: Path | None = None,
        progress: Progress | None = None,
        log: Path | None = None,
        tracker: Tracker | None = None,
    ) -> Posterior:
        """Train, and give the posterior.

        If the file `checkpoint` exists, the training goes on from it; the file is renewed while the training goes on.
        `log` names the file for the rows of the log, and `tracker` hears of them, too. Afterwards `seconds` says how
        long the training took, including the time before an interruption.
        """
        if self.loop is None:
            return Posterior.of(self.learner.eval(), [{}], self.about)
        before = self._resume(checkpoint)
        rows = [] if log is None else [row for row in read_log(log) if row["step"] < self.loop.steps_done]
        self.loop.record_every = 0 if log is None and tracker is None else EVERY
        start = saved = time.monotonic()
        try:
            while not self.loop.done:
                self.loop.step()
                if progress is not None:
                    progress(self.loop.steps_done, self.loop.steps_in_all, self.loop.last_loss)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self._write_log(rows, log, tracker)
                    if checkpoint is not None:
                        spent = before + time.monotonic() - start
                        save_checkpoint({"loop": self.loop.state_dict(), "seconds": spent}, checkpoint)
                    saved = time.monotonic()
        finally:
            self.seconds = before + time.monotonic() - start
            self._write_log(rows, log, tracker)
        return Posterior.of(self.learner.eval(), [sample.parameters for sample in self.loop.samples], self.about)

    def _resume(self, checkpoint: Path | None) -> float:
        """Go on from the checkpoint if there is one. Return the seconds that were spent before it was written."""
        if checkpoint is None or not checkpoint.exists():
            return 0.0
        assert self.loop is not None
        state = load_checkpoint(checkpoint)
        if not isinstance(state, dict) or state.keys() != {"loop", "seconds"}:
            raise UserError(f"{checkpoint} is of another version of rebapl: delete it to begin this run anew")
        self.loop.load_state_dict(state["loop"])
        return state["seconds"]

    def _write_log(self, rows: list[dict[str, float]], log: Path | None, tracker: Tracker | None) -> None:
        """Move what the loop has recorded to `rows`, and write them all. The tracker hears of the new ones."""
        assert self.loop is not None
        new = self.loop.rows()
        rows += new
        if tracker is not None:
            for row in new:
                tracker.log(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
        if log is not None:
            write_log(log, rows)


def fit(
    task_or_images: Task | Dataset | str | Sequence[Picture] | np.ndarray,
    encoder: DualEncoder | str,
    method: str | Learner[Any] = "coop",
    inference: str | Inference | None = None,
    *,
    labels: Sequence[int] | np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    template: str | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    method_settings: Mapping[str, Any] | None = None,
    inference_settings: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    tracker: Tracker | None = None,
) -> Posterior:
    """Learn the prompts of `method` from labelled images, by `inference`, or as the method was published if not given.

    The first argument is one of three things. It may be a `Task`. It may be a `Dataset` or the name of one; then all
    its classes are learned, from 16 images each. Or it may be a sequence of images (arrays, Pillow pictures or paths);
    then `labels` and `class_names` are needed, and all of these images are learned from. Label 2 stands for
    `class_names[2]`, and `template` has `{}` where the class name goes. A task or a data set has these itself.

    The other arguments are names or objects as well: a backbone, a learner that is bound to the class names of the
    task, an `Inference`. Settings that are not given are those that were published for the method, this protocol and
    this data set, and those of the preset. `epochs` takes the place of the published number, and the two mappings
    replace single settings. With a `checkpoint` path, interrupted work goes on where it was. A `tracker` hears of the
    loss and the like while the training goes on. Without a `seed`, that of the task is taken.

    >>> import numpy as np
    >>> pictures = np.random.default_rng(0).integers(256, size=(4, 64, 64, 3), dtype=np.uint8)
    >>> fit(pictures, "mini", "coop", epochs=1, labels=[0, 1, 0, 1], class_names=["cat", "dog"])
    Posterior(coop · mle, 1 sample, 2 classes, backbone mini)
    """
    task = _task(task_or_images, labels, class_names, template, seed)
    if isinstance(encoder, str):
        encoder = load_backbone(encoder)
    seed = task.seed if seed is None else seed
    if isinstance(method, Learner):
        resolved = _of_learner(method, inference, task, epochs, method_settings, inference_settings)
        return Training(task, encoder, resolved, seed, method).run(checkpoint, progress, tracker=tracker)
    resolved = resolve_training(
        method,
        inference,
        protocol=task.protocol,
        data=task.dataset.name,
        shots=task.shots,
        epochs=epochs,
        method_settings=method_settings,
        inference_settings=inference_settings,
    )
    return Training(task, encoder, resolved, seed).run(checkpoint, progress, tracker=tracker)


def _task(
    given: Task | Dataset | str | Sequence[Picture] | np.ndarray,
    labels: Sequence[int] | np.ndarray | None,
    class_names: Sequence[str] | None,
    template: str | None,
    seed: int | None,
) -> Task:
    """The task that was given, or the task of the data set or of the images that were given."""
    first = 1 if seed is None else seed
    if isinstance(given, Task | Dataset | str):
        if labels is not None or class_names is not None or template is not None:
            raise UserError("labels, class_names and template are for images: a task or a data set has its own")
        return given if isinstance(given, Task) else load_task(given, seed=first, protocol="few-shot")
    if not isinstance(given, np.ndarray | Sequence):
        raise UserError(
            f"fit learns from a task, a data set, the name of one, or images; a {type(given).__name__} was given"
        )
    if labels is None or class_names is None:
        raise UserError("images were given: give labels=[…], a number for each image, and class_names=[…] as well")
    return task_of(
        dataset_of(given, labels, class_names, **({} if template is None else {"template": template})), first
    )


def _of_learner(
    learner: Learner[Any],
    inference: str | Inference | None,
    task: Task,
    epochs: int | None,
    method_settings: Mapping[str, Any] | None,
    inference_settings: Mapping[str, Any] | None,
) -> ResolvedTraining:
    """The settings of a training whose learner was given as an object: its own, and an inference for its recipe."""
    if method_settings:
        raise UserError("a learner given as an object has its settings already: leave method_settings out")
    if list(learner.class_names) != list(task.train.class_names):
        raise UserError(
            f"the learner is bound to {len(learner.class_names)} class names, and the task trains on "
            f"{len(task.train.class_names)} others: give learner.bind(task.train.class_names, task.dataset.template)"
        )
    method = learner.method or type(learner).__name__
    return with_inference(
        method, learner.config, learner.recipe, learner.repels_per_image, inference, epochs, inference_settings
    )


def _build_loop(
    task: Task, encoder: DualEncoder, learner: Learner[Any], resolved: ResolvedTraining, inference: Inference, seed: int
) -> Loop:
    data = LabelledImages(task.dataset, task.train.items)
    batches = TrainBatches(data, encoder.preprocessing, inference.batch, resolved.crop_scale, seed, encoder.device)
    inference = inference.changed(batch=batches.batch)  # fewer where there are fewer images in all
    pool = _pool(data, batches, encoder, inference, seed)
    return LOOPS[inference.sampler.kind](
        learner.train(),
        inference,
        batches,
        num_data=len(data),
        steps_per_epoch=batches.steps_per_epoch,
        seed=seed,
        reference=pool,
        anchor=_anchor(learner, inference, pool),
        held_out=_held_out(task, encoder, inference),
    )


def _pool(
    data: LabelledImages, batches: TrainBatches, encoder: DualEncoder, inference: Inference, seed: int
) -> Tensor | None:
    """The pool of training images on which samples are compared, in random order; None where no images are."""
    size = inference.pool_size
    if size == 0:
        return None
    if inference.pool_view == "augmented":
        steps = min(math.ceil(size / batches.batch), batches.steps_per_epoch)
        return torch.cat([batches(step)[0] for step in range(steps)])[:size]
    order = torch.randperm(len(data), generator=generator(seed, "reference")).tolist()
    views = data.views(encoder.preprocessing, order[:size])
    return encoder.preprocessing.normalize(views).to(encoder.device)


def _anchor(learner: Learner[Any], inference: Inference, pool: Tensor | None) -> Tensor | None:
    """The features of the frozen model on the pool, in the space in which samples repel; None if it has none there."""
    settings = inference.repulsion
    if settings is None or settings.potential.scale is not None:
        return None
    space = settings.space or learner.repels_in
    return None if space is None else learner.frozen_cloud(space, pool)


def _held_out(task: Task, encoder: DualEncoder, inference: Inference) -> tuple[Tensor, Tensor] | None:
    """The validation images and labels if the number of cycles depends on them, or None."""
    if inference.adaptive is None:
        return None
    data = LabelledImages(task.dataset, task.val.items)
    return encoder.preprocessing.normalize(data.views(encoder.preprocessing)), data.labels
