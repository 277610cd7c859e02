"""The bench of doubt: who knows what it does not know, at what cost. Every rival has the epochs of its preset.

A run is trained on the base classes. Scored are its answers for test images of these classes (accuracy, likelihood,
calibration, and AURC, the mean error rate over all coverages), the same for these images with each of the fifteen
corruptions of ImageNet-C at severity 3, and how well the largest probability tells images of the *near* novel classes
and of *far* noise from them. The table `outside` has that for every outside score.
"""

from __future__ import annotations

import statistics
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from rebapl.data.batches import LabelledImages
from rebapl.evaluation.scores import confidence_and_right, reliability, risk_by_coverage
from rebapl.evaluation.tasks import bound_to, part_labels, predict_part, trained_part
from rebapl.learners import takes_features
from rebapl.posterior import Posterior
from rebapl.posterior.outside import OUTSIDE_SCORES
from rebapl.reports.style import BOTH_COLUMNS, GREY, PAPER_FONTS, bare_axes, line_style
from rebapl.reproduce.paper_table import Context, FilledTable, PaperTable, Scores
from rebapl.reproduce.suites import Suite, TableRow
from rebapl.reproduce.timing import milliseconds
from rebapl.runs.config import RunConfig
from rebapl.score_columns import ScoreColumn, columns

NEAR, FAR = "novel", "noise"
CORRUPTIONS = ("all@3",)
COST = "doubt.json"
"""The file in a run's folder that keeps what its answers cost, and their curves."""

TIMED = 32
"""Images in the answer that is timed."""

HEADS = (("zero-shot", None), ("gda", None), ("linear", "mle"), ("linear", "laplace"))
RIVALS = ("mle", "tta", "laplace", "swag", "ensemble", "csghmc", "rebapl")
DASHES = ("-", "--", ":")

SAMPLES = 6
"""Draws of Laplace where each costs a pass through the image tower: as many as `rebapl` has."""

STOCHASTIC = ("bpl", "vamp")
"""Methods that are variational themselves, run as they were published."""


def rivals(suite: Suite) -> list[TableRow]:
    """Heads, MaPLe (or the methods that a user named) with every inference, and the variational methods."""
    methods = suite.methods or ("maple",)
    pairs: list[tuple[str, str | None]] = [] if suite.methods else list(HEADS)
    pairs += [(method, inference) for method in methods for inference in RIVALS]
    pairs += [] if suite.methods else [(method, None) for method in STOCHASTIC]
    return [
        TableRow(
            f"{method} · {inference or '–'}",
            method,
            inference,
            {"laplace.samples": SAMPLES} if inference == "laplace" and method in methods else {},
            words=(method, inference or "–"),
        )
        for method, inference in pairs
    ]


def read_doubt(context: Context, config: RunConfig, row: TableRow) -> dict[str, Scores]:  # noqa: ARG001
    """The scores of a run and what its answers cost."""
    result, cost = context.result(config), measured(context, config)
    part, corrupted = result.parts["base"], [each for by in result.corruptions.values() for each in by.values()]
    told = {name: result.outside[name]["max-probability"]["auroc"] for name in (NEAR, FAR)}
    scores: dict[str, float | None] = {
        "accuracy": part.accuracy,
        "nll": part.nll,
        "ece": part.ece,
        "tempered_nll": part.tempered_nll,
        "aurc": part.aurc,
        "corrupted": statistics.fmean(each.nll for each in corrupted),
        "corrupted ece": statistics.fmean(each.ece for each in corrupted),
        "near": told[NEAR],
        "far": told[FAR],
        **{name: cost[name] for name in ("parameters", "passes", "milliseconds")},
    }
    return {config.data: scores}


def read_outside(context: Context, config: RunConfig, row: TableRow) -> dict[str, Scores]:  # noqa: ARG001
    """The AUROC of every outside score of a run, against near and far images."""
    outside = context.result(config).outside
    return {
        config.data: {
            f"{by} {name}": outside[source].get(by, {}).get("auroc")
            for by in OUTSIDE_SCORES
            for name, source in (("near", NEAR), ("far", FAR))
        }
    }


def measured(context: Context, config: RunConfig) -> dict[str, Any]:
    """What the answers of a run cost, and the points of their curves; measured once and kept in the run's folder."""
    return context.stored(config, COST, lambda: _measure(context, config))


def _measure(context: Context, config: RunConfig) -> dict[str, Any]:
    task, posterior = config.task(context.root), context.posterior(config)
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
        "corruptions of ImageNet-C at severity 3. AUROC: how well the largest probability tells the novel classes "
        "(near) and noise (far) from them. NLL at τ: after one temperature fitted on validation images.",
        f"Milliseconds are of one image among {TIMED}, after the texts were encoded, on "
        f"{filled.context.result(filled.first_run(filled.rows[0])).device}.",
        "Swag, ensemble, csghmc and rebapl train for about three times as many epochs as the other rows of a method.",
    ]


@rc_context(PAPER_FONTS)
def curves(filled: FilledTable) -> Figure:
    """Risk by coverage, and the share of right answers by confidence, on the first data set with the first seed.

    Of the ten bins of confidence, those with fewer than five images are left out.
    """
    figure = Figure(figsize=(BOTH_COLUMNS, 3.2), layout="constrained")
    risk, sure = figure.subplots(1, 2)
    for index, row in enumerate(filled.rows):
        found = measured(filled.context, filled.first_run(row))
        color, marker = line_style(index)
        style: dict[str, Any] = {"color": color, "marker": marker, "ms": 3, "lw": 0.9, "ls": DASHES[index // 7 % 3]}
        risk.plot([2 * i for i in range(51)], [100 * r for r in found["risks"]], markevery=10, **style)
        points = [[100 * pair[place] for pair in found["reliability"]] for place in (0, 1)]
        sure.plot(*points, label=" · ".join(row.shown), **style)
    sure.plot([0, 100], [0, 100], color=GREY, lw=0.8, zorder=0)
    risk.set(xlabel="images answered, the surest first (%)", ylabel="wrong answers (%)")
    sure.set(xlabel="confidence (%)", ylabel="right answers (%)")
    bare_axes(risk, sure)
    figure.legend(loc="outside right center", frameon=False, fontsize=6)
    return figure


DOUBT = PaperTable(
    "doubt",
    "calibration, corruptions, near and far images, and cost: every rival",
    "The bench of doubt: trained classes of {data}",
    ("method", "inference"),
    rivals,
    scores={
        **columns("accuracy", "nll", "ece", "tempered_nll", "aurc"),
        "corrupted": ScoreColumn("NLL corrupted", 3),
        "corrupted ece": ScoreColumn("ECE corrupted", 1),
        "near": ScoreColumn("AUROC near", 1, "↑"),
        "far": ScoreColumn("AUROC far", 1, "↑"),
        "parameters": ScoreColumn("parameters", 0),
        "passes": ScoreColumn("passes", 0),
        "milliseconds": ScoreColumn("ms", 1),
    },
    read=read_doubt,
    outside=(NEAR, FAR),
    corruptions=CORRUPTIONS,
    notes=_notes,
    figure=curves,
)

OUTSIDE = PaperTable(
    "outside",
    "every outside score, near and far: every rival",
    "Which score tells outside images: AUROC in %, near (novel classes) and far (noise), {data}",
    ("method", "inference"),
    rivals,
    scores={f"{by} {name}": ScoreColumn(f"{by}, {name}", 1) for by in OUTSIDE_SCORES for name in ("near", "far")},
    read=read_outside,
    outside=(NEAR, FAR),
)
