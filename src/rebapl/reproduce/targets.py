"""The tables and figures of the paper, one entry each: `PAPER_TARGETS`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any

from matplotlib.figure import Figure

from rebapl.data.published import PUBLISHED
from rebapl.data.task import SOURCE
from rebapl.errors import UserError, unknown
from rebapl.evaluation.scores import base_novel_accuracies
from rebapl.evaluation.scores import scores as all_scores
from rebapl.evaluation.tasks import bound_to, part_labels, predict_part
from rebapl.learners import METHODS, published
from rebapl.reports.figures import HeatMap, heat_maps
from rebapl.reports.results import average_over_parts, short_value
from rebapl.reports.tables import EMPTY, Row, Table
from rebapl.reproduce.doubt import DOUBT, OUTSIDE
from rebapl.reproduce.paper import AVERAGE, paper_table, printed
from rebapl.reproduce.paper_table import (
    PARTS,
    Claim,
    Context,
    FilledTable,
    MeasuredTarget,
    PaperTable,
    Product,
    Scores,
    Target,
    base_novel,
)
from rebapl.reproduce.study_figures import CurveFigure
from rebapl.reproduce.suites import Suite, TableRow
from rebapl.reproduce.timing import LATENCY, OVERHEAD, distance_name
from rebapl.reproduce.toy_figures import toy_target
from rebapl.runs.config import RunConfig
from rebapl.sampling.presets import preset_values
from rebapl.score_columns import ScoreColumn, columns

TRANSFERRED = ("promptsrc", "maple", "mmrl")
"""The methods of the paper's second and third tables."""

MAPLE = TableRow("maple", "maple", "mle")
"""MaPLe by maximum likelihood, with which most studies compare ReBaPL."""

NO_REPULSION = {"repulsion": None}
PREFIXES = "prefixes.json"
"""The file in a run's folder that stores the scores of the first C cycles of its chain, for each C."""


TRANSFER_SCORES = columns("accuracy", "nll", "ece", "aurc")
"""The scores of the second and third tables. The paper has the accuracy alone."""


def _transferred(context: Context, config: RunConfig, row: TableRow) -> dict[str, Scores]:  # noqa: ARG001
    """The scores of a transfer on its source, on each target, and averaged over the targets."""
    result, targets = context.result(config), context.suite.targets(config.protocol)
    sections = {config.data: ["test"], **{target: [target] for target in targets}, AVERAGE: targets}
    return {
        section: {score: average_over_parts(result, parts, score) for score in TRANSFER_SCORES}
        for section, parts in sections.items()
    }


def _transfer_notes(filled: FilledTable) -> list[str]:
    (source,) = filled.data
    ours = f"Trained on {printed(source)}, all classes; average: of the targets."
    other = filled.compared and source != SOURCE
    return [
        ours,
        "NLL, and ECE and AURC (the mean error rate over all coverages) in %: lower is better.",
        *([f"The paper's figures are trained on {printed(SOURCE)}."] if other else []),
    ]


def _transfer(name: str, what: str, protocol: str) -> PaperTable:
    return PaperTable(
        name,
        what,
        f"Table {name[-1]}: {what}, accuracy in %, likelihood and calibration",
        ("method",),
        lambda suite: suite.rows(TRANSFERRED),
        scores=TRANSFER_SCORES,
        protocol=protocol,
        read=_transferred,
        notes=_transfer_notes,
    )


def _plugged(suite: Suite) -> list[TableRow]:
    """Maximum likelihood and ReBaPL on every method that learns prompts, or on the methods that the user named.

    Methods that learn nothing in steps (zero-shot, closed forms) are left out, because they cannot be sampled.
    """
    prompts = [name for name, method in METHODS.items() if not method.learner.learns_from_features]
    methods = [method for method in suite.methods or prompts if METHODS.find(method).learner.recipe.epochs > 0]
    if not methods:
        raise UserError(f"{', '.join(suite.methods)} learns nothing in steps: name a method that does with --methods")
    both = ((TableRow(method, method, "mle"), suite.rebapl(method, over=method)) for method in methods)
    return [row for pair in both for row in pair]


def _plugged_notes(filled: FilledTable) -> list[str]:
    inferences = {row.method: METHODS.find(row.method).learner.recipe.inference for row in filled.rows}
    return [
        "Differences are of runs with the same seed. NLL and ECE are the means of base and novel; lower is better.",
        f"ReBaPL is {filled.suite.inference}. It has more epochs than maximum likelihood here: the target overfitting "
        "compares equal ones.",
        *(
            f"{printed(method)} was published with {inference}, not mle: table1 has that."
            for method, inference in inferences.items()
            if inference != "mle"
        ),
    ]


