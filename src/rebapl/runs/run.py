"""A run: a configuration in, a folder out. A `Job` describes a run for an engine; `run` does one directly.

Finished work is kept, and interrupted work continues where it stopped. `rebapl.runs.folder` describes the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from rebapl.backbones import DualEncoder
from rebapl.backbones.features import FOLDER, features_kept_in
from rebapl.data.catalogue import is_own
from rebapl.data.folds import ALL
from rebapl.data.identity import recorded_images
from rebapl.data.task import Task
from rebapl.errors import FailedError, UserError, printable, unknown
from rebapl.evaluation.corrupted import check_corruptible, score_corruptions
from rebapl.evaluation.tasks import (
    Predicted,
    diversity_on_test,
    evaluate,
    fit_on_validation,
    outside_part,
    score_outside,
)
from rebapl.files import alone_in, finish_replacement, is_leftover, remove_leftovers, write_json
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.posterior.views import check_views
from rebapl.runs.config import INDEPENDENT, RunConfig, hash_of, with_full_paths
from rebapl.runs.engine import Engine, LocalEngine
from rebapl.runs.folder import (
    CHECKPOINT,
    CONFIG,
    CYCLES,
    DATA,
    ENVIRONMENT,
    ERROR,
    LOG,
    POSTERIOR,
    add_scores_to_config,
    cycle_folder,
    is_finished,
    is_trained,
    missing_parts,
    note_checksum,
    read_config,
    read_environment,
    refuse_other_run,
    run_folder,
    stored_settings,
    write_config,
)
from rebapl.runs.jobs import OnEvent, Work, check_outcomes
from rebapl.runs.machine import (
    best_device,
    computing_with,
    device_name,
    environment,
    kept_backbone,
    peak_memory,
)
from rebapl.runs.results import RESULTS, RunResult, Seconds, read_result, write_result
from rebapl.sampling import Inference
from rebapl.training import Progress, Training
from rebapl.training.checkpoint import checkpoints_at
from rebapl.training.log import Tracker, check_trackers, read_log, track_rows, tracked, write_log

Predicting = Callable[[str], Predicted]
"""A function that is called before images are predicted, with a label for them such as `", corrupted"`, and returns the
function that is told how many of them are done."""

UNDONE_BY = {"weights": "uniform-weights", "temperature": "no-temperature"}
"""The options of `rebapl evaluate` that undo a fit."""


def run(
    config: RunConfig,
    out: Path | None = None,
    *,
    runs: Path = Path("runs"),
    score: bool = True,
    root: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    wait: bool = False,
    track: Sequence[str] = (),
) -> Path:
    """Train a run and, unless `score` is false, score it, and return its folder. Steps that are done are skipped.

    The folder is `out`, or one in `runs` that is named after the settings. A folder that holds a run of another
    configuration is refused. Runs that train in the same way share a folder: the two transfer protocols train once, and
    each scores its own targets. `root` is the folder of data sets. If another process works in the folder, an error is
    raised; with `wait`, this function waits for that process instead. `track` names the trackers that receive the
    values of the training and the scores (see `Tracker`). A run whose cycles were all sampled by jobs of their own (see
    `cycle_jobs`) takes these samples.
    """
    job = Job.of(config, runs, out=out, root=root, score=score, wait=wait, track=tuple(track))
    job.do(best_device(device), progress)
    return job.folder


def _has_unneeded_files(out: Path) -> bool:
    """Whether a folder has files that a trained run does not need: checkpoints, cycles, remains of a killed process."""
    unneeded = (*checkpoints_at(out / CHECKPOINT), out / CYCLES)
    return out.is_dir() and any(path in unneeded or is_leftover(path) for path in out.iterdir())


@contextlib.contextmanager
def _at_work(out: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a run's folder (see `alone_in`), and repair what a killed process has left there.

    Meanwhile the number of threads is the one with which the run was started, as stored in its environment, and
    features of images are stored in the folder of runs, where runs with the same images and backbone find them (see
    `features_of`).
    """
    with alone_in(out, wait=wait):
        finish_replacement(out / POSTERIOR)
        remove_leftovers(out)
        with computing_with(read_environment(out).get("threads")), features_kept_in(out.parent / FOLDER):
            yield


