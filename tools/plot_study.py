"""Draws the report of `study.py`: each kind of inference against an ensemble with the same number of epochs.

python tools/plot_study.py docs/benchmarks/choice.json docs/images/benchmarks.png
"""

import argparse
import math
from pathlib import Path

from matplotlib.figure import Figure

from rebapl.files import read_json
from rebapl.reports.style import DARK_GREY, GREY, VERMILION, bare_axes, save_figure
from study import ENSEMBLE, FOUR, METHODS, NOVEL, OURS, REPORT_ONLY, SIXTEEN, Record, difference, of

SCORES = {"accuracy": "accuracy, points", "nll": "NLL, nats", "ece": "ECE, points"}
KINDS = (OURS, "no force", "csghmc", "mle, 3× epochs", "mle")


def plot(records: list[Record], out: Path) -> None:
    """Draw a column for each protocol and method, a row for each score. Bars are one standard error over the tasks."""
    records = of(records, stage="report", task=REPORT_ONLY)
    columns = {
        f"{protocol}, {title}": of(records, protocol=str(protocol), method=method)
        for protocol in (NOVEL, SIXTEEN, FOUR)
        for method, title in METHODS.items()
    }
    figure = Figure(figsize=(15, 7), layout="constrained")
    grid = figure.subplots(len(SCORES), len(columns), sharey=True)
    for row, (score, label) in zip(grid, SCORES.items(), strict=True):
        for axes, (title, own) in zip(row, columns.items(), strict=True):
            for height, kind in enumerate(KINDS):
                mean = difference(own, kind, ENSEMBLE, score)
                error = None if math.isnan(mean.over_cells) else mean.over_cells
                color = VERMILION if kind == OURS else DARK_GREY
                axes.errorbar(mean.value, height, xerr=error, fmt="o", color=color, markersize=5, capsize=2)
            axes.axvline(0, color=GREY, linewidth=0.8, zorder=0)
            axes.set_yticks(range(len(KINDS)), KINDS)
            axes.set_ylim(len(KINDS) - 0.4, -0.6)
            axes.margins(x=0.15)
            axes.grid(axis="x", alpha=0.3)
            bare_axes(axes)
            if score == "accuracy":
                axes.set_title(title, fontsize=10)
        row[len(columns) // 2].set_xlabel(f"{label} ({'more' if score == 'accuracy' else 'less'} is better)")
    about = "Difference to the ensemble on OxfordPets, Flowers102 and Tiny-60 (mle has a third of its epochs)"
    figure.suptitle(f"{about}; bars: one standard error over these tasks", fontsize=11)
    save_figure(figure, out, dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="records.json of `study.py`")
    parser.add_argument("out", type=Path, help="picture to write")
    chosen = parser.parse_args()
    plot(read_json(chosen.records, "a study")["records"], chosen.out)