def _strengths(suite: Suite) -> list[TableRow]:
    """ReBaPL by distance, number of reference images n and strength ξ, with the force as the paper prints it; MaPLe."""
    rows = []
    for metric, count, xi in product(("mmd", "wasserstein"), suite.references, suite.strengths):
        force = {"kind": "printed", "strength": xi}
        settings = {"repulsion.distance": metric, "repulsion.images": count, "repulsion.force": force}
        words = (distance_name(metric), str(count), f"{xi:g}")
        rows.append(suite.rebapl("maple", f"{metric}, n = {count}, ξ = {xi:g}", settings, words=words))
    return [*rows, replace(MAPLE, words=("MaPLe", EMPTY, EMPTY))]


def _cycles(suite: Suite) -> list[TableRow]:
    """A row for each number of cycles C, and MaPLe. All rows of ReBaPL read the same run, which has the most cycles."""
    longest = {"cycles": max(suite.cycles)}
    return [*(suite.rebapl("maple", str(count), longest, name=f"C = {count}") for count in suite.cycles), MAPLE]


def _first_cycles(context: Context, config: RunConfig, row: TableRow) -> dict[str, Scores]:
    """Base, novel and HM of a finished run if only its first C cycles predict, where C is the label of the row.

    The first C cycles of a chain do not depend on how many follow, so one long chain gives the scores of every shorter
    one. The scores are computed once for all rows and stored in the run's folder.
    """
    if row == MAPLE:
        return base_novel(context, config, row)
    context.result(config)  # refuses a run whose answers were changed after its training
    stored = context.stored(config, PREFIXES, lambda: {"cycles": _prefix_scores(context, config)})
    return {config.data: base_novel_accuracies(stored["cycles"][row.label])}


def _prefix_scores(context: Context, config: RunConfig) -> dict[str, dict[str, dict[str, float]]]:
    """Number of cycles C → test part → scores of the first C cycles, for every C up to all cycles of the run."""
    task, posterior = config.task(context.root), context.posterior(config)
    inference = config.resolved().training.inference
    assert inference is not None
    per_cycle = inference.samples_per_cycle * inference.chains
    scores: dict[str, dict[str, dict[str, float]]] = {str(count + 1): {} for count in range(inference.cycles)}
    for name, part in task.tests.items():
        prediction, labels = predict_part(bound_to(posterior, task, part), part), part_labels(part)
        for count, by_part in scores.items():
            first = prediction.per_sample[: int(count) * per_cycle]  # sampled, and so of equal weights
            by_part[name] = all_scores(first.mean(0), labels)
    return scores


def _longer(suite: Suite, **settings: int) -> TableRow:
    """Maximum likelihood with as many epochs as ReBaPL has in all its cycles."""
    return TableRow("maple, 15 epochs", "maple", "mle", settings, as_long_as=suite.inference)


def _overfitting(suite: Suite) -> list[TableRow]:
    """Maximum likelihood with its own epochs, the same with as many epochs as ReBaPL has in all cycles, and ReBaPL."""
    (data,) = suite.trained_on("overfitting")
    rows = []
    for row in (MAPLE, _longer(suite), suite.rebapl("maple")):
        method, epochs = printed(row.label.split(",")[0]), suite.inference_of(data, row).epochs_in_words
        rows.append(replace(row, words=(method, epochs), name=f"{method} with {epochs} epochs"))
    return rows


def _efficiency(suite: Suite) -> list[TableRow]:
    """Maximum likelihood with its own epochs and with as many as ReBaPL, then ReBaPL without and with repulsion.

    If the two have different batch sizes, one more row has maximum likelihood with as many steps as ReBaPL.
    """
    (data,) = suite.trained_on("efficiency")
    rebapl = suite.rebapl("maple", words=("+ ReBaPL",))
    own, other = (suite.inference_of(data, row).batch for row in (MAPLE, rebapl))
    rows = [MAPLE, _longer(suite), *([_longer(suite, batch=other)] if own != other else [])]
    if own != other:
        rows[1] = replace(rows[1], label="maple, as many epochs")
    rows += [suite.rebapl("maple", "none", NO_REPULSION, words=("+ ReBaPL, no repulsion",)), rebapl]
    described = []
    for row in rows:
        inference, count = suite.inference_of(data, row), steps(suite.config(data, row, suite.seeds[0]))
        (name,) = row.words or ("MaPLe",)
        described.append(replace(row, words=(name, inference.epochs_in_words, str(inference.batch), str(count))))
    return described


