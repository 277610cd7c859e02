"""The bench of doubt: who knows what it does not know, at what cost.

A run is trained on the base classes. Scored are its answers for test images of these classes (accuracy, likelihood,
calibration, and AURC, the mean error rate over all coverages), the same for these images with each of the fifteen
corruptions of ImageNet-C at severity 3, and how well the largest probability tells images of the *near* novel classes,
of *another* data set and of *far* noise from them. The table `outside` has that for every outside score.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from rebapl.data.batches import LabelledImages
from rebapl.evaluation.corrupted import score_corruptions
from rebapl.evaluation.scores import confidence_and_right, reliability, risk_by_coverage
from rebapl.evaluation.tasks import (
    bound_to,
    evaluate,
    fit_on_validation,
    part_labels,
    predict_part,
    score_outside,
    trained_part,
)
from rebapl.learners import METHODS, takes_features
from rebapl.numbers import mean
from rebapl.posterior import Posterior
from rebapl.posterior.outside import OUTSIDE_SCORES
from rebapl.reports.style import BOTH_COLUMNS, GREY, PAPER_FONTS, bare_axes, line_style
from rebapl.reproduce.paper_table import Context, FilledTable, PaperTable, Scores
from rebapl.reproduce.suites import REBAPL_ON, Suite, TableRow
from rebapl.reproduce.timing import milliseconds
from rebapl.runs.config import RunConfig, with_full_paths
from rebapl.runs.results import RunResult
from rebapl.score_columns import ScoreColumn, columns

NEAR, OTHER, FAR = "novel", "other", "noise"
SHOWN_AS = {NEAR: "near", OTHER: "other", FAR: "far"}
CORRUPTIONS = ("all@3",)
COST, STACKED = "doubt.json", "stacked.json"
"""Files in a run's folder: what its answers cost, with their curves, and the scores with stacked weights."""

TIMED = 32
"""Images in the answer that is timed."""

HEADS = (("zero-shot", None), ("gda", None), ("linear", "mle"), ("linear", "laplace"))
LONGER, STACKING = "mle, as long", "ensemble, stacked"
"""Maximum likelihood for as many epochs as the ensemble has in all; the ensemble with weights fitted by stacking."""

RIVALS = ("mle", LONGER, "tta", "laplace", "swag", "ensemble", STACKING, "csghmc", "rebapl")
DASHES = ("-", "--", ":")

PLAIN = ("accuracy", "nll", "ece", "tempered_nll", "tempered_ece", "aurc")
TOLD = ("auroc", "fpr95", "aupr")

SAMPLES = 6
"""Draws of Laplace where each costs a pass through the image tower: as many as `rebapl` has."""

STOCHASTIC = ("bpl", "vamp")
"""Methods that are variational themselves, run as they were published."""


def rivals(suite: Suite) -> list[TableRow]:
    """Heads, MaPLe and MMRL (or the methods that a user named) with every inference, and the variational methods."""
    rows = [] if suite.methods else [_rival(method, inference or "") for method, inference in HEADS]
    rows += [_rival(method, rival) for method in suite.methods or REBAPL_ON for rival in RIVALS]
    return rows if suite.methods else [*rows, *(_rival(method, "") for method in STOCHASTIC)]


def _rival(method: str, rival: str) -> TableRow:
    costly = rival == "laplace" and not METHODS.find(method).learner.learns_from_features
    return TableRow(
        f"{method} · {rival or '–'}",
        method,
        {LONGER: "mle", STACKING: "ensemble"}.get(rival, rival) or None,
        {"laplace.samples": SAMPLES} if costly else {},
        words=(method, rival or "–"),
        as_long_as="ensemble" if rival == LONGER else "",
    )


def outside_of(suite: Suite, data: str) -> tuple[str, ...]:
    """The outside images of a data set: novel classes, noise, and the data set after it, if the suite has others."""
    after = suite.data[(suite.data.index(data) + 1) % len(suite.data)]
    split = suite.splits.get(after)
    return (NEAR, FAR) if after == data else (NEAR, FAR, f"{after}={split}" if split else after)


