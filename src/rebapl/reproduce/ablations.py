"""Studies on one data set each: samples per cycle, overfitting, strength of the repulsion, cycles, diversity."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rebapl.errors import UserError
from rebapl.evaluation.scores import base_novel_accuracies
from rebapl.evaluation.scores import scores as all_scores
from rebapl.evaluation.tasks import bound_to, part_labels, predict_part
from rebapl.files import read_json, write_json
from rebapl.posterior import load_posterior
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce import study_figures
from rebapl.reproduce.comparison import (
    PARTS,
    cells,
    collect,
    mark_columns,
    opposite,
    opposites,
    quoted,
    score_cells,
    score_columns,
    seeds_note,
)
from rebapl.reproduce.paper import from_text, printed
from rebapl.reproduce.suites import Choice, Suite
from rebapl.reproduce.target import Context, Product, over_seeds
from rebapl.runs.backbone import best_device
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import run_folder

MLE = Choice("maple", "maple", "mle")
OVERFITTING = ("MaPLe", "MaPLe with as many epochs as ReBaPL", "MaPLe + ReBaPL")
PREFIXES = "prefixes.json"
"""The file in a run's folder that keeps the scores of its first cycles."""


def samples_choices(suite: Suite) -> list[Choice]:
    return [suite.rebapl("maple", str(count), **{"sampler.samples_per_cycle": count}) for count in suite.samples]


def samples_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.data_of("samples")], samples_choices(suite))


def samples(context: Context) -> Product:
    """Accuracy against the number of samples kept per cycle."""
    suite, data = context.suite, context.suite.data_of("samples")
    found = collect(context, [data], samples_choices(suite))
    compared = suite.compared and data == "oxford_flowers"
    columns, groups = score_columns(compared, compared)
    rows: list[list[Cell | str]] = []
    for label, per_data in found.items():
        numbers = score_cells(cells(per_data[data]), quoted("samples", label) if compared else None, compared)
        rows.append([label, *numbers])
    mark_columns(rows, 1, len(columns) // 3)
    title = f"Samples per cycle K: MaPLe + ReBaPL on {printed(data)}, accuracy in %"
    table = Table(title, ["K", *columns], rows, context.notes(seeds_note(suite.seeds)), [("", 1), *groups])
    ours = {label: cells(per_data[data])["hm"] for label, per_data in found.items()}
    theirs = {label: quoted("samples", label)["hm"] for label in found}
    first, *_, last = found
    against = opposites(ours, theirs, [(last, first)], "HM", "K = {}".format)
    return Product({"samples": table}, data={"scores": found}, opposite=against)


def overfitting_choices(suite: Suite) -> list[Choice]:
    return [MLE, suite.longer(suite.data_of("overfitting")), suite.rebapl("maple")]


def overfitting_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.data_of("overfitting")], overfitting_choices(suite))


def overfitting(context: Context) -> Product:
    """Maximum likelihood with its own epochs and with as many as ReBaPL has in all its cycles, against ReBaPL."""
    suite, data = context.suite, context.suite.data_of("overfitting")
    choices = overfitting_choices(suite)
    found = collect(context, [data], choices)
    compared = suite.compared and data == "oxford_flowers"
    columns, groups = score_columns(compared, compared)
    text = from_text("overfitting")
    shown = [suite.inference_of(data, choice).epochs_in_words for choice in choices]
    theirs = [
        *({part: Cell(value) for part, value in zip(PARTS, text["rows"][key], strict=True)} for key in ("5", "15")),
        quoted("table1", "maple + rebapl", "oxford_flowers"),
    ]
    labels = ["MaPLe", "MaPLe", "MaPLe + ReBaPL"]
    scores = [cells(found[choice.label][data]) for choice in choices]
    rows: list[list[Cell | str]] = [
        [label, count, *score_cells(ours, of_paper if compared else None, compared)]
        for label, count, ours, of_paper in zip(labels, shown, scores, theirs, strict=True)
    ]
    mark_columns(rows, 2, len(columns) // 3)
    title = f"Maximum likelihood trained longer, and ReBaPL, on {printed(data)}, accuracy in %"
    table = Table(
        title, ["method", "epochs", *columns], rows, context.notes(seeds_note(suite.seeds)), [("", 2), *groups]
    )
    names = [f"{label}\n{count} epochs" for label, count in zip(labels, shown, strict=True)]
    figure = study_figures.overfitting(names, scores, printed(data), suite.seeds)
    against = opposites(
        {name: of["hm"] for name, of in zip(OVERFITTING, scores, strict=True)},
        {name: of["hm"] for name, of in zip(OVERFITTING, theirs, strict=True)},
        [(OVERFITTING[1], OVERFITTING[0]), (OVERFITTING[2], OVERFITTING[1])],
        "HM",
    )
    return Product({"overfitting": table}, {"overfitting": figure}, {"scores": found}, against)


def xi_choices(suite: Suite) -> dict[tuple[str, int, float], Choice]:
    """ReBaPL by distance, number of reference images n, and ξ, with the force as the paper prints it."""
    return {
        (metric, count, xi): suite.rebapl(
            "maple",
            f"{metric}, n = {count}, ξ = {xi:g}",
            **{
                "repulsion.distance": metric,
                "repulsion.images": count,
                "repulsion.force": {"kind": "printed", "strength": xi},
            },
        )
        for metric in suite.metrics
        for count in suite.references
        for xi in suite.strengths
    }


def _grid_seeds(suite: Suite) -> tuple[int, ...]:
    return suite.grid_seeds or suite.seeds


def xi_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.data_of("xi")], [MLE, *xi_choices(suite).values()], seeds=_grid_seeds(suite))