def evaluate_run(
    out: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    config: RunConfig | None = None,
    fits: Mapping[str, Mapping[str, Any]] | None = None,
    undo: Collection[str] = (),
    views: int | None = None,
    progress: Predicting | None = None,
    track: Sequence[str] = (),
) -> RunResult:
    """Score a trained run, store the result in `results.json` and return it.

    `config` is a configuration with the same training that requests other test parts (see `scored_as`). Their scores
    are added to the stored ones.

    Three arguments change the stored posterior before it is scored. `undo` removes the fitted `weights` or the fitted
    `temperature`, `fits` names what is fitted on the run's validation images (see `fit_on_validation`), and `views` is
    the number of views of an image over which answers are averaged (see `Posterior.with_views`). The stored scores of
    other parts, outside images and corruptions are kept, unless the answers change with the weights, the temperature or
    the views.

    `progress` is called with words for the images that are predicted next, `""` or `", corrupted"`, and returns the
    function that is called as they are predicted. `track` is as in `run`.
    """
    check_trackers(track)
    written, fits = read_config(out), fits or {}
    config = written if config is None else config
    if both := [name for name in fits if name in undo]:
        raise UserError(f"--fit-{both[0]} and --{UNDONE_BY[both[0]]} contradict each other: give one of them")
    for name in undo:
        if name not in UNDONE_BY:
            raise unknown("fit to undo", name, UNDONE_BY)
    _refuse_unscorable(config, out)
    # Data and backbone may have moved, and defaults may have changed: both configurations are resolved with today's.
    refuse_other_run(config, out, written.changed(data=config.data, backbone=config.backbone).resolved().settings)
    with _at_work(out, wait=False), tracked(track, out, stored_settings(out)) as tracker:
        return _score(out, config, best_device(device), root, tracker, fits, undo, views, progress=progress)


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """Turn an error that comes after the input was accepted from a refusal into the failure of the run."""
    try:
        yield
    except FailedError:
        raise
    except UserError as error:
        raise FailedError(str(error)) from error


def _refuse_unscorable(config: RunConfig, out: Path) -> None:
    """Refuse a run that has no images to be scored on, or whose images are not where they were."""
    config.corruptions_by_severity()  # refuses unknown names
    if config.fold == ALL:
        raise UserError(
            f"{out} was learned from every image of its data, so there are none left to score it on; "
            f"`rebapl learn {config.data}` shows the estimate that was made with held-out images"
        )
    if is_own(config.data) and not Path(config.data).expanduser().exists():
        raise UserError(
            f"{out} was trained on {config.data}, which is not there: if it has moved, say where with --data; "
            "if a plugin registers it, name that (rebapl --plugin MODULE evaluate …)"
        )


