"""Heads and prompts by the number of shots: accuracy, likelihood, calibration and cost on real tasks.

    python tools/shots.py run  --root DATA --photo BACKBONE --runs RUNS --out docs/benchmarks/shots.csv [--device cpu]
                               [--learned heads|prompts] [--shots 1,2] [--seeds 1]
    python tools/shots.py take --study docs/benchmarks/choice.json --out docs/benchmarks/shots.csv
    python tools/shots.py show --out docs/benchmarks/shots.csv

Few-shot over all classes with 1, 2, 4, 8 and 16 images of each, on test images, seeds 1 and 2. `run` does the missing
runs of `HEADS` or of `PROMPTS`. `take` copies rows of `PROMPTS` with 4 and 16 images from the records of `study.py`. A
run that is done is not done again, and other rows of the table stay.

**The rule** for the head that `rebapl learn` uses, written down before the runs: on the development tasks (DTD,
SCENE-15, EuroSAT, Caltech101) with 4 and 16 shots, take the heads whose mean accuracy is at most 0.25 points below the
highest, and of these the one with the lowest mean NLL. OxfordPets, Flowers102 and Tiny-60 have no part in the choice.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rebapl.files import read_json, write_atomically
from rebapl.posterior import load_posterior
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce.doubt import image_passes
from rebapl.runs.engine import LocalEngine
from rebapl.runs.folder import read_config
from rebapl.runs.machine import kept_backbone
from rebapl.runs.results import read_result
from rebapl.runs.run import Job
from study import METHODS, OURS, REPORT_ONLY, Protocol, Setting, by_second_rule, config

TASKS = ("dtd", "scene15", "eurosat", "caltech101", *REPORT_ONLY)
CHOOSING = ("dtd", "scene15", "eurosat", "caltech101")
TABLES = {
    "DTD, SCENE-15 and EuroSAT": CHOOSING[:3],
    "Caltech101": CHOOSING[3:],
    "OxfordPets, Flowers102 and Tiny-60, which only report": REPORT_ONLY,
}
SHOTS, SEEDS = (1, 2, 4, 8, 16), (1, 2)
HEADS = (
    ("zero-shot", None),
    ("gda", None),
    ("proker", None),
    ("tip-adapter", None),
    ("tip-adapter-f", "mle"),
    ("lp++", "mle"),
    ("linear", "mle"),
    ("linear", "laplace"),
)
"""The heads among which the rule chooses."""

SAMPLED = (
    ("gda", "laplace"),
    ("proker", "laplace"),
    ("tip-adapter-f", "rebapl"),
    ("lp++", "rebapl"),
    ("linear", "ensemble"),
    ("linear", "csghmc"),
    ("linear", "rebapl"),
)
"""Heads with further kinds of inference, which came later and had no part in the choice."""

PROMPTS = tuple((method, inference) for method in METHODS for inference in ("mle", "ensemble", "rebapl"))
SCORES = ("accuracy", "nll", "ece", "aurc")
FIELDS = (
    "task", "shots", "method", "inference", "seed", *SCORES, "seconds", "device", "parameters", "passes"
)  # fmt: skip
LEEWAY = 0.25
STUDIED_ON = "NVIDIA H200, fifteen runs at a time"
"""The device of the records that `take` reads."""

PARAMETERS = {"maple": 744_768, "mmrl": 2_152_896}
"""The number of parameters of prompts on the backbone of the benchmarks, which does not depend on the classes."""


def record(folder: Path, task: str, shots: int, method: str, inference: str | None, seed: int) -> dict[str, Any]:
    result = read_result(folder)
    part = result.parts["test"]
    scores = {name: round(getattr(part, name), 5) for name in SCORES}
    what = {"task": task, "shots": shots, "method": method, "inference": inference or "–", "seed": seed}
    posterior = load_posterior(folder, kept_backbone(read_config(folder).backbone_name, "cpu"))
    cost = {
        "parameters": sum(stack[0].numel() for stack in posterior.samples.values()),
        "passes": image_passes(posterior),
    }
    return {**what, **scores, "seconds": round(result.seconds.training or 0.0, 2), "device": result.device, **cost}


def run(options: argparse.Namespace) -> None:
    """Do the missing runs, and write a row for each finished one."""
    wanted = [
        (task, int(shots), method, inference, int(seed))
        for method, inference in {"heads": HEADS + SAMPLED, "prompts": PROMPTS}[options.learned]
        if options.only in (None, f"{method} · {inference}")
        for seed in options.seeds.split(",")
        for shots in options.shots.split(",")
        for task in options.tasks.split(",")
    ]
    jobs = {}
    for task, shots, method, inference, seed in wanted:
        setting = Setting(inference or "mle")
        row = "zero-shot" if inference is None else method
        run_config = config(task, method, row, setting, Protocol("few-shot", shots), seed, options.root, options.photo)
        run_config = run_config.changed(method=method, inference=inference)
        jobs[task, shots, method, inference, seed] = Job.of(run_config, options.runs, root=options.root)
    engine = LocalEngine(None if options.device is None else [options.device], options.jobs)
    for outcome in engine.run(list(jobs.values())):
        if outcome.failure is not None:
            print(f"{outcome.folder.name}: {outcome.failure}", flush=True)
    write([record(job.folder, *key) for key, job in jobs.items() if job.is_done()], options.out)


def take(options: argparse.Namespace) -> None:
    """Write rows for the prompts with 4 and 16 images from the records of a study."""
    records = read_json(options.study, "a study")["records"]
    ours = {"choice": by_second_rule(records)[0], "second": by_second_rule(records)[0], "report": OURS}
    rows: list[dict[str, Any]] = []
    for each in records:
        protocol, _, shots = each["protocol"].partition("@")
        inference = "rebapl" if each["row"] == ours[each["stage"]] else each["row"]
        wanted = each["task"] in (CHOOSING if each["stage"] != "report" else REPORT_ONLY)
        if wanted and protocol == "few-shot" and (each["method"], inference) in PROMPTS:
            what = {"task": each["task"], "shots": shots, "method": each["method"], "inference": inference}
            scores = {name: each[name] for name in SCORES}
            cost = {"seconds": round(each["seconds"], 1), "device": STUDIED_ON, **cost_of(each["method"], inference)}
            rows.append({**what, "seed": each["seed"], **scores, **cost})
    write(rows, options.out)


def cost_of(method: str, inference: str) -> dict[str, int]:
    """The parameters of prompts, and the passes of an image for one answer: one for each sample."""
    return {"parameters": PARAMETERS[method], "passes": {"mle": 1, "ensemble": 3, "rebapl": 6}[inference]}


def write(rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write these rows, and keep the rows of other runs that are in the file."""
    done = {tuple(str(row[key]) for key in FIELDS[:5]) for row in rows}
    others = [row for row in read(out) if tuple(row[key] for key in FIELDS[:5]) not in done]
    order = [f"{method} · {inference or '–'}" for method, inference in (*HEADS, *SAMPLED, *PROMPTS)]
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted([*rows, *others], key=lambda row: order.index(f"{row['method']} · {row['inference']}")))
    write_atomically(out, text.getvalue())


