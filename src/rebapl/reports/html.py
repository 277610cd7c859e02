"""The report on one run or several as one HTML file, which loads nothing and runs no script.

`page/report.html` has the sections and their prose, and asks a `RunPage` for the tables, figures and pictures in them.
It escapes every text that it is given; only tables and figures, which escape theirs, go in as they are. A policy in the
page forbids the browser to load anything, whatever a class name or a path may hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from rebapl import __version__
from rebapl.errors import UserError, printable
from rebapl.evaluation.intervals import accuracy_interval, around, calibration_interval
from rebapl.evaluation.scores import proportion_interval, scores
from rebapl.files import write_atomically
from rebapl.learners import METHODS
from rebapl.numbers import effective_samples, harmonic_mean, spread
from rebapl.reports import style
from rebapl.reports.comparison import HALVES, HARMONIC_MEAN, compare, resampled_harmonic_mean
from rebapl.reports.figures import Illustration, reliability_figure, risk_figure, training_figures
from rebapl.reports.inspection import Answered, InspectedRun
from rebapl.reports.pictures import disputed, sure_mistakes
from rebapl.reports.results import COLUMNS, chosen_settings, corruption_table, result_tables, short_value
from rebapl.reports.tables import Cell, Row, Table, score_cells
from rebapl.runs.config import data_name
from rebapl.runs.folder import POSTERIOR, Found
from rebapl.sampling import PRESETS
from rebapl.settings import leaves
from rebapl.wording import few, in_two_units, number_of

DETAILED = 10
"""The most runs of which a report shows more than the comparison of their stored scores."""

MATRIX = 25
"""The most classes whose confusion is shown as a matrix; of more, the most frequent mistakes are shown."""

MISTAKES = 15
"""The rows of the most frequent mistakes."""

NUMBERED, SQUARES = 12, 40
"""The most samples whose distances are shown as numbers, and the most that are shown at all, evenly spread."""

OF_SAMPLE = {"accuracy": 2, "nll": 3, "ece": 2}
OF_PART = {"images": 0, **OF_SAMPLE, "brier": 3, "aurc": 2, "tempered_nll": 3, "tempered_ece": 2}
"""The scores of a sample and of a test part that the page shows, each with the number of its digits."""

INTERVALS = (
    "Below each score is its 95 % interval: how far it would move with other test images of the same kind. Another "
    "seed of the training is not in it. With few images ECE is too high, since chance adds to it: its interval is that "
    "of the ECE that endlessly many images would have, and begins at 0 where a calibrated predictor could have this "
    "ECE."
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
PAGES.globals |= {"methods": METHODS, "presets": PRESETS, "style": style, "version": __version__}
PAGES.globals |= {"corruption_table": corruption_table, "training_figures": training_figures}
PAGES.globals |= {"disputed": disputed, "sure_mistakes": sure_mistakes}


def write_report(inspected: Sequence[InspectedRun], out: Path) -> Path:
    """Write the report on these runs, whole or not at all. Several runs are compared with the first."""
    if not inspected:
        raise UserError("a report needs at least one run")
    write_atomically(out, report_html(inspected))
    return out


def report_html(inspected: Sequence[InspectedRun]) -> str:
    """The report as text."""
    several, detailed = len(inspected) > 1, len(inspected) <= DETAILED
    runs = [RunPage(seen, f"run-{number}") for number, seen in enumerate(inspected, 1) if detailed]
    return PAGES.get_template("report.html").render(
        title=f"Comparison of {len(inspected)} runs" if several else inspected[0].name,
        runs=runs,
        one=None if several else runs[0],
        tables_of_scores=result_tables(Found([seen.run for seen in inspected if seen.run.result.parts], [], [])),
        comparison=compare(inspected, stored=not detailed) if several else None,
        remarks=[] if detailed else [f"{seen.name}: {remark}" for seen in inspected for remark in seen.remarks],
        most=DETAILED,
    )


class RunPage:
    """The tables, figures and pictures of one run. The names of its elements in the page begin with `id`."""

    def __init__(self, seen: InspectedRun, id: str) -> None:
        self.seen, self.id = seen, id
        self.result, self.config, self.parts = seen.run.result, seen.run.config, seen.parts
        self.missing, self.environment = seen.missing, seen.environment
        self.samples = 0 if seen.posterior is None else len(seen.posterior)
        self.resolved = {**seen.run.resolved, "data": data_name(self.config["data"])}
        self.chosen = chosen_settings(seen.run)

    @cached_property
    def left_out(self) -> set[str]:
        """The sections that have nothing to show: prediction sets where none were fitted, and answers to test images
        where a run learned from every image."""
        left_out = set() if self.sets() else {"sets"}
        if self.seen.task is not None and not self.seen.task.tests:
            left_out |= {"calibration", "risk", "confusion", "diversity", "disagreement", "mistakes"}
        return left_out

    def tiles(self) -> Iterator[tuple[str, str, str]]:
        """The numbers at the top, each with its name and a remark: accuracies with intervals, samples, time."""
        accuracies = {name: part.accuracy for name, part in self.result.parts.items()}
        accuracies |= {name: part.scores["accuracy"] for name, part in self.parts.items()}
        for name, accuracy in list(accuracies.items())[:3]:
            ends = accuracy_interval(self.parts[name].right) if name in self.parts else ()
            yield f"accuracy, {name}", f"{accuracy:.1f} %", "95 %: {:.1f} – {:.1f}".format(*ends) if ends else ""
        if set(HALVES) <= accuracies.keys():
            mean = harmonic_mean(*(accuracies[half] for half in HALVES))
            yield HARMONIC_MEAN, f"{mean:.1f} %", "of base and novel"
        if self.seen.posterior is not None:
            effective = effective_samples(self.seen.posterior.weights)
            equal = "of equal weight" if effective > self.samples - 0.01 else f"by weight as good as {effective:.1f}"
            yield "samples", str(self.samples), "one answer, no spread" if self.samples == 1 else equal
        seconds = self.environment.get("training_seconds")
        if seconds is not None and self.seen.inference is not None:
            yield "training", in_two_units(seconds), str(self.environment.get("device", ""))

    def warnings(self) -> Iterator[str]:
        """A sentence for each file that has changed, each thing that is missing and each score that no longer holds."""
        yield from self.seen.remarks
        yield from (self.missing[key] for key in ("remarks", "posterior", "task", "parts") if key in self.missing)
        if not self.result.parts:
            scored = "they are computed for this report" if self.parts else "there are none here"
            yield f"This run has no stored scores: {scored}. `rebapl evaluate RUN` stores them."
        for name, part in self.parts.items():
            stored, now, images = self.result.parts.get(name), part.scores["accuracy"], len(part.labels)
            if stored is not None and (stored.images != images or abs(stored.accuracy - now) > 0.5):
                yield (
                    f"The stored accuracy on {name} is {stored.accuracy:.2f} % of {stored.images} images, and now it "
                    f"is {now:.2f} % of {images}: the data, the backbone or the weights of the samples have changed "
                    "since. This report shows what holds now."
                )

    def settings(self) -> Table:
        """Every setting of the run, resolved."""
        rows = [[key, short_value(value)] for key, value in leaves(self.resolved)]
        return Table("Settings, every one resolved", ["setting", "value"], rows)

    def scores(self) -> Table:
        """Every score of every test part of all samples together, with its interval where its images are there."""
        rows: list[Row] = [[name, *self._part_cells(part)] for name, part in self.parts.items()]
        notes = [INTERVALS] if rows else []
        notes.append("Accuracy, ECE and AURC are in percent, NLL in nats; “at τ” means after a temperature.")
        for name in (each for each in self.result.parts if each not in self.parts):
            rows.append([name, *score_cells(dict(self.result.parts[name]), OF_PART)])
            notes.append(f"{name}: as stored in the run; intervals need its test images.")
        if set(HALVES) <= self.parts.keys():
            mean = harmonic_mean(*(self.parts[half].scores["accuracy"] for half in HALVES))
            interval = around(mean, resampled_harmonic_mean(self.seen), most=100.0)
            rows.append([HARMONIC_MEAN, "", Cell(mean, interval=interval), *[""] * (len(OF_PART) - 2)])
        return Table("All samples together", ["classes", *(COLUMNS[key] for key in OF_PART)], rows, notes)

    def _part_cells(self, part: Answered) -> list[Cell]:
        """The scores of one test part, also after the temperature, with their intervals."""
        found: dict[str, Cell] = {"images": Cell(len(part.labels))}
        for before, each in zip(("", "tempered_"), self._versions(part).values(), strict=False):
            intervals = {key: around(each.scores[key], drawn) for key, drawn in each.resampled.items()}
            intervals["accuracy"] = accuracy_interval(each.right)
            intervals["ece"] = calibration_interval(each.prediction.probabilities.amax(-1), each.right)
            found |= {before + key: Cell(value, interval=intervals.get(key)) for key, value in each.scores.items()}
        return [replace(found.get(key, Cell(None)), digits=digits) for key, digits in OF_PART.items()]

    def _versions(self, part: Answered) -> dict[str, Answered]:
        """The answers to a test part as they are given, and with the temperature where there is one."""
        temperature = self.seen.temperature
        softer = {} if temperature is None else {f"with temperature {temperature:.2f}": part.tempered(temperature)}
        return {"as given": part, **softer}

    def outside(self) -> Table | None:
        """How well outside images are told apart, where that was scored."""
        digits = dict.fromkeys(("auroc", "fpr95", "aupr"), 1)
        rows: list[Row] = [
            [name, by, *score_cells(found, digits)]
            for name, kinds in self.result.outside.items()
            for by, found in kinds.items()
        ]
        columns = ["outside images", "told apart by", "AUROC ↑", "FPR95 ↓", "AUPR ↑"]
        return Table("Outside images", columns, rows) if rows else None

    def each_sample(self) -> Table | None:
        """Each sample alone, on each test part."""
        rows: list[Row] = []
        for name, part in self.parts.items():
            weights = part.prediction.weights.tolist()
            for number, (alone, weight) in enumerate(zip(part.prediction.per_sample, weights, strict=True), 1):
                found = scores(alone, part.labels)
                rows.append([f"sample {number}", name, *score_cells(found, OF_SAMPLE), Cell(weight, digits=3)])
        columns = ["sample", "classes", *(COLUMNS[key] for key in OF_SAMPLE), "weight"]
        return Table("Each sample alone", columns, rows) if self.samples > 1 and rows else None

    def reliability(self) -> list[Illustration]:
        """The reliability of each test part, before and after the temperature."""
        return [reliability_figure(name, self._versions(part)) for name, part in self.parts.items()]

    def risk(self) -> list[Illustration]:
        """The risk by the coverage of each test part."""
        return [risk_figure(name, part) for name, part in self.parts.items()]

    def sets(self) -> Table | None:
        """How often the prediction sets hold the right class, and how large they are; None where none were fitted."""
        rows: list[Row] = []
        for name, part in self.parts.items():
            if (conformal := part.prediction.conformal) is not None:
                sets, count = part.prediction.sets(), len(part.labels)
                held, sizes = int(sets.gather(1, part.labels[:, None]).sum()), sets.sum(1).double()
                low, high = (100 * end for end in proportion_interval(held, count))
                right = Cell(100 * held / count, digits=1, interval=(low, high))
                one = 100 * (sizes == 1).double().mean().item()
                rows.append([name, Cell(100 * conformal.level, digits=1), right, Cell(sizes.mean().item()), Cell(one)])
        columns = ["test part", "level, %", "with the right class, %", "classes, on average", "of one class, %"]
        return Table("Prediction sets", columns, rows) if rows else None

    def confusion(self) -> list[Table]:
        """What is answered instead of what, for each test part."""
        return [
            _confusion_matrix(name, part) if len(part.part.class_names) <= MATRIX else _frequent_mistakes(name, part)
            for name, part in self.parts.items()
        ]

    def diversity(self) -> list[Table]:
        """Distances and disagreements of all pairs of samples."""
        record = self.seen.diversity
        if record is None:
            return []
        chosen = spread(len(record.distance), SQUARES)
        names, tables = [str(index + 1) for index in chosen], []
        for title, matrix, factor, digits in (
            ("Wasserstein-2 distance", record.distance, 1, 2),
            ("Images answered differently, in percent", record.disagreement, 100, 0),
        ):
            values = factor * torch.tensor(matrix)[chosen][:, chosen]
            numbers = values if len(names) <= NUMBERED else torch.zeros_like(values)
            tables.append(_heat_map(title, "sample", names, numbers, values / values.max().clamp_min(1e-12), digits))
        return tables

    @property
    def bytes_on_disk(self) -> int:
        """The size of the posterior; 0 where it is not there."""
        return sum(file.stat().st_size for file in (self.seen.run.folder / POSTERIOR).glob("*"))


def _confusion_matrix(name: str, part: Answered) -> Table:
    names = part.part.class_names
    pairs = part.labels * len(names) + part.prediction.labels
    counts = pairs.bincount(minlength=len(names) ** 2).view(len(names), -1).float()
    shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
    return _heat_map(f"Confusion on {name}", "true class", names, counts, shares)


def _heat_map(title: str, corner: str, names: Sequence[str], numbers: Tensor, shares: Tensor, digits: int = 0) -> Table:
    """A square table of `numbers` that is coloured by `shares`. Zeros are not written."""
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
        [names[truth], names[given], Cell(count, digits=0), Cell(100 * count / totals[truth], digits=0)]
        for (truth, given), count in pairs.most_common(MISTAKES)
    ]
    columns = ["true class", "answered", "images", "% of the class"]
    return Table(f"The most frequent mistakes on {name}", columns, rows)
