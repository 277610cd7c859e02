"""The study behind the `rebapl` preset: which settings, chosen without test images; and what they are worth.

    python tools/study.py choose  --root DATA --photo BACKBONE --runs RUNS --chosen FILE
    python tools/study.py compare --root DATA --photo BACKBONE --runs RUNS [--chosen FILE]
    python tools/study.py show    --add records.json      # the tables of either again

`choose` trains on half of the base classes and scores on *validation* images of those and of the other half
(protocol "selection"): neither the test split nor a novel class is ever looked at. `compare` is the base-to-novel
protocol on test images. Both write `records.json` (one entry per run: what was asked for and the scores) and
`table.md` to --out; what is done already in --runs is not done again. Four tasks: EuroSAT and Caltech101 with the
backbone given, digits and shapes with `mini`.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from rebapl.files import read_json, write_atomically, write_json
from rebapl.reports.tables import Cell, Row, Table
from rebapl.runs.engine import run_all
from rebapl.runs.folder import RunConfig, run_folder
from rebapl.runs.results import read_result

SEEDS = (1, 2, 3)
TASKS = ("eurosat", "caltech101", "digits", "shapes")
METHODS = {"maple": "MaPLe", "mmrl": "MMRL", "coop": "CoOp"}


class Setting(NamedTuple):
    """A kind of inference, changes to its preset, and how many times the published epochs."""

    inference: str
    changes: Mapping[str, Any] = {}
    epochs: int = 1


def _rebapl(**changes: Any) -> Setting:
    return Setting("rebapl", {**START, **{name.replace("__", "."): value for name, value in changes.items()}})


def _cool(**changes: Any) -> Setting:
    """The force that fades, at a tenth of the temperature."""
    return _rebapl(**{"temperature": 0.01, "repulsion__size": "fading", "repulsion__fraction": 1.0, **changes})


def _near(**changes: Any) -> Setting:
    """The best of the above."""
    return _cool(**{"repulsion__epsilon": 0.3, **changes})


START: dict[str, Any] = {
    "temperature": 0.1,
    "restart": "cold",
    "exploration": 0.4,
    "floor": 0.05,
    "repulsion.size": "normalised",
    "repulsion.fraction": 0.3,
    "repulsion.epsilon": 1.0,
    "repulsion.stage": "exploration",
    "repulsion.memory": "previous",
}
"""From here one thing at a time is changed."""

GROUPS: dict[str, dict[str, Setting]] = {
    "without repulsion": {
        "mle": Setting("mle"),
        "mle 3x": Setting("mle", epochs=3),
        "ensemble": Setting("ensemble"),
        "snapshot": Setting("snapshot"),
        "csghmc": Setting("csghmc", {"temperature": 0.1}),
        "csghmc cold": Setting("csghmc", {"restart": "cold", "temperature": 0.1}),
    },
    "start": {"rebapl, start": _rebapl()},
    "temperature": {
        "T = 0.01": _rebapl(temperature=0.01),
        "T = 1": _rebapl(temperature=1.0),
    },
    "prior": {
        "prior 0.1 around the start": _rebapl(weight_decay=0.0, prior_std=0.1, center="init"),
        "prior 0.03 around the start": _rebapl(weight_decay=0.0, prior_std=0.03, center="init"),
    },
    "force": {
        "normalised 0.1": _rebapl(repulsion__fraction=0.1),
        "normalised 1": _rebapl(repulsion__fraction=1.0),
        "fading 1, ε 1": _rebapl(repulsion__size="fading", repulsion__fraction=1.0),
        "fading 1, ε 10": _rebapl(repulsion__size="fading", repulsion__fraction=1.0, repulsion__epsilon=10.0),
        "fading 0.3, ε 10": _rebapl(repulsion__size="fading", repulsion__epsilon=10.0),
        "capped 1": _rebapl(repulsion__size="capped", repulsion__strength=1e-3),
    },
    "cooler": {
        "no repulsion, T = 0.01": Setting("csghmc", {"restart": "cold", "temperature": 0.01}),
        "fading 1, ε 1, T = 0.01": _cool(),
        "fading 1, ε 0.3, T = 0.01": _near(),
        "fading 1, ε 1, T = 0.01, 3 samples": _cool(samples_per_cycle=3),
        "fading 1, ε 1, T = 0.01, warm": _cool(restart="warm"),
        "fading 1, ε 1, T = 0.01, exploration 0.7": _cool(exploration=0.7),
    },
    "around the choice": {
        "ε 0.1": _near(repulsion__epsilon=0.1),
        "log potential": _near(repulsion__potential="log"),
        "force in both stages": _near(repulsion__stage="both"),
        "away from all cycles": _near(repulsion__memory="all"),
        "3 samples": _near(samples_per_cycle=3),
        "Wasserstein": _near(repulsion__metric="wasserstein"),
        "Wasserstein, ε 0.03": _near(repulsion__metric="wasserstein", repulsion__epsilon=0.03),
    },
}

SETTINGS = {name: setting for group in GROUPS.values() for name, setting in group.items()}
METRICS = ("mmd", "wasserstein")
OURS = "rebapl (MMD)"
"""The row of the preset in the comparison."""


def compared(method: str, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Setting]:
    """The rows of the comparison; `changes` to the preset of rebapl, by metric. All but zero-shot and mle have equal
    cost.
    """
    mmd, wasserstein = changes["mmd"], {**changes["wasserstein"], "repulsion.metric": "wasserstein"}
    rows = {
        "zero-shot": Setting("mle"),
        "mle": Setting("mle"),
        "mle, 3× epochs": Setting("mle", epochs=3),
        "ensemble": Setting("ensemble"),
        "snapshot": Setting("snapshot"),
        "csghmc": Setting("csghmc", {"temperature": mmd["temperature"]} if "temperature" in mmd else {}),
        "no repulsion": Setting(
            "csghmc", {"restart": "cold"} | {name: x for name, x in mmd.items() if not name.startswith("repulsion.")}
        ),
        OURS: Setting("rebapl", mmd),
        "rebapl (Wasserstein)": Setting("rebapl", wasserstein),
    }
    if method == "coop":
        return {name: rows[name] for name in ("mle", "mle, 3× epochs", "ensemble", OURS)}
    return rows


def config(task: str, method: str, setting: Setting, seed: int, protocol: str, photo: str) -> RunConfig:
    """The run of a setting on a task."""
    from rebapl.learners import published

    splits = {"eurosat": "split_subset_EuroSAT.json", "caltech101": "split_subset_Caltech101.json"}
    epochs = published(method, "base-to-novel", task)[1].epochs
    return RunConfig(
        task,
        method,
        setting.inference,
        protocol=protocol,
        seed=seed,
        split=splits.get(task),
        backbone=photo if task in splits else "mini",
        epochs=epochs * setting.epochs if epochs else None,
        inference_settings=dict(setting.changes),
    )


def record(folder: Path, **what: Any) -> dict[str, Any]:
    """What was asked for with the scores of its run."""
    result = read_result(folder)
    scores = dict(result.base_novel)
    scores["distance"] = result.diversity.mean_distance if result.diversity else 0.0
    scores["seconds"] = result.seconds.training or 0.0
    return {**what, **{name: round(score, 5) for name, score in scores.items()}}


def mean_and_error(records: Sequence[Mapping[str, Any]], score: str) -> tuple[float, float]:
    """The mean over tasks and methods of the mean over seeds, and its standard error from the spread over seeds."""
    by_seed: dict[int, list[float]] = {}
    for each in records:
        by_seed.setdefault(each["seed"], []).append(each[score])
    means = [statistics.fmean(values) for values in by_seed.values()]
    error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return statistics.fmean(means), error


def worth(records: Sequence[Mapping[str, Any]]) -> float:
    """What settings are chosen by: mean harmonic mean (as a share) minus mean NLL (in nats)."""
    return mean_and_error(records, "hm")[0] / 100 - mean_and_error(records, "nll")[0]


def best(records: Sequence[Mapping[str, Any]], names: Iterable[str]) -> str | None:
    """The setting of most worth among those that have been run on every task; None if none has."""
    own = {name: [each for each in records if each["setting"] == name] for name in names}
    whole = {name: found for name, found in own.items() if {each["task"] for each in found} == set(TASKS)}
    return max(whole, key=lambda name: worth(whole[name]), default=None)


def choice_table(records: Sequence[Mapping[str, Any]]) -> str:
    """A row per setting: means over tasks, methods and seeds, then the harmonic mean on each task."""
    tasks = [task for task in TASKS if any(each["task"] == task for each in records)]
    rows: list[Row] = []
    for name in SETTINGS:
        own = [each for each in records if each["setting"] == name]
        if not own:
            continue
        cells: list[Cell | str] = [Cell(mean_and_error(own, score)[0]) for score in ("base", "novel", "hm")]
        cells.append(Cell(mean_and_error(own, "hm")[1]))
        cells += [Cell(mean_and_error(own, score)[0], digits=3) for score in ("nll", "ece", "distance")]
        for task in tasks:
            here = [each for each in own if each["task"] == task]
            cells.append(Cell(mean_and_error(here, "hm")[0], digits=1) if here else "")
        rows.append([name, *cells])
    columns = ["setting", "base", "novel", "HM", "±", "NLL", "ECE", "distance", *(f"HM {task}" for task in tasks)]
    return Table("", columns, rows).to_markdown(bare=True)


def difference(records: Sequence[Mapping[str, Any]], of: str, against: str, score: str) -> tuple[float, float]:
    """The mean of `of` − `against` over the tasks and methods that have both, and its standard error over seeds."""
    places = [
        {(e["task"], e["method"], e["seed"]): e for e in records if e["setting"] == name} for name in (of, against)
    ]
    both = places[0].keys() & places[1].keys()
    pairs = [{"seed": key[2], score: places[0][key][score] - places[1][key][score]} for key in both]
    return mean_and_error(pairs, score)


def scores_table(records: Sequence[Mapping[str, Any]]) -> str:
    """A row per method and setting: means over tasks and seeds; the harmonic mean with its standard error."""
    digits = {"base": 2, "novel": 2, "hm": 2, "nll": 3, "ece": 1, "distance": 2, "seconds": 0}
    rows: list[Row] = []
    for method, name in dict.fromkeys((each["method"], each["setting"]) for each in records):
        own = [each for each in records if (each["method"], each["setting"]) == (method, name)]
        found = {score: mean_and_error(own, score) for score in digits}
        cells = [Cell(found[s][0], found[s][1] if s == "hm" else None, places) for s, places in digits.items()]
        rows.append([METHODS[method], name, *cells])
    columns = ["method", "inference", "base", "novel", "HM", "NLL", "ECE", "distance", "s"]
    return Table("", columns, rows).to_markdown(bare=True)


def differences_table(records: Sequence[Mapping[str, Any]]) -> str:
    """What the repelled samples are worth against everything else, paired by task, method and seed."""
    digits = {"hm": 2, "nll": 3, "ece": 2}
    rows: list[Row] = []
    for name in dict.fromkeys(each["setting"] for each in records):
        if name != OURS:
            found = {score: difference(records, OURS, name, score) for score in digits}
            rows.append([name, *(Cell(*found[score], places, signed=True) for score, places in digits.items())])
    return Table("", ["against", "HM", "NLL", "ECE"], rows).to_markdown(bare=True)


def comparison(records: Sequence[Mapping[str, Any]]) -> str:
    """The tables of the average over tasks, and of each task."""
    tasks = [task for task in TASKS if any(each["task"] == task for each in records)]
    parts = {f"Average of {len(tasks)} tasks": records} if len(tasks) > 1 else {}
    parts |= {task: [each for each in records if each["task"] == task] for task in tasks}
    return "\n".join(
        f"## {title}\n\n{scores_table(own)}\n`{OURS}` minus the others:\n\n{differences_table(own)}"
        for title, own in parts.items()
    )


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    """What there is to say of records of `choose` or of `compare`."""
    return comparison(records) if any(each["setting"] == OURS for each in records) else choice_table(records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["choose", "compare", "show"])
    parser.add_argument("--root", type=Path, help="folder of the data sets")
    parser.add_argument("--photo", help="backbone for EuroSAT and Caltech101")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"), help="where runs are kept")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where records.json and table.md go")
    parser.add_argument("--group", action="append", choices=[*GROUPS], help="choose: only these")
    parser.add_argument("--task", action="append", choices=TASKS, help="only these")
    parser.add_argument("--method", action="append", choices=[*METHODS], help="only these")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", help="cpu, cuda …")
    parser.add_argument("--add", type=Path, action="append", default=[], help="records of earlier calls")
    parser.add_argument("--chosen", type=Path, help="file with the chosen setting of each metric: written, or read")
    asked = parser.parse_args()
    records = [each for path in asked.add for each in read_json(path, "a study")["records"]]
    if asked.what == "show":
        print(tables(records))
        return
    if asked.root is None or asked.photo is None:
        parser.error("--root and --photo are needed to run anything")

    configs: list[RunConfig] = []
    whats: list[dict[str, Any]] = []
    if asked.what == "choose":
        chosen = {name: s for group in (asked.group or GROUPS) for name, s in GROUPS[group].items()}
        settings = dict.fromkeys(asked.method or ("maple", "mmrl"), chosen)
        protocol = "selection"
    else:
        names = read_json(asked.chosen, "a choice") if asked.chosen else {}
        changes = {metric: SETTINGS[names[metric]].changes if metric in names else {} for metric in METRICS}
        settings = {method: compared(method, changes) for method in (asked.method or METHODS)}
        protocol = "base-to-novel"
    for task in asked.task or TASKS:
        for method, named in settings.items():
            for name, setting in named.items():
                for seed in SEEDS[: asked.seeds]:
                    learner = "zero-shot" if name == "zero-shot" else method
                    configs.append(config(task, learner, setting, seed, protocol, asked.photo))
                    whats.append({"task": task, "method": method, "setting": name, "seed": seed})
    with Progress() as progress:
        bar = progress.add_task("runs", total=len(configs))
        run_all(
            sorted(configs, key=cost, reverse=True),  # the longest first, so that none is left over at the end
            asked.runs,
            root=asked.root,
            devices=None if asked.device is None else [asked.device],
            jobs=asked.jobs,
            progress=lambda done, _total, name: progress.update(bar, completed=done, description=name),
        )
    records += [record(run_folder(c, asked.runs), **what) for c, what in zip(configs, whats, strict=True)]
    write_json(asked.out / "records.json", {"records": records})
    text = tables(records)
    write_atomically(asked.out / "table.md", text)
    print(text)
    if asked.what == "choose" and asked.chosen:
        found = {metric: best(records, repelled(metric)) for metric in METRICS}
        write_json(asked.chosen, {metric: name for metric, name in found.items() if name})
        print(f"chosen: {asked.chosen.read_text().strip()}")


def repelled(metric: str) -> list[str]:
    """The settings of rebapl with that metric."""
    repelling = {name: s.changes for name, s in SETTINGS.items() if s.inference == "rebapl"}
    return [name for name, changes in repelling.items() if changes.get("repulsion.metric", "mmd") == metric]


def cost(run: RunConfig) -> float:
    """Roughly how long a run takes, to begin with the longest."""
    weight = {"caltech101": 10.0, "shapes": 5.0}.get(run.data, 1.0)
    weight *= {"zero-shot": 0.0, "coop": 0.02, "mmrl": 0.2}.get(run.method, 0.25)
    return weight * (run.epochs or 0) * (1 if run.inference == "mle" else 3)


if __name__ == "__main__":
    main()
