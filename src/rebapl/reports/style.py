"""How every figure looks and how it is saved: colours, line styles, font sizes, widths."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebapl.files import write_atomically

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, VERMILION, BLACK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#000000"
PURPLE, SKY = "#CC79A7", "#56B4E9"
GREY, LIGHT_GREY, DARK_GREY = "#999999", "#DDDDDD", "#555555"
COLUMN, BOTH_COLUMNS = 3.4, 7.0
"""The widths, in inches, of one column of a paper and of both."""

PAPER_FONTS = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # publishers refuse the default, type 3
}
"""Settings of matplotlib for a figure that is printed at its own size in a paper: `with rc_context(PAPER_FONTS)`."""

_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, BLACK, PURPLE, SKY)
_MARKERS = "os^DvP"


def line_style(index: int) -> tuple[str, str]:
    """The colour and the marker of a figure's line by its index. They repeat together after 42 lines.

    >>> line_style(0), line_style(6)
    (('#0072B2', 'o'), ('#56B4E9', 'o'))
    """
    return _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]


def bare_axes(*many: Axes) -> None:
    """Take away the frame of these axes above and to the right."""
    for axes in many:
        axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: Path, *, dpi: int = 160, settings: Mapping[str, Any] | None = None) -> Path:
    """Write a figure, whole or not at all, in the format that the ending of `path` names.

    A PNG or PDF has the same bytes each time. `settings` of matplotlib are those that the figure was drawn with.
    """
    metadata = {".png": {"Software": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    fonts, buffer = logging.getLogger("fontTools"), io.BytesIO()
    level = fonts.level
    fonts.setLevel(logging.ERROR)  # it warns of a date inside matplotlib's own font
    try:
        with rc_context(dict(settings or {})):
            figure.savefig(buffer, format=path.suffix[1:], dpi=dpi, metadata=metadata)
    finally:
        fonts.setLevel(level)
    write_atomically(path, buffer.getvalue())
    return path


def save_for_paper(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure that was drawn with `PAPER_FONTS` into a folder, as PNG (200 dpi) and as PDF."""
    return [save_figure(figure, folder / f"{name}.{kind}", dpi=200, settings=PAPER_FONTS) for kind in ("png", "pdf")]
