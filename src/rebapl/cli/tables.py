"""Tables of results in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rebapl.reports.tables import Table


def print_table(table: Table) -> None:
    """Print a table whole: in a terminal that is too narrow its lines are broken, not its numbers."""
    from rich.console import Console

    console, drawn = Console(), table.to_rich(bare=True)
    console.print(table.title, style="italic", highlight=False, markup=False, soft_wrap=True)
    wide = console.measure(drawn, options=console.options.update(width=400)).maximum
    if wide > console.width:
        console = Console(width=wide, no_color=not console.is_terminal, force_terminal=console.is_terminal)
    console.print(drawn)
    for remark in table.remarks():
        print(remark)
    print()
