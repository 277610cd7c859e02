"""The sections of a report on one run: what each says, and which tables, drawings and pictures it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rebapl.data.fewshot import spread
from rebapl.evaluation.intervals import accuracy_interval
from rebapl.learners import METHODS
from rebapl.numbers import effective_samples, harmonic_mean
from rebapl.reports.charts import Figure, log_figures, schedule_figure
from rebapl.reports.inspection import Inspected
from rebapl.reports.pictures import most_disputed, surest_mistakes
from rebapl.reports.pieces import PageTable, Section, Shown, Tile, ends_of, in_bytes
from rebapl.reports.results import asked_settings, flat_settings, short_value
from rebapl.reports.score_sections import (
    calibration_section,
    confusion_section,
    no_answers,
    risk_section,
    scores_section,
    sets_section,
)
from rebapl.reports.svg import grid_of_shares
from rebapl.runs.config import data_name
from rebapl.runs.folder import POSTERIOR
from rebapl.runs.results import DiversityRecord
from rebapl.sampling import PRESETS
from rebapl.wording import in_two_units, number_of

NUMBERED = 12
"""Up to so many samples the distances are shown as numbers."""

SQUARES = 60
"""Of more samples than that, so many are drawn, evenly spread."""

ONE_SAMPLE = "There is one sample, so that there is nothing to compare it with."


def tiles(seen: Inspected) -> list[Tile]:
    """The numbers at the top: accuracies with intervals, calibration, samples, time."""
    accuracies = {name: part.accuracy for name, part in seen.run.result.parts.items()}
    accuracies |= {
        name: 100 * part.right.double().mean().item() for name, part in seen.parts.items() if len(part.labels)
    }
    found = []
    for name, accuracy in list(accuracies.items())[:3]:
        answered = seen.parts.get(name)
        more = (
            f"95 %: {ends_of(accuracy_interval(answered.right), 1)}"
            if answered is not None and len(answered.labels)
            else ""
        )
        found.append(Tile(f"accuracy, {name}", f"{accuracy:.1f} %", more))
    if {"base", "novel"} <= accuracies.keys():
        mean = harmonic_mean(accuracies["base"], accuracies["novel"])
        found.append(Tile("harmonic mean", f"{mean:.1f} %", "of base and novel"))
    if seen.posterior is not None:
        weights = seen.posterior.weights
        effective = effective_samples(weights)
        more = "of equal weight" if effective > len(weights) - 0.01 else f"by weight as good as {effective:.1f}"
        more = "one answer, no spread" if len(weights) == 1 else more
        found.append(Tile("samples", str(len(weights)), more))
    seconds = seen.environment.get("training_seconds")
    if seconds is not None and seen.inference is not None:
        found.append(Tile("training", in_two_units(seconds), str(seen.environment.get("device", ""))))
    return found


def warnings(seen: Inspected) -> list[str]:
    """What is not there, and scores that are not those that are stored."""
    found = [seen.missing[key] for key in ("posterior", "data", "answers") if key in seen.missing]
    if not seen.run.result.parts:
        scored = "they are computed for this report" if seen.parts else "there are none here"
        found.append(f"This run has no stored scores: {scored}. `rebapl evaluate RUN` stores them.")
    for name, answered in seen.parts.items():
        stored = seen.run.result.parts.get(name)
        if stored is None or not len(answered.labels):
            continue
        now = 100 * answered.right.double().mean().item()
        if stored.images != len(answered.labels) or abs(stored.accuracy - now) > 0.5:
            found.append(
                f"The stored accuracy on {name} is {stored.accuracy:.2f} % of {stored.images} images, and now it is "
                f"{now:.2f} % of {len(answered.labels)}: the data, the backbone or the weights of the samples have "
                "changed since. This report shows what holds now."
            )
    return found


def sections(seen: Inspected) -> list[Section]:
    """All sections, in the order of the page."""
    return [
        _learned(seen),
        scores_section(seen),
        calibration_section(seen),
        risk_section(seen),
        *([sets] if (sets := sets_section(seen)) else []),
        confusion_section(seen),
        _training(seen),
        _diversity(seen),
        _disputed(seen),
        _mistakes(seen),
        _cost(seen),
    ]


def lead(seen: Inspected) -> str:
    """The run in one sentence."""
    config = seen.run.config
    shots = number_of(config["shots"], "image")
    if seen.inference is None:
        return f"Nothing was learned: {METHODS.find(config['method']).about}"
    count = 0 if seen.posterior is None else len(seen.posterior)
    samples = "Samples" if count == 0 else "One sample" if count == 1 else f"{count} samples"
    classes = "" if seen.task is None else f" of each of {len(seen.task.train.class_names)} classes"
    return f"{samples} of the prompts, learned from {shots}{classes} ({config['protocol']})."


def _learned(seen: Inspected) -> Section:
    config, resolved = seen.run.config, {**seen.run.resolved, "data": data_name(seen.run.config["data"])}
    how = resolved["inference"]["name"]
    about = PRESETS.find(how).about if how in PRESETS else ""
    facts = [
        ("method", METHODS.find(config["method"]).about if config["method"] in METHODS else config["method"]),
        *([] if seen.inference is None else [("inference", f"{how}: {about}" if about else how)]),
        ("data", f"{data_name(config['data'])}, {config['protocol']}, seed {config['seed']}"),
        ("backbone", str(resolved["backbone"]).partition(":")[0]),
        ("settings chosen", ", ".join(asked_settings(config)) or "none: all are those of the method and the inference"),
    ]
    if seen.task is not None:
        names = list(seen.task.train.class_names)
        shown = ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
        facts.insert(3, ("classes", shown))
        facts.insert(4, ("training images", str(len(seen.task.train.items))))
    rows = [[Shown(key), Shown(short_value(value))] for key, value in flat_settings(resolved).items()]
    table = PageTable("Settings, every one resolved", ["setting", "value"], rows, [False, False])
    return Section("learned", "What was learned", facts=facts, folded=[("Every setting", table)])


def _training(seen: Inspected) -> Section:
    if seen.inference is None:
        return Section("training", "Training", "Nothing was trained: this method learns nothing.")
    figures = [*([] if seen.course is None else [schedule_figure(seen.course)]), *log_figures(seen.log, seen.course)]
    missing = []
    if seen.course is None:
        missing.append(
            "The schedule is not drawn: its steps follow from the number of training images, which are not here."
        )
    if not seen.log:
        missing.append(seen.missing.get("log", "There is no log of the training."))
    return Section("training", "Training", figures=figures, missing=missing)


def _diversity(seen: Inspected) -> Section:
    title, record = "How far apart the samples are", seen.diversity
    if record is None:
        one = seen.posterior is not None and len(seen.posterior) == 1
        why = ONE_SAMPLE if one else seen.missing.get("diversity", "The distances between samples were not measured.")
        return Section("diversity", title, missing=[] if one else [why], intro=ONE_SAMPLE if one else "")
    count = len(record.distance)
    intro = (
        f"Measured on {record.images} test images, in the feature space ‘{record.space}’. By their answers, these "
        f"{count} samples count as {record.effective_by_answers:.2f} samples that have nothing in common."
    )
    panels = (
        ("Wasserstein-2 distance", record.distance, 1.0, 2),
        ("Images answered differently, in percent", record.disagreement, 100.0, 0),
    )
    if count <= NUMBERED:
        tables = [_heat_table(caption, matrix, factor, digits) for caption, matrix, factor, digits in panels]
        return Section("diversity", title, intro, tables=tables)
    return Section("diversity", title, intro, figures=[_heat_figure(*panel[:3], record=record) for panel in panels])


def _heat_table(caption: str, matrix: Sequence[Sequence[float]], factor: float, digits: int) -> PageTable:
    highest = max(map(max, matrix)) or 1.0
    rows = [
        [Shown(f"sample {number}"), *(Shown(f"{factor * value:.{digits}f}", share=value / highest) for value in row)]
        for number, row in enumerate(matrix, 1)
    ]
    return PageTable(caption, ["", *(str(number) for number in range(1, len(matrix) + 1))], rows, heat=True)


def _heat_figure(caption: str, matrix: Sequence[Sequence[float]], factor: float, record: DiversityRecord) -> Figure:
    highest = max(map(max, matrix)) or 1.0
    chosen = spread(len(matrix), SQUARES)
    shares = [[matrix[row][column] / highest for column in chosen] for row in chosen]
    drawn = f"{len(chosen)} of {len(matrix)} samples" if len(chosen) < len(matrix) else f"{len(matrix)} samples"
    words = f"Rows and columns are {drawn}; the fullest square is {factor * highest:.3g}."
    return Figure(caption, grid_of_shares(shares, f"{caption} on {record.images} images. {words}"), words, {})


def _disputed(seen: Inspected) -> Section:
    title = "Where samples disagree most"
    if seen.posterior is not None and len(seen.posterior) == 1:
        return Section("disagreement", title, ONE_SAMPLE)
    found, why = most_disputed(seen.parts)
    intro = "The images with the highest mutual information, each with its true class and what every sample answers."
    if not found and not why and seen.parts:
        return Section("disagreement", title, "All samples give the same answers to all test images.")
    return Section("disagreement", title, intro if found else "", cards=found, missing=[*why, *no_answers(seen)])


def _mistakes(seen: Inspected) -> Section:
    found, why = surest_mistakes(seen.parts)
    intro = "Wrong answers with the highest probability. Some of them may be wrong labels."
    if not found and not why and seen.parts:
        intro = "There are none: every test image is answered right."
    return Section(
        "mistakes", "The surest mistakes", intro if seen.parts else "", cards=found, missing=[*why, *no_answers(seen)]
    )


def _cost(seen: Inspected) -> Section:
    made, result = seen.environment, seen.run.result
    facts: list[tuple[str, str]] = []
    seconds = made.get("training_seconds")
    if seconds is not None and seen.inference is not None:
        steps = len(seen.course.lr) if seen.course is not None else 0
        each = f", {1000 * seconds / steps:.0f} ms for each of {steps} steps" if steps else ""
        facts.append(("training", in_two_units(seconds) + each))
    if result.seconds.evaluation is not None:
        images = sum(part.images for part in result.parts.values())
        facts.append(("evaluation", f"{in_two_units(result.seconds.evaluation)} for {images} test images"))
    memory: Mapping[str, Any] = made.get("peak_memory", {})
    for key, name in (("device", "memory on the GPU, at most"), ("process", "memory of the process, at most")):
        if key in memory:
            facts.append((name, in_bytes(memory[key])))
    folder = seen.run.folder / POSTERIOR
    if folder.is_dir():
        facts.append(("posterior on disk", in_bytes(sum(file.stat().st_size for file in folder.iterdir()))))
    if made:
        facts.append(("trained on", f"{made.get('device', 'an unknown device')}, {made.get('platform', '')}"))
        facts.append(("versions", ", ".join(f"{name} {version}" for name, version in made.get("versions", {}).items())))
        code = made.get("code")
        if code:
            facts.append(("code", f"{code['commit'][:12]}{', changed since' if code['changed'] else ''}"))
    missing = [seen.missing["environment"]] if "environment" in seen.missing else []
    if not memory and seen.inference is not None:
        missing.append("The peak of memory was not kept when this run was trained.")
    return Section("cost", "Time and memory", facts=facts, missing=missing)
