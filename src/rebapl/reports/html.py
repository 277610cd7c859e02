"""The report on one run or several as one HTML file, which loads nothing and runs no script.

The template `page/report.html` has the sections and their prose. It calls the functions of this module, as `page`, and
those of `figures`, `pictures` and `results` for their content. It escapes every text. Only figures are inserted as they
are, because they escape their texts themselves. A policy in the page forbids the browser to load anything, whatever a
class name or a path contains.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from rebapl import __version__
from rebapl.errors import UserError, printable
from rebapl.evaluation import Diversity
from rebapl.evaluation.intervals import accuracy_interval, around, calibration_interval
from rebapl.evaluation.scores import proportion_interval, scores
from rebapl.files import write_atomically
from rebapl.learners import METHODS
from rebapl.numbers import effective_samples, harmonic_mean, spread
from rebapl.reports import figures, pictures, results, style
from rebapl.reports.comparison import HALVES, HARMONIC_MEAN, compare, resampled_harmonic_mean
from rebapl.reports.figures import Illustration
from rebapl.reports.inspection import Answered, InspectedRun
from rebapl.reports.tables import Cell, Row, Table, score_cells
from rebapl.runs.config import data_name
from rebapl.runs.folder import POSTERIOR
from rebapl.sampling import PRESETS
from rebapl.score_columns import SCORE_COLUMNS, headings
from rebapl.settings import leaves
from rebapl.wording import few, in_two_units, number_of

DETAILED = 10
"""Up to this number of runs, a report shows every section of each. With more, it only compares their stored scores."""

MATRIX = 25
"""Up to this number of classes, the confusion is a matrix. With more, the most frequent mistakes are listed."""

MISTAKES = 15
"""How many of the most frequent mistakes are listed."""

NUMBERED, SQUARES = 12, 40
"""Up to 12 samples, their distances are shown as numbers. At most 40 samples, evenly spread, are shown at all."""

OF_SAMPLE = ("accuracy", "nll", "ece")
OF_PART = ("images", *OF_SAMPLE, "brier", "aurc", "tempered_nll", "tempered_ece")
"""The scores of a sample and of a test part that the page shows."""

INTERVALS = (
    "Below each score is its 95 % interval: how far it would move with other test images of the same kind. Another "
    "seed of the training is not in it. With few images ECE is too high, since chance adds to it: its interval is that "
    "of the ECE that endlessly many images would have, and begins at 0 if a calibrated predictor could have this ECE."
)

PAGES = Environment(
    loader=PackageLoader("rebapl.reports", "page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: printable(value, keep="\n") if type(value) is str else value,
)
PAGES.filters |= {"few": few, "in_two_units": in_two_units, "number_of": number_of}
PAGES.globals |= {"page": sys.modules[__name__], "figures": figures, "pictures": pictures, "results": results}
PAGES.globals |= {"methods": METHODS, "presets": PRESETS, "style": style, "version": __version__}


def write_report(runs: Sequence[InspectedRun], out: Path) -> Path:
    """Write the report on these runs to a file, whole or not at all. Several runs are compared with the first."""
    if not runs:
        raise UserError("a report needs at least one run")
    write_atomically(out, report_html(runs))
    return out


def report_html(runs: Sequence[InspectedRun]) -> str:
    """The report as the text of a page."""
    several, detailed = len(runs) > 1, len(runs) <= DETAILED
    return PAGES.get_template("report.html").render(
        title=f"Comparison of {len(runs)} runs" if several else runs[0].name,
        runs=runs if detailed else [],
        several=several,
        tables_of_scores=results.result_tables([run.run for run in runs if run.result.parts]),
        comparison=compare(runs, stored=not detailed) if several else None,
        remarks=[] if detailed else [f"{run.name}: {remark}" for run in runs for remark in run.remarks],
        most=DETAILED,
    )


def empty_sections(run: InspectedRun) -> set[str]:
    """The names of the sections that have nothing to show.

    These are prediction sets if none were fitted, and all sections on test images if the run learned from every image.
    """
    fitted = any(part.prediction.conformal is not None for part in run.parts.values())
    empty = set() if fitted else {"sets"}
    if run.task is not None and not run.task.tests:
        empty |= {"calibration", "risk", "confusion", "diversity", "disagreement", "mistakes"}
    return empty


def tiles(run: InspectedRun) -> Iterator[tuple[str, str, str]]:
    """The numbers at the top of the page as (name, number, remark): accuracies with intervals, samples, time."""
    accuracies = {name: part.accuracy for name, part in run.result.parts.items()}
    accuracies |= {name: part.scores["accuracy"] for name, part in run.parts.items()}
    for name, accuracy in list(accuracies.items())[:3]:
        ends = accuracy_interval(run.parts[name].right) if name in run.parts else ()
        yield f"accuracy, {name}", f"{accuracy:.1f} %", "95 %: {:.1f} – {:.1f}".format(*ends) if ends else ""
    if set(HALVES) <= accuracies.keys():
        mean = harmonic_mean(*(accuracies[half] for half in HALVES))
        yield HARMONIC_MEAN, f"{mean:.1f} %", "of base and novel"
    if run.posterior is not None:
        effective = effective_samples(run.posterior.weights)
        equal = "of equal weight" if effective > run.samples - 0.01 else f"by weight as good as {effective:.1f}"
        yield "samples", str(run.samples), "one answer, no spread" if run.samples == 1 else equal
    seconds = run.environment.get("training_seconds")
    if seconds is not None and run.inference is not None:
        yield "training", in_two_units(seconds), str(run.environment.get("device", ""))


def warnings_on(run: InspectedRun) -> Iterator[str]:
    """A sentence for each changed file, each missing thing, and each stored score that no longer holds."""
    parts = run.parts
    yield from run.remarks
    yield from (run.missing[key] for key in ("remarks", "posterior", "task", "parts") if key in run.missing)
    if not run.result.parts:
        scored = "they are computed for this report" if parts else "there are none here"
        yield f"This run has no stored scores: {scored}. `rebapl evaluate RUN` stores them."
    for name, part in parts.items():
        stored, now, images = run.result.parts.get(name), part.scores["accuracy"], len(part.labels)
        if stored is not None and (stored.images != images or abs(stored.accuracy - now) > 0.5):
            yield (
                f"The stored accuracy on {name} is {stored.accuracy:.2f} % of {stored.images} images, and now it "
                f"is {now:.2f} % of {images}: the data, the backbone or the weights of the samples have changed "
                "since. This report shows what holds now."
            )


def settings_table(run: InspectedRun) -> Table:
    """Every setting of the run, resolved."""
    resolved = {**run.run.resolved, "data": data_name(run.config.data)}
    rows = [[key, results.short_value(value)] for key, value in leaves(resolved)]
    return Table("Settings, every one resolved", ["setting", "value"], rows)


def together_table(run: InspectedRun) -> Table:
    """The scores of all samples together on each test part, with intervals if the test images are there."""
    rows: list[Row] = [[name, *_part_cells(part, run.temperature)] for name, part in run.parts.items()]
    notes = [INTERVALS] if rows else []
    notes.append("Accuracy, ECE and AURC are in percent, NLL in nats; “at τ” means after a temperature.")
    for name, stored in run.result.parts.items():
        if name not in run.parts:
            rows.append([name, *score_cells(dict(stored), *OF_PART)])
            notes.append(f"{name}: as stored in the run; intervals need its test images.")
    if set(HALVES) <= run.parts.keys():
        mean = harmonic_mean(*(run.parts[half].scores["accuracy"] for half in HALVES))
        interval = around(mean, resampled_harmonic_mean(run), most=100.0)
        rows.append([HARMONIC_MEAN, "", Cell(mean, interval=interval), *[""] * (len(OF_PART) - 2)])
    return Table("All samples together", ["classes", *headings(*OF_PART)], rows, notes)


def _part_cells(part: Answered, temperature: float | None) -> list[Cell]:
    """The scores of one test part with their intervals, before and after the temperature."""
    cells: dict[str, Cell] = {"images": Cell(len(part.labels))}
    for prefix, answered in zip(("", "tempered_"), _versions(part, temperature).values(), strict=False):
        intervals = {key: around(answered.scores[key], drawn) for key, drawn in answered.resampled.items()}
        intervals["accuracy"] = accuracy_interval(answered.right)
        intervals["ece"] = calibration_interval(answered.prediction.probabilities.amax(-1), answered.right)
        cells |= {prefix + key: Cell(value, interval=intervals.get(key)) for key, value in answered.scores.items()}
    return [replace(cells.get(key, Cell(None)), digits=SCORE_COLUMNS[key].digits) for key in OF_PART]


def _versions(part: Answered, temperature: float | None) -> dict[str, Answered]:
    """The answers to a test part as the samples give them and, if there is a temperature, after it."""
    softer = {} if temperature is None else {f"with temperature {temperature:.2f}": part.tempered(temperature)}
    return {"as given": part, **softer}


def sample_table(run: InspectedRun) -> Table | None:
    """The scores of each sample alone on each test part; None if there is only one sample."""
    rows: list[Row] = []
    for name, part in run.parts.items():
        weights = part.prediction.weights.tolist()
        for number, (alone, weight) in enumerate(zip(part.prediction.per_sample, weights, strict=True), 1):
            cells = score_cells(scores(alone, part.labels), *OF_SAMPLE)
            rows.append([f"sample {number}", name, *cells, Cell(weight, digits=3)])
    columns = ["sample", "classes", *headings(*OF_SAMPLE), "weight"]
    return Table("Each sample alone", columns, rows) if run.samples > 1 and rows else None


def reliability_figures(run: InspectedRun) -> list[Illustration]:
    """The reliability diagram of each test part, before and after the temperature."""
    return [figures.reliability_figure(name, _versions(part, run.temperature)) for name, part in run.parts.items()]


def risk_figures(run: InspectedRun) -> list[Illustration]:
    """The figure of risk against coverage of each test part."""
    return [figures.risk_figure(name, part) for name, part in run.parts.items()]


def sets_table(run: InspectedRun) -> Table:
    """How often the prediction sets contain the right class, and how large they are."""
    rows: list[Row] = []
    for name, part in run.parts.items():
        if (conformal := part.prediction.conformal) is not None:
            sets, count = part.prediction.sets(), len(part.labels)
            covered, sizes = int(sets.gather(1, part.labels[:, None]).sum()), sets.sum(1).double()
            low, high = (100 * end for end in proportion_interval(covered, count))
            right = Cell(100 * covered / count, digits=1, interval=(low, high))
            single = Cell(100 * (sizes == 1).double().mean().item())
            rows.append([name, Cell(100 * conformal.level, digits=1), right, Cell(sizes.mean().item()), single])
    columns = ["test part", "level, %", "with the right class, %", "classes, on average", "of one class, %"]
    return Table("Prediction sets", columns, rows)


def confusion_tables(run: InspectedRun) -> list[Table]:
    """Which classes are answered for which true classes, for each test part."""
    return [
        _confusion_matrix(name, part) if len(part.part.class_names) <= MATRIX else _frequent_mistakes(name, part)
        for name, part in run.parts.items()
    ]


def diversity_tables(record: Diversity) -> list[Table]:
    """Heat maps of the distances and the disagreements of all pairs of samples."""
    samples = spread(len(record.distance), SQUARES)
    names, tables = [str(index + 1) for index in samples], []
    for title, matrix, factor, digits in (
        ("Wasserstein-2 distance", record.distance, 1, 2),
        ("Images answered differently, in percent", record.disagreement, 100, 0),
    ):
        values = factor * torch.tensor(matrix)[samples][:, samples]
        numbers = values if len(names) <= NUMBERED else torch.zeros_like(values)
        tables.append(_heat_map(title, "sample", names, numbers, values / values.max().clamp_min(1e-12), digits))
    return tables


def bytes_on_disk(run: InspectedRun) -> int:
    """The size of the posterior on disk; 0 if it is not there."""
    return sum(file.stat().st_size for file in (run.run.folder / POSTERIOR).glob("*"))


def _confusion_matrix(name: str, part: Answered) -> Table:
    names = part.part.class_names
    pairs = part.labels * len(names) + part.prediction.labels
    counts = pairs.bincount(minlength=len(names) ** 2).view(len(names), -1).float()
    shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
    return _heat_map(f"Confusion on {name}", "true class", names, counts, shares)


def _heat_map(title: str, corner: str, names: Sequence[str], numbers: Tensor, shares: Tensor, digits: int = 0) -> Table:
    """A square table of `numbers` whose cells are coloured by `shares`, from 0 to 1. Zeros are left blank."""
    rows: list[Row] = []
    for name, values, of_row in zip(names, numbers.tolist(), shares.tolist(), strict=True):
        cells = (Cell(value or None, digits=digits, share=share) for value, share in zip(values, of_row, strict=True))
        rows.append([name, *cells])
    return Table(title, [corner, *names], rows)


def _frequent_mistakes(name: str, part: Answered) -> Table:
    names, wrong = part.part.class_names, ~part.right
    pairs = Counter(zip(part.labels[wrong].tolist(), part.prediction.labels[wrong].tolist(), strict=True))
    totals = Counter(part.labels.tolist())
    rows = [
        [names[truth], names[answer], Cell(count, digits=0), Cell(100 * count / totals[truth], digits=0)]
        for (truth, answer), count in pairs.most_common(MISTAKES)
    ]
    columns = ["true class", "answered", "images", "% of the class"]
    return Table(f"The most frequent mistakes on {name}", columns, rows)