def _score(
    out: Path,
    config: RunConfig,
    device: str,
    root: Path | None,
    tracker: Tracker | None,
    fits: Mapping[str, Mapping[str, Any]] | None = None,
    undo: Collection[str] = (),
    views: int | None = None,
    *,
    posterior: Posterior | None = None,
    task: Task | None = None,
    only_missing: bool = False,
    progress: Predicting | None = None,
) -> RunResult:
    """Do what `evaluate_run` describes. The folder is locked.

    `posterior` and `task` are those of a run that was just trained, so that they need not be loaded. With
    `only_missing`, parts that have scores are skipped.
    """
    stored = read_result(out) if (out / RESULTS).exists() else RunResult(parts={})
    if only_missing and is_finished(config, out):
        return stored
    before = posterior or load_posterior(out, kept_backbone(config.backbone_name, device), device)
    task, posterior, start = task or config.task(root), before, time.perf_counter()
    if views is not None:
        check_views(views, pixels=task.dataset.features is None)
        posterior = posterior.with_views(views)
    if "weights" in undo:
        posterior = posterior.with_uniform_weights()
    if "temperature" in undo:
        posterior = posterior.with_temperature(1)
    posterior = fit_on_validation(posterior, task, fits or {})
    weights, temperature = posterior.weights.tolist(), posterior.temperature and posterior.temperature.value
    answers_by = {"weights": weights, "views": posterior.views, "temperature": temperature or 1.0}
    if any(getattr(stored, name) != value for name, value in answers_by.items()):
        (out / RESULTS).unlink(missing_ok=True)  # these scores belong to other answers
        stored = RunResult(parts={})
    if posterior is not before:
        save_posterior(posterior, out / POSTERIOR)
    parts, outside, corruptions = config.parts(), config.outside, config.corruptions_by_severity()
    if only_missing:
        parts, corruptions = missing_parts(stored, config), stored.lacking(corruptions)
        outside = tuple(name for name in outside if name not in stored.outside)
    scored = evaluate(posterior, task, parts, progress and progress(""))
    stored = stored.changed(parts={**stored.parts, **scored})
    outside_scores = score_outside(posterior, task, outside, root) if outside else {}
    by_corruption: dict[str, Mapping[str, object]] = {**stored.corruptions}
    if corruptions:
        moved = progress and progress(", corrupted")
        at = next((part.temperature for part in stored.parts.values()), None)
        for name, by_severity in score_corruptions(posterior, task, corruptions, at, moved).items():
            by_corruption[name] = {**by_corruption.get(name, {}), **by_severity}
    diversity = stored.diversity
    if len(posterior) > 1 and not (only_missing and diversity):
        diversity = diversity_on_test(posterior, task)
    names = dict.fromkeys([*stored.protocols.get(config.protocol, []), *config.parts()])
    earlier = (stored.seconds.evaluation or 0.0) if only_missing else 0.0
    result = stored.changed(
        **answers_by,
        protocols={**stored.protocols, config.protocol: list(names)},
        diversity=diversity,
        outside={**stored.outside, **outside_scores},
        corruptions=by_corruption,
        samples=len(posterior),
        device=device_name(device),
        run=hash_of(stored_settings(out)),
    )
    seconds = time.perf_counter() - start + earlier
    result = result.changed(seconds=Seconds(training=read_environment(out).get("training_seconds"), evaluation=seconds))
    write_result(out, result)
    if tracker is not None:
        tracker.scores(result.numbers())
    return result


Train = Callable[[Tracker | None], tuple[Posterior, float]]
"""A training that is ready to begin. It returns the posterior, and the seconds that it took."""


