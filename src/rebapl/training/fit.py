"""From a task, a backbone, a method and a kind of inference to a posterior."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rebapl.backbones import DualEncoder
from rebapl.data.batches import LabelledImages, TrainBatches
from rebapl.data.task import Task
from rebapl.errors import UserError
from rebapl.learners import build_learner, published
from rebapl.posterior import Posterior
from rebapl.randomness import generator
from rebapl.runs.config import published_protocol, resolve_inference
from rebapl.sampling import SVGD, Chain, Inference, begin
from rebapl.training.checkpoint import load_checkpoint, save_checkpoint
from rebapl.training.log import EVERY, read_log, write_log

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
        settings, recipe = published(method, published_protocol(task.protocol), task.dataset.name)
        settings |= method_settings or {}
        chosen = resolve_inference(inference, recipe, method, epochs, inference_settings or {})
        self.learner = build_learner(
            method, encoder, task.train.class_names, task.dataset.template, generator(seed, "initialisation"), settings
        )
        self.about = {"method": method, "method_settings": settings, "seed": seed, "data": task.dataset.name}
        self.chain: Chain | SVGD | None = None
        self.seconds = 0.0
        if chosen is None:
            self.about["inference"] = {"name": "none"}
            return
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
            reference=_reference_images(data, batches, encoder, chosen, seed),
            held_out=_held_out(task, encoder, chosen),
        )

    def run(
        self, checkpoint: Path | None = None, progress: Progress | None = None, log: Path | None = None
    ) -> Posterior:
        """Train, going on from the checkpoint if there is one, and keeping one meanwhile; `log` gets the scalars.

        `seconds` is afterwards how long it took, whatever was done before an interruption included.
        """
        if self.chain is None:
            return Posterior.of(self.learner.eval(), [{}], self.about)
        before = self._resume(checkpoint)
        rows = [] if log is None else [row for row in read_log(log) if row["step"] < self.chain.steps_done]
        if log is not None and isinstance(self.chain, Chain):
            self.chain.record_every = EVERY
        start = saved = time.monotonic()
        try:
            while not self.chain.done:
                self._note_svgd(rows)
                self.chain.step()
                if progress is not None:
                    progress(self.chain.steps_done, self.chain.steps_in_all, self.chain.last_loss)
                if checkpoint is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self._write_log(rows, log)
                    spent = before + time.monotonic() - start
                    save_checkpoint({"chain": self.chain.state_dict(), "seconds": spent}, checkpoint)
                    saved = time.monotonic()
        finally:
            self.seconds = before + time.monotonic() - start
            self._write_log(rows, log)
        return Posterior.of(self.learner.eval(), [sample.parameters for sample in self.chain.samples], self.about)

    def _resume(self, checkpoint: Path | None) -> float:
        """Go on from the checkpoint, if there is one; the seconds spent until then."""
        if checkpoint is None or not checkpoint.exists():
            return 0.0
        assert self.chain is not None
        state = load_checkpoint(checkpoint)
        if not isinstance(state, dict) or state.keys() != {"chain", "seconds"}:
            raise UserError(f"{checkpoint} is of another version of rebapl: delete it to begin this run anew")
        self.chain.load_state_dict(state["chain"])
        return state["seconds"]

    def _write_log(self, rows: list[dict[str, float]], log: Path | None) -> None:
        """Move what the chain has recorded to `rows`, and write them all."""
        assert self.chain is not None
        if isinstance(self.chain, Chain):
            each, chains = self.chain.schedule.steps_per_cycle, self.chain.inference.chains
            for row in self.chain.diagnostics.rows():
                cycle, chain = divmod(int(row["step"]) // each, chains)
                rows.append({**row, "cycle": cycle, "chain": chain})
            self.chain.diagnostics.clear()
        if log is not None:
            write_log(log, rows)

    def _note_svgd(self, rows: list[dict[str, float]]) -> None:
        """Particles that move together keep no record of their own: their mean loss as last looked at."""
        if isinstance(self.chain, SVGD) and self.chain.steps_done % EVERY == 0:
            loss = {} if math.isnan(self.chain.last_loss) else {"loss": self.chain.last_loss}
            rows.append({"step": self.chain.steps_done, "cycle": 0, "lr": self.chain.schedule.lr, **loss})


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
    data: LabelledImages, batches: TrainBatches, encoder: DualEncoder, inference: Inference, seed: int
) -> torch.Tensor | None:
    """The pool of training images that the repulsion compares features on, in random order."""
    if inference.repulsion is None:
        return None
    size = inference.repulsion.pool_size
    if inference.repulsion.augmented:
        steps = min(math.ceil(size / batches.batch), batches.steps_per_epoch)
        return torch.cat([batches(step)[0] for step in range(steps)])[:size]
    order = torch.randperm(len(data), generator=generator(seed, "reference")).tolist()
    views = data.views(encoder.preprocessing, order[:size])
    return encoder.preprocessing.normalize(views).to(encoder.device)


def _held_out(task: Task, encoder: DualEncoder, inference: Inference) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The validation images and labels, where the number of cycles depends on them."""
    if inference.adaptive is None:
        return None
    data = LabelledImages(task.dataset, task.val.items)
    return encoder.preprocessing.normalize(data.views(encoder.preprocessing)), data.labels
