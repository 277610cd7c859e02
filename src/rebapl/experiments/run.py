"""A run: a configuration and a folder. Finished work is kept, broken work goes on where it was.

The folder holds `config.json`, `posterior/`, and after evaluation `results.json`; while it trains, a
`checkpoint.safetensors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from rebapl.backbones import DEFAULT_BACKBONE, DualEncoder, load_backbone
from rebapl.data.task import Task, load_task
from rebapl.errors import UserError
from rebapl.evaluation import base_novel_scores
from rebapl.experiments.training import Progress, Training, evaluate
from rebapl.experiments.uncertainty import diversity_on_test, diversity_record, fit_on_validation, score_outside
from rebapl.files import read_json, write_json
from rebapl.posterior import Posterior, load_posterior, save_posterior

CONFIG, POSTERIOR, RESULTS, CHECKPOINT = "config.json", "posterior", "results.json", "checkpoint.safetensors"


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run's numbers depend on, the machine aside."""

    data: str
    method: str = "coop"
    inference: str = "mle"
    protocol: str = "base-to-novel"
    shots: int = 16
    seed: int = 1
    backbone: str = DEFAULT_BACKBONE
    epochs: int | None = None
    test_images: int | None = None
    method_settings: Mapping[str, Any] = field(default_factory=dict)
    inference_settings: Mapping[str, Any] = field(default_factory=dict)

    def task(self) -> Task:
        return load_task(self.data, self.shots, self.seed, self.protocol, self.test_images)


def best_device(wanted: str | None = None) -> str:
    """The device asked for, or the GPU if there is one."""
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{wanted}' is not available here ({str(error).splitlines()[0]})") from error
    return wanted


def load_run_backbone(name: str, device: str) -> DualEncoder:
    """The backbone as runs use it: the frozen towers in bfloat16 on a GPU, float32 elsewhere."""
    return load_backbone(name, device, _run_dtype(device))


def _run_dtype(device: str) -> torch.dtype:
    return torch.bfloat16 if device.startswith("cuda") else torch.float32


def load_trained(path: Path, *, device: str | None = None, backbone: str | None = None) -> Posterior:
    """The posterior of a run folder, or in a posterior's own; `backbone` if that is not where it was in training."""
    folder = path / POSTERIOR if (path / CONFIG).exists() or (path / POSTERIOR).exists() else path
    if not folder.exists():
        if (path / CONFIG).exists():
            raise UserError(f"{path} is not trained yet: run the same `rebapl train` again and it goes on where it was")
        raise UserError(f"{path}: there is no such run or posterior")
    device = best_device(device)
    encoder = None if backbone is None else load_run_backbone(backbone, device)
    return load_posterior(folder, encoder, device, _run_dtype(device))


def train_run(config: RunConfig, out: Path, *, device: str | None = None, progress: Progress | None = None) -> bool:
    """Train a run in its folder; False if it was trained already. A folder of another configuration is refused."""
    if (out / CONFIG).exists():
        _refuse_another(config, out)
        if (out / POSTERIOR).exists():
            return False
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not a run of rebapl: choose another --out")
    device = best_device(device)
    task = config.task()
    encoder = load_run_backbone(config.backbone, device)
    training = Training(
        task,
        encoder,
        config.method,
        config.inference,
        epochs=config.epochs,
        method_settings=config.method_settings,
        inference_settings=config.inference_settings,
    )
    write_json(out / CONFIG, asdict(config))
    save_posterior(training.run(out / CHECKPOINT, progress), out / POSTERIOR)
    (out / CHECKPOINT).unlink(missing_ok=True)
    return True


def read_config(out: Path) -> RunConfig:
    """The configuration of a run folder."""
    raw = read_json(out / CONFIG, "a run")
    try:
        return RunConfig(**raw)
    except TypeError as error:
        raise UserError(f"{out / CONFIG} is not the configuration of this version ({error})") from error


def evaluate_run(
    out: Path,
    *,
    device: str | None = None,
    fit_weights: bool = False,
    fit_threshold: Mapping[str, Any] | None = None,
    outside: str | None = None,
) -> dict[str, Any]:
    """Score a trained run, store the result in `results.json` and return it: per part and, for base and novel, both.

    `fit_weights` and `fit_threshold` (`risk` or `coverage`, `by`) first fit these on the run's validation images and
    store them in the posterior. `outside` names a test part or a data set to be told from the trained classes.
    """
    config = read_config(out)
    posterior = load_trained(out, device=device, backbone=config.backbone)
    task = config.task()
    if fit_weights or fit_threshold:
        posterior = fit_on_validation(posterior, task, weights=fit_weights, **(fit_threshold or {}))
        save_posterior(posterior, out / POSTERIOR)
    parts = evaluate(posterior, task)
    results: dict[str, Any] = {"parts": parts}
    if {"base", "novel"} <= parts.keys():
        results["base_to_novel"] = base_novel_scores(parts["base"], parts["novel"])
    if len(posterior) > 1:
        results["diversity"] = diversity_record(diversity_on_test(posterior, task))
    if outside is not None:
        results["outside"] = {outside: score_outside(posterior, task, outside)}
    write_json(out / RESULTS, results)
    return results


def _refuse_another(config: RunConfig, out: Path) -> None:
    there = read_config(out)
    for name in (each.name for each in fields(RunConfig)):
        theirs, ours = getattr(there, name), getattr(config, name)
        if theirs != ours:
            raise UserError(
                f"{out} holds a run with {name} = {theirs!r}, not {ours!r}: choose another --out, or delete the folder"
            )