class Job(Work):
    """A run as a job for an engine: its folder, its configuration and, as `root`, the folder of data sets.

    `score`, `wait` and `track` are those of `run`.

    >>> job = Job.of(RunConfig("digits", "coop", backbone="mini"), Path("runs"))
    >>> Work.from_json(job.as_json()) == job
    True
    """

    config: RunConfig
    root: Path | None = None
    score: bool = True
    wait: bool = True
    track: tuple[str, ...] = ()
    noun: ClassVar[str] = "run"
    unit: ClassVar[str] = "step"

    @classmethod
    def of(cls, config: RunConfig, runs: Path, *, out: Path | None = None, **more: Any) -> Job:
        """Make the job for a configuration. Its folder is `out`, or one in `runs` that is named after the settings."""
        return cls(folder=out or run_folder(config, runs), config=with_full_paths(config), **more)

    @property
    def name(self) -> str:
        """The name of the run's folder; for a cycle or a fold of another run, it begins with the name of that run."""
        fold, folder = self.config.fold, self.folder
        if fold not in (None, ALL):
            return printable(f"{folder.parents[1].name} without {f'part {fold}' if '/' in fold else 'test images'}")
        if self.config.cycle is not None and folder.parent.name == CYCLES:
            return printable(f"{folder.parents[1].name}, cycle {self.config.cycle + 1}")
        return printable(folder.name)

    @property
    def kept_in(self) -> Path:
        """The folder of runs."""
        return self.folder.parent

    def is_done(self) -> bool:
        """Whether the folder has everything that the job makes."""
        done = is_finished(self.config, self.folder) if self.score else is_trained(self.config, self.folder)
        return done and not _has_unneeded_files(self.folder)

    def do(self, device: str, progress: Progress | None) -> None:
        """Train and score the run. Steps that are done are skipped. Bad input is refused before the folder exists."""
        check_trackers(self.track)
        config, out, task, train = self.config, self.folder, None, None
        if not self.is_done():
            trained_before, posterior = is_trained(config, out), None
            if self.score and (trained_before or config.fold == ALL):
                _refuse_unscorable(config, out)
            if not trained_before or (self.score and not is_finished(config, out)):
                task = config.task(self.root, keep_split=not trained_before)
                if config.corruptions:
                    check_corruptible(task)
                for name in config.outside:
                    outside_part(name, task, self.root)  # refuses an unknown name
            with _at_work(out, wait=self.wait):
                if task is not None and not is_trained(config, out):
                    train = self._begin(task, device, progress)
                with tracked(self.track, out, stored_settings(out)) as tracker, _failing():
                    if train is not None:
                        posterior = self._train(train, device, tracker)
                    del train  # frees the GPU memory of the training
                    for path in checkpoints_at(out / CHECKPOINT):
                        path.unlink(missing_ok=True)
                    shutil.rmtree(out / CYCLES, ignore_errors=True)
                    if self.score:
                        add_scores_to_config(config, out)
                        _score(
                            out, config, device, self.root, tracker, posterior=posterior, task=task, only_missing=True
                        )
        (out / ERROR).unlink(missing_ok=True)

    def _begin(self, task: Task, device: str, progress: Progress | None) -> Train:
        """Build what the training needs, which refuses bad input; then write the first files, and return the training.

        If all cycles were sampled by runs of their own, it is these that are joined. The folder is locked.
        """
        config, out = self.config, self.folder
        resolved, encoder = config.resolved(), kept_backbone(config.backbone_name, device)
        train: Train
        if cycles := self._sampled_cycles():
            train = functools.partial(_join, cycles, encoder, out / LOG)
        else:
            training, name = Training(task, encoder, resolved.training, config.seed), hash_of(resolved.settings)

            def train(tracker: Tracker | None) -> tuple[Posterior, float]:
                posterior = training.run(
                    out / CHECKPOINT, progress, out / LOG, name=name, tracker=tracker, cycle=config.cycle
                )
                return posterior, training.seconds

        write_config(config, resolved, out)
        about = {"name": encoder.name, "revision": encoder.revision, "sha256": encoder.fingerprint}
        surroundings = {"run": hash_of(resolved.settings), **environment(device), "backbone": about}
        threads = read_environment(out).get("threads", torch.get_num_threads())
        write_json(out / ENVIRONMENT, {**surroundings, "threads": threads})
        if is_own(config.data) and task.dataset.features is None and not (out / DATA).exists():
            write_json(out / DATA, recorded_images(task.dataset, task.train.items))
        return train

    def _train(self, train: Train, device: str, tracker: Tracker | None) -> Posterior:
        """Train, store the posterior and return it. The folder is locked."""
        posterior, seconds = train(tracker)
        more = {"training_seconds": seconds, "peak_memory": peak_memory(device)}
        write_json(self.folder / ENVIRONMENT, {**read_environment(self.folder), **more})
        if (self.folder / LOG).exists():  # a method that learns nothing has no log
            note_checksum(self.folder, LOG)
        save_posterior(posterior, self.folder / POSTERIOR)
        return posterior

    def _sampled_cycles(self) -> list[Path]:
        """The folders of the runs that each sampled one cycle of this run; empty unless all cycles are sampled."""
        inference = self.config.resolved().training.inference
        count = 0 if inference is None or self.config.cycle is not None else inference.independent_cycles
        folders = {cycle_folder(self.folder, cycle): self.config.changed(cycle=cycle) for cycle in range(count)}
        sampled = all((folder / CONFIG).exists() and is_trained(config, folder) for folder, config in folders.items())
        return list(folders) if sampled else []

    @functools.cached_property
    def _inference(self) -> Inference | None:
        """The inference of the run; None for a run of one cycle."""
        return self.config.resolved().training.inference if self.config.cycle is None else None

    def phase(self, done: int, total: int) -> str:
        """The cycle that a run has reached, in words. Empty if it samples only one.

        >>> five = Job.of(RunConfig("digits", "coop", "ensemble", inference_settings={"cycles": 5}), Path("runs"))
        >>> five.phase(45, 100), five.phase(100, 100)
        ('cycle 3 of 5', 'cycle 5 of 5')
        """
        inference = self._inference
        if inference is None or inference.cycles == 1:
            return ""
        epoch = done * inference.all_epochs / total
        chains, first = inference.chains, inference.first_epochs or inference.epochs
        complete = epoch // first if epoch < chains * first else chains + (epoch - chains * first) // inference.epochs
        return f"cycle {min(int(complete) // chains + 1, inference.cycles)} of {inference.cycles}"

    def place_for_error(self) -> Path | None:
        """A file in the folder of the run; None if the folder holds anything else than this run."""
        try:
            is_trained(self.config, self.folder)
        except (UserError, OSError):
            return None
        return self.folder / ERROR


