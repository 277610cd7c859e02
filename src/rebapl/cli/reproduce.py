"""`rebapl reproduce`: the paper's tables and figures, each by one command."""

from __future__ import annotations

import sys
from pathlib import Path

from rebapl.cli import options
from rebapl.errors import UserError


def reproduce(
    what: list[str] | None = None,
    *,
    list_: bool = False,
    dry_run: bool = False,
    suite: str = "paper",
    data: str | None = None,
    methods: str | None = None,
    inference: str | None = None,
    seeds: str | None = None,
    shots: options.AtLeastOne = None,
    epochs: options.AtLeastOne = None,
    test_images: options.AtLeastOne = None,
    hm: str = "of-averages",
    backbone: str | None = None,
    root: Path | None = None,
    split: list[str] | None = None,
    runs: Path = Path("runs"),
    out: Path | None = None,
    device: str | None = None,
    jobs: options.AtLeastOne = None,
    engine: str = "local",
    engine_option: options.EngineOption = None,
) -> None:
    """Make the paper's tables and figures, with the paper's own numbers next to them. Finished runs are used again.

    Parameters:
        what: Tables and figures to make, such as table1, or all; --list names them.
        list_: Name what can be made, and stop.
        dry_run: List the runs that are needed, which of them are done, and which data are missing; do nothing.
        suite: paper (ViT-B/16 on the real data), mini (embedded tasks, on two cores), or photo (your own backbone).
        data: Use only these data sets of the suite, separated by commas; in the suite photo also your own images, by
            their paths.
        methods: Use these methods, separated by commas; any method can be named.
        inference: Preset to use in the rows of ReBaPL.
        seeds: Other seeds, separated by commas.
        shots: Other number of training images per class.
        epochs: Largest number of epochs of a run, or of each of its cycles.
        test_images: Largest number of test images in each part.
        backbone: Another backbone: a folder or a hub id.
        split: Another split file of a data set, such as eurosat=split_subset_EuroSAT.json. Repeatable.
        runs: Folder for the runs. Finished runs in it are used again.
        out: Folder for tables and figures; if not given, reproduced/SUITE.
    """
    options.expect_workers(device, jobs)
    from rebapl.backbones import find_backbone
    from rebapl.cli.progress import StepProgress, print_table
    from rebapl.data.published import PUBLISHED, data_root
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
    selected = named_suite(suite, root, backbone, options.parse_names("--data", data) or (), split or ()).changed(
        methods=options.parse_names("--methods", methods),
        seeds=None if seeds is None else options.parse_seeds(seeds),
        shots=shots,
        epochs=epochs,
        test_images=test_images,
        inference=inference,
    )
    states, remarks = planned(targets, selected, runs, root)
    if dry_run:
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
    missing = [config for config, done in states if not done]
    for name in sorted({config.data for config in missing if config.data in PUBLISHED}):
        data_root(name, root)  # refuses a folder that is not there
    for name in sorted({config.backbone_name for config in missing}):
        find_backbone(name)
    context = Context(selected, runs, root, options.parse_names("--device", device), hm)
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
