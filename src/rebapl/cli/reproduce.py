"""`rebapl reproduce`: the paper's tables and figures, each by one command."""

from __future__ import annotations

import sys
from pathlib import Path

from rebapl.cli import options
from rebapl.errors import UserError


def reproduce(
    what: list[str] | None = None,
    *,
    suite: str = "paper",
    list_: bool = False,
    dry_run: bool = False,
    root: Path | None = None,
    backbone: str | None = None,
    data: str | None = None,
    methods: str | None = None,
    split: list[str] | None = None,
    inference: str | None = None,
    seeds: str | None = None,
    shots: options.AtLeastOne = None,
    epochs: options.AtLeastOne = None,
    test_images: options.AtLeastOne = None,
    hm: options.HarmonicMean = "of-averages",
    runs: Path = Path("runs"),
    out: Path | None = None,
    engine: options.EngineName = "local",
    engine_option: options.EngineOption = None,
    device: options.Device = None,
    jobs: options.Jobs = None,
) -> None:
    """Make the paper's tables and figures from stored runs, beside the paper's own. Finished runs are used again.

    Parameters:
        what: Targets, such as table1; --list names them; or all.
        suite: paper (ViT-B/16, the real data), mini (embedded, on two cores), or photo (your backbone).
        list_: Name the targets and stop.
        dry_run: Show the runs, which of them are done, and which data are missing.
        root: Folder of the data sets; else $REBAPL_DATA.
        backbone: Another backbone: a folder or a hub id.
        data: Only these data sets, separated by commas.
        methods: Only these methods, any that there are, separated by commas.
        split: Another split file of a data set: eurosat=split_subset_EuroSAT.json; repeatable.
        inference: The preset that ReBaPL stands for.
        seeds: Other seeds, separated by commas.
        shots: Other number of training images per class.
        epochs: Largest number of epochs (per cycle) of a run.
        test_images: Largest number of test images per part.
        runs: Folder of the runs; finished ones are used again.
        out: Folder for tables and figures, if not reproduced/SUITE.
    """
    options.expect_workers(device, jobs)
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
    selected = named_suite(suite, root, backbone, options.parse_names(data) or (), split or ()).changed(
        methods=options.parse_names(methods),
        seeds=None if seeds is None else options.parse_seeds(seeds),
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
    where = options.engine_of(engine, runs, device, jobs, engine_option)
    context = Context(selected, runs, root, options.parse_names(device), hm)
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
