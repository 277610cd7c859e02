"""`rebapl bench`: how long a training step and an answer take on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli.values import QuietOption, parse_names
from rebapl.errors import UserError, unknown

PICTURES = (".png", ".pdf")
ENDINGS = (".json", ".md", *PICTURES)
SHOWING = ("--from", "--export", "--json", "--quiet")
"""The options that act where a measurement is shown again."""


def bench(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Option(
            help="What is timed, with commas: steps, answers, and growth, which is how both grow with classes, "
            "reference images, samples and tokens."
        ),
    ] = "steps,answers",
    method: Annotated[str, typer.Option(help="The method whose training step is timed.")] = "maple",
    distances: Annotated[
        str | None,
        typer.Option(
            help="Distances of the repulsion, with commas; mmd,energy,sinkhorn,wasserstein on a GPU and "
            "mmd,wasserstein else."
        ),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Numbers of classes, with commas; 5,50,500 on a GPU and 5,50 else.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in a training step.")] = 1,
    answers: Annotated[
        str | None, typer.Option(help="Methods whose answers are timed, with commas; maple,mmrl,coop.")
    ] = None,
    samples: Annotated[str | None, typer.Option(help="Numbers of samples that answer, with commas; 1,10.")] = None,
    images: Annotated[
        int | None, typer.Option(min=1, help="Images that are answered at once; 2048 on a GPU and 64 else.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="mini, a folder, a hub id, or random: the shape of CLIP ViT-B/16 with random weights. If not given, "
            "random on a GPU and mini else."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; the GPU if there is one.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, for a first impression.")] = False,
    plain: Annotated[bool, typer.Option(help="Time the plain baseline, too.")] = True,
    export: Annotated[
        list[Path] | None,
        typer.Option(
            help="File to write as well; its ending says what: .json (all numbers), .md (the tables), or .png or .pdf "
            "(plots of growth). Repeatable."
        ),
    ] = None,
    again: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Show this .json again, or write it in other forms, and measure nothing. Repeatable: joined."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON instead of tables.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Time training steps and answers on this machine, beside the same work done the obvious way."""
    from dataclasses import replace

    from rebapl.cli.progress import StepProgress, print_table
    from rebapl.files import refuse_unwritable, write_atomically, write_json
    from rebapl.reports.style import PAPER_FONTS, save_figure
    from rebapl.reproduce.bench import Effort, measure
    from rebapl.reproduce.bench_records import Measured
    from rebapl.reproduce.bench_tables import bench_tables, growth_figure
    from rebapl.runs.machine import best_device

    files, parts = export or [], parse_names(what) or []
    numbers = [file for file in files if file.suffix == ".json"]
    for file in files:
        if file.suffix not in ENDINGS:
            raise unknown("ending of --export", file.suffix or file.name, ENDINGS)
        if file.suffix in PICTURES and not again and "growth" not in parts:
            raise UserError(f"--export {file}: plots are of growth, which is measured with --what growth")
        refuse_unwritable(file, "--export")
    if again:
        _refuse_measuring(context)
        measured = Measured.joined([Measured.read(path) for path in again])
    else:
        device = best_device(device)
        effort = Effort.usual(device, quick)
        effort = replace(
            effort,
            distances=parse_names(distances) or effort.distances,
            classes=_numbers("--classes", classes) or effort.classes,
            samples=_numbers("--samples", samples) or effort.samples,
            methods=parse_names(answers) or effort.methods,
            images=images or effort.images,
            plain=plain,
        )

        def keep(so_far: Measured) -> None:
            for file in numbers:
                write_json(_unfinished(file), so_far.plain())

        with StepProgress(quiet) as progress:
            try:
                measured = measure(
                    backbone,
                    device,
                    effort,
                    lambda what: progress.note(f"timing {what}"),
                    method=method,
                    batch=batch,
                    parts=parts,
                    keep=keep,
                )
            except BaseException:
                for place in map(_unfinished, numbers):
                    if place.exists():
                        progress.warn(f"what was measured until now is in {place}")
                raise
    tables = bench_tables(measured)
    if as_json:
        print(json.dumps(measured.plain(), indent=2, ensure_ascii=False))
    else:
        for table in tables:
            print_table(table)
    for file in files:
        if file.suffix == ".json":
            write_json(file, measured.plain())
            _unfinished(file).unlink(missing_ok=True)
        elif file.suffix == ".md":
            write_atomically(file, "\n".join(table.to_markdown() for table in tables))
        else:
            save_figure(growth_figure(measured), file, settings=PAPER_FONTS)
        print(f"written: {file}", file=sys.stderr if as_json else sys.stdout)


def _unfinished(file: Path) -> Path:
    """Where the rows are kept as they come; what was in the file itself before stays until all are there."""
    return file.with_suffix(".unfinished.json")


def _refuse_measuring(context: typer.Context) -> None:
    """Refuse the options that say what is measured and how."""
    idle = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name != "DEFAULT" and option.opts[0] not in SHOWING:
            idle.append(option.opts[0])
    if idle:
        raise UserError(f"--from measures nothing, so {', '.join(idle)} would have no effect: leave one of them out")


def _numbers(option: str, given: str | None) -> list[int]:
    """Whole numbers from 1 on, with commas between them; none if none are given."""
    words = parse_names(given) or []
    if not all(word.isdecimal() and int(word) > 0 for word in words) or (given is not None and not words):
        raise UserError(f"{option} {given}: write whole numbers with commas between them, such as 5,50")
    return [int(word) for word in words]
