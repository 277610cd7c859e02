"""A run: a configuration and a folder. Finished work is kept, broken work goes on where it was.

The folder holds `config.json` (as asked for, and `resolved`), `environment.json`, `log.csv`, `posterior/`, and after
evaluation `results.json`; while it trains, a `checkpoint.safetensors`.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.data.task import TARGETS, target_splits
from rebapl.errors import UserError
from rebapl.evaluation import base_novel_scores
from rebapl.evaluation.diversity import diversity_record
from rebapl.evaluation.tasks import diversity_on_test, evaluate, fit_on_validation, score_outside, target_settings
from rebapl.files import read_json, write_json
from rebapl.learners import published
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.runs.config import RunConfig, data_name, first_difference, hash_of, with_full_paths
from rebapl.runs.environment import device_name, environment
from rebapl.runs.lock import alone_in
from rebapl.training.fit import Progress, Training

CONFIG, ENVIRONMENT, LOG, POSTERIOR = "config.json", "environment.json", "log.csv", "posterior"
RESULTS, CHECKPOINT = "results.json", "checkpoint.safetensors"

__all__ = [
    "RunConfig",
    "best_device",
    "evaluate_run",
    "finish_run",
    "is_finished",
    "load_run_backbone",
    "load_trained",
    "missing_parts",
    "read_config",
    "run_folder",
    "scored_as",
    "train_run",
]


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


def run_folder(config: RunConfig, runs: Path) -> Path:
    """The folder of a run among others: what it is in words, and the hash of all its resolved settings.

    >>> run_folder(RunConfig("digits", "maple", "rebapl", backbone="mini"), Path("runs")).name[:22]
    'digits-maple-rebapl-s1'
    """
    resolved = config.resolved()
    data = re.sub(r"[^\w.+]+", "_", data_name(config.data)).strip("_.") or "data"
    words = (data, config.method, resolved["inference"]["name"], f"s{config.seed}", hash_of(resolved))
    return runs / "-".join(words)


def train_run(
    config: RunConfig,
    out: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    wait: bool = False,
) -> bool:
    """Train a run in its folder; False if it was trained already. A folder of another configuration is refused.

    `root` is the folder of data sets. Another process at work in the folder is refused, or with `wait` waited for.
    """
    resolved = config.resolved()
    if _is_trained(out, resolved):
        return False
    device = best_device(device)
    task = config.task(root)
    with alone_in(out, wait=wait):
        if _is_trained(out, resolved):
            return False
        training = Training(
            task,
            load_run_backbone(config.backbone, device),
            config.method,
            config.inference,
            epochs=config.epochs,
            method_settings=config.method_settings,
            inference_settings=config.inference_settings,
        )
        asked = dataclasses.asdict(with_full_paths(config))
        write_json(out / CONFIG, {**asked, "hash": hash_of(resolved), "resolved": resolved})
        write_json(out / ENVIRONMENT, environment(device))
        posterior = training.run(out / CHECKPOINT, progress, out / LOG)
        write_json(out / ENVIRONMENT, {**environment(device), "training_seconds": training.seconds})
        save_posterior(posterior, out / POSTERIOR)
        (out / CHECKPOINT).unlink(missing_ok=True)
    return True


def read_config(out: Path) -> RunConfig:
    """The configuration of a run folder, as it was asked for."""
    raw = read_json(out / CONFIG, "a run")
    asked = {key: value for key, value in raw.items() if key not in ("hash", "resolved")}
    try:
        return RunConfig(**asked)
    except TypeError as error:
        raise UserError(f"{out / CONFIG} is not the configuration of this version ({error})") from error


def evaluate_run(
    out: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    config: RunConfig | None = None,
    fit_weights: bool = False,
    fit_threshold: Mapping[str, Any] | None = None,
    outside: str | None = None,
    only_missing: bool = False,
    wait: bool = False,
) -> dict[str, Any]:
    """Score a trained run, store the result in `results.json` and return it: per part and, for base and novel, both.

    `config` is one that trains alike and asks for other parts, see `scored_as`: they are stored beside what is there;
    `only_missing` leaves out what is there already. `fit_weights` and `fit_threshold` (`risk` or `coverage`, `by`)
    first fit these on the run's validation images and store them in the posterior. `outside` names a test part or a
    data set to be told from the trained classes.
    """
    asked = read_config(out)
    config = asked if config is None else config
    _refuse_other_training(asked, config, out)
    with alone_in(out, wait=wait):
        stored = read_json(out / RESULTS, "a result") if (out / RESULTS).exists() else {}
        parts = missing_parts(stored, config) if only_missing else config.parts()
        if not parts:
            return stored
        device = best_device(device)
        posterior = load_trained(out, device=device, backbone=config.backbone)
        task, start = config.task(root), time.perf_counter()
        if fit_weights or fit_threshold:
            posterior = fit_on_validation(posterior, task, weights=fit_weights, **(fit_threshold or {}))
            save_posterior(posterior, out / POSTERIOR)
            stored = {}  # of other predictions
        results: dict[str, Any] = {**stored, "parts": {**stored.get("parts", {}), **evaluate(posterior, task, parts)}}
        results["protocols"] = {**stored.get("protocols", {}), config.protocol: config.parts()}
        if {"base", "novel"} <= results["parts"].keys():
            results["base_to_novel"] = base_novel_scores(results["parts"]["base"], results["parts"]["novel"])
        if len(posterior) > 1 and not (only_missing and "diversity" in stored):
            results["diversity"] = diversity_record(diversity_on_test(posterior, task))
        results.pop("outside", None)
        if outside is not None:
            results["outside"] = {outside: score_outside(posterior, task, outside, root)}
        results["samples"] = len(posterior)
        results["seconds"] = {
            "training": _training_seconds(out),
            "evaluation": time.perf_counter() - start + (_seconds(stored) if only_missing else 0.0),
        }
        results["device"] = device_name(device)
        write_json(out / RESULTS, results)
    return results


def finish_run(
    config: RunConfig,
    runs: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train and evaluate a run in its folder below `runs`, as far as that is not done; the folder.

    Runs that train alike share a folder: the two transfer protocols train once and score their targets side by side.
    """
    out = run_folder(config, runs)
    if is_finished(config, out):
        return out
    train_run(config, out, root=root, device=device, progress=progress, wait=True)
    evaluate_run(out, root=root, device=device, config=config, only_missing=True, wait=True)
    return out


