"""`rebapl learn`: learn all classes of somebody's own photos, and say how well that works."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli import options
from rebapl.cli.run_notes import backbone_remarks, sample_remarks
from rebapl.errors import UserError
from rebapl.files import refuse_unwritable

METHOD, INFERENCE = "maple", "rebapl"
WHY = (
    "maple gave the best probabilities for its cost in the benchmarks, and rebapl is the inference for probabilities "
    "that one acts on (docs/benchmarks.md)"
)
SHOTS = 32
RISK = 0.05


def learn(
    photos: str,
    *,
    backbone: str | None = None,
    out: Path | None = None,
    risk: Annotated[float, typer.Option(min=0, max=0.99)] = RISK,
    set_level: float | None = None,
    no_temperature: bool = False,
    anew: bool = False,
    shots: Annotated[int, typer.Option(min=1)] = SHOTS,
    method: Annotated[str, typer.Option(autocompletion=options.complete_methods)] = METHOD,
    inference: Annotated[str, typer.Option(autocompletion=options.complete_inference)] = INFERENCE,
    epochs: options.Epochs = None,
    template: str | None = None,
    device: options.Device = None,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    quiet: options.QuietOption = False,
) -> None:
    """Learn all classes of your photos, measure how well, and choose when to say "I don't know".

    Finished work is kept; interrupted work goes on where it was.

    Parameters:
        photos: A folder with a folder of images for each class, or a CSV file.
        backbone: A local Hugging Face folder, a hub id, or mini (which knows only drawings).
            openai/clip-vit-base-patch16 if not given.
        out: Folder to keep it in; runs/ and the name of the photos' folder.
        risk: Share of wrong answers to allow before it says 'I don't know'.
        set_level: Also fit prediction sets, which hold the right class of this share of images: 0.9.
        no_temperature: Leave the probabilities as they are; otherwise a temperature is fitted on the held-out answers.
        anew: Delete what was learned before in this folder.
        shots: Learn from at most this many images of each class.
        method: What is learned; `rebapl list` names the methods.
        inference: How; `rebapl list` names the kinds of inference.
        template: Text with {} for the class name.
        jobs: Trainings at a time on each device.
    """
    options.expect_workers(device, jobs)
    from rebapl.backbones import find_backbone
    from rebapl.cli.progress import StepProgress
    from rebapl.reports.learn_summary import plan_lines, result_lines
    from rebapl.runs.config import RunConfig
    from rebapl.runs.engine import LocalEngine
    from rebapl.runs.folder import folder_name
    from rebapl.runs.learn import Lesson, read_learned
    from rebapl.runs.learn import learn as do_lesson

    config = RunConfig(photos, method, inference, shots=shots, backbone=backbone, epochs=epochs, template=template)
    engine = LocalEngine(options.parse_names(device), jobs)
    lesson = Lesson.of(config, out or Path("runs") / folder_name(photos))
    if anew:
        lesson.forget()
    elif changed := lesson.changed():
        raise UserError(
            f"{photos} has changed since {lesson.out} was learned: {changed}. To learn it anew in the same place, give "
            "--anew; to keep what was learned before, too, give --out FOLDER"
        )
    warnings = backbone_remarks(config)
    if lesson.is_done():
        sets = read_learned(lesson.out)[2]
        if set_level is not None and (sets is None or sets.level != set_level):
            raise UserError(
                f"{lesson.out} was learned without prediction sets of level {set_level:g}, and the answers that choose "
                "them are not kept: give --anew to learn it again"
            )
        print(f"already learned: {lesson.out} (--anew learns it again)")
    else:
        chosen = WHY if (method, inference) == (METHOD, INFERENCE) else "you asked for it"
        find_backbone(config.backbone_name)
        refuse_unwritable(lesson.out / "config.json")
        lesson.check(risk, set_level)
        with StepProgress(quiet, jobs=lesson.jobs()) as progress:
            for line in [*plan_lines(lesson), f"chosen because {chosen}"]:
                progress.note(line)
            for line in warnings:
                progress.warn(line)
            do_lesson(lesson, engine, risk, progress.show, set_level=set_level, temperature=not no_temperature)
        print(f"learned: {lesson.out}")
    remarks = [*warnings, *sample_remarks(lesson.final, lesson.out)]
    for line in [*result_lines(lesson, *read_learned(lesson.out)), *remarks]:
        print(line)
