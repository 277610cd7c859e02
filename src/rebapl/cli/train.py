"""`rebapl train` and `rebapl run`: train a run in a folder of its own, where an interrupted training can go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rebapl.cli import options
from rebapl.cli.run_notes import ONLY_DRAWINGS, one_sample
from rebapl.errors import UserError

if TYPE_CHECKING:
    from rebapl.runs.config import RunConfig

RUNS = Path("runs")


def train(
    settings: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
    *,
    data: Annotated[str | None, typer.Option(autocompletion=options.complete_datasets)] = None,
    method: Annotated[str | None, typer.Option(autocompletion=options.complete_methods)] = None,
    inference: Annotated[str | None, typer.Option(autocompletion=options.complete_inference)] = None,
    protocol: str | None = None,
    shots: int | None = None,
    seeds: Annotated[str | None, typer.Option("--seed", "--seeds")] = None,
    epochs: int | None = None,
    backbone: str | None = None,
    config: Path | None = None,
    evaluate: bool = False,
    cycles_apart: bool = False,
    root: Path | None = None,
    runs: Path = RUNS,
    out: Path | None = None,
    device: str | None = None,
    jobs: options.AtLeastOne = None,
    engine: str = "local",
    engine_option: options.EngineOption = None,
    track: str | None = None,
    quiet: options.QuietOption = False,
) -> None:
    """Learn prompts from a few labelled images. A finished run is not done again, and an interrupted one goes on.

    Parameters:
        settings: Any other setting, such as targets=dtd,eurosat, method.tokens=16 or
            inference.repulsion.distance=energy.
        data: A data set (`rebapl list` names them), or the path of a folder of images or of a CSV file.
        method: What to learn; `rebapl list` names the methods. coop if not given.
        inference: How to learn it; `rebapl list` names the kinds of inference. If not given, as the method was
            published: svgd for app, mle for all others.
        protocol: What to train and to test on: base-to-novel (if not given), few-shot (all classes), cross-dataset,
            domain-generalization, or selection (for choosing settings: the base classes, tested on validation images).
        shots: Number of training images per class; 16 if not given.
        seeds: The seed, 1 if not given. Several seeds, such as 1,2,3, are several runs.
        backbone: mini (comes with rebapl), a local Hugging Face folder, or a hub id. If not given, mini for embedded
            data sets and openai/clip-vit-base-patch16 for all others.
        config: YAML file with settings, or the config.json of a run. Options and KEY=VALUE words replace its values.
        evaluate: Also score the run on the test images.
        cycles_apart: Sample the cycles of a posterior side by side, each as a job of its own. Only for kinds of
            inference whose cycles do not depend on one another.
        out: Folder of this one run, instead of a folder in --runs.
    """
    options.expect_workers(device, jobs)
    from rebapl.backbones import find_backbone
    from rebapl.cli.progress import StepProgress, print_table
    from rebapl.data.catalogue import is_own
    from rebapl.reports.results import scores_table
    from rebapl.runs.config_file import build_config, gather_settings, read_words
    from rebapl.runs.folder import is_trained
    from rebapl.runs.jobs import check_outcomes
    from rebapl.runs.results import read_result
    from rebapl.runs.run import Job, cycle_jobs

    values = {
        "data": data,
        "method": method,
        "inference": inference,
        "protocol": protocol,
        "shots": shots,
        "backbone": backbone,
        "epochs": epochs,
    }
    given = {key: value for key, value in values.items() if value is not None}
    chosen = gather_settings(config, given, settings or [])
    if seeds is not None and "seed" in read_words(settings or []):
        raise UserError("the seed is given twice: as an option, and as a word seed=…")
    choices = [chosen] if seeds is None else [{**chosen, "seed": seed} for seed in options.parse_seeds(seeds)]
    if out is not None and runs != RUNS:
        raise UserError("--out names the folder of this one run, and --runs that of all runs: give one of them")
    if out is not None and len(choices) > 1:
        raise UserError("--out names the folder of one run: with several --seeds leave it out (they go to --runs)")
    configs = [build_config(choice) for choice in choices]
    first = configs[0]  # they differ in the seed only
    if first.template is not None:
        _refuse_idle_template(first)
    where = options.engine_of(engine, runs if out is None else out.absolute().parent, device, jobs, engine_option)
    trackers = options.parse_trackers(track)
    todo = [Job.of(run, runs, out=out, root=root, score=evaluate, wait=False, track=trackers) for run in configs]
    trained = {job.folder for run, job in zip(configs, todo, strict=True) if is_trained(run, job.folder)}
    cycles = [cycle for job in todo if cycles_apart and job.folder not in trained for cycle in cycle_jobs(job)]
    warnings = []
    if len(trained) < len(todo):
        if is_own(first.data):
            warnings = _warnings_on_photos(first, root)
        find_backbone(first.backbone_name)
    with StepProgress(quiet, jobs=[*cycles, *todo]) as progress:
        if first.backbone is None:
            progress.note(f"backbone: {first.backbone_name}, since none is given")
        for line in warnings:
            progress.warn(line)
        check_outcomes(list(where.run(cycles, progress.show)))
        outcomes = list(where.run(todo, progress.show))
    for outcome in outcomes:
        if outcome.state == "done":
            folder = outcome.folder
            hint = "" if evaluate else f"; score it with: rebapl evaluate {folder}"
            print(f"{'already trained' if folder in trained else 'trained'}: {folder}{hint}")
            if evaluate:
                print_table(scores_table(read_result(folder), title=str(folder)))
    check_outcomes(outcomes)
    used = first.resolved().training.inference
    if used is not None and used.samples == 1:
        print(one_sample(todo[0].folder))


def run(
    config: Path,
    *,
    root: Path | None = None,
    runs: Path = RUNS,
    device: options.OneDevice = None,
    track: str | None = None,
    quiet: options.QuietOption = False,
) -> None:
    """Train and score the run of a configuration file, and print its folder: one job for any scheduler.

    What is done already is not done again. The exit code is 0 when the run is done, 2 for bad input, 1 when the run
    failed and 130 when it was interrupted.

    Parameters:
        config: YAML file with settings, or the config.json of a run.
    """
    from rebapl.cli.progress import StepProgress
    from rebapl.runs.config_file import build_config, read_config_file
    from rebapl.runs.engine import LocalEngine
    from rebapl.runs.jobs import check_outcomes
    from rebapl.runs.run import Job

    job = Job.of(build_config(read_config_file(config)), runs, root=root, track=options.parse_trackers(track))
    engine = LocalEngine(None if device is None else [device])
    with StepProgress(quiet, jobs=[job]) as progress:
        outcomes = list(engine.run([job], progress.show))
    check_outcomes(outcomes)
    print(job.folder)


def _refuse_idle_template(config: RunConfig) -> None:
    """Refuse a template that would change nothing: the method does not read it, and there is no repulsion."""
    from rebapl.learners import METHODS

    training = config.resolved().training
    repels = training.inference is not None and training.inference.repulsion is not None
    if not repels and not METHODS.find(training.method).learner.reads_template(training.method_settings):
        raise UserError(f"template has no effect: {training.method} does not use it; leave it out")


def _warnings_on_photos(config: RunConfig, root: Path | None) -> list[str]:
    """Warnings for somebody's own photos: only some classes are learned, or the backbone knows only drawings."""
    from rebapl.wording import few

    warnings = [ONLY_DRAWINGS] if config.backbone_name == "mini" else []
    if config.protocol in ("base-to-novel", "selection"):
        task = config.task(root)
        trained, names = task.train.class_names, task.dataset.class_names
        warnings.insert(
            0,
            f"warning: learning {len(trained)} of {len(names)} classes ({few(trained)}), because the protocol "
            f"{config.protocol} keeps the others to test with. To learn all of them: rebapl learn {config.data}",
        )
    return warnings
