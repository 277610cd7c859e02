"""A run: a configuration and a folder. Finished work is kept, and interrupted work goes on where it was.

The folder holds `config.json` (the settings as asked for, and as `resolved`), `environment.json`, `log.csv`,
`posterior/` and, if somebody's own images are trained on, `data.json`, which says what they were. Evaluation adds
`results.json`. While the run trains there is a `checkpoint.safetensors` and, as `checkpoint.previous.safetensors`, the
one before it. After a failure there is an `error.txt`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rebapl.backbones import load_backbone
from rebapl.data.catalogue import is_own, load_dataset
from rebapl.data.folds import ALL
from rebapl.data.identity import changes, recorded_images, touched
from rebapl.data.images import NO_IMAGES
from rebapl.data.task import TARGETS, target_splits
from rebapl.errors import UserError
from rebapl.evaluation.diversity import diversity_record
from rebapl.evaluation.tasks import (
    Predicted,
    diversity_on_test,
    evaluate,
    fit_on_validation,
    score_outside,
    target_settings,
)
from rebapl.files import finish_replacement, is_leftover, read_json, remove_leftovers, write_json
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.posterior.storage import is_stored
from rebapl.runs.backbone import KeptBackbone, LoadBackbone, best_device
from rebapl.runs.config import ResolvedRun, RunConfig, data_name, first_difference, with_full_paths
from rebapl.runs.cycles import CYCLES, cycle_file, cycle_folder, read_cycles
from rebapl.runs.environment import device_name, environment, peak_memory
from rebapl.runs.lock import alone_in
from rebapl.runs.results import RESULTS, PartScores, RunResult, Seconds, read_result, write_result
from rebapl.settings import SettingError
from rebapl.training import Progress, Training
from rebapl.training.checkpoint import Checkpoints, save_checkpoint
from rebapl.training.tracking import TrackedRun, check_trackers, flat, tracked

CONFIG, ENVIRONMENT, LOG, POSTERIOR = "config.json", "environment.json", "log.csv", "posterior"
CHECKPOINT, ERROR, DATA = "checkpoint.safetensors", "error.txt", "data.json"

__all__ = [
    "RESULTS",
    "Found",
    "Run",
    "RunConfig",
    "best_device",
    "complete_run",
    "config_as_json",
    "config_from_json",
    "data_changes",
    "evaluate_run",
    "find_runs",
    "finish_run",
    "folder_name",
    "is_finished",
    "is_trained",
    "missing_parts",
    "read_config",
    "run_folder",
    "scored_as",
    "train_cycle",
    "train_run",
]


def config_as_json(config: RunConfig) -> dict[str, Any]:
    """A configuration as plain values that JSON holds and that any working folder understands."""
    return with_full_paths(config).plain()


def config_from_json(content: Mapping[str, Any], source: str | Path) -> RunConfig:
    """Read the configuration that `config_as_json` gave, or that a `config.json` holds. Errors name it as `source`."""
    asked = {key: value for key, value in content.items() if key not in ("hash", "resolved")}
    try:
        return RunConfig(**{"data": None, **asked})
    except SettingError as error:
        raise UserError(f"{source} is not the configuration of this version ({error})") from error


def read_config(out: Path) -> RunConfig:
    """The configuration of a run folder, as it was asked for."""
    return config_from_json(read_json(out / CONFIG, "a run"), out / CONFIG)


_ANEW = "To train anew, choose another --out or delete that folder"


def run_folder(config: RunConfig, runs: Path) -> Path:
    """The folder of a run in `runs`. Its name says what the run is, and ends in the hash of all its resolved settings.

    >>> run_folder(RunConfig("digits", "maple", "rebapl", backbone="mini"), Path("runs")).name[:22]
    'digits-maple-rebapl-s1'
    """
    resolved = config.resolved()
    words = (
        folder_name(config.data),
        config.method,
        resolved.training.inference_name,
        f"s{config.seed}",
        resolved.hash(),
    )
    if is_own(config.data) and (there := sorted(runs.glob(f"*-{resolved.hash()}"))):
        return there[0]  # the same images may have been in a folder of another name
    return runs / "-".join(words)


def folder_name(data: str) -> str:
    """The name of a data set with only such characters as the name of a folder may have.

    >>> folder_name("my photos/")
    'my_photos'
    """
    return re.sub(r"[^\w.+]+", "_", data_name(data)).strip("_.") or "data"


def train_run(
    config: RunConfig,
    out: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    load: LoadBackbone = load_backbone,
    wait: bool = False,
    track: Sequence[str] = (),
) -> Posterior | None:
    """Train a run in its folder and return its posterior, or None if it was trained already.

    A folder that holds a run of another configuration is refused. `root` is the folder of data sets. `load` gives the
    backbone, perhaps one that is loaded already. If another process is at work in the folder, this is an error; with
    `wait`, it waits for that process instead. `track` names trackers that hear of the training, see `Tracker`.
    """
    check_trackers(track)
    if is_trained(config, out) and not Checkpoints(out / CHECKPOINT).there():
        return None
    device = best_device(device)
    task = config.task(root, keep_split=True)
    with _alone(out, wait=wait):
        if is_trained(config, out):
            _remove_unfinished(out)  # whoever trained it was killed before
            return None
        resolved, made_in = config.resolved(), environment(device)
        encoder = load(config.backbone_name, device)
        made_in["backbone"] = {"name": encoder.name, "revision": encoder.revision, "sha256": encoder.fingerprint}
        training = Training(task, encoder, resolved.training, config.seed)
        _write_config(config, resolved, out)
        write_json(out / ENVIRONMENT, made_in)
        if is_own(config.data) and not (out / DATA).exists():
            write_json(out / DATA, recorded_images(task.dataset, task.train.items))
        with tracked(track, _tracked_run(out)) as tracker:
            posterior = training.run(out / CHECKPOINT, progress, out / LOG, read_cycles(out), tracker)
        spent = {"training_seconds": training.seconds, "peak_memory": peak_memory(device)}
        write_json(out / ENVIRONMENT, {**made_in, **spent})
        del training  # what it kept on a GPU is free, even if something still holds this frame
        save_posterior(posterior, out / POSTERIOR)
        _remove_unfinished(out)
    return posterior


def _remove_unfinished(out: Path) -> None:
    """Remove what a trained run no longer needs: its checkpoints, and cycles that were sampled apart."""
    Checkpoints(out / CHECKPOINT).remove()
    shutil.rmtree(out / CYCLES, ignore_errors=True)


def train_cycle(
    config: RunConfig,
    out: Path,
    cycle: int,
    *,
    root: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    load: LoadBackbone = load_backbone,
    wait: bool = False,
) -> None:
    """Sample one cycle of a run by itself, as far as that is not done; `train_run` then takes it over.

    The cycle must not depend on the others, see `Inference.independent_cycles`. Arguments are those of `train_run`.
    """
    if is_trained(config, out) or cycle_file(out, cycle).exists():
        return
    device, task, folder = best_device(device), config.task(root, keep_split=True), cycle_folder(out, cycle)
    with alone_in(folder, wait=wait):
        if cycle_file(out, cycle).exists():
            return
        remove_leftovers(folder)
        resolved = config.resolved()
        training = Training(task, load(config.backbone_name, device), resolved.training, config.seed)
        if not (out / CONFIG).exists():
            _write_config(config, resolved, out)
        save_checkpoint(training.run_cycle(cycle, folder / CHECKPOINT, progress, folder / LOG), cycle_file(out, cycle))
        shutil.rmtree(folder, ignore_errors=True)


def _write_config(config: RunConfig, resolved: ResolvedRun, out: Path) -> None:
    write_json(out / CONFIG, {**config_as_json(config), "hash": resolved.hash(), "resolved": resolved.plain()})
    (out / NO_IMAGES).touch()  # a run among the photos that it learns from is no class


@contextlib.contextmanager
def _alone(out: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a run's folder, see `alone_in`, and put right what a killed process has left in it."""
    with alone_in(out, wait=wait):
        finish_replacement(out / POSTERIOR)
        remove_leftovers(out)
        yield


