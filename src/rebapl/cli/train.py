"""`rebapl train`: learn prompts in a folder that is kept, so that interrupted work goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rebapl.cli.completion import datasets, kinds_of_inference, methods
from rebapl.cli.engine_options import Device, EngineName, EngineOption, Jobs, engine_of
from rebapl.cli.run_notes import backbone_remarks, half_remarks, one_sample
from rebapl.cli.values import QuietOption, TrackOption, parse_seeds, parse_trackers
from rebapl.errors import UserError

if TYPE_CHECKING:
    from rebapl.runs.config import RunConfig


def train(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Any setting, such as targets=dtd,eurosat, method.tokens=16 or inference.repulsion.distance=energy.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with the settings, or a run's config.json; what else is given goes on top."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set (`rebapl list` names them), or the path of a folder of images or a CSV.",
            autocompletion=datasets,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="What is learned; `rebapl list` names the methods. coop if not given.", autocompletion=methods
        ),
    ] = None,
    inference: Annotated[
        str | None,
        typer.Option(
            help="How; `rebapl list` names the kinds of inference. If not given, as the method was published: svgd for "
            "app, mle for all others.",
            autocompletion=kinds_of_inference,
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="base-to-novel (if not given), few-shot (all classes), cross-dataset, domain-generalization, or "
            "selection (to choose settings: within the base classes, on validation images)."
        ),
    ] = None,
    shots: Annotated[int | None, typer.Option(help="Training images per class; 16 if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="The one seed of the run; 1 if not given.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several runs, one per seed: 1,2,3.")] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="'mini' (embedded), a local Hugging Face folder, or a hub id. If not given: mini for embedded tasks, "
            "openai/clip-vit-base-patch16 for other data."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs instead of the number that was published.")] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the published data sets; $REBAPL_DATA if not given.")
    ] = None,
    runs: Annotated[
        Path, typer.Option(help="Folder of runs; this one gets a folder named by its settings' hash.")
    ] = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Folder of this run, if you would rather name it.")] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Score it on the test images as well.")] = False,
    cycles_apart: Annotated[
        bool,
        typer.Option(
            "--cycles-apart",
            help="Sample the cycles of a posterior side by side, as jobs of their own, if they do not depend on one "
            "another.",
        ),
    ] = False,
    engine: EngineName = "local",
    engine_option: EngineOption = None,
    device: Device = None,
    jobs: Jobs = None,
    track: TrackOption = None,
    quiet: QuietOption = False,
) -> None:
    """Learn prompts from a few labelled images. Finished runs are kept; interrupted ones go on where they were."""
    from rich.console import Console

    from rebapl.backbones import find_backbone
    from rebapl.cli.progress import StepProgress
    from rebapl.reports.results import scores_table
    from rebapl.runs.config_file import build_config, gather_settings
    from rebapl.runs.folder import is_trained
    from rebapl.runs.jobs import check_outcomes
    from rebapl.runs.results import read_result
    from rebapl.runs.run import Job, cycle_jobs

    options = {
        "data": data,
        "method": method,
        "inference": inference,
        "protocol": protocol,
        "shots": shots,
        "seed": seed,
        "backbone": backbone,
        "epochs": epochs,
    }
    if seed is not None and seeds is not None:
        raise UserError("--seed is for one run and --seeds for several: give one of them")
    given = {key: value for key, value in options.items() if value is not None}
    chosen = gather_settings(config, given, settings or [])
    wanted = [chosen] if seeds is None else [{**chosen, "seed": each} for each in parse_seeds(seeds)]
    if out is not None and len(wanted) > 1:
        raise UserError("--out names the folder of one run: with several --seeds leave it out (they go to --runs)")
    configs = [build_config(each) for each in wanted]
    for each in configs:
        _refuse_idle_template(each)
    where = engine_of(engine, runs if out is None else out.absolute().parent, device, jobs, engine_option)
    trackers = parse_trackers(track)
    todo = [Job.of(each, runs, out=out, root=root, score=evaluate, wait=False, track=trackers) for each in configs]
    remarks = backbone_remarks(configs[0])
    trained_before = {job.folder for each, job in zip(configs, todo, strict=True) if is_trained(each, job.folder)}
    begins = len(trained_before) < len(todo)
    parts = [part for job in todo if cycles_apart and job.folder not in trained_before for part in cycle_jobs(job)]
    if begins:
        find_backbone(configs[0].backbone_name)
    with StepProgress(quiet, jobs=[*parts, *todo]) as progress:
        if configs[0].backbone is None:
            progress.note(f"backbone: {configs[0].backbone_name}, since none is given")
        for line in [*half_remarks(configs[0], root), *remarks] if begins else []:
            progress.warn(line)
        check_outcomes(list(where.run(parts, progress.show)))
        outcomes = list(where.run(todo, progress.show))
    for outcome in outcomes:
        if outcome.state == "done":
            folder = outcome.folder
            more = "" if evaluate else f"; score it with: rebapl evaluate {folder}"
            print(f"{'already trained' if folder in trained_before else 'trained'}: {folder}{more}")
            if evaluate:
                Console().print(scores_table(read_result(folder), title=str(folder)).to_rich())
    check_outcomes(outcomes)
    trained = configs[0].resolved().training.inference
    if trained is not None and trained.samples == 1:
        remarks.append(one_sample(todo[0].folder))
    for line in remarks:
        print(line)


def _refuse_idle_template(config: RunConfig) -> None:
    """Refuse a template that would change nothing: the method reads none, and nothing repels from the frozen text."""
    from rebapl.learners import METHODS

    if config.template is None:
        return
    training = config.resolved().training
    repels = training.inference is not None and training.inference.repulsion is not None
    if not repels and not METHODS.find(training.method).learner.reads_template(training.method_settings):
        raise UserError(f"template has no effect: {training.method} does not use it; leave it out")
