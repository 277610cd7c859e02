"""`rebapl results`: show the scores of finished runs."""

from __future__ import annotations

from pathlib import Path

from rebapl.errors import unknown


def results(
    runs: list[Path] | None = None,
    *,
    export: list[Path] | None = None,
    hm: str = "of-averages",
) -> None:
    """Show the scores of all finished runs, as means over seeds.

    Parameters:
        runs: Folders of runs, or single runs; if not given, the folder runs.
        export: Also write a file: the tables as .md or .tex, or every score of every run, part and sample, unrounded,
            as .csv. Repeatable.
    """
    from rebapl.cli.progress import print_table
    from rebapl.evaluation.scores import check_hm_convention
    from rebapl.files import write_atomically
    from rebapl.reports.results import long_list, result_tables
    from rebapl.runs.folder import find_runs

    check_hm_convention(hm)
    endings = (".csv", ".md", ".tex")
    for file in export or []:
        if file.suffix not in endings:
            raise unknown("ending of --export", file.suffix or file.name, endings)
    found = find_runs(runs or [Path("runs")])
    tables = result_tables(found.runs, hm)
    for table in tables:
        print_table(table)
    if not found.runs:
        print("no run here has results yet")
    for title, folders in (
        ("trained, not scored (rebapl evaluate RUN)", found.unscored),
        ("not finished (the command that began it goes on)", found.untrained),
    ):
        if folders:
            print(f"{title}: {', '.join(map(str, folders[:5]))}{' …' if len(folders) > 5 else ''}")
    for file in export or []:
        if file.suffix == ".csv":
            text = long_list(found.runs)
        else:
            text = "\n".join(each.to_markdown() if file.suffix == ".md" else each.to_latex() for each in tables)
        write_atomically(file, text)
        print(f"written: {file}")
