"""Making targets: their runs, then their tables and figures in a folder, with a page that shows them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rebapl.errors import UserError, unknown
from rebapl.files import read_json, write_atomically, write_json
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce.estimate import pace, seconds
from rebapl.reproduce.suites import Suite
from rebapl.reproduce.target import Context, Output, Target
from rebapl.reproduce.targets import TARGETS
from rebapl.reproduce.toy_figures import save
from rebapl.runs.config import RunConfig
from rebapl.runs.engine import Finished, run_all
from rebapl.runs.folder import POSTERIOR, is_finished, run_folder

PAGE = "README.md"


def chosen(names: Sequence[str]) -> list[Target]:
    """The targets of these names, all of them for `all`."""
    for name in names:
        if name not in (*TARGETS, "all"):
            raise unknown("target", name, (*TARGETS, "all"))
    return [target for name, target in TARGETS.items() if name in names or "all" in names]


def make_target(
    target: Target, context: Context, out: Path, *, jobs: int = 1, progress: Finished | None = None
) -> Output:
    """Finish the runs of a target and write what is made of them into `out`: tables as .md, .csv and .tex, figures as
    .png and .pdf, everything unrounded as .json; and the page of all that is there, `README.md`."""
    configs = target.runs(context.suite)
    run_all(configs, context.runs, root=context.root, devices=context.devices, jobs=jobs, progress=progress)
    output = target.make(context)
    for name, table in output.tables.items():
        table.write(out, name)
    for name, figure in output.figures.items():
        save(figure, out, name)
    record = {
        "target": target.name,
        "suite": context.suite.name,
        "note": context.suite.remark,
        "tables": list(output.tables),
        "figures": list(output.figures),
        "runs": sorted({run_folder(config, context.runs).name for config in configs}),
        "data": output.data,
    }
    write_json(out / f"{target.name}.json", record)
    write_atomically(out / PAGE, page(out))
    return output


def page(out: Path) -> str:
    """Everything made in a folder as one Markdown page."""
    records = [read_json(out / f"{name}.json", "made") for name in TARGETS if (out / f"{name}.json").exists()]
    suites = list(dict.fromkeys(record["suite"] for record in records))
    lines = [f"# The paper's tables and figures, suite {' and '.join(suites)}", ""]
    lines += [note for note in dict.fromkeys(record["note"] for record in records) if note]
    lines += ["", f"Made by `rebapl reproduce all --suite {suites[0]}`; files of the same names hold the tables as CSV"]
    lines += ["(unrounded) and LaTeX, the figures as PDF, and everything behind them as JSON.", ""]
    for record in records:
        what = TARGETS[record["target"]].what
        lines += [f"## {record['target']}: {what}", ""]
        for name in record["tables"]:
            lines += [(out / f"{name}.md").read_text(encoding="utf-8")]
        for name in record["figures"]:
            lines += [f"![{name}]({name}.png)", ""]
    return "\n".join(lines).rstrip() + "\n"


@dataclass(frozen=True)
class Planned:
    """A run that a target needs: whether its results are there, and the seconds it may take if not."""

    config: RunConfig
    done: bool
    seconds: float


def planned(targets: Sequence[Target], suite: Suite, runs: Path) -> tuple[Table, list[Planned]]:
    """What making these targets takes: a table by target, and every run once."""
    seen: dict[tuple[Path, tuple[str, ...]], Planned] = {}
    rows: list[Row] = []
    missing: list[str] = []
    total = 0.0
    for target in targets:
        try:
            configs = target.runs(suite)
        except UserError as error:
            rows.append([target.name, target.what, "–", "–", "–"])
            missing.append(f"{target.name} is left out: {error}.")
            continue
        spent, done = target.seconds, 0
        for config in configs:
            folder, parts = run_folder(config, runs), tuple(config.parts())
            if (folder, parts) not in seen:
                trained = (folder / POSTERIOR).exists() or any(other == folder for other, _ in seen)
                is_done = is_finished(config, folder)
                each = Planned(config, is_done, 0.0 if is_done else seconds(config, trained=trained))
                seen[folder, parts] = each
                spent += each.seconds
            done += seen[folder, parts].done
        total += spent
        rows.append([target.name, target.what, _count(len(configs)), _count(done), clock(spent)])
    done = sum(each.done for each in seen.values())
    rows.append(["all together", "", _count(len(seen)), _count(done), clock(total)])
    notes = [
        f"An estimate for {pace(suite.backbone).machine}; runs that targets share are counted once, with the first.",
        "--jobs N makes N runs at a time.",
        *missing,
    ]
    columns = ["target", "what", "runs", "done", "time"]
    return Table(f"Suite {suite.name}", columns, rows, notes, rules=[len(rows) - 1]), list(seen.values())


def _count(number: int) -> Cell:
    return Cell(number, digits=0)


def clock(spent: float) -> str:
    """Seconds as people say them.

    >>> clock(40), clock(200), clock(9000)
    ('1 min', '3 min', '2.5 h')
    """
    return f"{spent / 3600:.1f} h" if spent >= 3600 else f"{max(1, round(spent / 60))} min"
