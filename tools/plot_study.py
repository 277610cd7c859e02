"""Draws the comparison of `study.py`: every kind of inference against an ensemble with as many epochs.

python tools/plot_study.py docs/benchmarks/study.json docs/images/benchmarks.png
"""

import argparse
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rebapl.files import read_json
from rebapl.reports.style import BLUE, DARK_GREY, GREY, VERMILION, bare_axes, save_figure
from study import DRAWN, OURS, REAL, cells, difference, of_row

AGAINST = "ensemble"
SCORES = {"hm": "harmonic mean, points", "nll": "NLL, nats", "ece": "ECE, points"}
NAMES = {
    "eurosat": "EuroSAT",
    "caltech101": "Caltech101",
    "oxford_pets": "OxfordPets",
    "dtd": "DTD-10",
    "scene15": "SCENE-15",
}


def plot(records: list[dict[str, Any]], out: Path) -> None:
    """A column for the average and for each task, a row for each score; bars are one standard error to each side."""
    records = [each for each in records if each["stage"] == "compare"]
    rows = dict.fromkeys(each["row"] for each in records)
    complete = [name for name in rows if cells(of_row(records, name)) == cells(records)]
    kinds = [name for name in complete if name not in ("zero-shot", AGAINST)]
    real = [each for each in records if each["task"] in REAL]
    columns = {"the five real tasks": real} | {
        NAMES.get(task, task): [each for each in records if each["task"] == task] for task in (*REAL, *DRAWN)
    }
    figure = Figure(figsize=(16, 2 + 0.75 * len(kinds)), layout="constrained")
    grid = figure.subplots(len(SCORES), len(columns), sharey=True)
    for row, (score, label) in zip(grid, SCORES.items(), strict=True):
        for axes, (title, own) in zip(row, columns.items(), strict=True):
            for height, kind in enumerate(kinds):
                mean, error = difference(own, kind, AGAINST, score)
                color = VERMILION if kind == OURS else BLUE if kind.startswith("rebapl") else DARK_GREY
                axes.errorbar(mean, height, xerr=error, fmt="o", color=color, markersize=5, capsize=2)
            axes.axvline(0, color=GREY, linewidth=0.8, zorder=0)
            axes.set_yticks(range(len(kinds)), kinds)
            axes.set_ylim(len(kinds) - 0.4, -0.6)
            axes.margins(x=0.15)
            axes.grid(axis="x", alpha=0.3)
            bare_axes(axes)
            if score == "hm":
                axes.set_title(title, fontsize=10)
        row[len(columns) // 2].set_xlabel(f"{label} ({'more' if score == 'hm' else 'less'} is better)")
    seeds = len({each["seed"] for each in records})
    about = "MaPLe and MMRL: difference to the ensemble (mle has a third of its epochs)"
    figure.suptitle(f"{about}; bars: one standard error over {seeds} seeds", fontsize=11)
    save_figure(figure, out, dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="records.json of `study.py`")
    parser.add_argument("out", type=Path, help="picture to write")
    chosen = parser.parse_args()
    plot(read_json(chosen.records, "a study")["records"], chosen.out)
