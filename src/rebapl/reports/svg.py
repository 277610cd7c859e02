"""Small drawings in SVG for a page: axes, lines, dots and bands.

A drawing has no colours of its own. Its shapes have classes (`blue`, `orange`, `grey` …), which the style sheet of the
page colours, for a light and for a dark screen and for paper. Text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]

LEFT, RIGHT, TOP, BOTTOM = 48.0, 22.0, 30.0, 42.0
"""The room around the axes, for their numbers and names."""

TICKS = 5


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, linear or logarithmic. `percent` writes shares as percent."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    @classmethod
    def around(cls, label: str, values: Iterable[float], *, log: bool = False, zero: bool = False) -> Axis:
        """An axis with room for these values, those that are not finite aside. `zero` lets it begin at zero."""
        known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = (min(known), max(known)) if known else (0.1, 1.0)
        if log:
            return cls(label, low / 1.3, high * 1.3, log=True)
        low = min(low, 0.0) if zero else low
        margin = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
        return cls(label, low if zero and low == 0 else low - margin, high + margin)

    def share(self, value: float) -> float:
        """Where a value lies on the axis: 0 at its beginning, 1 at its end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round numbers along the axis.

        >>> Axis("", 0, 1).ticks(), Axis("", 0.02, 30, log=True).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.1, 1.0, 10.0])
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first + 1) / TICKS))
            decades = [10.0**power for power in range(first, last + 1, every)]
            return decades if len(decades) > 1 else _round_numbers(self.low, self.high)
        return _round_numbers(self.low, self.high)

    def word(self, value: float) -> str:
        """A tick as it is written."""
        if self.percent:
            return f"{100 * value:g} %"
        return f"{value:.6g}" if value == 0 or 1e-4 <= abs(value) < 1e5 else f"{value:.0e}".replace("e-0", "e-")


def _round_numbers(low: float, high: float) -> list[float]:
    rough = (high - low) / TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


@dataclass
class Plot:
    """A drawing with two axes. `about` is what a person is told who cannot see it."""

    x: Axis
    y: Axis
    about: str
    width: float = 420.0
    height: float = 270.0
    _shapes: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> Point:
        """The place of a point in the drawing; a point beyond the axes is moved to their edge."""
        across, up = (min(1.0, max(0.0, share)) for share in (self.x.share(x), self.y.share(y)))
        return (
            LEFT + across * (self.width - LEFT - RIGHT),
            self.height - BOTTOM - up * (self.height - TOP - BOTTOM),
        )

    def line(self, points: Iterable[Point], look: str) -> None:
        """A line through points. It has a gap where a value cannot be drawn."""
        pieces: list[list[str]] = [[]]
        for x, y in points:
            if math.isfinite(y) and (y > 0 or not self.y.log):
                pieces[-1].append("{:.1f},{:.1f}".format(*self.at(x, y)))
            elif pieces[-1]:
                pieces.append([])
        for piece in pieces:
            if len(piece) > 1:
                self._shapes.append(f'<polyline class="line {look}" points="{" ".join(piece)}"/>')
            elif piece:
                across, down = piece[0].split(",")
                self._shapes.append(f'<circle class="dot {look}" cx="{across}" cy="{down}" r="1.5"/>')

    def dot(self, x: float, y: float, look: str, radius: float = 3.5, about: str = "") -> None:
        """A dot; a person who points at it reads what it is about."""
        across, down = self.at(x, y)
        title = f"<title>{escape(about)}</title>" if about else ""
        self._shapes.append(
            f'<circle class="dot {look}" cx="{across:.1f}" cy="{down:.1f}" r="{radius:.1f}">{title}</circle>'
        )

    def upright(self, x: float, low: float, high: float, look: str) -> None:
        """An upright line, such as an error bar."""
        (across, first), (_, last) = self.at(x, low), self.at(x, high)
        self._shapes.append(
            f'<line class="line {look}" x1="{across:.1f}" x2="{across:.1f}" y1="{first:.1f}" y2="{last:.1f}"/>'
        )

    def box(self, first: Point, last: Point, look: str) -> None:
        """A filled rectangle between two opposite corners."""
        (left, bottom), (right, top) = self.at(*first), self.at(*last)
        self._shapes.append(
            f'<rect class="area {look}" x="{left:.1f}" y="{top:.1f}" width="{max(0.0, right - left):.1f}" '
            f'height="{max(0.0, bottom - top):.1f}"/>'
        )

    def band(self, first: float, last: float, look: str) -> None:
        """A filled band over the whole height."""
        self.box((first, self.y.low), (last, self.y.high), look)

    def to_svg(self) -> str:
        """The drawing, axes included."""
        left, right, bottom = LEFT, self.width - RIGHT, self.height - BOTTOM
        axes = []
        for tick in self.y.ticks():
            _, down = self.at(self.x.low, tick)
            axes.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{down:.1f}" y2="{down:.1f}"/>')
            axes.append(f'<text x="{left - 7}" y="{down + 4:.1f}" text-anchor="end">{self.y.word(tick)}</text>')
        for tick in self.x.ticks():
            across, _ = self.at(tick, self.y.low)
            axes.append(f'<line class="axis" x1="{across:.1f}" x2="{across:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
            axes.append(f'<text x="{across:.1f}" y="{bottom + 17}" text-anchor="middle">{self.x.word(tick)}</text>')
        axes.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        middle = (left + right) / 2
        axes.append(
            f'<text class="name" x="{middle}" y="{self.height - 6}" text-anchor="middle">{escape(self.x.label)}</text>'
        )
        axes.append(f'<text class="name" x="0" y="14">{escape(self.y.label)}</text>')
        return _svg(self.width, self.height, self.about, [*axes, *self._shapes])


def grid_of_shares(matrix: Sequence[Sequence[float]], about: str, side: float = 320.0) -> str:
    """A matrix of numbers from 0 to 1 as squares, the higher the fuller, without its numbers."""
    size = side / len(matrix)
    cells = [
        f'<rect class="area blue" x="{column * size:.1f}" y="{row * size:.1f}" width="{size:.1f}" height="{size:.1f}" '
        f'fill-opacity="{value:.2f}"/>'
        for row, values in enumerate(matrix)
        for column, value in enumerate(values)
    ]
    frame = f'<rect class="frame" x="0" y="0" width="{side:g}" height="{side:g}"/>'
    return _svg(side, side, about, [*cells, frame])


def _svg(width: float, height: float, about: str, shapes: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(about)}">{"".join(shapes)}</svg>'
