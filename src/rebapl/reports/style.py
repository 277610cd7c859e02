"""The look of all figures (colours, line styles, fonts, widths), and how a figure is saved to a file or into a page."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rebapl.files import write_atomically

# The colours of Okabe and Ito, which colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, VERMILION, BLACK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#000000"
PURPLE, SKY = "#CC79A7", "#56B4E9"
GREY, LIGHT_GREY, DARK_GREY = "#999999", "#DDDDDD", "#555555"
COLUMN, BOTH_COLUMNS = 3.4, 7.0
"""The widths, in inches, of one column of a paper and of both."""

PAPER_FONTS = {
    "font.size": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # publishers refuse the default, type 3
}
"""Settings of matplotlib for a figure in a paper, printed without scaling: `with rc_context(PAPER_FONTS)`."""

PAGE_WIDTH, PAGE_WIDE = 4.4, 9.2
"""The widths, in inches, of a figure that takes half the width of a page of HTML, and of one that takes all of it."""

PAGE_COLOURS = {
    BLUE: "blue",
    ORANGE: "orange",
    VERMILION: "vermilion",
    BLACK: "ink",
    DARK_GREY: "muted",
    GREY: "grey",
    LIGHT_GREY: "rule",
}
"""The colours that a page of HTML replaces by those of its style sheet, each with its name there."""

PAGE_FONTS = {
    "font.size": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "text.color": BLACK,
    "axes.labelcolor": DARK_GREY,
    "xtick.labelcolor": DARK_GREY,
    "ytick.labelcolor": DARK_GREY,
    "xtick.color": GREY,
    "ytick.color": LIGHT_GREY,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "grid.color": LIGHT_GREY,
    "grid.linewidth": 0.7,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",  # text stays text, in the font of the page
}
"""Settings of matplotlib for a figure in a page of HTML: `with rc_context(PAGE_FONTS)`."""

_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, BLACK, PURPLE, SKY)
_MARKERS = "os^DvP"


def line_style(index: int) -> tuple[str, str]:
    """The colour and the marker of a line, by its index in the figure. No two of 42 lines have the same pair.

    >>> line_style(0), line_style(6)
    (('#0072B2', 'o'), ('#56B4E9', 'o'))
    """
    return _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]


def bare_axes(*many: Axes) -> None:
    """Remove the upper and the right edge of the frame of these axes."""
    for axes in many:
        axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: Path, *, dpi: int = 160, settings: Mapping[str, Any] | None = None) -> Path:
    """Write a figure in the format that the ending of `path` names. The file is written whole or not at all.

    The same figure as PNG or PDF has the same bytes each time. `settings` are the settings of matplotlib that the
    figure was drawn with.
    """
    metadata = {".png": {"Software": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    fonts, buffer = logging.getLogger("fontTools"), io.BytesIO()
    level = fonts.level
    fonts.setLevel(logging.ERROR)  # fontTools warns about a date inside matplotlib's own font
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


def inline_svg(figure: Figure, about: str, salt: str) -> str:
    """A figure that was drawn with `PAGE_FONTS`, as an `svg` element for a page of HTML.

    Its colours are variables of the page's style sheet, so that the figure follows the page from light to dark.
    `about` describes it to people who cannot see it. The ids of its elements are made from `salt`, which must differ
    between the figures of a page.
    """
    buffer = io.StringIO()
    with rc_context({**PAGE_FONTS, "svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("</metadata>") + len("</metadata>") :]
    unused = "<style.*?</style>", '(?<=<g) id="[^"]*"', 'font-family: [^;"]*;? ?', r' transform="rotate\(-0 [^"]*"'
    svg = re.sub("|".join(unused), "", svg, flags=re.DOTALL)
    for colour, name in PAGE_COLOURS.items():
        svg = re.sub(f'{colour.lower()}(?=[;"])', f"var(--{name})", svg)
    width, height = (round(72 * inches, 1) for inches in figure.get_size_inches())
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about)}">'
    return head + re.sub(r"\s*\n\s*", "\n", svg)


def page_axes(x: str, y: str, *, wide: bool = False, rows: int = 1) -> tuple[Figure, Axes]:
    """An empty figure for a page of HTML, and its axes with the labels `x` and `y`.

    Draw in it within `rc_context(PAGE_FONTS)`. Above the axes there is room for a legend of `rows` lines.
    """
    width, top = PAGE_WIDE if wide else PAGE_WIDTH, 0.3 + 0.18 * rows
    height = 2.3 + top
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(0.5 / width, 0.45 / height, 1 - 0.15 / width, 1 - top / height)
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_title(y, loc="left", fontsize=8, color=DARK_GREY, pad=8, x=-0.5 / (width - 0.65))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure, axes


def page_legend(figure: Figure, columns: int = 2) -> None:
    """Draw the legend of a figure of `page_axes` above its axes."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    look: dict[str, Any] = {"frameon": False, "handlelength": 1.4, "borderaxespad": 0.0, "borderpad": 0.1}
    figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(0, 1), ncols=columns, **look)