def evaluate_run(
    out: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    config: RunConfig | None = None,
    posterior: Posterior | None = None,
    fit_weights: bool = False,
    uniform_weights: bool = False,
    fit_threshold: Mapping[str, Any] | None = None,
    fit_conformal: float | None = None,
    outside: str | None = None,
    only_missing: bool = False,
    progress: Predicted | None = None,
    load: LoadBackbone = load_backbone,
    wait: bool = False,
    track: Sequence[str] = (),
) -> RunResult:
    """Score a trained run, store the result in `results.json` and return it.

    `config` is one that trains alike and asks for other parts, see `scored_as`: they are stored beside what is there;
    `only_missing` leaves out what is there already. `posterior` is what `train_run` has just given for this run on this
    device; without it, or if the folder holds another by now, it is read from there. `uniform_weights` first weights
    all samples alike; `fit_weights`, `fit_threshold` (`risk` or `coverage`, `by`) and `fit_conformal` (the level of
    prediction sets) first fit these on the run's validation images; all are stored in the posterior. `outside` names a
    test part, a data set or a folder of images to be told from the trained classes; scores of other ones stay.
    `progress` hears of the images of the test parts. `load`, `wait` and `track` are as in `train_run`.
    """
    check_trackers(track)
    if fit_weights and uniform_weights:
        raise UserError("weights are either fitted (--fit-weights) or uniform (--uniform-weights): give one of them")
    asked = read_config(out)
    config = asked if config is None else config
    if config.fold == ALL:
        raise UserError(
            f"{out} was learned from every image of its data, so there are none left to score it on; "
            f"`rebapl learn {config.data}` shows the estimate that was made with held-out images"
        )
    _refuse_other_training(asked, config, out)
    with _alone(out, wait=wait), tracked(track, _tracked_run(out)) as tracker:
        stored = read_result(out) if (out / RESULTS).exists() else RunResult(parts={})
        parts = missing_parts(stored, config) if only_missing else config.parts()
        if not parts:
            return stored
        device = best_device(device)
        if posterior is None or not is_stored(posterior, out / POSTERIOR):  # fitted by another process meanwhile
            posterior = load_posterior(out, load(config.backbone_name, device), device)
        task, start = config.task(root), time.perf_counter()
        if uniform_weights:
            posterior = posterior.with_uniform_weights()
        fitted = bool(fit_weights or fit_threshold or fit_conformal is not None)
        if fitted:
            posterior = fit_on_validation(
                posterior, task, weights=fit_weights, level=fit_conformal, **(fit_threshold or {})
            )
        if uniform_weights or fitted:
            save_posterior(posterior, out / POSTERIOR)
            stored = RunResult(parts={})  # what is there was scored with other predictions
        told_apart = {} if outside is None else {outside: score_outside(posterior, task, outside, root)}
        diversity: object = stored.diversity
        if len(posterior) > 1 and not (only_missing and diversity):
            diversity = diversity_record(diversity_on_test(posterior, task))
        result = stored.changed(
            parts={**stored.parts, **evaluate(posterior, task, parts, progress)},
            protocols={**stored.protocols, config.protocol: config.parts()},
            diversity=diversity,
            outside={**stored.outside, **told_apart},
            samples=len(posterior),
            weights=posterior.weights.tolist(),
            device=device_name(device),
        )
        spent = time.perf_counter() - start + ((stored.seconds.evaluation or 0.0) if only_missing else 0.0)
        result = result.changed(seconds=Seconds(training=_training_seconds(out), evaluation=spent))
        write_result(out, result)
        tracker.scores(result.numbers())
    return result


