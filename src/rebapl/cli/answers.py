"""A prediction as a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rebapl.errors import printable
from rebapl.posterior import Prediction
from rebapl.posterior.prediction import LEVEL

FORMATS = ("table", "json", "csv")
WIDTH = 120
UNSURE = "I don't know"
MEASURES = ("entropy", "expected_entropy", "mutual_information", "disagreement")


def records(prediction: Prediction, top: int, abstain: bool) -> list[dict[str, Any]]:
    """One record per image, unrounded: `answer` is None where the posterior should not answer.

    With one sample there is no interval: `low` and `high` are None.
    """
    alone = len(prediction.weights) == 1
    best = prediction.top(top)
    unsure = prediction.unsure().tolist() if abstain else [False] * len(prediction)
    measures = {
        "entropy": prediction.predictive_entropy,
        "expected_entropy": prediction.expected_entropy,
        "mutual_information": prediction.mutual_information,
        "disagreement": prediction.disagreement,
    }
    columns = list(zip(*(part.tolist() for part in best), strict=True))
    answers = []
    for index, (name, doubt) in enumerate(zip(prediction.names, unsure, strict=True)):
        classes = [
            {
                "class": prediction.class_names[label],
                "probability": probability,
                "low": None if alone else low,
                "high": None if alone else high,
            }
            for label, probability, low, high in zip(*columns[index], strict=True)
        ]
        shown = name.encode("utf-8", "backslashreplace").decode()  # a file's name may be no valid text
        record = {"image": shown, "answer": None if doubt else classes[0]["class"], "top": classes}
        answers.append({**record, **{key: values[index].item() for key, values in measures.items()}})
    return answers


def as_json(prediction: Prediction, answers: list[dict[str, Any]]) -> str:
    """All records, with the class names, the averaging and the interval level that they were made with."""
    head = {"class_names": prediction.class_names, "average": prediction.average, "interval_level": LEVEL}
    return json.dumps({**head, "samples": len(prediction.weights), "images": answers}, indent=2, ensure_ascii=False)


def as_csv(answers: list[dict[str, Any]]) -> str:
    """A line per image, with its likeliest classes in columns numbered from 1."""
    ranks = range(1, len(answers[0]["top"]) + 1)
    fields = ("class", "probability", "low", "high")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "answer", *MEASURES, *(f"{field}_{rank}" for rank in ranks for field in fields)])
    for answer in answers:
        classes = [each[field] for each in answer["top"] for field in fields]
        shown = UNSURE if answer["answer"] is None else answer["answer"]
        writer.writerow([answer["image"], shown, *(answer[key] for key in MEASURES), *classes])
    return text.getvalue().rstrip("\n")


def as_table(answers: list[dict[str, Any]], samples: int, coloured: bool) -> str:
    """A table for a terminal, with a row per image and class. The first row of an image has its measures."""
    table = Table(
        caption=f"interval: where at least {LEVEL:.0%} of the {samples} samples' weight lies"
        if samples > 1
        else "one sample: no interval",
        caption_justify="left",
    )
    table.add_column("image", overflow="fold")
    table.add_column("answer")
    for name in ("probability", "interval", "entropy", "mutual information"):
        table.add_column(name, justify="right")
    for answer in answers:
        first, *others = answer["top"]
        unsure = answer["answer"] is None
        image, name = printable(answer["image"]), printable(first["class"])
        shown = f"{UNSURE} ({name}?)" if unsure else name
        measures = (f"{answer['entropy']:.3f}", f"{answer['mutual_information']:.3f}")
        table.add_row(escape(image), escape(shown), *_numbers(first), *measures, end_section=not others)
        for other in others:
            last = other is others[-1]
            table.add_row(
                "", f"[dim]{escape(printable(other['class']))}[/dim]", *_numbers(other), "", "", end_section=last
            )
    text = io.StringIO()
    Console(file=text, width=None if coloured else WIDTH, force_terminal=coloured, no_color=not coloured).print(table)
    return text.getvalue().rstrip("\n")


def _numbers(of_class: dict[str, Any]) -> tuple[str, str]:
    low, high = of_class["low"], of_class["high"]
    return f"{of_class['probability']:.3f}", "–" if low is None else f"{low:.3f} … {high:.3f}"
