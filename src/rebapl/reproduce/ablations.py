"""Studies on one data set: samples per cycle, number of cycles, strength of the repulsion, overfitting."""

from __future__ import annotations

from rebapl.reports.tables import Cell, Table
from rebapl.reproduce import pictures
from rebapl.reproduce.paper import printed, said
from rebapl.reproduce.prefixes import prefix_scores
from rebapl.reproduce.rows import mark_rows, quoted, seeds_note, three, with_paper
from rebapl.reproduce.scores import PARTS, cells, collect
from rebapl.reproduce.suites import Choice, Suite
from rebapl.reproduce.target import Context, Output, over_seeds
from rebapl.runs.config import RunConfig

MLE = Choice("maple", "maple")


def samples_choices(suite: Suite) -> list[Choice]:
    return [suite.rebapl("maple", str(count), samples_per_cycle=count) for count in suite.samples]


def samples_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.place("samples")], samples_choices(suite))


def samples(context: Context) -> Output:
    """Accuracy against the number of samples kept per cycle."""
    suite, data = context.suite, context.suite.place("samples")
    found = collect(context, [data], samples_choices(suite))
    compared = suite.compared and data == "oxford_flowers"
    columns, groups = three(compared, compared)
    rows: list[list[Cell | str]] = []
    for label, per_data in found.items():
        numbers = with_paper(cells(per_data[data]), quoted("samples", label) if compared else None, compared)
        rows.append([label, *numbers])
    mark_rows(rows, 1, len(columns) // 3)
    title = f"Samples per cycle K: MaPLe + ReBaPL on {printed(data)}, accuracy in %"
    table = Table(title, ["K", *columns], rows, context.notes(seeds_note(suite.seeds)), [("", 1), *groups])
    return Output({"samples": table}, data={"scores": found})


def overfitting_choices(suite: Suite) -> list[Choice]:
    return [MLE, suite.longer(suite.place("overfitting")), suite.rebapl("maple")]


def overfitting_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.place("overfitting")], overfitting_choices(suite))


def overfitting(context: Context) -> Output:
    """Maximum likelihood at its own epochs, and at as many as ReBaPL takes in all, against ReBaPL."""
    suite, data = context.suite, context.suite.place("overfitting")
    choices = overfitting_choices(suite)
    found = collect(context, [data], choices)
    compared = suite.compared and data == "oxford_flowers"
    columns, groups = three(compared, compared)
    text = said("overfitting")
    epochs = [suite.config(data, choice, suite.seeds[0]).resolved()["inference"] for choice in choices]
    shown = [str(e["epochs"]) if e["cycles"] == 1 else f"{e['cycles']} × {e['epochs']}" for e in epochs]
    theirs = [
        *({part: Cell(value) for part, value in zip(PARTS, text["rows"][key], strict=True)} for key in ("5", "15")),
        quoted("table1", "maple + rebapl", "oxford_flowers"),
    ]
    labels = ["MaPLe", "MaPLe", "MaPLe + ReBaPL"]
    scores = [cells(found[choice.label][data]) for choice in choices]
    rows: list[list[Cell | str]] = [
        [label, count, *with_paper(ours, of_paper if compared else None, compared)]
        for label, count, ours, of_paper in zip(labels, shown, scores, theirs, strict=True)
    ]
    mark_rows(rows, 2, len(columns) // 3)
    title = f"Overfitting on {printed(data)}, accuracy in %"
    table = Table(
        title, ["method", "epochs", *columns], rows, context.notes(seeds_note(suite.seeds)), [("", 2), *groups]
    )
    names = [f"{label}\n{count} epochs" for label, count in zip(labels, shown, strict=True)]
    figure = pictures.overfitting(names, scores, printed(data))
    return Output({"overfitting": table}, {"overfitting": figure}, {"scores": found})


def xi_choices(suite: Suite) -> dict[tuple[str, int, float], Choice]:
    """ReBaPL by distance, reference images n and ξ, which the loss takes as strength = ξ/lr; see docs/sampling.md."""
    lr = suite.config(suite.place("xi"), suite.rebapl("maple"), 1).resolved()["inference"]["lr"]
    return {
        (metric, count, xi): suite.rebapl(
            "maple",
            f"{metric}, n = {count}, ξ = {xi:g}",
            **{
                "repulsion.metric": metric,
                "repulsion.reference": count,
                "repulsion.size": "absolute",
                "repulsion.strength": xi / lr,
            },
        )
        for metric in suite.metrics
        for count in suite.references
        for xi in suite.strengths
    }


def _grid_seeds(suite: Suite) -> tuple[int, ...]:
    return suite.grid_seeds or suite.seeds


def xi_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.place("xi")], [MLE, *xi_choices(suite).values()], seeds=_grid_seeds(suite))


def xi(context: Context) -> Output:
    """Accuracy against the strength of the repulsion, for each distance and number of reference images."""
    suite, data, seeds = context.suite, context.suite.place("xi"), _grid_seeds(context.suite)
    grid = xi_choices(suite)
    found = collect(context, [data], [MLE, *grid.values()], seeds)
    scores = {key: cells(found[choice.label][data]) for key, choice in grid.items()}
    baseline = cells(found[MLE.label][data])
    rows: list[list[Cell | str]] = [
        [pictures.METRICS[metric], str(count), f"{strength:g}", *scores[metric, count, strength].values()]
        for metric, count, strength in grid
    ]
    mark_rows(rows, 3, 1)
    rules = list(range(len(suite.strengths), len(rows) + 1, len(suite.strengths)))
    rows.append(["MaPLe", "–", "–", *baseline.values()])
    title = f"Strength ξ and reference images n of the repulsion: MaPLe + ReBaPL on {printed(data)}, accuracy in %"
    columns = ["distance", "n", "ξ", "base", "novel", "HM"]
    table = Table(title, columns, rows, context.notes(seeds_note(seeds)), rules=rules, merged=2)
    figure = pictures.strengths(scores, baseline["hm"], printed(data))
    return Output({"xi": table}, {"xi": figure}, {"scores": found})


def cycles_choice(suite: Suite) -> Choice:
    """One chain of as many cycles as the longest asked for: its first C cycles are the chain of C."""
    return suite.rebapl("maple", "maple + rebapl", cycles=max(suite.cycles))


def cycles_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.place("cycles")], [MLE, cycles_choice(suite)])


def cycles(context: Context) -> Output:
    """Accuracy against the number of cycles."""
    suite, data = context.suite, context.suite.place("cycles")
    configs = [suite.config(data, cycles_choice(suite), seed) for seed in suite.seeds]
    per_seed = [prefix_scores(context, config, suite.cycles) for config in configs]
    scores = {count: cells([of_seed[count] for of_seed in per_seed]) for count in suite.cycles}
    baseline = cells(collect(context, [data], [MLE])[MLE.label][data])
    compared = suite.compared and data == "dtd"
    text = said("cycles")
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
    figure = pictures.cycles(
        {count: ours["hm"] for count, ours in scores.items()}, baseline["hm"], printed(data), text if compared else None
    )
    stored = {str(count): [of_seed[count] for of_seed in per_seed] for count in suite.cycles}
    return Output({"cycles": table}, {"cycles": figure}, {"scores": stored})