def _outside(context: Context, config: RunConfig, result: RunResult) -> dict[str, dict[str, dict[str, float]]]:
    """The scores against each kind of outside images that there is: `near`, `other` and `far`."""
    near, far, *after = with_full_paths(config.changed(outside=outside_of(context.suite, config.data))).outside
    names = {NEAR: near, **({OTHER: after[0]} if after else {}), FAR: far}
    return {SHOWN_AS[kind]: result.outside[name] for kind, name in names.items()}


def read_doubt(context: Context, config: RunConfig, row: TableRow) -> dict[str, Scores]:
    """The scores of a run and what its answers cost."""
    result, cost = _result(context, config, row), measured(context, config, row)
    part, corrupted = result.parts["base"], [each for by in result.corruptions.values() for each in by.values()]
    told = {kind: scores["max-probability"]["auroc"] for kind, scores in _outside(context, config, result).items()}
    names = {"corrupted": "nll", "corrupted ece": "ece", "corrupted at": "tempered_nll"}
    scores: dict[str, float | None] = {
        **{name: getattr(part, name) for name in PLAIN},
        **{title: mean(getattr(each, name) for each in corrupted) for title, name in names.items()},
        **{kind: told.get(kind) for kind in SHOWN_AS.values()},
        **{name: cost[name] for name in ("parameters", "passes", "milliseconds")},
    }
    return {config.data: scores}


def read_outside(context: Context, config: RunConfig, row: TableRow) -> dict[str, Scores]:
    """How well one outside score of a run finds near, other and far images."""
    by, outside = row.words[-1], _outside(context, config, _result(context, config, row))
    return {
        config.data: {
            f"{kind} {name}": outside.get(kind, {}).get(by, {}).get(name) for kind in SHOWN_AS.values() for name in TOLD
        }
    }


def _result(context: Context, config: RunConfig, row: TableRow) -> RunResult:
    """The scores of a row: those of its run or, if it is stacked, those of the same samples with fitted weights."""
    result = context.result(config)
    if row.words[1] != STACKING:
        return result

    def score() -> dict[str, Any]:
        task, posterior = config.task(context.root), _posterior(context, config, row)
        chosen = config.changed(corruptions=CORRUPTIONS).corruptions_by_severity()
        base = evaluate(posterior, task, ["base"])
        return {
            "parts": base.to_dict(),
            "outside": score_outside(posterior, task, outside_of(context.suite, config.data), context.root),
            "corruptions": score_corruptions(posterior, task, chosen, base["base"].get("temperature")),
        }

    return result.changed(**context.stored(config, STACKED, score))


def _posterior(context: Context, config: RunConfig, row: TableRow) -> Posterior:
    """The posterior of a row, with weights fitted on validation images if it is stacked."""
    posterior = context.posterior(config)
    return fit_on_validation(posterior, config.task(context.root), {"weights": {}} if row.words[1] == STACKING else {})


def measured(context: Context, config: RunConfig, row: TableRow) -> dict[str, Any]:
    """What the answers of a row cost, and the points of their curves; measured once and kept in the run's folder."""
    name = f"stacked-{COST}" if row.words[1] == STACKING else COST
    return context.stored(config, name, lambda: _measure(context, config, row))


