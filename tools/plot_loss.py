"""Draws the loss curve of a pre-training from the CSV that `pretrain_mini.py` writes.

python tools/plot_loss.py docs/mini/loss.csv docs/mini/loss.png
"""

import argparse
import csv
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from rebapl.reports.style import BLUE, bare_axes, save_figure


def plot(log: Path, out: Path) -> None:
    """Loss against step, both read from `log`, on a logarithmic axis."""
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot([int(row["step"]) for row in rows], [float(row["loss"]) for row in rows], color=BLUE)
    axes.set(xlabel="step", ylabel="contrastive loss (mean of 100 steps)", yscale="log")
    ticks = [0.3, 0.5, 1, 2, 4, 8]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    bare_axes(axes)
    save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="CSV with the columns step and loss")
    parser.add_argument("out", type=Path, help="picture to write")
    chosen = parser.parse_args()
    plot(chosen.log, chosen.out)
