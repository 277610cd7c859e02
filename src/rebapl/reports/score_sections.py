"""The sections of a report on answers: scores, calibration, risk and coverage, prediction sets, confusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from rebapl.evaluation.intervals import accuracy_interval, around, resampled_scores
from rebapl.evaluation.scores import proportion_interval, scores
from rebapl.evaluation.temperature import tempered
from rebapl.numbers import harmonic_mean
from rebapl.reports.charts import reliability_figure, risk_coverage_figure
from rebapl.reports.inspection import Answered, Inspected
from rebapl.reports.pieces import PageTable, Section, Shown, ends_of, rounded
from rebapl.reports.tables import EMPTY

MATRIX = 25
"""Up to so many classes the confusion is shown as a matrix; beyond, as the most frequent mistakes."""

MISTAKES = 15
"""The rows of the most frequent mistakes."""

INTERVALS = (
    "Below each score is its 95 % interval over test images: other images of the same kind would move it so much. "
    "Another seed of the training is not in it."
)

UNITS = "Accuracy, ECE and AURC are in percent, NLL in nats; “at τ” means after a temperature."


def scores_section(seen: Inspected) -> Section:
    """Every score of every test part with its interval, of all samples together and of each alone."""
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
            rows.append([Shown(name), *(rounded(value, count) for value, count in zip(texts, digits, strict=True))])
            notes.append(f"{name}: as stored in the run; intervals need its test images.")
    if {"base", "novel"} <= accuracies.keys():
        means = [100 * seen.parts[name].right.double().mean().item() for name in ("base", "novel")]
        hm, novel = harmonic_mean(*means), accuracies["novel"].flip(0)  # the halves are drawn independently
        resampled = 2 * accuracies["base"] * novel / (accuracies["base"] + novel).clamp_min(1e-12)
        rows.append(
            [Shown("harmonic mean"), Shown(""), Shown(f"{hm:.2f}", ends_of(around(hm, resampled)))] + [Shown("")] * 6
        )
    if not rows:
        return Section(
            "scores", "Scores", missing=["There are no scores: the run is neither scored nor can it be now."]
        )
    notes.insert(0, UNITS)
    if accuracies:
        notes.insert(0, INTERVALS)
    columns = ["classes", "images", "accuracy ↑", "NLL ↓", "ECE ↓", "Brier ↓", "AURC ↓", "NLL at τ ↓", "ECE at τ ↓"]
    table = PageTable("All samples together", columns, rows, [False] + [True] * 8, list(dict.fromkeys(notes)))
    return Section("scores", "Scores", tables=[table, *_outside(seen)], folded=_per_sample(seen))


def _score_row(name: str, answered: Answered, temperature: float | None) -> tuple[list[Shown], torch.Tensor]:
    """The row of one test part, and its accuracy over bootstrap samples."""
    probabilities, labels = answered.prediction.probabilities, answered.labels
    now, resampled = scores(probabilities, labels), resampled_scores(probabilities, labels)

    def shown(values: Mapping[str, float], drawn: Mapping[str, torch.Tensor], key: str, digits: int) -> Shown:
        interval = accuracy_interval(answered.right) if key == "accuracy" else around(values[key], drawn[key])
        return Shown(f"{values[key]:.{digits}f}", ends_of(interval, digits))

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


def calibration_section(seen: Inspected) -> Section:
    """The reliability of each test part, before and after the temperature."""
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
    return Section("calibration", "Calibration", intro, figures=figures, missing=missing or no_answers(seen))


def risk_section(seen: Inspected) -> Section:
    """The risk by the coverage of each test part."""
    figures = [risk_coverage_figure(each, name) for name, each in seen.parts.items() if len(each.labels)]
    intro = (
        "The share of wrong answers if only the surest images are answered. The lower the line, the better uncertainty "
        "tells mistakes from right answers."
    )
    return Section("risk", "Risk and coverage", intro, figures=figures, missing=no_answers(seen))


def sets_section(seen: Inspected) -> Section | None:
    """How often the prediction sets hold the right class, and how large they are; None where none were fitted."""
    rows = []
    for name, answered in seen.parts.items():
        conformal, count = answered.prediction.conformal, len(answered.labels)
        if conformal is None or not count:
            continue
        sets = answered.prediction.sets()
        held, sizes = int(sets.gather(1, answered.labels[:, None]).sum()), sets.sum(1).double()
        low, high = proportion_interval(held, count)
        cells = (
            name,
            f"{100 * conformal.level:g} %",
            f"{100 * held / count:.1f} % ({100 * low:.1f} – {100 * high:.1f} %)",
            f"{sizes.mean():.2f}",
            f"{100 * (sizes == 1).double().mean():.1f} %",
        )
        rows.append([Shown(cell) for cell in cells])
    if not rows:
        return None
    intro = (
        "The set of an image has the classes that are likely enough. The level was asked for. How often a set holds "
        "the right class is counted here, with its 95 % interval. The smaller the sets, the more they say."
    )
    columns = ["test part", "level", "sets with the right class", "classes, on average", "sets of one class"]
    table = PageTable("Prediction sets", columns, rows, [False, True, True, True, True])
    return Section("sets", "Prediction sets", intro, tables=[table])


def no_answers(seen: Inspected) -> list[str]:
    """The sentence that stands where answers are needed and are not there."""
    return [] if seen.parts else ["This needs the answers to the test images, which cannot be computed here."]


def confusion_section(seen: Inspected) -> Section:
    """What is answered instead of what, for each test part."""
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
    return Section("confusion", "Confusion", intro, tables=tables, missing=no_answers(seen))


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
