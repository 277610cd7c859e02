"""`rebapl data`: list the data sets, and check whether their files are complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from rebapl.cli import options
from rebapl.errors import printable

data = typer.Typer(no_args_is_help=True, help="List the data sets, and check whether their files are complete.")

WITHOUT_FILES = {
    "embedded": "embedded in the package: there are no files to get",
    "registered": "registered by a plugin, which gets its images itself",
}
"""What is said of data sets that have no files, by their origin."""

LINES = "\n"
"""Kept when a report is made printable, because it has a line for each image that cannot be read."""


@data.command("list")
@options.described
def list_(
    name: str | None = None,
    *,
    root: Path | None = None,
) -> None:
    """List the data sets, or describe one of them: its files, where they come from, its classes and its template.

    Parameters:
        name: A published data set to describe.
    """
    from rich.console import Console
    from rich.table import Table

    from rebapl.data.catalogue import DATASETS
    from rebapl.data.published import PUBLISHED, given_root

    folder = given_root(root)
    if name is not None:
        _describe(name, folder)
        return
    table = Table(title="published data sets")
    for column in ("name", "classes", "images below the data root", "template", *(["files"] if folder else [])):
        table.add_column(column, overflow="fold", justify="right" if column == "classes" else "left")
    for entry in PUBLISHED.values():
        images = str(PurePosixPath(entry.folder, entry.images))
        state = [] if folder is None else [_state(entry.missing(folder), entry.needed_files(folder))]
        table.add_row(entry.name, str(entry.classes), images, entry.template, *state)
    Console().print(table)
    for origin, words in (("embedded", "embedded, without files"), ("registered", "registered by plugins")):
        if names := [name for name, source in DATASETS.items() if source.origin == origin]:
            print(f"{words}: {', '.join(names)}")
    print("your own: --data PATH, a folder with train/ val/ test/, a folder of class folders, or a CSV file")
    print("files and sources of one: rebapl data list NAME")


def _state(missing: Sequence[Path], needed: Sequence[Path]) -> str:
    return "there" if not missing else "none" if len(missing) == len(needed) else "in part"


def _describe(name: str, root: Path | None) -> None:
    """Print all facts about a data set and, if there is a data root, which of its files are missing there."""
    from rebapl.data.catalogue import DATASETS
    from rebapl.data.published import Entry

    entry = DATASETS.find(name)
    if not isinstance(entry, Entry):
        print(f"{name} is {WITHOUT_FILES[entry.origin]}")
        return
    train, val, test = (f"{count:,}" for count in entry.counts)
    print(f"{entry.title} ({entry.name})")
    print(f"  classes    {entry.classes}")
    print(f"  template   {entry.template}")
    print(f"  images     {train} train, {val} val, {test} test")
    print("  files below the data root:")
    missing = [] if root is None else entry.missing(root)
    for line, path in zip((f"{entry.images}/", *entry.lists), entry.needed_files(root or Path()), strict=True):
        print(f"    {entry.folder}/{line.removeprefix('./')}{' (missing)' if path in missing else ''}")
    print("  where they come from (nothing is fetched):")
    for source in entry.sources:
        print(f"    {source}")


@data.command()
@options.described
def check(
    name: Annotated[str, typer.Argument(autocompletion=options.complete_datasets)],
    *,
    root: Path | None = None,
    split: str | None = None,
    quick: bool = False,
) -> None:
    """Check files, counts, class names and every image of a data set. The exit code is 1 if something is wrong.

    Parameters:
        name: The name of a data set, or the path of your own.
        split: Another split file: its name in the folder of the data set, or its path.
        quick: Do not open the images.
    """
    from rich.console import Console
    from rich.markup import escape

    from rebapl.cli.progress import StepProgress
    from rebapl.data.checking import check_dataset

    with StepProgress(unit="images") as progress:
        report = check_dataset(name, root, split=split, read=not quick, progress=progress.begin("reading images"))
    console = Console(highlight=False, soft_wrap=True)
    marked = (
        ("[green]ok[/]     ", report.fine),
        ("[bold red]problem[/]", report.problems),
        ("note   ", report.notes),
    )
    for mark, lines in marked:
        for line in lines:
            console.print(f"{mark} {escape(printable(line, keep=LINES))}")
    console.print(f"{escape(printable(name))}: " + ("[green]complete[/]" if report.ok else "[bold red]not complete[/]"))
    if not report.ok:
        raise typer.Exit(1)
