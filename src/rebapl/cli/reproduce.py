"""`rebapl reproduce`: the paper's tables and figures, each by one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli.options import Device, EngineName, EngineOption, Jobs, engine_of, parse_names, parse_seeds
from rebapl.errors import UserError


def reproduce(
    what: Annotated[
        list[str] | None, typer.Argument(help="Targets, such as table1; --list names them; or all.")
    ] = None,
    suite: Annotated[
        str,
        typer.Option(help="paper (ViT-B/16, the real data), mini (embedded, on two cores), or photo (your backbone)."),
    ] = "paper",
    list_: Annotated[bool, typer.Option("--list", help="Name the targets and stop.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs, which of them are done, and which data are missing.")
    ] = False,
    root: Annotated[Path | None, typer.Option(help="Folder of the data sets; else $REBAPL_DATA.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Another backbone: a folder or a hub id.")] = None,
    data: Annotated[str | None, typer.Option(help="Only these data sets, separated by commas.")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these methods, any that there are, separated by commas.")
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Another split file of a data set: eurosat=split_subset_EuroSAT.json; repeatable."),
    ] = None,
    inference: Annotated[str | None, typer.Option(help="The preset that ReBaPL stands for.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Other seeds, separated by commas.")] = None,
    shots: Annotated[int | None, typer.Option(min=1, help="Other number of training images per class.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Largest number of epochs (per cycle) of a run.")] = None,
    test_images: Annotated[int | None, typer.Option(min=1, help="Largest number of test images per part.")] = None,
    hm: Annotated[
        str, typer.Option(help="Harmonic mean over data sets: of-averages, or average (of the data sets' own).")
    ] = "of-averages",
    runs: Annotated[Path, typer.Option(help="Folder of the runs; finished ones are used again.")] = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Folder for tables and figures, if not reproduced/SUITE.")] = None,
    engine: EngineName = "local",
    engine_option: EngineOption = None,
    device: Device = None,
    jobs: Jobs = None,
) -> None:
    """Make the paper's tables and figures from stored runs, beside the paper's own. Finished runs are used again."""
    from rebapl.cli.progress import StepProgress, print_table
    from rebapl.evaluation.scores import check_hm_convention
    from rebapl.reports.results import short_value
    from rebapl.reproduce.make import make_target, planned
    from rebapl.reproduce.paper_table import Context
    from rebapl.reproduce.suites import named_suite
    from rebapl.reproduce.targets import PAPER_TARGETS, chosen
    from rebapl.runs.run import Job
    from rebapl.wording import number_of

    if list_:
        wide = max(map(len, PAPER_TARGETS))
        for target in PAPER_TARGETS.values():
            print(f"{target.name:<{wide}}  {target.what}")
        return
    if not what:
        raise UserError(f"what is to be made? One or more of {', '.join(PAPER_TARGETS)}, or all")
    targets = chosen(what)
    check_hm_convention(hm)
    selected = named_suite(suite, root, backbone, parse_names(data) or (), split or ()).changed(
        methods=parse_names(methods),
        seeds=None if seeds is None else parse_seeds(seeds),
        shots=shots,
        epochs=epochs,
        test_images=test_images,
        inference=inference,
    )
    if dry_run:
        states, remarks = planned(targets, selected, runs, root)
        for config, done in states:
            transfers = "" if config.protocol == "base-to-novel" else f" {config.protocol}"
            settings = {**({"epochs": config.epochs} if config.epochs else {}), **config.inference_settings}
            extra = "".join(f" {key}={short_value(value)}" for key, value in settings.items())
            how = f"{config.method} · {config.inference_name}{extra}"
            print(f"{config.data}{transfers} {how} seed {config.seed}: {'done' if done else 'to do'}")
        finished = sum(done for _, done in states)
        print("\n".join([f"{number_of(len(states), 'run')}, {finished} of them done", *remarks]))
        return
    where = engine_of(engine, runs, device, jobs, engine_option)
    context = Context(selected, runs, root, parse_names(device), hm)
    folder = out or Path("reproduced") / selected.name
    for target in targets:
        try:
            needed = target.runs(selected)
        except UserError as error:
            if "all" not in what:
                raise
            print(f"{target.name}: left out, {error}")
            continue
        print(f"{target.name}: {target.what}", file=sys.stderr)
        with StepProgress(jobs=[Job.of(config, runs, root=root) for config in needed]) as live:
            product = make_target(target, context, folder, engine=where, on_event=live.show)
        print_table(product.table)
        for name in product.figures:
            print(f"figure: {folder / f'{name}.png'}")
    print(f"all tables and figures: {folder / 'README.md'}")
