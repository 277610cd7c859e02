"""The sections of a report on one run: what each says, and which tables, drawings and pictures it has."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from rebapl.data.fewshot import spread
from rebapl.evaluation.intervals import Interval, accuracy_interval, around, resampled_scores
from rebapl.evaluation.scores import harmonic_mean, scores
from rebapl.evaluation.temperature import tempered
from rebapl.learners import METHODS
from rebapl.reports.charts import Figure, log_figures, reliability_figure, risk_coverage_figure, schedule_figure
from rebapl.reports.inspection import Answered, Inspected
from rebapl.reports.pictures import Card, most_disputed, surest_mistakes
from rebapl.reports.results import asked_settings, flat_settings, short_value
from rebapl.reports.svg import grid_of_shares
from rebapl.reports.tables import EMPTY, Cell, Table
from rebapl.runs.config import data_name
from rebapl.runs.folder import POSTERIOR
from rebapl.runs.results import DiversityRecord
from rebapl.sampling import PRESETS

MATRIX = 25
"""Up to so many classes the confusion is shown as a matrix; beyond, as the most frequent mistakes."""

NUMBERED = 12
"""Up to so many samples the distances are shown as numbers."""

SQUARES = 60
"""Of more samples than that, so many are drawn, evenly spread."""

MISTAKES = 15
"""The rows of the most frequent mistakes."""

ONE_SAMPLE = "There is one sample, so that there is nothing to compare it with."


class Shown(NamedTuple):
    """A cell of a table: its text, what stands small below it, and its shade from 0 to 1 in a heat map."""

    text: str
    small: str = ""
    share: float = 0.0
    best: bool = False


class PageTable(NamedTuple):
    """A table of the page. The first cell of a row is its heading; `numeric` columns are set to the right.

    A `heat` map is coloured by the shares of its cells.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Shown]]
    numeric: Sequence[bool] = ()
    notes: Sequence[str] = ()
    heat: bool = False

    @property
    def turned(self) -> bool:
        """Whether the names of the columns are too long to stand upright over a heat map."""
        return max(map(len, self.columns[1:]), default=0) > 4


