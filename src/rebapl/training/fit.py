"""Training: from a task, a backbone, a method and an inference to a posterior."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.backbones.features import features_of
from rebapl.data.batches import FeatureBatches, LabelledImages, TrainBatches
from rebapl.data.dataset import Dataset
from rebapl.data.images import ImageLike
from rebapl.data.own_images import TEMPLATE, dataset_of
from rebapl.data.task import Task, load_task, task_of
from rebapl.errors import UserError
from rebapl.learnable import Conjugate
from rebapl.learners import Learner, build_learner, check_features
from rebapl.posterior import Posterior
from rebapl.posterior.views import check_views
from rebapl.randomness import generator
from rebapl.sampling import LOOPS, Inference, Loop
from rebapl.sampling.loop import cpu_copy
from rebapl.training.checkpoint import Progress, ResumableLoop
from rebapl.training.log import Tracker, Trackers
from rebapl.training.resolution import ResolvedTraining, default_backbone, resolve_training


class Training:
    """One training. The constructor checks and builds everything that it needs, and `run` does the work.

    If a `learner` is given, it is trained as it is. Otherwise a new learner of the resolved method is built.
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
        self.seed = seed
        self.loop: Loop | None = None
        self.drawn: list[dict[str, Tensor]] = [{}]
        if task.dataset.features is not None:
            check_features(self.learner, task.dataset.features)
            check_views(resolved.views, pixels=False)
        data, examples = LabelledImages(task.dataset, task.train.items), None
        # First, because it may decode the images, which are then at hand.
        self.images = "" if resolved.inference is None else data.fingerprint()
        begin = time.monotonic()
        if self.learner.learns_from_features or task.dataset.features is not None:
            of_images = features_of(encoder, data).to(encoder.device)
            data.forget()
            examples = self.learner.see(of_images, data.labels.to(encoder.device))
            if resolved.draws is not None:
                assert isinstance(self.learner, Conjugate)
                self.drawn = self.learner.draws(*examples, resolved.draws, generator(seed, "laplace"))
        self.seconds = time.monotonic() - begin
        if resolved.inference is not None:
            batches: TrainBatches | FeatureBatches
            size = resolved.inference.batch
            if examples is None:
                batches = TrainBatches(data, encoder.preprocessing, size, resolved.crop_scale, seed, encoder.device)
            else:
                batches = FeatureBatches(*examples, size, seed)
            self.loop = self._build_loop(task, data, batches, resolved.inference)

    def _build_loop(
        self, task: Task, data: LabelledImages, batches: TrainBatches | FeatureBatches, inference: Inference
    ) -> Loop:
        """The loop of this training.

        If samples repel each other, the frozen model's features on the pool set the scale of the repulsion, if the
        frozen model has features in that space. If cycles are adaptive, the loop gets the validation images.
        """
        inference = inference.changed(batch=batches.batch)  # smaller than requested if there are fewer images than that
        learner, preprocessing = self.learner.train(), self.learner.encoder.preprocessing
        pool, anchor, held_out = self._pool(data, batches, inference), None, None
        repulsion = inference.repulsion
        if repulsion is not None and repulsion.potential.scale is None:
            space = repulsion.space or learner.repels_in
            anchor = None if space is None else learner.frozen_cloud(space, pool)
        if inference.adaptive is not None:
            images = LabelledImages(task.dataset, task.val.items)
            held_out = preprocessing.normalize(images.views(preprocessing)), images.labels
        return LOOPS[inference.sampler.kind](
            learner,
            inference,
            batches,
            num_data=len(batches.labels),
            steps_per_epoch=batches.steps_per_epoch,
            seed=self.seed,
            reference=pool,
            anchor=anchor,
            held_out=held_out,
        )

    def _pool(
        self, data: LabelledImages, batches: TrainBatches | FeatureBatches, inference: Inference
    ) -> Tensor | None:
        """The pool of training images on which samples are compared, in random order; None if no images are compared.

        For a head, the pool holds the features of these images.
        """
        size, encoder = inference.pool_size, self.learner.encoder
        if size == 0:
            return None
        if inference.pool_view == "augmented":
            steps = min(math.ceil(size / batches.batch), batches.steps_per_epoch)
            return torch.cat([batches(step)[0] for step in range(steps)])[:size]
        order = torch.randperm(len(data), generator=generator(self.seed, "reference")).tolist()
        if isinstance(batches, FeatureBatches):
            return batches.features[order[:size]]
        views = data.views(encoder.preprocessing, order[:size])
        return encoder.preprocessing.normalize(views).to(encoder.device)

    def run(
        self,
        checkpoint: Path | None = None,
        progress: Progress | None = None,
        log: Path | None = None,
        *,
        name: str = "",
        tracker: Tracker | None = None,
        cycle: int | None = None,
    ) -> Posterior:
        """Train, and return the posterior.

        If the file `checkpoint` exists, the training goes on from it. During the training, new checkpoints replace it,
        and the one before the last is kept in the same folder. Ctrl-C, SIGTERM, SIGHUP and an interruption by
        `progress` write a checkpoint at once. `name` identifies the run: checkpoints of another run are refused. `log`
        is the file for the rows of the log, which `tracker` receives as well. If `cycle` is given, only this cycle is
        sampled, which must not depend on the others; `progress` then counts its steps. Afterwards `seconds` is how long
        the training took, including the time before an interruption.
        """
        fixed = cpu_copy(self.learner.fixed_parameters())
        if self.loop is None:
            return Posterior.of(self.learner.eval(), [{**fixed, **sample} for sample in self.drawn], self.about)
        begin, end = 0, self.loop.steps_in_all
        if cycle is not None:
            self.loop.begin_at(cycle)
            begin, end = (self.loop.schedule.timetable.start_of(each) for each in (cycle, cycle + 1))

        def of_cycle(done: int, _total: int, loss: float) -> None:
            if progress is not None:
                progress(done - begin, end - begin, loss)

        loop = ResumableLoop(self.loop, checkpoint, name or self._name(), self.images, log, tracker)
        loop.run_until(end, progress if cycle is None else of_cycle)
        self.seconds += loop.seconds
        self.learner.zero_grad()  # gradients lie in the memory of recorded passes, which is freed with them
        samples = [{**fixed, **sample.parameters} for sample in self.loop.samples]
        return Posterior.of(self.learner.eval(), samples, self.about)

    def _name(self) -> str:
        """A hash that identifies a training outside of a run, by its settings, class names, template and backbone."""
        names, template = self.learner.class_names, self.learner.template
        identity = [self.about, names, template, self.learner.encoder.fingerprint]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def fit(
    task_or_images: Task | Dataset | str | Sequence[ImageLike] | np.ndarray,
    backbone: DualEncoder | str | None = None,
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
    checkpoint: Path | str | None = None,
    progress: Progress | bool | None = None,
    tracker: Tracker | None = None,
) -> Posterior:
    """Learn prompts or a head from labelled images, and return the posterior.

    The first argument is one of three things. It may be a `Task`. It may be a `Dataset` or the name of one; then all
    its classes are learned, from 16 images each. Or it may be a sequence of images (arrays, Pillow pictures or paths);
    then `labels` and `class_names` are needed, and the method learns from all of these images. Label 2 stands for
    `class_names[2]`, and `template` has `{}` in place of the class name. A task or a data set has these itself.

    `backbone`, `method` and `inference` are names or objects: a `DualEncoder`, a `Learner` that is bound to the class
    names of the task, an `Inference`. Without a backbone, embedded tasks use `mini` and all others use CLIP ViT-B/16.
    Without an inference, the method is trained as it was published. Settings that are not given have the values that
    were published for this method, protocol and data set, and those of the preset. `epochs` replaces the published
    number, and the two mappings replace single settings. If the file `checkpoint` exists, the training goes on from it.
    A `tracker` receives the loss and other values during the training, and `progress=True` shows a bar. Without a
    `seed`, that of the task is used.

    >>> import numpy as np
    >>> pictures = np.random.default_rng(0).integers(256, size=(4, 64, 64, 3), dtype=np.uint8)
    >>> fit(pictures, "mini", "coop", labels=[0, 1, 0, 1], class_names=["cat", "dog"], epochs=1)
    Posterior(coop · mle, 1 sample, 2 classes, backbone mini)
    """
    task = _task(task_or_images, labels, class_names, template, seed)
    encoder = backbone or default_backbone(task.dataset)
    encoder = load_backbone(encoder) if isinstance(encoder, str) else encoder
    seed = task.seed if seed is None else seed
    learner = method if isinstance(method, Learner) else None
    if learner is not None and list(learner.class_names) != list(task.train.class_names):
        raise UserError(
            f"the learner is bound to {len(learner.class_names)} class names, and the task trains on "
            f"{len(task.train.class_names)} others: give learner.bind(task.train.class_names, task.dataset.template)"
        )
    resolved = resolve_training(
        method,
        inference,
        protocol=task.protocol,
        data=task.dataset.catalogue_name,
        shots=task.shots,
        epochs=epochs,
        method_settings=method_settings,
        inference_settings=inference_settings,
    )
    training = Training(task, encoder, resolved, seed, learner)
    path = None if checkpoint is None else Path(checkpoint)
    trackers = None if tracker is None else Trackers({type(tracker).__name__: tracker})
    with _shown(progress, resolved) as callback:
        return training.run(path, callback, tracker=trackers)