def xi(context: Context) -> Product:
    """Accuracy against the strength of the repulsion, for each distance and number of reference images."""
    suite, data, seeds = context.suite, context.suite.data_of("xi"), _grid_seeds(context.suite)
    grid = xi_choices(suite)
    found = collect(context, [data], [MLE, *grid.values()], seeds)
    scores = {key: cells(found[choice.label][data]) for key, choice in grid.items()}
    baseline = cells(found[MLE.label][data])
    rows: list[list[Cell | str]] = [
        [study_figures.distance_name(metric), str(count), f"{strength:g}", *scores[metric, count, strength].values()]
        for metric, count, strength in grid
    ]
    mark_columns(rows, 3, 1)
    rules = list(range(len(suite.strengths), len(rows) + 1, len(suite.strengths)))
    rows.append(["MaPLe", "–", "–", *baseline.values()])
    title = f"Strength ξ and reference images n of the repulsion: MaPLe + ReBaPL on {printed(data)}, accuracy in %"
    columns = ["distance", "n", "ξ", "base", "novel", "HM"]
    table = Table(title, columns, rows, context.notes(seeds_note(seeds)), rules=rules, merged=2)
    figure = study_figures.strengths(scores, baseline["hm"], printed(data), seeds)
    return Product({"xi": table}, {"xi": figure}, {"scores": found})


def cycles_choice(suite: Suite) -> Choice:
    """One chain with the largest number of cycles asked for; see `prefix_scores`."""
    return suite.rebapl("maple", "maple + rebapl", cycles=max(suite.cycles))


def cycles_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.data_of("cycles")], [MLE, cycles_choice(suite)])


def cycles(context: Context) -> Product:
    """Accuracy against the number of cycles."""
    suite, data = context.suite, context.suite.data_of("cycles")
    configs = [suite.config(data, cycles_choice(suite), seed) for seed in suite.seeds]
    per_seed = [prefix_scores(context, config, suite.cycles) for config in configs]
    scores = {count: cells([of_seed[count] for of_seed in per_seed]) for count in suite.cycles}
    baseline = cells(collect(context, [data], [MLE])[MLE.label][data])
    compared = suite.compared and data == "dtd"
    text = from_text("cycles")
    rows: list[list[Cell | str]] = []
    for count, ours in scores.items():
        theirs = Cell(text["hm"].get(str(count)), digits=1)
        rows.append([str(count), *ours.values(), *([theirs, ours["hm"].minus(theirs)] if compared else [])])
    theirs = Cell(text["baseline"], digits=1)
    rules = [len(rows)]
    rows.append(["MaPLe", *baseline.values(), *([theirs, baseline["hm"].minus(theirs)] if compared else [])])
    columns = ["C", "base", "novel", "HM", *(["HM, paper", "diff."] if compared else [])]
    notes = [seeds_note(suite.seeds), *([f"HM, paper: {text['note']}."] if compared else [])]
    title = f"Number of cycles C: MaPLe + ReBaPL on {printed(data)}, accuracy in %"
    table = Table(title, columns, rows, context.notes(*notes), rules=rules)
    figure = study_figures.cycles(
        {count: ours["hm"] for count, ours in scores.items()},
        baseline["hm"],
        printed(data),
        suite.seeds,
        text if compared else None,
    )
    stored = {str(count): [of_seed[count] for of_seed in per_seed] for count in suite.cycles}
    first, last = min(suite.cycles), max(suite.cycles)
    known = sorted(map(int, text["hm"]))
    gain = Cell(text["hm"][str(known[-1])], digits=1).minus(Cell(text["hm"][str(known[0])], digits=1))
    against = opposite(f"C = {last} minus C = {first}, HM", scores[last]["hm"].minus(scores[first]["hm"]), gain)
    return Product({"cycles": table}, {"cycles": figure}, {"scores": stored}, against)


