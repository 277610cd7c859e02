"""The two measured times of the paper: those of the distances between clouds, and of a prediction with C samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from rebapl.backbones import DualEncoder
from rebapl.data.batches import LabelledImages
from rebapl.data.task import load_task
from rebapl.data.workers import cores
from rebapl.learners import build_learner
from rebapl.posterior import Posterior
from rebapl.randomness import generator
from rebapl.reproduce.paper import printed
from rebapl.reproduce.paper_table import Context, FilledTable, PaperTable, Scores
from rebapl.reproduce.study_figures import CurveFigure
from rebapl.reproduce.suites import Suite, TableRow
from rebapl.repulsion import DISTANCES
from rebapl.runs.machine import best_device, device_name, kept_backbone
from rebapl.score_columns import ScoreColumn

WIDTH = 512
"""The dimension of the points between which distances are timed: that of the features of CLIP ViT-B/16."""


def milliseconds(call: Callable[[], object], repeats: int, threads: int | None = None) -> list[float]:
    """The time of each of `repeats` calls, until the device has finished, with this number of CPU `threads`.

    Without `threads`, it is the number that PyTorch uses at present.
    """
    timer = Timer("call()", globals={"call": call}, num_threads=threads or torch.get_num_threads())
    return [1000 * timer.timeit(1).mean for _ in range(repeats)]


def distance_name(metric: str) -> str:
    """The name of a distance for readers. A distance from outside the package keeps its own name.

    >>> distance_name("mmd"), distance_name("mean-shift")
    ('MMD', 'mean-shift')
    """
    return {"mmd": "MMD", "wasserstein": "Wasserstein", "sinkhorn": "Sinkhorn"}.get(metric, metric)


def _distances(suite: Suite) -> list[TableRow]:
    """A row for every distance and every number of points."""
    return [
        TableRow(
            f"{metric} {count}",
            words=(distance_name(metric), str(count)),
            settings={"distance": metric, "points": count},
        )
        for metric in DISTANCES
        for count in suite.points
    ]


def _distance_times(context: Context, row: TableRow) -> list[Scores]:
    """The median milliseconds that a distance between two clouds of n points takes, alone and with its gradient."""
    distance, count = DISTANCES[row.settings["distance"]](), row.settings["points"]
    points = torch.randn(2, count, WIDTH, generator=generator(1, "overhead", str(count))).to(context.device)
    x, other = points / points.norm(dim=-1, keepdim=True)
    stored = distance.prepare(other, generator(1, "sliced"))
    x.requires_grad_()

    def alone() -> Tensor:
        with torch.no_grad():
            return distance.between(x, stored)

    def with_gradient() -> object:
        return torch.autograd.grad(distance.between(x, stored).sum(), x)

    calls = {"alone": alone, "with gradient": with_gradient}
    repeats = context.suite.repeats
    return [{name: statistics.median(milliseconds(call, repeats)) for name, call in calls.items()}]


def _overhead_notes(filled: FilledTable) -> list[str]:
    calls = f"Median of {filled.suite.repeats} calls on {device_name(filled.context.device)}"
    points = f"points of {WIDTH} dimensions; the stored side is prepared once, as in training"
    return [f"{calls}; {points}. The paper's are of another machine."]


OVERHEAD = PaperTable(
    "overhead",
    "time of the distances against n",
    "Milliseconds to compare two clouds of n points",
    ("distance", "n"),
    _distances,
    scores={"alone": ScoreColumn("alone", 3), "with gradient": ScoreColumn("with gradient", 3)},
    measure=_distance_times,
    orientation=True,
    merged=1,
    notes=_overhead_notes,
    figure=CurveFigure(
        ("points $n$ in each cloud", "milliseconds per comparison\nof two clouds"), scores=("alone",), log="xy"
    ).draw,
)


def _prediction_times(context: Context, row: TableRow) -> list[Scores]:
    """The milliseconds of each prediction of a batch by C samples, on one device and spread over several."""
    suite, devices = context.suite, _devices(context)
    (data,) = suite.trained_on("latency")
    task = load_task(data, 1, 1, test_images=suite.latency_images, root=context.root, split=suite.splits.get(data))
    part = next(iter(task.tests.values()))
    encoder = kept_backbone(suite.backbone, devices[0])
    views = LabelledImages(part.dataset, part.items).views(encoder.preprocessing)
    count = 1 if row.label == "maple" else int(row.label)
    posterior = random_posterior(encoder, part.class_names, part.dataset.template, count)
    on_one = milliseconds(partial(posterior.predict_views, views), suite.repeats)
    on_several: Sequence[float | None] = [None] * len(on_one)
    if len(devices) > 1:
        threads = 1 if devices[0] == "cpu" else None  # one thread for each worker, not one per core
        on_several = milliseconds(partial(posterior.spread(devices).predict_views, views), suite.repeats, threads)
    return [{"one": one, "spread": several} for one, several in zip(on_one, on_several, strict=True)]


def _devices(context: Context) -> list[str]:
    """The devices over which work is spread: those that the user named, or the cores of the CPU, or the only GPU."""
    if context.devices and len(context.devices) > 1:
        return [best_device(device) for device in context.devices]
    return ["cpu"] * cores() if context.device == "cpu" else [context.device]


def _latency_notes(filled: FilledTable) -> list[str]:
    suite, devices = filled.suite, _devices(filled.context)
    several = f"Spread over {len(devices)} × {devices[0].split(':')[0]}."
    return [
        f"{suite.latency_images} images of {printed(filled.data[0])}, decoded before; class names are encoded once; "
        f"mean ± standard deviation of {suite.repeats} calls on {device_name(devices[0])}.",
        several if len(devices) > 1 else "One device is here: --device cuda:0,cuda:1 spreads the work over several.",
        "One sample per cycle. The paper's are of four L4 GPUs.",
    ]


LATENCY = PaperTable(
    "latency",
    "time of a prediction against C, on one device and spread",
    "Milliseconds of a prediction with MaPLe + ReBaPL",
    ("C",),
    lambda suite: [TableRow("maple"), *(TableRow(str(count)) for count in suite.latency_cycles)],
    scores={"one": ScoreColumn("one device", 1), "spread": ScoreColumn("spread", 1)},
    measure=_prediction_times,
    notes=_latency_notes,
    figure=CurveFigure(("number of cycles $C$", "milliseconds per prediction"), scores=("one", "spread")).draw,
)


def random_posterior(
    encoder: DualEncoder, class_names: Sequence[str], template: str, count: int, method: str = "maple"
) -> Posterior:
    """A posterior of `count` samples with random parameters, which predict as quickly as trained samples."""
    draws = generator(1, "latency")
    learner = build_learner(method, encoder, class_names, template, draws)
    samples = []
    for _ in range(count):
        learner.reset(draws)
        samples.append({name: value.detach().clone() for name, value in learner.named_parameters()})
    return Posterior.of(learner.eval(), samples, {"method": method})