def _join(cycles: Sequence[Path], encoder: DualEncoder, log: Path, tracker: Tracker | None) -> tuple[Posterior, float]:
    """The posterior with the samples of all cycles, each a run in its folder, and the seconds that they took.

    The rows of their logs are written to the file `log`, and the tracker receives them.
    """
    posteriors = [load_posterior(folder, encoder) for folder in cycles]
    samples = {name: torch.cat([each.samples[name] for each in posteriors]) for name in posteriors[0].samples}
    count = sum(map(len, posteriors))
    posterior = dataclasses.replace(posteriors[0], samples=samples, weights=torch.full((count,), 1 / count))
    rows = [row for folder in cycles for row in read_log(folder / LOG)]
    write_log(log, rows)
    if tracker is not None:
        track_rows(tracker, rows)
    return posterior, sum(read_environment(folder)["training_seconds"] for folder in cycles)


def cycle_jobs(job: Job) -> list[Job]:
    """A job for each cycle of a run, which is a run in a folder below that of the whole run.

    Runs with a single cycle, or whose cycles depend on one another, are refused.
    """
    inference = job.config.resolved().training.inference
    count = 1 if inference is None else inference.independent_cycles
    if count == 1:
        raise UserError(f"--cycles-apart is for several cycles that do not depend on one another: {INDEPENDENT}")
    parts = {cycle_folder(job.folder, cycle): job.config.changed(cycle=cycle) for cycle in range(count)}
    return [
        job.model_copy(update={"folder": folder, "config": config, "score": False, "track": ()})
        for folder, config in parts.items()
    ]


def run_all(
    configs: Sequence[RunConfig],
    runs: Path,
    *,
    root: Path | None = None,
    engine: Engine | None = None,
    on_event: OnEvent | None = None,
) -> list[Path]:
    """Train and score these runs, and return their folders. Steps that are done are skipped.

    `engine` decides where the runs are done; without one, they are done one at a time in this process. A run that fails
    does not stop the others: a `UserError` at the end names every failure, and a second call does only what is missing.
    """
    jobs = [Job.of(config, runs, root=root) for config in configs]
    check_outcomes(list((engine or LocalEngine()).run(jobs, on_event)))
    return [job.folder for job in jobs]
