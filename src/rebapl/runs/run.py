"""A run: a configuration in, a folder out. A `Job` is one, as a piece of work for an engine; `run` does one at once.

Finished work is kept, and interrupted work goes on where it was. What the folder holds is told in `rebapl.runs.folder`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from rebapl.backbones.features import FOLDER, features_kept_in
from rebapl.data.catalogue import is_own
from rebapl.data.folds import ALL
from rebapl.data.identity import recorded_images
from rebapl.data.task import Task
from rebapl.errors import UserError, printable
from rebapl.evaluation.corrupted import check_corruptible, score_corruptions
from rebapl.evaluation.tasks import (
    Predicted,
    diversity_on_test,
    evaluate,
    fit_on_validation,
    outside_part,
    score_outside,
)
from rebapl.files import alone_in, finish_replacement, is_leftover, remove_leftovers, sha256, write_json
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.posterior.storage import is_stored
from rebapl.posterior.views import check_views
from rebapl.runs.config import RunConfig, hash_of, with_full_paths
from rebapl.runs.engine import Engine, LocalEngine
from rebapl.runs.folder import (
    CHECKPOINT,
    CYCLES,
    DATA,
    ENVIRONMENT,
    ERROR,
    LOG,
    POSTERIOR,
    cycle_file,
    cycle_folder,
    is_finished,
    is_trained,
    missing_parts,
    read_config,
    read_cycles,
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
from rebapl.training.checkpoint import checkpoints_at, save_checkpoint
from rebapl.training.log import check_trackers, tracked


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
    cycle: int | None = None,
    track: Sequence[str] = (),
) -> Path:
    """Do what is missing of a run, and return its folder: train it and, unless `score` is false, score it.

    The folder is `out`, or one in `runs` that is named after the settings. A folder that holds a run of another
    configuration is refused. Runs that train in the same way share a folder: the two transfer protocols train once, and
    each scores its own targets. `root` is the folder of data sets. If another process is at work in the folder, this is
    an error; with `wait`, it waits for that process instead. `track` names trackers that hear of the training and the
    scores, see `Tracker`.

    If `cycle` is given, only this cycle is sampled, in a folder below that of the run, and the run takes it over later.
    The cycle must not depend on the others, see `Inference.independent_cycles`.
    """
    out = out or run_folder(config, runs)
    folder = out if cycle is None else cycle_folder(out, cycle)
    Job(folder, config, root, score, wait, cycle, tuple(track)).do(best_device(device), progress)
    return out


def _unfinished(out: Path) -> bool:
    """Whether there is something that a trained run no longer needs: checkpoints, cycles, leftovers of a kill."""
    unneeded = (*checkpoints_at(out / CHECKPOINT), out / CYCLES)
    return out.is_dir() and any(path in unneeded or is_leftover(path) for path in out.iterdir())


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
    task: Task | None = None,
    fits: Mapping[str, Mapping[str, Any]] | None = None,
    undo: Collection[str] = (),
    views: int | None = None,
    only_missing: bool = False,
    progress: Predicted | None = None,
    wait: bool = False,
    track: Sequence[str] = (),
) -> RunResult:
    """Score a trained run, store the result in `results.json` and return it.

    `config` is one that trains alike and asks for other parts, see `scored_as`: they are stored beside what is there;
    `only_missing` leaves out what is there already. `posterior` is the one that was just trained, and `task` that of
    `config`; a posterior that is not the folder's own is read from there. `views` is over how many views of an image
    answers average from now on, see `Posterior.with_views`. `undo` first takes back the fit of `weights` or of the
    `temperature`, and `fits` has what is first fitted on the run's validation images, see `fit_on_validation`; all this
    is stored in the posterior. Scores of other parts, outside images and corruptions stay, unless the answers change
    with the weights, the temperature or the views. `progress` hears of the images of the test parts. `wait` and `track`
    are as in `run`. Features of test images are kept beside the run, for others that see the same images through the
    same backbone; see `features_of`.
    """
    check_trackers(track)
    asked = read_config(out)
    config = asked if config is None else config
    spoiled, fits = config.corruptions_by_severity(), fits or {}
    if both := [name for name in fits if name in undo]:
        raise UserError(f"{both[0]}: either fitted (--fit-{both[0]}) or taken back: give one of them")
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
    # Data and backbone may have moved, and defaults may have changed since: both are resolved as they are now.
    refuse_other_run(config, out, asked.changed(data=config.data, backbone=config.backbone).resolved().settings)
    threads, settings = read_environment(out).get("threads"), stored_settings(out)
    with (
        _alone(out, wait=wait),
        computing_with(threads),
        features_kept_in(out.parent / FOLDER),
        tracked(track, out, settings) as tracker,
    ):
        stored = read_result(out) if (out / RESULTS).exists() else RunResult(parts={})
        parts = missing_parts(stored, config) if only_missing else config.parts()
        outside = [name for name in config.outside if not (only_missing and name in stored.outside)]
        spoiled = stored.lacking(spoiled) if only_missing else spoiled
        if not parts and not outside and not spoiled:
            return stored
        device = best_device(device)
        if posterior is None or not is_stored(posterior, out / POSTERIOR):  # fitted by another process meanwhile
            posterior = load_posterior(out, kept_backbone(config.backbone_name, device), device)
        task, start = task or config.task(root), time.perf_counter()
        before = posterior
        if views is not None:
            check_views(views, pixels=task.dataset.features is None)
            posterior = posterior.with_views(views)
        if "weights" in undo:
            posterior = posterior.with_uniform_weights()
        if "temperature" in undo:
            posterior = posterior.with_temperature(1)
        posterior = fit_on_validation(posterior, task, fits)
        if not posterior.answers_as(before):
            (out / RESULTS).unlink(missing_ok=True)  # which were scored with other answers
            stored = RunResult(parts={})
        if posterior is not before:
            save_posterior(posterior, out / POSTERIOR)
        told_apart = score_outside(posterior, task, outside, root) if outside else {}
        by_corruption: dict[str, Mapping[str, object]] = {**stored.corruptions}
        for name, found in (score_corruptions(posterior, task, spoiled, progress) if spoiled else {}).items():
            by_corruption[name] = {**by_corruption.get(name, {}), **found}
        diversity = stored.diversity
        if len(posterior) > 1 and not (only_missing and diversity):
            diversity = diversity_on_test(posterior, task)
        added = [name for name in config.parts() if name not in stored.protocols.get(config.protocol, [])]
        result = stored.changed(
            parts={**stored.parts, **evaluate(posterior, task, parts, progress)},
            protocols={**stored.protocols, config.protocol: [*stored.protocols.get(config.protocol, []), *added]},
            diversity=diversity,
            outside={**stored.outside, **told_apart},
            corruptions=by_corruption,
            samples=len(posterior),
            weights=posterior.weights.tolist(),
            views=posterior.views,
            temperature=1.0 if posterior.temperature is None else posterior.temperature.value,
            device=device_name(device),
            run=hash_of(settings),
        )
        spent = time.perf_counter() - start + ((stored.seconds.evaluation or 0.0) if only_missing else 0.0)
        seconds = Seconds(training=read_environment(out).get("training_seconds"), evaluation=spent)
        result = result.changed(seconds=seconds)
        write_result(out, result)
        if tracker is not None:
            tracker.scores(result.numbers())
    return result


AnyJob = TypeVar("AnyJob", bound="Job")


@dataclasses.dataclass(frozen=True)
class Job(Work):
    """A run as a piece of work for an engine: its folder, its configuration, the folder of data sets.

    `score`, `wait`, `cycle` and `track` are those of `run`. The folder of a job for one cycle
    lies below that of the run, see `cycle_jobs`.

    >>> job = Job.of(RunConfig("digits", "coop", backbone="mini"), Path("runs"))
    >>> Work.from_json(job.as_json()) == job
    True
    """

    config: RunConfig
    root: Path | None = None
    score: bool = True
    wait: bool = True
    cycle: int | None = None
    track: tuple[str, ...] = ()
    noun: ClassVar[str] = "run"
    unit: ClassVar[str] = "step"

    @classmethod
    def of(cls, config: RunConfig, runs: Path, *, out: Path | None = None, **more: Any) -> Job:
        """Make the job of a configuration. Its folder is `out`, or one in `runs` named after its settings."""
        return cls(out or run_folder(config, runs), config, **more)

    def absolute(self: AnyJob) -> AnyJob:
        """The same for a process that works in another folder."""
        return dataclasses.replace(super().absolute(), config=with_full_paths(self.config))

    @property
    def run_folder(self) -> Path:
        """The folder of the run. That of a job for a cycle lies below it."""
        return self.folder if self.cycle is None else self.folder.parents[1]

    @property
    def name(self) -> str:
        """The name of its folder, which cycle it is, or what it leaves out of the data."""
        fold, folder = self.config.fold, self.run_folder
        if fold not in (None, ALL):
            return printable(f"{folder.parents[1].name} without {f'part {fold}' if '/' in fold else 'test images'}")
        return printable(folder.name) + ("" if self.cycle is None else f", cycle {self.cycle + 1}")

    @property
    def kept_in(self) -> Path:
        """The folder of runs."""
        return self.folder.parent

    def is_done(self) -> bool:
        """Whether the folder has everything that the job asks for."""
        if self.cycle is not None or not self.score:
            done = is_trained(self.config, self.run_folder, self.cycle)
        else:
            done = is_finished(self.config, self.folder)
        return done and (self.cycle is not None or not _unfinished(self.folder))

    def do(self, device: str, progress: Progress | None) -> None:
        """Train and score the run, or sample the cycle, as far as that is not done."""
        check_trackers(self.track)
        config, out, task, posterior = self.config, self.run_folder, None, None
        if not self.is_done():
            if not is_trained(config, out, self.cycle):
                task = config.task(self.root, keep_split=True)
                if config.corruptions:
                    check_corruptible(task)
                for name in config.outside:
                    outside_part(name, task, self.root)  # refuses a wrong name before the training
            if task is not None or (self.cycle is None and _unfinished(out)):
                with _alone(self.folder, wait=self.wait):
                    if task is not None and not is_trained(config, out, self.cycle):
                        posterior = self._train(task, device, progress)
                    if self.cycle is None:
                        for path in checkpoints_at(out / CHECKPOINT):
                            path.unlink(missing_ok=True)
                        shutil.rmtree(out / CYCLES, ignore_errors=True)
            if self.score and self.cycle is None:
                evaluate_run(
                    out,
                    root=self.root,
                    device=device,
                    config=config,
                    posterior=posterior,
                    task=task,
                    only_missing=True,
                    wait=self.wait,
                    track=self.track,
                )
        if self.cycle is None:
            (out / ERROR).unlink(missing_ok=True)

    def _train(self, task: Task, device: str, progress: Progress | None) -> Posterior | None:
        """Train the run, whose folder is locked, and store and return its posterior; or store its cycle.

        It computes with the number of threads that the run began with, which the environment holds.
        """
        config, out = self.config, self.run_folder
        resolved, encoder = config.resolved(), kept_backbone(config.backbone_name, device)
        name, threads = hash_of(resolved.settings), read_environment(out).get("threads", torch.get_num_threads())
        about = {"name": encoder.name, "revision": encoder.revision, "sha256": encoder.fingerprint}
        made_in = {"run": name, **environment(device), "threads": threads, "backbone": about}
        with computing_with(threads):
            training = Training(task, encoder, resolved.training, config.seed, features=out.parent / FOLDER)
            write_config(config, resolved, out)
            write_json(out / ENVIRONMENT, made_in)
            if is_own(config.data) and task.dataset.features is None and not (out / DATA).exists():
                write_json(out / DATA, recorded_images(task.dataset, task.train.items))
            if self.cycle is not None:
                done = training.run_cycle(self.cycle, self.folder / CHECKPOINT, progress, self.folder / LOG, name=name)
                save_checkpoint(done, cycle_file(out, self.cycle))
                shutil.rmtree(self.folder, ignore_errors=True)
                return None
            cycles = read_cycles(out)
            with tracked(self.track, out, resolved.settings) as tracker:
                posterior = training.run(
                    out / CHECKPOINT, progress, out / LOG, name=name, tracker=tracker, cycles=cycles
                )
            made_in |= {"training_seconds": training.seconds, "peak_memory": peak_memory(device)}
            if (out / LOG).exists():  # a method that learns nothing has none
                made_in["files"] = {LOG: sha256(out / LOG)}
            write_json(out / ENVIRONMENT, made_in)
            del training  # what it kept on a GPU is free, even if something still holds this frame
        save_posterior(posterior, out / POSTERIOR)
        return posterior

    @functools.cached_property
    def _inference(self) -> Inference | None:
        """That of a whole run; None for a cycle of one, and where the attempt at the job will say what is wrong."""
        with contextlib.suppress(UserError):
            return self.config.resolved().training.inference if self.cycle is None else None
        return None

    def phase(self, done: int, total: int) -> str:
        """Which of its cycles a whole run is in. Nothing if it has one cycle.

        >>> five = Job.of(RunConfig("digits", "coop", "ensemble", inference_settings={"cycles": 5}), Path("runs"))
        >>> five.phase(45, 100), five.phase(100, 100)
        ('cycle 3 of 5', 'cycle 5 of 5')
        """
        inference = self._inference
        if inference is None or inference.cycles == 1:
            return ""
        epoch = done * inference.all_epochs / total
        chains, first = inference.chains, inference.first_epochs or inference.epochs
        begun = epoch // first if epoch < chains * first else chains + (epoch - chains * first) // inference.epochs
        return f"cycle {min(int(begun) // chains + 1, inference.cycles)} of {inference.cycles}"

    def place_for_error(self, bad_input: bool) -> Path | None:
        """A file in the folder of the run.

        Bad input is said and not written, and the folder of something else is never written into.
        """
        if bad_input:  # nothing of the run went wrong; another process may be at work in the folder
            return None
        try:
            is_trained(self.config, self.run_folder)
        except (UserError, OSError):
            return None
        return self.run_folder / ERROR


def cycle_jobs(job: Job) -> list[Job]:
    """A job for each cycle of a run. It is refused if the cycles depend on one another or there is only one."""
    inference = job.config.resolved().training.inference
    count = 1 if inference is None else inference.independent_cycles
    if count == 1:
        raise UserError(
            "--cycles-apart is for several cycles that do not depend on one another: cold restarts (such as those of "
            "`ensemble`, or inference.restart=cold), no repulsion and no adaptive end"
        )
    return [
        dataclasses.replace(job, folder=cycle_folder(job.folder, cycle), cycle=cycle, score=False)
        for cycle in range(count)
    ]


def run_all(
    configs: Sequence[RunConfig],
    runs: Path,
    *,
    root: Path | None = None,
    engine: Engine | None = None,
    on_event: OnEvent | None = None,
) -> list[Path]:
    """Train and score all these runs, as far as that is not done, and return their folders.

    `engine` decides where, by default one run at a time in this process. A run that fails does not stop the others: a
    `UserError` at the end names every failure, and calling this again does only what is missing.
    """
    jobs = [Job.of(config, runs, root=root) for config in configs]
    check_outcomes(list((engine or LocalEngine()).run(jobs, on_event)))
    return [job.folder for job in jobs]
