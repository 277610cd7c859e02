"""Puts measurements of `rebapl bench` into docs/performance.md: their tables, and a figure of growth.

rebapl bench --what steps,answers,growth --export docs/benchmarks/bench-h200.json
python tools/performance_page.py

Where the page says `<!-- measured: NAME -->`, what follows up to `<!-- end -->` becomes what docs/benchmarks/NAME.json
holds. A measurement that is not there leaves its place as it is.
"""

import re
from pathlib import Path

from rebapl.files import write_atomically
from rebapl.reports.style import PAPER_FONTS, save_figure
from rebapl.reproduce.bench_records import Measured
from rebapl.reproduce.bench_tables import bench_tables, growth_figure

DOCS = Path(__file__).parents[1] / "docs"
PLACE = re.compile(r"(?<=<!-- measured: )([\w-]+) -->\n(.*?)(?=<!-- end -->)", flags=re.DOTALL)


def filled(page: str) -> str:
    """The page with all measurements that are there."""
    return PLACE.sub(lambda found: f"{found[1]} -->\n{shown(found[1]) or found[2]}", page)


def shown(name: str) -> str:
    """A measurement as the page has it, or nothing."""
    path = DOCS / "benchmarks" / f"{name}.json"
    if not path.exists():
        return ""
    measured = Measured.read(path)
    parts = [table.to_markdown() for table in bench_tables(measured)]
    if grows(measured):
        parts.append(f"![how a step and an answer grow: {name}](images/{name}.png)\n")
    parts.append(f"All numbers: [`benchmarks/{name}.json`](benchmarks/{name}.json).\n")
    return "\n" + "\n".join(parts) + "\n"


def grows(measured: Measured) -> bool:
    return any(each.along for each in measured.steps)


def draw() -> None:
    """The figure of every measurement that has growth."""
    for path in sorted((DOCS / "benchmarks").glob("bench-*.json")):
        measured = Measured.read(path)
        if grows(measured):
            save_figure(growth_figure(measured), DOCS / "images" / f"{path.stem}.png", settings=PAPER_FONTS)


if __name__ == "__main__":
    write_atomically(DOCS / "performance.md", filled((DOCS / "performance.md").read_text(encoding="utf-8")))
    draw()
