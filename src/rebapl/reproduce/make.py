"""Making targets: their runs, then their tables and figures in a folder. `planned` lists the runs that they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rebapl.data.published import PUBLISHED, given_root
from rebapl.data.task import targets_of
from rebapl.errors import UserError
from rebapl.files import read_json, write_atomically, write_json
from rebapl.reports.style import save_for_paper
from rebapl.reproduce.paper_table import Context, Product, Target
from rebapl.reproduce.suites import Suite
from rebapl.reproduce.targets import PAPER_TARGETS
from rebapl.runs.config import RunConfig
from rebapl.runs.engine import Engine, LocalEngine
from rebapl.runs.folder import is_finished, run_folder
from rebapl.runs.jobs import OnEvent
from rebapl.runs.run import run_all

PAGE = "README.md"


def make_target(
    target: Target, context: Context, out: Path, *, engine: Engine[Any] | None = None, on_event: OnEvent | None = None
) -> Product:
    """Finish the runs of a target on an engine, and write its table and figures into the folder `out`.

    The table is written as .md, .csv and .tex, each figure as .png and .pdf, and all unrounded numbers as .json.
    `README.md` then shows all targets that were made in this folder, and lists the results whose sign is opposite to
    the paper's.
    """
    configs = target.runs(context.suite)
    engine = engine or LocalEngine(context.devices)
    run_all(configs, context.runs, root=context.root, engine=engine, on_event=on_event)
    product = target.make(context)
    product.table.write(out, target.name)
    for name, figure in product.figures.items():
        save_for_paper(figure, out, name)
    record = {
        "target": target.name,
        "what": target.what,
        "suite": context.suite.name,
        "note": context.suite.remark,
        "figures": list(product.figures),
        "opposite": list(product.opposite),
        "runs": sorted({run_folder(config, context.runs).name for config in configs}),
        "data": product.data,
    }
    write_json(out / f"{target.name}.json", record)
    write_atomically(out / PAGE, page(out))
    return product


def page(out: Path) -> str:
    """All targets that were made in a folder, as one Markdown page: those of the paper first, in its order."""
    made = {file.stem for file in out.glob("*.json") if file.with_suffix(".tex").exists()}
    names = [*(name for name in PAPER_TARGETS if name in made), *sorted(made - PAPER_TARGETS.keys())]
    records = [read_json(out / f"{name}.json", "the target") for name in names]
    suites = list(dict.fromkeys(record["suite"] for record in records))
    lines = [f"# The paper's tables and figures, suite {' and '.join(suites)}", ""]
    lines += [note for note in dict.fromkeys(record["note"] for record in records) if note]
    commands = " and ".join(f"`rebapl reproduce all --suite {suite}`" for suite in suites)
    lines += ["", f"Made by {commands}; files of the same names hold the tables as CSV"]
    lines += ["(unrounded) and LaTeX, the figures as PDF, and everything behind them as JSON.", ""]
    for record in records:
        name = record["target"]
        lines += [f"## {name}: {PAPER_TARGETS[name].what if name in PAPER_TARGETS else record['what']}", ""]
        lines.append((out / f"{name}.md").read_text(encoding="utf-8"))
        if record["opposite"]:
            lines += ["**Opposite to the paper:**", ""]
            lines += [*(f"- {sentence}" for sentence in record["opposite"]), ""]
        for figure in record["figures"]:
            lines += [f"![{figure}]({figure}.png)", ""]
    return "\n".join(lines).rstrip() + "\n"


def planned(
    targets: Sequence[Target], suite: Suite, runs: Path, root: Path | None = None
) -> tuple[list[tuple[RunConfig, bool]], list[str]]:
    """The runs that these targets need, each once and with whether it is done, and remarks.

    The remarks name the data that are missing below `root`, and the targets that the suite cannot make.
    """
    states: dict[tuple[Path, tuple[str, ...]], tuple[RunConfig, bool]] = {}
    remarks = []
    for target in targets:
        try:
            configs = target.runs(suite)
        except UserError as error:
            remarks.append(f"{target.name} is left out: {error}.")
            continue
        for config in configs:
            folder = run_folder(config, runs)
            key = folder, tuple(config.parts())
            states[key] = config, is_finished(config, folder) and states.get(key, (config, True))[1]
    missing = missing_data((config for config, _ in states.values()), root)
    return list(states.values()), [*(f"Missing data: {line}." for line in missing), *remarks]


def missing_data(configs: Iterable[RunConfig], root: Path | None) -> list[str]:
    """A line for each file or folder that is missing from the data sets that these runs need."""
    folder = given_root(root)
    splits: dict[str, str | None] = {}
    for config in configs:
        splits |= {config.data: config.split, **targets_of(config.protocol, config.data, config.targets)}
    lines = []
    for data, split in splits.items():
        if data not in PUBLISHED:
            continue
        if folder is None:
            lines.append(f"{data}: no --root is given")
        else:
            lines += [f"{data}: there is no {path}" for path in PUBLISHED[data].missing(folder, split)]
    return lines