def _measure(context: Context, config: RunConfig, row: TableRow) -> dict[str, Any]:
    task, posterior = config.task(context.root), _posterior(context, config, row)
    part = trained_part(task)
    bound = bound_to(posterior, task, part)
    views = LabelledImages(part.dataset, part.items[:TIMED]).views(bound.learner.encoder.preprocessing)
    views = views.repeat(-(-TIMED // len(views)), *(1,) * (views.ndim - 1))[:TIMED]
    prediction, labels = predict_part(bound, part), part_labels(part)
    confidence, right = confidence_and_right(prediction.probabilities, labels)
    risks = risk_by_coverage(1 - confidence, right)
    return {
        "parameters": sum(stack[0].numel() for stack in posterior.samples.values()),
        "passes": image_passes(bound),
        "milliseconds": statistics.median(milliseconds(lambda: bound.sample_logits(views), repeats=3)) / TIMED,
        "risks": [risks[round(share * (len(risks) - 1))].item() for share in (i / 50 for i in range(51))],
        "reliability": [[b.confidence, b.accuracy] for b in reliability(confidence, right, bins=10) if b.images >= 5],
    }


def image_passes(posterior: Posterior) -> int:
    """How often an image walks through the image tower for one answer: once for all samples if they leave it alone."""
    return posterior.views * (1 if takes_features(posterior.learner) else len(posterior))


def _notes(filled: FilledTable) -> list[str]:
    return [
        "NLL, ECE, AURC: test images of the trained classes; lower is better. Corrupted: the mean over the fifteen "
        "corruptions of ImageNet-C at severity 3. At τ: after one temperature fitted on validation images, which are "
        "not corrupted. AUROC: how well the largest probability tells novel classes (near), the test images of "
        "another data set (other: the next one of this suite) and noise (far) from them.",
        f"Milliseconds are of one image among {TIMED}, after the texts were encoded, on "
        f"{filled.context.result(filled.first_run(filled.rows[0])).device}.",
        f"Swag, ensemble, csghmc and rebapl train for about three times as many epochs as mle, and '{LONGER}' for as "
        f"many as the ensemble. '{STACKING}' has the ensemble's samples, with weights fitted on validation images.",
    ]


@rc_context(PAPER_FONTS)
def curves(filled: FilledTable) -> Figure:
    """Risk by coverage, and the share of right answers by confidence, on the first data set with the first seed.

    There is a row of plots for each method with several rivals, which also has the other methods. Of the ten bins of
    confidence, those with fewer than five images are left out.
    """
    counts = Counter(row.method for row in filled.rows)
    compared = [method for method in counts if counts[method] == len(RIVALS)]
    figure = Figure(figsize=(BOTH_COLUMNS, 3.2 * len(compared)), layout="constrained")
    for panel, method in zip(figure.subfigures(len(compared), squeeze=False)[:, 0], compared, strict=True):
        risk, sure = panel.subplots(1, 2)
        for index, row in enumerate(row for row in filled.rows if row.method not in {*compared} - {method}):
            found = measured(filled.context, filled.first_run(row), row)
            color, marker = line_style(index)
            style: dict[str, Any] = {"color": color, "marker": marker, "ms": 3, "lw": 0.9, "ls": DASHES[index // 7 % 3]}
            risk.plot([2 * i for i in range(51)], [100 * r for r in found["risks"]], markevery=10, **style)
            points = [[100 * pair[place] for pair in found["reliability"]] for place in (0, 1)]
            sure.plot(*points, label=" · ".join(row.shown), **style)
        sure.plot([0, 100], [0, 100], color=GREY, lw=0.8, zorder=0)
        risk.set(xlabel="images answered, the surest first (%)", ylabel="wrong answers (%)")
        sure.set(xlabel="confidence (%)", ylabel="right answers (%)")
        bare_axes(risk, sure)
        panel.legend(loc="outside right center", frameon=False, fontsize=6)
    return figure


DOUBT = PaperTable(
    "doubt",
    "calibration, corruptions, outside images, and cost: every rival",
    "The bench of doubt: trained classes of {data}",
    ("method", "inference"),
    rivals,
    scores={
        **columns(*PLAIN),
        "corrupted": ScoreColumn("NLL corrupted", 3),
        "corrupted ece": ScoreColumn("ECE corrupted", 1),
        "corrupted at": ScoreColumn("NLL corrupted, at τ", 3),
        **{kind: ScoreColumn(f"AUROC {kind}", 1, "↑") for kind in SHOWN_AS.values()},
        "parameters": ScoreColumn("parameters", 0),
        "passes": ScoreColumn("passes", 0),
        "milliseconds": ScoreColumn("ms", 1),
    },
    read=read_doubt,
    outside=outside_of,
    corruptions=CORRUPTIONS,
    notes=_notes,
    figure=curves,
)


def _by_score(suite: Suite) -> list[TableRow]:
    """A row for every outside score of every rival."""
    return [
        replace(row, label=f"{row.label} · {by}", words=(*row.words, by))
        for row in rivals(suite)
        for by in OUTSIDE_SCORES
    ]


OUTSIDE = PaperTable(
    "outside",
    "every outside score of every rival: AUROC, FPR95 and AUPR",
    "Which score finds outside images, in %: novel classes (near), another data set (other), noise (far), {data}",
    ("method", "inference", "score"),
    _by_score,
    scores={
        f"{kind} {name}": replace(column, title=f"{column.title} {kind}")
        for kind in SHOWN_AS.values()
        for name, column in columns(*TOLD).items()
    },
    read=read_outside,
    merged=2,
    outside=outside_of,
)
