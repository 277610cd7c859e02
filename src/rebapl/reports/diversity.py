"""The paper's heat map: how far apart the samples of a posterior are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rebapl.runs.results import DiversityRecord

_FEW = 12


def diversity_figure(record: DiversityRecord, path: Path) -> Path:
    """Draw the pairwise distances and disagreements of the samples, side by side."""
    panels = (
        (np.array(record.distance), f"Wasserstein-2 in '{record.space}' features", "{:.2f}"),
        (100 * np.array(record.disagreement), "different answers (%)", "{:.0f}"),
    )
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (matrix, title, form) in zip(figure.subplots(1, 2), panels, strict=True):
        picture = axes.imshow(matrix, cmap="viridis", vmin=0)
        figure.colorbar(picture, ax=axes, shrink=0.85)
        axes.set_title(f"{title}, {record.images} test images", fontsize=9)
        axes.set_xlabel("sample")
        axes.set_ylabel("sample")
        count = len(matrix)
        places = range(0, count, max(1, count // _FEW))
        axes.set_xticks(places, [str(place + 1) for place in places])
        axes.set_yticks(places, [str(place + 1) for place in places])
        if count <= _FEW:
            middle = matrix.max() / 2
            for (row, column), value in np.ndenumerate(matrix):
                shade = "white" if value <= middle else "black"
                axes.text(column, row, form.format(value), ha="center", va="center", color=shade, fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path