class Tile(NamedTuple):
    """A number that stands out at the top."""

    label: str
    value: str
    more: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page. `folded` tables are opened by a click; `missing` says why something is not there."""

    id: str
    title: str
    intro: str = ""
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[PageTable] = ()
    figures: Sequence[Figure] = ()
    cards: Sequence[Card] = ()
    missing: Sequence[str] = ()
    folded: Sequence[tuple[str, PageTable]] = ()


def page_table(table: Table) -> PageTable:
    """A table of results as the page shows it."""
    numeric = [any(isinstance(row[column], Cell) for row in table.rows) for column in range(len(table.columns))]
    rows = [[Shown(str(cell), best=isinstance(cell, Cell) and cell.best) for cell in row] for row in table.rows]
    return PageTable(table.title, table.columns, rows, numeric, [note for note in table.remarks() if note])


def tiles(seen: Inspected) -> list[Tile]:
    """The numbers at the top: accuracies with intervals, calibration, samples, time."""
    accuracies = {name: part.accuracy for name, part in seen.run.result.parts.items()}
    accuracies |= {
        name: 100 * part.right.double().mean().item() for name, part in seen.parts.items() if len(part.labels)
    }
    found = []
    for name, accuracy in list(accuracies.items())[:3]:
        answered = seen.parts.get(name)
        more = f"95 %: {_range(accuracy_interval(answered.right), 1)}" if answered is not None else "accuracy"
        found.append(Tile(f"accuracy, {name}", f"{accuracy:.1f} %", more))
    if {"base", "novel"} <= accuracies.keys():
        mean = harmonic_mean(accuracies["base"], accuracies["novel"])
        found.append(Tile("harmonic mean", f"{mean:.1f} %", "of base and novel"))
    if seen.posterior is not None:
        weights = seen.posterior.weights
        effective = 1 / weights.square().sum().item()
        more = "of equal weight" if effective > len(weights) - 0.01 else f"by weight as good as {effective:.1f}"
        more = "one answer, no spread" if len(weights) == 1 else more
        found.append(Tile("samples", str(len(weights)), more))
    seconds = seen.environment.get("training_seconds")
    if seconds is not None and seen.inference is not None:
        found.append(Tile("training", duration(seconds), str(seen.environment.get("device", ""))))
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
        _scores(seen),
        _calibration(seen),
        _selective(seen),
        _confusion(seen),
        _training(seen),
        _diversity(seen),
        _disputed(seen),
        _mistakes(seen),
        _cost(seen),
    ]


def lead(seen: Inspected) -> str:
    """The run in one sentence."""
    config = seen.run.config
    shots = f"{config['shots']} image{'' if config['shots'] == 1 else 's'}"
    if seen.inference is None:
        return f"Nothing was learned: {METHODS.find(config['method']).about}"
    count = 0 if seen.posterior is None else len(seen.posterior)
    samples = "Not trained yet" if count == 0 else "One sample" if count == 1 else f"{count} samples"
    classes = "" if seen.task is None else f" of each of {len(seen.task.train.class_names)} classes"
    return f"{samples} of the prompts, learned from {shots}{classes} ({config['protocol']})."


def duration(seconds: float) -> str:
    """A duration in the two units that matter.

    >>> duration(7.25), duration(112), duration(3725)
    ('7.2 s', '1 min 52 s', '1 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


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


def _scores(seen: Inspected) -> Section:
    rows, notes = [], []
    accuracies: dict[str, torch.Tensor] = {}
    for name, answered in seen.parts.items():
        if not len(answered.labels):
            notes.append(f"{name} has no images.")
            continue
        row, resampled = _score_row(name, answered, seen.temperature)
        rows.append(row)
        accuracies[name] = resampled
    for name, part in seen.run.result.parts.items():
        if name not in seen.parts:
            texts = (
                part.images,
                part.accuracy,
                part.nll,
                part.ece,
                part.brier,
                part.aurc,
                part.tempered_nll,
                part.tempered_ece,
            )
            digits = (0, 2, 3, 2, 3, 2, 3, 2)
            rows.append([Shown(name), *(_number(value, count) for value, count in zip(texts, digits, strict=True))])
            notes.append(f"{name}: as stored in the run; intervals need its test images.")
    if {"base", "novel"} <= accuracies.keys():
        means = [100 * seen.parts[name].right.double().mean().item() for name in ("base", "novel")]
        hm, novel = harmonic_mean(*means), accuracies["novel"].flip(0)  # the halves are drawn independently
        resampled = 2 * accuracies["base"] * novel / (accuracies["base"] + novel).clamp_min(1e-12)
        rows.append(
            [Shown("harmonic mean"), Shown(""), Shown(f"{hm:.2f}", _range(around(hm, resampled)))] + [Shown("")] * 6
        )
    if not rows:
        return Section(
            "scores", "Scores", missing=["There are no scores: the run is neither scored nor can it be now."]
        )
    notes.insert(
        0,
        "Below each score is its 95 % interval over test images: other images of the same kind would move it so much. "
        "Another seed of the training is not in it. Accuracy, ECE and AURC are in percent, NLL in nats; “at τ” means "
        "after a temperature.",
    )
    columns = ["classes", "images", "accuracy ↑", "NLL ↓", "ECE ↓", "Brier ↓", "AURC ↓", "NLL at τ ↓", "ECE at τ ↓"]
    table = PageTable("All samples together", columns, rows, [False] + [True] * 8, list(dict.fromkeys(notes)))
    return Section("scores", "Scores", tables=[table, *_outside(seen)], folded=_per_sample(seen))


def _score_row(name: str, answered: Answered, temperature: float | None) -> tuple[list[Shown], torch.Tensor]:
    """The row of one test part, and its accuracy over bootstrap samples."""
    probabilities, labels = answered.prediction.probabilities, answered.labels
    now, resampled = scores(probabilities, labels), resampled_scores(probabilities, labels)

    def shown(values: Mapping[str, float], drawn: Mapping[str, torch.Tensor], key: str, digits: int) -> Shown:
        interval = accuracy_interval(answered.right) if key == "accuracy" else around(values[key], drawn[key])
        return Shown(f"{values[key]:.{digits}f}", _range(interval, digits))

    row = [Shown(name), Shown(str(len(labels)))]
    row += [
        shown(now, resampled, key, digits) for key, digits in (("accuracy", 2), ("nll", 3), ("ece", 2), ("brier", 3))
    ]
    row.append(Shown(f"{now['aurc']:.2f}"))
    if temperature is None:
        return [*row, Shown(EMPTY), Shown(EMPTY)], resampled["accuracy"]
    softer = tempered(probabilities, temperature)
    later, drawn = scores(softer, labels), resampled_scores(softer, labels)
    return [*row, shown(later, drawn, "nll", 3), shown(later, drawn, "ece", 2)], resampled["accuracy"]


def _outside(seen: Inspected) -> list[PageTable]:
    """How well outside images are told apart, where that was scored."""
    rows = [
        [Shown(name), Shown(by), Shown(f"{found['auroc']:.1f}"), Shown(f"{found['fpr95']:.1f}")]
        for name, kinds in seen.run.result.outside.items()
        for by, found in kinds.items()
    ]
    columns = ["outside images", "told apart by", "AUROC ↑", "FPR95 ↓"]
    return [PageTable("Outside images", columns, rows, [False, False, True, True])] if rows else []


def _per_sample(seen: Inspected) -> list[tuple[str, PageTable]]:
    """Each sample alone, on each test part."""
    rows = []
    for name, answered in seen.parts.items():
        if len(answered.prediction.weights) < 2 or not len(answered.labels):
            continue
        for number, alone in enumerate(answered.prediction.per_sample, 1):
            found = scores(alone, answered.labels)
            texts = (f"{found['accuracy']:.2f}", f"{found['nll']:.3f}", f"{found['ece']:.2f}")
            weight = f"{answered.prediction.weights[number - 1]:.3f}"
            rows.append([Shown(f"sample {number}"), Shown(name), *map(Shown, texts), Shown(weight)])
    columns = ["sample", "classes", "accuracy ↑", "NLL ↓", "ECE ↓", "weight"]
    return (
        [("Each sample alone", PageTable("Each sample alone", columns, rows, [False, False] + [True] * 4))]
        if rows
        else []
    )


def _calibration(seen: Inspected) -> Section:
    figures = [
        reliability_figure(each, name, seen.temperature) for name, each in seen.parts.items() if len(each.labels)
    ]
    missing = [seen.missing["temperature"]] if "temperature" in seen.missing else []
    intro = (
        "How often answers are right, by how sure they are. On the dashed line they are right as often as they claim; "
        "below it they claim too much. A larger dot holds more images, and bars are 95 % intervals."
    )
    if seen.temperature is not None:
        verb = "softens" if seen.temperature > 1 else "sharpens"
        intro += f" The temperature τ = {seen.temperature:.3f} was fitted on validation images and {verb} the answers."
    return Section("calibration", "Calibration", intro, figures=figures, missing=missing or _no_answers(seen))


def _selective(seen: Inspected) -> Section:
    figures = [risk_coverage_figure(each, name) for name, each in seen.parts.items() if len(each.labels)]
    intro = (
        "The share of wrong answers if only the surest images are answered. The lower the line, the better uncertainty "
        "tells mistakes from right answers."
    )
    return Section("risk", "Risk and coverage", intro, figures=figures, missing=_no_answers(seen))


def _no_answers(seen: Inspected) -> list[str]:
    return [] if seen.parts else ["This needs the answers to the test images, which cannot be computed here."]


def _confusion(seen: Inspected) -> Section:
    tables, intro = [], ""
    for name, answered in seen.parts.items():
        if not len(answered.labels):
            continue
        small = len(answered.part.class_names) <= MATRIX
        tables.append(_matrix(name, answered) if small else _frequent_mistakes(name, answered))
        if small:
            intro = (
                "Rows are the true classes, columns the answers of all samples together. Shades are shares of a row."
            )
    return Section("confusion", "Confusion", intro, tables=tables, missing=_no_answers(seen))


def _matrix(name: str, answered: Answered) -> PageTable:
    names = list(answered.part.class_names)
    counts = torch.zeros(len(names), len(names), dtype=torch.long)
    counts.index_put_((answered.labels, answered.prediction.labels), torch.tensor(1), accumulate=True)
    totals = counts.sum(1, keepdim=True).clamp_min(1)
    shares = (counts / totals).tolist()
    rows = [
        [
            Shown(truth),
            *(Shown(str(count) if count else "", share=share) for count, share in zip(row, parts, strict=True)),
        ]
        for truth, row, parts in zip(names, counts.tolist(), shares, strict=True)
    ]
    return PageTable(f"Confusion on {name}", ["true class", *names], rows, heat=True)


def _frequent_mistakes(name: str, answered: Answered) -> PageTable:
    names = answered.part.class_names
    wrong = (~answered.right).nonzero()[:, 0]
    pairs = Counter(zip(answered.labels[wrong].tolist(), answered.prediction.labels[wrong].tolist(), strict=True))
    totals = Counter(answered.labels.tolist())
    rows = [
        [Shown(names[truth]), Shown(names[given]), Shown(str(count)), Shown(f"{100 * count / totals[truth]:.0f} %")]
        for (truth, given), count in pairs.most_common(MISTAKES)
    ]
    columns = ["true class", "answered", "images", "of the class"]
    return PageTable(f"The most frequent mistakes on {name}", columns, rows, [False, False, True, True])


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
    return Section("disagreement", title, intro if found else "", cards=found, missing=[*why, *_no_answers(seen)])


def _mistakes(seen: Inspected) -> Section:
    found, why = surest_mistakes(seen.parts)
    intro = "Wrong answers with the highest probability. Some of them may be wrong labels."
    if not found and not why and seen.parts:
        intro = "There are none: every test image is answered right."
    return Section(
        "mistakes", "The surest mistakes", intro if seen.parts else "", cards=found, missing=[*why, *_no_answers(seen)]
    )


def _cost(seen: Inspected) -> Section:
    made, result = seen.environment, seen.run.result
    facts: list[tuple[str, str]] = []
    seconds = made.get("training_seconds")
    if seconds is not None and seen.inference is not None:
        steps = len(seen.course.lr) if seen.course is not None else 0
        each = f", {1000 * seconds / steps:.0f} ms for each of {steps} steps" if steps else ""
        facts.append(("training", duration(seconds) + each))
    if result.seconds.evaluation is not None:
        images = sum(part.images for part in result.parts.values())
        facts.append(("evaluation", f"{duration(result.seconds.evaluation)} for {images} test images"))
    memory: Mapping[str, Any] = made.get("peak_memory", {})
    for key, name in (("device", "memory on the GPU, at most"), ("process", "memory of the process, at most")):
        if key in memory:
            facts.append((name, _bytes(memory[key])))
    folder = seen.run.folder / POSTERIOR
    if folder.is_dir():
        facts.append(("posterior on disk", _bytes(sum(file.stat().st_size for file in folder.iterdir()))))
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


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def _range(interval: Interval, digits: int = 2) -> str:
    return f"{interval.low:.{digits}f} – {interval.high:.{digits}f}"


def _number(value: float | None, digits: int) -> Shown:
    return Shown(EMPTY if value is None else f"{value:.{digits}f}")
