"""The targets of `rebapl reproduce`, and making them: their runs, then their tables and figures in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rebapl.errors import UserError, unknown
from rebapl.files import read_json, write_atomically, write_json
from rebapl.reports.style import save_for_paper
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce import ablations, main_tables, plug_and_play, settings_table, timing, toy
from rebapl.reproduce.estimate import Pace, missing_data, pace, seconds
from rebapl.reproduce.suites import Suite
from rebapl.reproduce.target import Context, Product, Target, no_runs
from rebapl.runs.config import RunConfig
from rebapl.runs.engine import Engine, LocalEngine, OnEvent
from rebapl.runs.folder import POSTERIOR, is_finished, run_folder
from rebapl.runs.run import run_all
from rebapl.wording import roughly

PAGE = "README.md"

_TARGETS = (
    Target("table1", "base-to-novel by data set and average, all methods", main_tables.table1_runs, main_tables.table1),
    Target("table2", "cross-data-set transfer", main_tables.table2_runs, main_tables.table2),
    Target("table3", "domain generalisation", main_tables.table3_runs, main_tables.table3),
    Target("table4", "repulsion: none, Wasserstein, MMD", main_tables.table4_runs, main_tables.table4),
    Target(
        "plug-and-play",
        "ReBaPL minus maximum likelihood, for every method that learns",
        plug_and_play.plug_and_play_runs,
        plug_and_play.plug_and_play,
    ),
    Target("settings", "the paper's settings beside those of the presets", no_runs, settings_table.settings),
    Target("xi", "strength ξ of the repulsion × reference images × distance", ablations.xi_runs, ablations.xi),
    Target("cycles", "number of cycles C", ablations.cycles_runs, ablations.cycles),
    Target("samples", "samples per cycle K", ablations.samples_runs, ablations.samples),
    Target("overhead", "time of the distances against n", no_runs, timing.overhead, 10.0),
    Target("latency", "time of a prediction against C, on one device and spread", no_runs, timing.latency, 30.0),
    Target("efficiency", "training time against maximum likelihood", timing.efficiency_runs, timing.efficiency),
    Target("diversity", "heat maps of the samples' distances", ablations.diversity_runs, ablations.diversity),
    Target("overfitting", "maximum likelihood trained longer", ablations.overfitting_runs, ablations.overfitting),
    Target("toy", "the two-mode example", no_runs, toy.toy, 20.0),
)

PAPER_TARGETS: dict[str, Target] = {target.name: target for target in _TARGETS}
"""The targets of `rebapl reproduce` by name. One entry makes one: what it is, the runs it needs, how it is made."""


def chosen(names: Sequence[str]) -> list[Target]:
    """The targets of these names, all of them for `all`."""
    for name in names:
        if name not in (*PAPER_TARGETS, "all"):
            raise unknown("target", name, (*PAPER_TARGETS, "all"))
    return [target for name, target in PAPER_TARGETS.items() if name in names or "all" in names]


def make_target(
    target: Target, context: Context, out: Path, *, engine: Engine[Any] | None = None, on_event: OnEvent | None = None
) -> Product:
    """Finish the runs of a target on an engine, and write what it makes of them into the folder `out`.

    Tables become .md, .csv and .tex files, figures .png and .pdf files, and all numbers, unrounded, a .json file.
    `README.md` then shows everything that was made in that folder, and says where a result is opposite to the paper's.
    """
    configs = target.runs(context.suite)
    run_all(configs, context.runs, root=context.root, engine=engine or LocalEngine(context.devices), on_event=on_event)
    product = target.make(context)
    for name, table in product.tables.items():
        table.write(out, name)
    for name, figure in product.figures.items():
        save_for_paper(figure, out, name)
    record = {
        "target": target.name,
        "suite": context.suite.name,
        "note": context.suite.remark,
        "tables": list(product.tables),
        "figures": list(product.figures),
        "opposite": list(product.opposite),
        "runs": sorted({run_folder(config, context.runs).name for config in configs}),
        "data": product.data,
    }
    write_json(out / f"{target.name}.json", record)
    write_atomically(out / PAGE, page(out))
    return product


def page(out: Path) -> str:
    """Everything that was made in a folder, as one Markdown page."""
    records = [read_json(out / f"{name}.json", "made") for name in PAPER_TARGETS if (out / f"{name}.json").exists()]
    suites = list(dict.fromkeys(record["suite"] for record in records))
    lines = [f"# The paper's tables and figures, suite {' and '.join(suites)}", ""]
    lines += [note for note in dict.fromkeys(record["note"] for record in records) if note]
    lines += ["", f"Made by `rebapl reproduce all --suite {suites[0]}`; files of the same names hold the tables as CSV"]
    lines += ["(unrounded) and LaTeX, the figures as PDF, and everything behind them as JSON.", ""]
    for record in records:
        what = PAPER_TARGETS[record["target"]].what
        lines += [f"## {record['target']}: {what}", ""]
        for name in record["tables"]:
            lines += [(out / f"{name}.md").read_text(encoding="utf-8")]
        if record.get("opposite"):
            lines += ["**Opposite to the paper:**", ""]
            lines += [*(f"- {sentence}" for sentence in record["opposite"]), ""]
        for name in record["figures"]:
            lines += [f"![{name}]({name}.png)", ""]
    return "\n".join(lines).rstrip() + "\n"


@dataclass(frozen=True)
class Planned:
    """A run that a target needs: whether it is done, and how many seconds it may take if not."""

    config: RunConfig
    done: bool
    seconds: float


def planned(
    targets: Sequence[Target], suite: Suite, runs: Path, root: Path | None = None, here: Pace | None = None
) -> tuple[Table, list[Planned]]:
    """What it takes to make these targets: a table with a row per target, and the list of their runs, each once.

    `here` is the pace of this machine; without it, the estimate is for the one that is known. The notes say which data
    are missing below `root`.
    """
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
                each = Planned(config, is_done, 0.0 if is_done else seconds(config, here, trained=trained))
                seen[folder, parts] = each
                spent += each.seconds
            done += seen[folder, parts].done
        total += spent
        rows.append([target.name, target.what, _count(len(configs)), _count(done), roughly(spent)])
    done = sum(each.done for each in seen.values())
    rows.append(["all together", "", _count(len(seen)), _count(done), roughly(total)])
    notes = [
        f"An estimate for {(here or pace(suite.backbone)).machine}, perhaps wrong by a factor of two or three; runs "
        "that targets share are counted once, with the first.",
        "--jobs N makes N runs at a time.",
        *(f"Missing data: {line}." for line in missing_data([each.config for each in seen.values()], root)),
        *missing,
    ]
    columns = ["target", "what", "runs", "done", "time"]
    return Table(f"Suite {suite.name}", columns, rows, notes, rules=[len(rows) - 1]), list(seen.values())


def _count(number: int) -> Cell:
    return Cell(number, digits=0)