def steps(config: RunConfig) -> int:
    """The number of training steps of a base-to-novel run: whole mini-batches of its images, over all its epochs.

    Published data sets, which need not be there yet, have enough images of each class. Other data sets are read.

    >>> steps(RunConfig("digits", "maple", "mle", backbone="mini", shots=8))
    50
    """
    settings = config.resolved().training.inference
    assert settings is not None
    known = PUBLISHED.get(config.data)
    images = ceil(known.classes / 2) * config.shots if known else len(config.task().train.items)
    return max(1, images // settings.batch) * settings.all_epochs


def _training_times(context: Context, config: RunConfig, row: TableRow) -> dict[str, Scores]:
    seconds = context.result(config).seconds.training
    per_step = None if seconds is None else 1000 * seconds / int(row.words[-1])
    return {config.data: {"seconds": seconds, "per step": per_step}}


def _efficiency_notes(filled: FilledTable) -> list[str]:
    results = [filled.context.result(config) for config in filled.of.runs(filled.suite)]
    devices = sorted({result.device or "an unknown device" for result in results})
    notes = [f"Training alone, on {', '.join(devices)}. Runs that shared their device with others were slowed by them."]
    return [*notes, *(paper_table("overhead")["notes"] if filled.compared else [])]


def _repelled(suite: Suite) -> list[TableRow]:
    """ReBaPL with and without repulsion. An inference that keeps one sample is refused."""
    rows = [suite.rebapl("maple", "with repulsion"), suite.rebapl("maple", "without repulsion", NO_REPULSION)]
    (data,) = suite.trained_on("diversity")
    if any(suite.inference_of(data, row).samples == 1 for row in rows):
        raise UserError(f"{suite.inference} keeps one sample: there are no distances between samples")
    return rows


def _diversity(context: Context, config: RunConfig, row: TableRow) -> dict[str, Scores]:  # noqa: ARG001
    record = context.result(config).diversity
    assert record is not None
    different = 100 * record.mean_disagreement
    scores = {"distance": record.mean_distance, "different": different, "effective": record.effective_by_answers}
    return {config.data: {**scores, "images": record.images}}


def _diversity_notes(filled: FilledTable) -> list[str]:
    images = [seed["images"] for by_data in filled.collected.values() for seed in by_data[filled.summary]]
    return [f"Over {statistics.mode(images)} test images of the base classes, pairs of different samples."]


def _diversity_figure(filled: FilledTable) -> Figure:
    """Heat maps of the first seed's distances between samples, on one scale of colours."""
    maps = []
    for letter, row in zip("ab", filled.rows, strict=True):
        record = filled.context.result(filled.first_run(row)).diversity
        assert record is not None
        title = f"({letter}) {row.label}: mean {record.mean_distance:.3f}"
        label = f"Wasserstein-2, {record.images} images of {printed(filled.data[0])}, seed {filled.seeds[0]}"
        maps.append(HeatMap(title, record.distance, label, "{:.3f}"))
    return heat_maps(maps, max(max(map(max, each.matrix)) for each in maps))


REBAPL_PRESETS = ("rebapl-paper", "rebapl-authors", "rebapl")
"""The presets of ReBaPL. The table of settings also has the preset of the suite, if it is another one."""


def settings(context: Context) -> Product:
    """A section for MaPLe and one for MMRL: the settings of the paper's table, then those of the presets alone."""
    section = paper_table("settings")
    titles, presets = section["titles"], list(dict.fromkeys((*REBAPL_PRESETS, context.suite.inference)))
    rows: list[Row] = []
    stored: dict[str, Any] = {}
    for column, method in enumerate(section["columns"]):
        method_settings, recipe = published(method, "base-to-novel", "", context.suite.shots)
        per_image = METHODS.find(method).learner.per_image(METHODS.find(method).settings(method_settings))
        values = {preset: preset_values(preset, recipe, method, per_image) for preset in presets}
        stored[method] = {
            preset: {name: [entry.value, entry.origin] for name, entry in of_preset.items()}
            for preset, of_preset in values.items()
        }
        for name in dict.fromkeys([*titles, *(name for of_preset in values.values() for name in of_preset)]):
            theirs = short_value(section["rows"][name][column]) if name in section["rows"] else EMPTY
            ours = (values[preset].get(name) for preset in presets)
            shown = (EMPTY if entry is None else f"{short_value(entry.value)} ({entry.origin})" for entry in ours)
            rows.append([printed(method), titles.get(name, name), theirs, *shown])
    title, columns = "Settings of ReBaPL: the paper's table and the presets", ["method", "setting", "paper", *presets]
    return Product(Table(title, columns, rows, section["notes"], merged=1), data={"presets": stored})


_TARGETS: tuple[Target, ...] = (
    PaperTable(
        "table1",
        "base-to-novel by data set and average, all methods",
        "Table 1: base-to-novel generalisation, accuracy in %",
        ("method",),
        Suite.rows,
        orientation=True,
        claims=lambda rows: [Claim(row, "zero-shot") for row in rows if row != "zero-shot" and "zero-shot" in rows],
    ),
    _transfer("table2", "cross-data-set transfer", "cross-dataset"),
    _transfer("table3", "domain generalisation", "domain-generalization"),
    PaperTable(
        "table4",
        "repulsion: none, Wasserstein, MMD",
        "Table 4: repulsion in ReBaPL, accuracy in %",
        ("method",),
        lambda suite: [
            MAPLE,
            suite.rebapl("maple", "none", NO_REPULSION, words=("+ ReBaPL (no repulsion)",)),
            *(
                suite.rebapl("maple", name, {"repulsion.distance": name}, words=(f"+ ReBaPL ({distance_name(name)})",))
                for name in ("wasserstein", "mmd")
            ),
        ],
        orientation=True,
        claims=lambda _: [Claim("none", "maple"), Claim("wasserstein", "none"), Claim("mmd", "none")],
    ),
    PaperTable(
        "plug-and-play",
        "ReBaPL minus maximum likelihood, for every method that learns prompts",
        "Plug and play: ReBaPL and maximum likelihood, by method, on {data}",
        ("method",),
        _plugged,
        scores=columns(*PARTS, "nll", "ece"),
        notes=_plugged_notes,
    ),
    MeasuredTarget("settings", "the paper's settings beside those of the presets", settings),
    PaperTable(
        "xi",
        "strength ξ of the repulsion × reference images × distance",
        "Strength ξ and reference images n of the repulsion: MaPLe + ReBaPL on {data}, accuracy in %",
        ("distance", "n", "ξ"),
        _strengths,
        merged=2,
        figure=CurveFigure((r"repulsion strength $\xi$", "harmonic mean (%)"), log="x", aside=0.1).draw,
    ),
    PaperTable(
        "cycles",
        "number of cycles C",
        "Number of cycles C: MaPLe + ReBaPL on {data}, accuracy in %",
        ("C",),
        _cycles,
        read=_first_cycles,
        claims=lambda rows: [Claim(rows[-2], rows[0], theirs=("10", "1"))],
        figure=CurveFigure(("number of cycles $C$", "harmonic mean (%)")).draw,
    ),
    PaperTable(
        "samples",
        "samples per cycle K",
        "Samples per cycle K: MaPLe + ReBaPL on {data}, accuracy in %",
        ("K",),
        lambda suite: [
            suite.rebapl("maple", str(count), {"sampler.samples_per_cycle": count}, name=f"K = {count}")
            for count in suite.samples
        ],
        claims=lambda rows: [Claim(rows[-1], rows[0])],
    ),
    OVERHEAD,
    LATENCY,
    PaperTable(
        "efficiency",
        "training time against maximum likelihood",
        "Training time of ReBaPL and of maximum likelihood with as many epochs, on {data}",
        ("MaPLe", "epochs", "batch", "steps"),
        _efficiency,
        scores={"seconds": ScoreColumn("seconds", 1), "per step": ScoreColumn("ms a step", 1)},
        read=_training_times,
        notes=_efficiency_notes,
    ),
    PaperTable(
        "diversity",
        "heat maps of the samples' distances",
        "Diversity of the samples on {data}",
        ("MaPLe + ReBaPL",),
        _repelled,
        scores={
            "distance": ScoreColumn("mean Wasserstein-2", 3),
            "different": ScoreColumn("different answers, %"),
            "effective": ScoreColumn("effective samples"),
        },
        read=_diversity,
        notes=_diversity_notes,
        claims=lambda rows: [Claim(rows[0], rows[1], "distance", says="greater with repulsion")],
        figure=_diversity_figure,
    ),
    PaperTable(
        "overfitting",
        "maximum likelihood trained longer",
        "Maximum likelihood trained longer, and ReBaPL, on {data}, accuracy in %",
        ("method", "epochs"),
        _overfitting,
        claims=lambda rows: [Claim(rows[1], rows[0]), Claim(rows[2], rows[1])],
        figure=CurveFigure(("", "accuracy (%)"), scores=PARTS, in_words=True, aside=0.28).draw,
    ),
    MeasuredTarget("toy", "the two-mode example", toy_target),
    DOUBT,
    OUTSIDE,
)

PAPER_TARGETS: dict[str, Target] = {target.name: target for target in _TARGETS}
"""The targets of `rebapl reproduce` by name."""


def chosen(names: Sequence[str]) -> list[Target]:
    """The targets with these names, in the order of `PAPER_TARGETS`; all of them if `all` is one of the names."""
    for name in names:
        if name not in (*PAPER_TARGETS, "all"):
            raise unknown("target", name, (*PAPER_TARGETS, "all"))
    return [target for name, target in PAPER_TARGETS.items() if name in names or "all" in names]