@contextlib.contextmanager
def _shown(progress: Progress | bool | None, resolved: ResolvedTraining) -> Iterator[Progress | None]:
    """`progress` itself if it is a callback. If it is true, a callback that moves a bar in a terminal or a notebook."""
    if progress is not True:
        yield progress or None
    else:
        from rich.progress import Progress as Bars

        with Bars() as bars:
            bar = bars.add_task(f"{resolved.method} · {resolved.inference_name}")
            yield lambda done, total, _: bars.update(bar, completed=done, total=total)


def _task(
    source: Task | Dataset | str | Sequence[ImageLike] | np.ndarray,
    labels: Sequence[int] | np.ndarray | None,
    class_names: Sequence[str] | None,
    template: str | None,
    seed: int | None,
) -> Task:
    """The task for the first argument of `fit`, which is a task, a data set or images."""
    seed = 1 if seed is None else seed
    if isinstance(source, Task | Dataset | str):
        if labels is not None or class_names is not None or template is not None:
            raise UserError("labels, class_names and template are for images: a task or a data set has its own")
        if isinstance(source, Task):
            return source
        return load_task(source, seed=seed, protocol="few-shot", keep_split=True)
    if not isinstance(source, np.ndarray | Sequence):
        raise UserError(
            f"fit learns from a task, a data set, the name of one, or images; a {type(source).__name__} was given"
        )
    if labels is None or class_names is None:
        raise UserError("images were given: give labels=[…], a number for each image, and class_names=[…] as well")
    return task_of(dataset_of(source, labels, class_names, TEMPLATE if template is None else template), seed)
