"""The report on one run or several as one HTML file, which loads nothing and runs no script.

`page/report.html` has the sections and their prose, and asks a `RunPage` for the tables, figures and pictures in them.
It escapes every text that it is given; only tables and figures, which escape theirs, go in as they are. A policy in the
page forbids the browser to load anything, whatever a class name or a path may hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from rebapl import __version__
from rebapl.errors import UserError, printable
from rebapl.evaluation.intervals import Interval, accuracy_interval, around
from rebapl.evaluation.scores import proportion_interval, scores
from rebapl.files import write_atomically
from rebapl.learners import METHODS
from rebapl.numbers import effective_samples, harmonic_mean, spread
from rebapl.reports.comparison import HALVES, HARMONIC_MEAN, compare, resampled_harmonic_mean
from rebapl.reports.figures import Illustration, log_figures, reliability_figure, risk_figure, schedule_figure
from rebapl.reports.inspection import Answered, InspectedRun
from rebapl.reports.pictures import most_disputed, surest_mistakes
from rebapl.reports.results import asked_settings, result_tables, short_value
from rebapl.reports.style import BLUE, GREEN, ORANGE, SKY, VERMILION
from rebapl.reports.tables import Cell, Table
from rebapl.runs.config import data_name
from rebapl.runs.folder import POSTERIOR, Found
from rebapl.sampling import PRESETS
from rebapl.settings import leaves
from rebapl.wording import in_two_units, number_of

COLOURS = {"blue": BLUE, "orange": ORANGE, "green": GREEN, "vermilion": VERMILION, "sky": SKY}

DETAILED = 10
"""The most runs of which a report shows more than the comparison of their stored scores."""

MATRIX = 25
"""The most classes whose confusion is shown as a matrix; of more, the most frequent mistakes are shown."""

MISTAKES = 15
"""The rows of the most frequent mistakes."""

NUMBERED, SQUARES = 12, 40
"""The most samples whose distances are shown as numbers, and the most that are shown at all, evenly spread."""

SCORES = {
    "images": ("images", 0),
    "accuracy": ("accuracy ↑", 2),
    "nll": ("NLL ↓", 3),
    "ece": ("ECE ↓", 2),
    "brier": ("Brier ↓", 3),
    "aurc": ("AURC ↓", 2),
    "tempered_nll": ("NLL at τ ↓", 3),
    "tempered_ece": ("ECE at τ ↓", 2),
}
"""What is shown of each test part: how it is called, and with how many digits."""


def write_report(inspected: Sequence[InspectedRun], out: Path) -> Path:
    """Write the report on these runs, whole or not at all. Several runs are compared with the first."""
    if not inspected:
        raise UserError("a report needs at least one run")
    write_atomically(out, report_html(inspected))
    return out


def report_html(inspected: Sequence[InspectedRun]) -> str:
    """The report as text."""
    pages = Environment(
        loader=PackageLoader("rebapl.reports", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value, keep="\n") if type(value) is str else value,
    )
    several, detailed = len(inspected) > 1, len(inspected) <= DETAILED
    runs = [RunPage(seen, f"run-{number}") for number, seen in enumerate(inspected, 1)]
    return pages.get_template("report.html").render(
        title=f"Comparison of {len(runs)} runs" if several else runs[0].seen.name,
        runs=runs if detailed else [],
        one=None if several else runs[0],
        tables_of_scores=result_tables(Found([seen.run for seen in inspected if seen.run.result.parts], [], [])),
        comparison=compare(inspected, stored=not detailed) if several else None,
        remarks=[] if detailed else [f"{seen.name}: {remark}" for seen in inspected for remark in seen.remarks],
        most=DETAILED,
        most_disputed=most_disputed,
        surest_mistakes=surest_mistakes,
        colours=COLOURS,
        version=__version__,
    )


class RunPage:
    """What a report shows of one run, section by section. The names of its elements begin with `id`."""

    def __init__(self, seen: InspectedRun, id: str) -> None:
        self.seen, self.id = seen, id
        self.result, self.config = seen.run.result, seen.run.config
        self.missing = seen.missing

    @property
    def environment(self) -> Mapping[str, Any]:
        return self.seen.environment or {}

    @cached_property
    def samples(self) -> int:
        """The number of samples; 0 where the posterior is not there."""
        return 0 if self.seen.posterior is None else len(self.seen.posterior)

    @cached_property
    def left_out(self) -> set[str]:
        """The sections that have nothing to show: prediction sets where none were fitted, and answers to test images
        where a run learned from every image."""
        left_out = set() if self.sets() else {"sets"}
        if self.seen.task is not None and not self.seen.task.tests:
            left_out |= {"calibration", "risk", "confusion", "diversity", "disagreement", "mistakes"}
        return left_out

    @property
    def lead(self) -> str:
        """The run in one sentence."""
        if self.seen.inference is None:
            return f"Nothing was learned: {METHODS.find(self.config['method']).about}"
        samples = {0: "Samples", 1: "One sample"}.get(self.samples, f"{self.samples} samples")
        classes = "" if self.seen.task is None else f" of each of {len(self.seen.task.train.class_names)} classes"
        shots = number_of(self.config["shots"], "image")
        return f"{samples} of the prompts, learned from {shots}{classes} ({self.config['protocol']})."

    def tiles(self) -> Iterator[tuple[str, str, str]]:
        """The numbers at the top, each with its name and a remark: accuracies with intervals, samples, time."""
        accuracies = {name: part.accuracy for name, part in self.result.parts.items()}
        accuracies |= {name: part.scores["accuracy"] for name, part in self.seen.parts.items()}
        for name, accuracy in list(accuracies.items())[:3]:
            ends = ""
            if name in self.seen.parts:
                ends = "95 %: {:.1f} – {:.1f}".format(*accuracy_interval(self.seen.parts[name].right))
            yield f"accuracy, {name}", f"{accuracy:.1f} %", ends
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
        """Remarks on the run, what is not there, and scores that are not those that are stored."""
        yield from self.seen.remarks
        parts = self.seen.parts
        yield from (self.missing[key] for key in ("posterior", "task", "answers") if key in self.missing)
        if not self.result.parts:
            scored = "they are computed for this report" if parts else "there are none here"
            yield f"This run has no stored scores: {scored}. `rebapl evaluate RUN` stores them."
        for name, part in parts.items():
            stored, now, images = self.result.parts.get(name), part.scores["accuracy"], len(part.labels)
            if stored is not None and (stored.images != images or abs(stored.accuracy - now) > 0.5):
                yield (
                    f"The stored accuracy on {name} is {stored.accuracy:.2f} % of {stored.images} images, and now it "
                    f"is {now:.2f} % of {images}: the data, the backbone or the weights of the samples have changed "
                    "since. This report shows what holds now."
                )

    @cached_property
    def _resolved(self) -> Mapping[str, Any]:
        return {**self.seen.run.resolved, "data": data_name(self.config["data"])}

    def learned(self) -> Iterator[tuple[str, str]]:
        """What was learned, as pairs of a name and a value."""
        how, method = self._resolved["inference"]["name"], self.config["method"]
        yield "method", METHODS.find(method).about if method in METHODS else method
        if self.seen.inference is not None:
            yield "inference", f"{how}: {PRESETS.find(how).about}" if how in PRESETS else how
        yield "data", f"{self._resolved['data']}, {self.config['protocol']}, seed {self.config['seed']}"
        if self.seen.task is not None:
            names = list(self.seen.task.train.class_names)
            yield "classes", ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
            yield "training images", str(len(self.seen.task.train.items))
        yield "backbone", str(self._resolved["backbone"]).partition(":")[0]
        chosen = ", ".join(asked_settings(self.config))
        yield "settings chosen", chosen or "none: all are those of the method and the inference"

    def settings(self) -> Table:
        rows = [[key, short_value(value)] for key, value in leaves(self._resolved)]
        return Table("Settings, every one resolved", ["setting", "value"], rows)

    def scores(self) -> Table:
        """Every score of every test part of all samples together, with its interval where its images are there."""
        rows: list[list[Cell | str]] = []
        notes = ["Accuracy, ECE and AURC are in percent, NLL in nats; “at τ” means after a temperature."]
        for name, part in self.seen.parts.items():
            rows.append([name, *_score_cells(*self._scored(part))])
        if rows:
            notes.insert(
                0,
                "Below each score is its 95 % interval: how far it would move with other test images of the same kind. "
                "Another seed of the training is not in it.",
            )
        for name in (each for each in self.result.parts if each not in self.seen.parts):
            rows.append([name, *_score_cells(self.result.parts[name].as_json(), {})])
            notes.append(f"{name}: as stored in the run; intervals need its test images.")
        if set(HALVES) <= self.seen.parts.keys():
            mean = harmonic_mean(*(self.seen.parts[half].scores["accuracy"] for half in HALVES))
            interval = around(mean, resampled_harmonic_mean(self.seen))
            rows.append([HARMONIC_MEAN, "", Cell(mean, interval=interval), *[""] * (len(SCORES) - 2)])
        return Table("All samples together", ["classes", *(name for name, _ in SCORES.values())], rows, notes)

    def _scored(self, part: Answered) -> tuple[dict[str, float], dict[str, Interval]]:
        """The scores of one test part, also after the temperature, and their intervals."""
        softer = {} if self.seen.temperature is None else {"tempered_": part.tempered(self.seen.temperature)}
        values: dict[str, float] = {"images": len(part.labels)}
        intervals: dict[str, Interval] = {}
        for before, each in {"": part, **softer}.items():
            values |= {before + key: value for key, value in each.scores.items()}
            intervals |= {before + key: around(each.scores[key], drawn) for key, drawn in each.resampled.items()}
        return values, {**intervals, "accuracy": accuracy_interval(part.right)}

    def outside(self) -> Table | None:
        """How well outside images are told apart, where that was scored."""
        rows: list[list[Cell | str]] = [
            [name, by, Cell(found["auroc"], digits=1), Cell(found["fpr95"], digits=1)]
            for name, kinds in self.result.outside.items()
            for by, found in kinds.items()
        ]
        columns = ["outside images", "told apart by", "AUROC ↑", "FPR95 ↓"]
        return Table("Outside images", columns, rows) if rows else None

    def each_sample(self) -> Table | None:
        """Each sample alone, on each test part."""
        rows: list[list[Cell | str]] = []
        for name, part in self.seen.parts.items():
            weights = part.prediction.weights.tolist()
            for number, (alone, weight) in enumerate(zip(part.prediction.per_sample, weights, strict=True), 1):
                found = scores(alone, part.labels)
                cells = (Cell(found[key], digits=SCORES[key][1]) for key in ("accuracy", "nll", "ece"))
                rows.append([f"sample {number}", name, *cells, Cell(weight, digits=3)])
        columns = ["sample", "classes", "accuracy ↑", "NLL ↓", "ECE ↓", "weight"]
        return Table("Each sample alone", columns, rows) if self.samples > 1 and rows else None

    def reliability(self) -> Iterator[Illustration]:
        """The reliability of each test part, before and after the temperature."""
        temperature = self.seen.temperature
        for name, part in self.seen.parts.items():
            softer = {} if temperature is None else {f"with temperature {temperature:.2f}": part.tempered(temperature)}
            yield reliability_figure(name, {"as given": part, **softer})

    def risk(self) -> list[Illustration]:
        """The risk by the coverage of each test part."""
        return [risk_figure(name, part) for name, part in self.seen.parts.items()]

    def sets(self) -> Table | None:
        """How often the prediction sets hold the right class, and how large they are; None where none were fitted."""
        rows: list[list[Cell | str]] = []
        for name, part in self.seen.parts.items():
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
            for name, part in self.seen.parts.items()
        ]

    def training(self) -> list[Illustration]:
        """The schedule, and what was logged."""
        course = self.seen.course
        return [*([] if course is None else [schedule_figure(course)]), *log_figures(self.seen.log or [], course)]

    def diversity(self) -> list[Table]:
        """Distances and disagreements of all pairs of samples."""
        record = self.seen.diversity
        if record is None:
            return []
        chosen = spread(len(record.distance), SQUARES)
        names = [str(index + 1) for index in chosen]
        tables = []
        for title, matrix, factor, digits in (
            ("Wasserstein-2 distance", record.distance, 1, 2),
            ("Images answered differently, in percent", record.disagreement, 100, 0),
        ):
            values = factor * torch.tensor(matrix)[chosen][:, chosen]
            shares = values / values.max().clamp_min(1e-12)
            numbers = values if len(names) <= NUMBERED else None
            tables.append(_heat_map(title, ["sample", *names], names, numbers, shares, digits))
        return tables

    def cost(self) -> Iterator[tuple[str, str]]:
        """Time, memory and versions, as pairs of a name and a value."""
        made = self.environment
        seconds, course = made.get("training_seconds"), self.seen.course
        if seconds is not None and self.seen.inference is not None:
            steps = 0 if course is None else len(course.lr)
            each = f", {1000 * seconds / steps:.0f} ms for each of {steps} steps" if steps else ""
            yield "training", in_two_units(seconds) + each
        if (scoring := self.result.seconds.evaluation) is not None:
            images = sum(part.images for part in self.result.parts.values())
            yield "evaluation", f"{in_two_units(scoring)} for {images} test images"
        for key, name in (("device", "memory on the GPU, at most"), ("process", "memory of the process, at most")):
            if key in made.get("peak_memory", {}):
                yield name, in_bytes(made["peak_memory"][key])
        if (folder := self.seen.run.folder / POSTERIOR).is_dir():
            yield "posterior on disk", in_bytes(sum(file.stat().st_size for file in folder.iterdir()))
        if made:
            yield "trained on", f"{made.get('device', 'an unknown device')}, {made.get('platform', '')}"
            yield "versions", ", ".join(f"{name} {version}" for name, version in made.get("versions", {}).items())
        if code := made.get("code"):
            yield "code", f"{code['commit'][:12]}{', changed since' if code['changed'] else ''}"


def _score_cells(values: Mapping[str, float], intervals: Mapping[str, Interval]) -> list[Cell]:
    return [Cell(values.get(key), digits=digits, interval=intervals.get(key)) for key, (_, digits) in SCORES.items()]


def _confusion_matrix(name: str, part: Answered) -> Table:
    names = list(part.part.class_names)
    counts = torch.zeros(len(names), len(names))
    counts.index_put_((part.labels, part.prediction.labels), torch.tensor(1.0), accumulate=True)
    shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
    return _heat_map(f"Confusion on {name}", ["true class", *names], names, counts, shares)


def _heat_map(
    title: str,
    columns: Sequence[str],
    names: Sequence[str],
    numbers: torch.Tensor | None,
    shares: torch.Tensor,
    digits: int = 0,
) -> Table:
    """A table with a row per name that is coloured by `shares` (rows, columns). Zeros are left out."""
    rows: list[list[Cell | str]] = []
    for index, (name, row) in enumerate(zip(names, shares.tolist(), strict=True)):
        values = [None] * len(row) if numbers is None else numbers[index].tolist()
        cells = (Cell(value or None, digits=digits, share=share) for value, share in zip(values, row, strict=True))
        rows.append([name, *cells])
    return Table(title, columns, rows)


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


def in_bytes(count: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> in_bytes(2_500_000)
    '2.38 MiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