def is_finished(config: RunConfig, out: Path) -> bool:
    """Whether everything that a configuration asks for is scored in the folder of its run."""
    return (out / RESULTS).exists() and not missing_parts(read_json(out / RESULTS, "a result"), config)


def missing_parts(results: Mapping[str, Any], config: RunConfig) -> list[str]:
    """The parts that a configuration asks for and results do not have, or have for other settings of the target."""
    there = results.get("parts", {})
    return [name for name in config.parts() if name not in there or _stale(there[name], config, name)]


def _stale(part: Mapping[str, Any], config: RunConfig, name: str) -> bool:
    if config.protocol not in TARGETS or name == "test":
        return False
    if part.get("split") != target_splits(config.targets).get(name):
        return True
    source, target = data_name(config.data), data_name(name)
    settings = {**published(config.method, config.protocol, source)[0], **config.method_settings}
    return part.get("target_settings", {}) != target_settings(config.method, settings, config.protocol, source, target)


def scored_as(config: RunConfig, protocol: str | None = None, targets: Sequence[str] | None = None) -> RunConfig:
    """The configuration with another protocol, or with other targets of the same.

    >>> cross = RunConfig("digits", protocol="cross-dataset", targets=["shapes"])
    >>> scored_as(cross, targets=["letters"]).parts()
    ['test', 'letters']
    """
    protocol = protocol or config.protocol
    kept = config.targets if protocol == config.protocol else None
    return dataclasses.replace(config, protocol=protocol, targets=kept if targets is None else tuple(targets))


def _refuse_other_training(trained: RunConfig, wanted: RunConfig, out: Path) -> None:
    if trained == wanted:
        return
    difference = first_difference(trained.resolved(), wanted.resolved())
    if difference:
        name, theirs, ours = difference
        raise UserError(
            f"{out} was trained for {trained.protocol} and cannot be scored as {wanted.protocol}: that trains with "
            f"{name} = {ours!r}, not {theirs!r}"
        )


def _is_trained(out: Path, resolved: Mapping[str, Any]) -> bool:
    """Whether the run of these settings is trained there; what else is there is refused."""
    if (out / CONFIG).exists():
        there = read_json(out / CONFIG, "a run").get("resolved") or read_config(out).resolved()
        difference = first_difference(there, resolved)
        if difference:
            name, theirs, ours = difference
            raise UserError(
                f"{out} holds a run with {name} = {theirs!r}, not {ours!r}: choose another --out, or delete the folder"
            )
        return (out / POSTERIOR).exists()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not a run of rebapl: choose another --out")
    return False


def _training_seconds(out: Path) -> float | None:
    return read_json(out / ENVIRONMENT, "a run").get("training_seconds") if (out / ENVIRONMENT).exists() else None


def _seconds(results: Mapping[str, Any]) -> float:
    return results.get("seconds", {}).get("evaluation", 0.0)