def prefix_scores(context: Context, config: RunConfig, counts: Sequence[int]) -> dict[int, dict[str, float]]:
    """Base, novel and HM of a finished run when only its first C cycles predict, for each C of `counts`.

    The first C cycles of a chain do not depend on how many follow, so one long chain answers for every shorter one. The
    scores are computed once and kept in the run's folder.
    """
    out = run_folder(config, context.runs)
    path = out / PREFIXES
    stored = read_json(path, "scores by cycles")["cycles"] if path.exists() else {}
    if any(str(count) not in stored for count in counts):
        stored |= _prefix_scores(context, config, counts)
        write_json(path, {"cycles": dict(sorted(stored.items(), key=lambda item: int(item[0])))})
    return {count: base_novel_accuracies(stored[str(count)]) for count in counts}


def _prefix_scores(
    context: Context, config: RunConfig, counts: Sequence[int]
) -> dict[str, dict[str, dict[str, float]]]:
    task = config.task(context.root)
    posterior = load_posterior(run_folder(config, context.runs), config.backbone_name, best_device(context.device))
    inference = config.resolved().training.inference
    assert inference is not None
    per_cycle = inference.samples_per_cycle * inference.chains
    found: dict[str, dict[str, dict[str, float]]] = {str(count): {} for count in counts}
    for name, part in task.tests.items():
        prediction, labels = predict_part(bound_to(posterior, task, part), part), part_labels(part)
        for count in counts:
            first = prediction.per_sample[: count * per_cycle]  # of equal weights, as sampled
            found[str(count)][name] = all_scores(first.mean(0), labels)
    return found


def diversity_choices(suite: Suite) -> list[Choice]:
    return [suite.rebapl("maple", "with repulsion"), suite.rebapl("maple", "without repulsion", repulsion=None)]


def diversity_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.data_of("diversity")], diversity_choices(suite))


def diversity(context: Context) -> Product:
    """How far apart samples are with and without repulsion: heat maps of the first seed, averages over all seeds."""
    suite, data = context.suite, context.suite.data_of("diversity")
    rows: list[Row] = []
    first = {}
    stored = {}
    for choice in diversity_choices(suite):
        records = [context.result(suite.config(data, choice, seed)).diversity for seed in suite.seeds]
        known = [record for record in records if record is not None]
        if not known:
            raise UserError(f"{suite.inference} keeps one sample: there are no distances between samples")
        first[choice.label] = known[0]
        stored[choice.label] = [record.as_json() for record in known]
        rows.append(
            [
                choice.label,
                Cell.over([record.mean_distance for record in known], 3),
                Cell.over([100 * record.mean_disagreement for record in known]),
                Cell.over([record.effective_by_answers for record in known]),
            ]
        )
    images = statistics.mode(record["images"] for records in stored.values() for record in records)
    columns = ["MaPLe + ReBaPL", "mean Wasserstein-2", "different answers, %", "effective samples"]
    notes = [f"Over {images} test images of the base classes, pairs of different samples.", seeds_note(suite.seeds)]
    table = Table(f"Diversity of the samples on {printed(data)}", columns, rows, context.notes(*notes))
    matrices = {label: record.distance for label, record in first.items()}
    figure = study_figures.heat_maps(matrices, printed(data), images, suite.seeds[0])
    with_it, without = (statistics.fmean(each["mean_distance"] for each in records) for records in stored.values())
    against = []
    if with_it < without:
        against = [
            f"Mean distance between samples: {with_it:.3f} with repulsion and {without:.3f} without it here; in the "
            "paper it is greater with repulsion."
        ]
    return Product({"diversity": table}, {"diversity": figure}, {"records": stored}, against)