def _tracked_run(out: Path) -> TrackedRun:
    return TrackedRun(out.name, out, flat(_stored_settings(out)))


def _stored_settings(out: Path) -> Mapping[str, Any]:
    """Every setting that the run in `out` was begun with; an early version stored only those asked for."""
    return read_json(out / CONFIG, "a run").get("resolved") or read_config(out).resolved().plain()


def finish_run(
    config: RunConfig,
    runs: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train and evaluate a run in its folder in `runs`, as far as that is not done, and return the folder.

    Runs that train in the same way share a folder: the two transfer protocols train once, and each scores its own
    targets.
    """
    out = run_folder(config, runs)
    complete_run(config, out, root=root, device=device, progress=progress)
    return out


def complete_run(
    config: RunConfig,
    out: Path,
    *,
    score: bool = True,
    root: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    load: LoadBackbone | None = None,
    wait: bool = True,
    track: Sequence[str] = (),
) -> None:
    """Do what is missing of a run: train it in its folder and, unless `score` is false, evaluate it.

    The other arguments are as in `train_run`. When all is done, the record of an earlier failure is removed.
    """
    load = load or KeptBackbone()
    if not (score and is_finished(config, out)):
        posterior = train_run(
            config, out, root=root, device=device, progress=progress, load=load, wait=wait, track=track
        )
        if score:
            evaluate_run(
                out,
                root=root,
                device=device,
                config=config,
                posterior=posterior,
                only_missing=True,
                load=load,
                wait=wait,
                track=track,
            )
    (out / ERROR).unlink(missing_ok=True)


def is_finished(config: RunConfig, out: Path) -> bool:
    """Whether everything that a configuration asks for is scored in the folder of its run."""
    return (out / RESULTS).exists() and not missing_parts(read_result(out), config)


def missing_parts(result: RunResult, config: RunConfig) -> list[str]:
    """The parts that a configuration asks for and that a result lacks, or has only for other settings of the target."""
    there = result.parts
    return [name for name in config.parts() if name not in there or _stale(there[name], config, name)]


def _stale(part: PartScores, config: RunConfig, name: str) -> bool:
    if config.protocol not in TARGETS or name == "test":
        return False
    if part.split != target_splits(config.targets).get(name):
        return True
    source, target = data_name(config.data), data_name(name)
    settings = config.resolved().training.method_settings.plain()
    return part.target_settings != target_settings(config.method, settings, config.protocol, source, target)


def scored_as(config: RunConfig, protocol: str | None = None, targets: Sequence[str] | None = None) -> RunConfig:
    """The same configuration with another protocol, or with other targets of the same protocol.

    >>> cross = RunConfig("digits", protocol="cross-dataset", targets=["shapes"])
    >>> scored_as(cross, targets=["letters"]).parts()
    ['test', 'letters']
    """
    protocol = protocol or config.protocol
    kept = config.targets if protocol == config.protocol else None
    return config.changed(protocol=protocol, targets=kept if targets is None else tuple(targets))


def _refuse_other_training(trained: RunConfig, wanted: RunConfig, out: Path) -> None:
    if is_own(wanted.data) and not Path(wanted.data).expanduser().exists():
        raise UserError(
            f"{out} was trained on {wanted.data}, which is not there: if it has moved, say where with --data"
        )
    trained = trained.changed(data=wanted.data, backbone=wanted.backbone)
    if changed := data_changes(wanted, out):
        raise UserError(f"the images in {wanted.data} are not those that {out} was trained on: {changed}. {_ANEW}")
    if trained == wanted:
        return
    difference = first_difference(trained.resolved().plain(), wanted.resolved().plain())
    if difference:
        name, theirs, ours = difference
        raise UserError(
            f"{out} was trained for {trained.protocol} and cannot be scored as {wanted.protocol}: that trains with "
            f"{name} = {ours!r}, not {theirs!r}"
        )


def data_changes(config: RunConfig, out: Path) -> str | None:
    """What has changed of somebody's own images since the run in `out` was begun, in words, or None.

    `config.data` says where they are now. They may have moved: that is no change.
    """
    if not is_own(config.data) or not (out / DATA).exists():
        return None
    recorded, path = read_json(out / DATA, "a run"), Path(config.data).expanduser()
    begun_with = read_json(out / CONFIG, "a run").get("resolved", {}).get("data")
    if begun_with == config.resolved().data and not touched(recorded, path if path.is_dir() else path.parent):
        return None
    whole = config.fold is not None
    dataset = load_dataset(config.data, split=config.split, template=config.template, whole=whole)
    return changes(recorded, dataset)


def is_trained(config: RunConfig, out: Path) -> bool:
    """Whether a folder holds the trained run of this configuration. A folder with something else in it is refused."""
    if (out / CONFIG).exists():
        if changed := data_changes(config, out):
            raise UserError(f"the images in {config.data} have changed since {out} was begun: {changed}. {_ANEW}")
        difference = first_difference(_stored_settings(out), config.resolved().plain())
        if difference:
            name, theirs, ours = difference
            raise UserError(
                f"{out} holds a run with {name} = {theirs!r}, not {ours!r}: choose another --out, or delete the folder"
            )
        return (out / POSTERIOR).exists()
    if out.exists() and (
        not out.is_dir() or any(path.name != ERROR and not is_leftover(path) for path in out.iterdir())
    ):
        raise UserError(f"{out} exists and is not a run of rebapl: choose another --out")
    return False


def _training_seconds(out: Path) -> float | None:
    return read_json(out / ENVIRONMENT, "a run").get("training_seconds") if (out / ENVIRONMENT).exists() else None


@dataclasses.dataclass(frozen=True)
class Run:
    """One finished run: its folder, its settings as asked for and resolved, and its result."""

    folder: Path
    config: Mapping[str, Any]
    resolved: Mapping[str, Any]
    result: RunResult

    @property
    def protocols(self) -> Mapping[str, Sequence[str]]:
        """The parts that each protocol scored."""
        return self.result.protocols or {self.config.get("protocol", ""): list(self.result.parts)}


@dataclasses.dataclass(frozen=True)
class Found:
    """All finished runs in some folders, and the folders of runs that are not scored or not trained yet."""

    runs: Sequence[Run]
    unscored: Sequence[Path]
    untrained: Sequence[Path]


def find_runs(folders: Iterable[Path]) -> Found:
    """Find the runs in these folders, in the order of their names. A folder may also be that of a run itself."""
    runs: list[Run] = []
    unscored: list[Path] = []
    untrained: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder of runs: `rebapl train` makes one, `runs` unless told otherwise")
        for path in [folder] if (folder / CONFIG).exists() else sorted(folder.iterdir()):
            if not (path / CONFIG).exists():
                continue
            config = read_json(path / CONFIG, "a run")
            if (path / RESULTS).exists() and "resolved" in config:
                runs.append(Run(path, config, config["resolved"], read_result(path)))
            else:
                (unscored if (path / POSTERIOR).exists() else untrained).append(path)
    return Found(runs, unscored, untrained)