def read(path: Path) -> list[dict[str, str]]:
    """The rows in a file; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def name_of(row: dict[str, str]) -> str:
    return row["method"] if row["inference"] == "–" else f"{row['method']} · {row['inference']}"


def mean(rows: Iterable[dict[str, str]], score: str) -> float | None:
    """The mean over tasks of the means over seeds, so that the number of seeds of a task makes no difference."""
    by_task: dict[str, list[float]] = {}
    for row in rows:
        by_task.setdefault(row["task"], []).append(float(row[score]))
    return statistics.fmean(map(statistics.fmean, by_task.values())) if by_task else None


def table(rows: Sequence[dict[str, str]], tasks: Sequence[str]) -> str:
    """A row for each method with means over tasks and seeds: accuracy and NLL by shots, other scores at 16 shots."""
    rows = [row for row in rows if row["task"] in tasks]
    lines: list[Row] = []
    for name in dict.fromkeys(map(name_of, rows)):
        own = [row for row in rows if name_of(row) == name]
        cells: list[Cell] = []
        for score, digits in (("accuracy", 1), ("nll", 2)):
            for shots in SHOTS:
                some = [row for row in own if row["shots"] == str(shots)]
                complete = {row["task"] for row in some} == {*tasks}
                cells.append(Cell(mean(some, score) if complete else None, None, digits))
        most = [row for row in own if row["shots"] == "16"]
        cells += [Cell(mean(most, score), None, 1) for score in ("ece", "aurc", "seconds")]
        cells += [Cell(mean(most, score), None, 0) for score in ("parameters", "passes")]
        lines.append([name, *cells])
    columns = [*(f"acc. {shots}" for shots in SHOTS), *(f"NLL {shots}" for shots in SHOTS)]
    columns += ["ECE 16", "AURC 16", "s 16", "parameters 16", "passes"]
    return Table("", ["method · inference", *columns], lines).to_markdown(bare=True)


def chosen(rows: Sequence[dict[str, str]]) -> str:
    """The head that the rule chooses."""
    heads = {method if inference is None else f"{method} · {inference}" for method, inference in HEADS[1:]}
    own = [row for row in rows if row["task"] in CHOOSING and row["shots"] in ("4", "16") and name_of(row) in heads]
    accuracy, nll = (
        {name: mean([row for row in own if name_of(row) == name], score) or 0.0 for name in heads}
        for score in ("accuracy", "nll")
    )
    return min((name for name in heads if accuracy[name] >= max(accuracy.values()) - LEEWAY), key=nll.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "take", "show"])
    parser.add_argument("--root", type=Path, help="folder of the data sets")
    parser.add_argument("--photo", help="backbone")
    parser.add_argument("--runs", type=Path, default=Path("runs/shots"), help="where runs are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/shots.csv"), help="the table as CSV")
    parser.add_argument("--tasks", default=",".join(TASKS), help="separated by commas")
    parser.add_argument("--learned", choices=["heads", "prompts"], default="heads", help="what to run")
    parser.add_argument("--only", help="one method with its inference, such as 'maple · mle'")
    parser.add_argument("--shots", default=",".join(map(str, reversed(SHOTS))), help="separated by commas")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="separated by commas")
    parser.add_argument("--study", type=Path, default=Path("docs/benchmarks/choice.json"), help="records of study.py")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", help="cpu, cuda …")
    options = parser.parse_args()
    if options.what == "run":
        run(options)
    elif options.what == "take":
        take(options)
    rows = read(options.out)
    for title, tasks in TABLES.items():
        print(f"{title}:\n", table(rows, tasks), sep="\n")
    print(f"by the rule: {chosen(rows)}")


if __name__ == "__main__":
    main()
