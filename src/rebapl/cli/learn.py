"""`rebapl learn`: learn all classes of somebody's own photos, and measure how well that works."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli import options
from rebapl.cli.run_notes import ONLY_DRAWINGS, one_sample
from rebapl.errors import UserError
from rebapl.files import refuse_unwritable

SHOTS = 32


def learn(
    photos: str,
    *,
    quick: bool = False,
    best: bool = False,
    method: Annotated[str | None, typer.Option(autocompletion=options.complete_methods)] = None,
    inference: Annotated[str | None, typer.Option(autocompletion=options.complete_inference)] = None,
    backbone: str | None = None,
    shots: Annotated[int, typer.Option(min=1)] = SHOTS,
    epochs: int | None = None,
    template: str | None = None,
    risk: Annotated[float | None, typer.Option(min=0, max=0.99)] = None,
    confidence: Annotated[float | None, typer.Option(min=0, max=0.999)] = None,
    set_level: float | None = None,
    no_temperature: bool = False,
    out: Path | None = None,
    anew: bool = False,
    device: str | None = None,
    jobs: options.AtLeastOne = None,
    quiet: options.QuietOption = False,
) -> None:
    """Learn all classes of your photos, measure how well, and choose when to say "I don't know".

    Without --quick, --best or --method it learns a head and, on a GPU where they take five minutes at most, also
    prompts. Finished work is not done again, and interrupted work goes on where it was.

    Parameters:
        photos: A folder with a folder of images for each class, a CSV file, or a folder that `rebapl embed` wrote.
        quick: Learn only a head on the features of the photos, which takes seconds once they are computed.
        best: Learn a head, and then also prompts, in a second folder whose name ends in -best. Prompts take minutes on
            a GPU, and longer without one.
        method: Learn this method; `rebapl list` names the methods.
        inference: The kind of inference for --method or, without --method, for the head; `rebapl list` names them.
        backbone: A local Hugging Face folder, a hub id, or mini (which knows only drawings); if not given,
            openai/clip-vit-base-patch16.
        shots: Largest number of images of each class to learn from.
        template: Text for a class, with {} for its name.
        risk: Largest share of wrong answers to allow, 0.05 if not given. To keep to it, a prediction that is too unsure
            is 'I don't know'. If the photos are learned already, --risk or --confidence chooses this threshold again
            without a training.
        confidence: How sure to be that no larger share of answers is wrong; 0.9 if not given, and 0 promises nothing.
        set_level: Also fit prediction sets that hold the right class of this share of images, such as 0.9.
        no_temperature: Leave the probabilities as they are, instead of fitting a temperature on the held-out answers.
        out: Folder for the result; if not given, runs/ and the name of the folder of photos.
        anew: Learn again, and delete what was learned before in this folder.
    """
    options.expect_workers(device, jobs)
    from rebapl.backbones import find_backbone
    from rebapl.cli.progress import StepProgress
    from rebapl.data.catalogue import is_own
    from rebapl.data.checking import copy_remarks
    from rebapl.posterior.selective import CONFIDENCE
    from rebapl.reports.learn_summary import compared_line, plan_lines, result_lines
    from rebapl.runs.config import RunConfig
    from rebapl.runs.engine import LocalEngine
    from rebapl.runs.folder import folder_name
    from rebapl.runs.learn import RISK, choose_again
    from rebapl.runs.learn import learn as do_lesson
    from rebapl.runs.learn_choice import plan_lessons

    if quick + best + (method is not None or inference is not None) > 1:
        raise UserError("--quick, --best and --method (with --inference) each say what to learn: give one of them")
    threshold_again = risk is not None or confidence is not None
    config = RunConfig(
        photos, method or "", inference, shots=shots, backbone=backbone, epochs=epochs, template=template
    )
    engine = LocalEngine(options.parse_names("--device", device), 1 if jobs is None else jobs)
    plan = plan_lessons(
        config, out or Path("runs") / folder_name(photos), engine.devices[0], quick=quick, best=best, anew=anew
    )
    find_backbone(config.backbone_name)
    warnings = [ONLY_DRAWINGS] if config.backbone_name == "mini" and is_own(photos) else []
    for lesson in plan.lessons:
        if not anew and lesson.is_done():
            _refuse_other_fits(lesson.out, set_level, no_temperature)
            if threshold_again:
                choose_again(lesson, engine.devices[0], risk, confidence)
            print(f"already learned: {lesson.out} (--anew learns it again)")
        else:
            refuse_unwritable(lesson.out / "config.json")
            promised, surely = RISK if risk is None else risk, CONFIDENCE if confidence is None else confidence
            lesson.check(promised, surely, set_level)
            if anew:
                lesson.forget()
            with StepProgress(quiet, jobs=lesson.jobs()) as progress:
                for line in [*plan_lines(lesson), *(plan.lines if lesson is plan.lessons[0] else ())]:
                    progress.note(line)
                for line in [*warnings, *(f"warning: {line}" for line in copy_remarks(lesson.dataset))]:
                    progress.warn(line)
                do_lesson(
                    lesson,
                    engine,
                    promised,
                    progress.show,
                    confidence=surely,
                    set_level=set_level,
                    temperature=not no_temperature,
                )
            print(f"learned: {lesson.out}")
        for line in [*result_lines(lesson, confidence or CONFIDENCE), *warnings]:
            print(line)
        trained_by = lesson.final.resolved().training.inference
        if trained_by is not None and trained_by.samples == 1:
            print(one_sample())
    if len(plan.lessons) > 1:
        print(compared_line(plan.lessons))


def _refuse_other_fits(out: Path, set_level: float | None, no_temperature: bool) -> None:
    """Refuse options of a finished lesson that would need its held-out answers in full, which are not kept."""
    from rebapl.posterior.storage import INSIDE, read_manifest

    learned = read_manifest(out / INSIDE)
    if set_level is not None and (learned.conformal is None or learned.conformal.level != set_level):
        raise UserError(
            f"{out} was learned without prediction sets of level {set_level:g}, and the answers that choose them are "
            "not kept: give --anew to learn it again"
        )
    if no_temperature and learned.temperature is not None:
        raise UserError(f"{out} was learned with a temperature: give --anew to learn it without one")
