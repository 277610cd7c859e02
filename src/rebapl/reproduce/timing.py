"""Times: of the distances between clouds, of a prediction, of a training."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.data.batches import LabelledImages
from rebapl.data.task import load_task
from rebapl.learners import build_learner
from rebapl.posterior import Posterior
from rebapl.randomness import generator
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce import study_figures
from rebapl.reproduce.ablations import MLE
from rebapl.reproduce.comparison import seeds_note
from rebapl.reproduce.estimate import steps
from rebapl.reproduce.paper import from_text, paper, printed, quote
from rebapl.reproduce.suites import Choice, Suite
from rebapl.reproduce.target import Context, Product, over_seeds
from rebapl.repulsion import DISTANCES
from rebapl.runs.config import RunConfig
from rebapl.runs.machine import best_device, device_name

WIDTH = 512
"""The dimension of the points that distances are timed on: that of CLIP ViT-B/16's features."""


def milliseconds(
    call: Callable[[], object], repeats: int, device: str, *, warm_up: int = 2, seconds: float = math.inf
) -> list[float]:
    """The times of so many calls, after `warm_up` that do not count. Each time ends when the device has finished.

    Once they have taken so many `seconds` together, no further call is made.
    """

    def once() -> float:
        start = time.perf_counter()
        call()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return 1000 * (time.perf_counter() - start)

    for _ in range(warm_up):
        once()
    times: list[float] = []
    while len(times) < repeats and sum(times) < 1000 * seconds:
        times.append(once())
    return times


def overhead(context: Context) -> Product:
    """The time of each distance between two clouds of n points, alone and with its gradient."""
    suite, device = context.suite, best_device(context.device)
    values: dict[str, dict[int, float]] = {}
    gradients: dict[str, dict[int, float]] = {}
    for metric, kind in DISTANCES.items():
        values[metric], gradients[metric] = {}, {}
        for count in suite.points:
            points = torch.randn(2, count, WIDTH, generator=generator(1, "overhead", str(count))).to(device)
            x, stored = points / points.norm(dim=-1, keepdim=True)
            distance = kind()
            known = distance.prepare(stored, generator(1, "sliced"))
            x.requires_grad_()

            between = partial(distance.between, x, known)

            def value(between: Callable[[], Tensor] = between) -> None:
                with torch.no_grad():
                    between()

            def with_gradient(between: Callable[[], Tensor] = between, x: Tensor = x) -> None:
                torch.autograd.grad(between().sum(), x)

            values[metric][count] = statistics.median(milliseconds(value, suite.repeats, device))
            gradients[metric][count] = statistics.median(milliseconds(with_gradient, suite.repeats, device))
    rows: list[Row] = []
    for metric in values:
        for count in suite.points:
            ours = Cell(values[metric][count], digits=3)
            theirs = quote("overhead", str(count), metric, digits=3)
            gradient = Cell(gradients[metric][count], digits=3)
            rows.append([study_figures.distance_name(metric), str(count), ours, theirs, ours.minus(theirs), gradient])
    notes = [
        f"Median of {suite.repeats} calls on {device_name(device)}; points of {WIDTH} dimensions; the stored side is "
        "prepared once, as in training. The paper's are of another machine.",
        from_text("efficiency")["repulsion_note"],
    ]
    table = Table(
        "Milliseconds to compare two clouds of n points",
        ["distance", "n", "ours", "paper", "diff.", "ours, with gradient"],
        rows,
        context.notes(*notes),
        rules=range(len(suite.points), len(rows) + 1, len(suite.points)),
        merged=1,
    )
    theirs_by_n = {
        metric: {int(n): row[column] for n, row in paper()["tables"]["overhead"]["rows"].items()}
        for column, metric in enumerate(paper()["tables"]["overhead"]["columns"])
    }
    figure = study_figures.overhead(values, theirs_by_n)
    return Product({"overhead": table}, {"overhead": figure}, {"milliseconds": values, "with_gradient": gradients})


def latency(context: Context) -> Product:
    """The time of one prediction of a batch by C samples: on one device, and with the samples spread over several."""
    suite, data = context.suite, context.suite.data_of("latency")
    one = best_device(context.device)
    several = _several(context, one)
    task = load_task(data, 1, 1, test_images=suite.latency_images, root=context.root, split=suite.splits.get(data))
    part = next(iter(task.tests.values()))
    encoders = {device: load_backbone(suite.backbone, device) for device in {one, *several}}
    views = LabelledImages(part.dataset, part.items).views(encoders[one].preprocessing)

    where = {f"one device ({one})": [one]}
    if several:
        where[f"spread over {len(several)} × {several[0].split(':')[0]}"] = several
    times: dict[str, dict[int, list[float]]] = {}
    threads = torch.get_num_threads()
    for title, devices in where.items():
        times[title] = {}
        for count in suite.latency_cycles:
            whole = random_posterior(encoders[one], part.class_names, part.dataset.template, count)
            shares = spread(whole, [encoders[device] for device in devices])
            if len(devices) > 1 and one == "cpu":
                torch.set_num_threads(1)  # a thread per worker, not per core in each
            try:
                with ThreadPoolExecutor(len(shares)) as pool:
                    call = lambda shares=shares, pool=pool: predict(shares, views, pool)  # noqa: E731
                    times[title][count] = milliseconds(call, suite.repeats, one)
            finally:
                torch.set_num_threads(threads)
    compared = suite.compared
    rows: list[Row] = []
    for count in suite.latency_cycles:
        cells = [Cell.over(of_devices[count], 1) for of_devices in times.values()]
        maple, theirs = (quote("latency", str(count), row, digits=1) for row in ("maple", "maple + rebapl"))
        rows.append([str(count), *cells, *([maple, theirs, cells[-1].minus(theirs)] if compared else [])])
    notes = [
        f"{len(views)} images of {printed(data)} among {len(part.class_names)} classes, text features included, "
        f"decoding not; mean ± standard deviation of {suite.repeats} calls on {device_name(one)}.",
        "One sample per cycle, so that C = 1 is also MaPLe by maximum likelihood."
        + (" The paper's are of four L4 GPUs." if compared else ""),
        *([] if several else ["One device is here: --device cuda:0,cuda:1 spreads the samples over several."]),
    ]
    columns = ["C", *times, *(["paper, MaPLe", "paper, + ReBaPL", "diff."] if compared else [])]
    table = Table("Milliseconds of a prediction with MaPLe + ReBaPL", columns, rows, context.notes(*notes))
    means = {title: {count: statistics.fmean(of[count]) for count in of} for title, of in times.items()}
    theirs_by_c = {int(c): row[1] for c, row in paper()["tables"]["latency"]["rows"].items()} if compared else {}
    figure = study_figures.latency(means, len(views), theirs_by_c)
    return Product({"latency": table}, {"latency": figure}, {"milliseconds": times})


def _several(context: Context, one: str) -> list[str]:
    """The devices to spread samples over: those that the user named, or the cores of the CPU; none if there is one."""
    if context.devices and len(context.devices) > 1:
        return [best_device(device) for device in context.devices]
    return ["cpu"] * (os.cpu_count() or 1) if one == "cpu" and (os.cpu_count() or 1) > 1 else []


def random_posterior(
    encoder: DualEncoder, class_names: Sequence[str], template: str, count: int, method: str = "maple"
) -> Posterior:
    """`count` samples of a method with random parameters, which predict as quickly as trained ones."""
    draws = generator(1, "latency")
    learner = build_learner(method, encoder, class_names, template, draws)
    samples = []
    for _ in range(count):
        learner.reset(draws)
        samples.append({name: value.detach().clone() for name, value in learner.named_parameters()})
    return Posterior.of(learner.eval(), samples, {"method": method})


def spread(whole: Posterior, encoders: Sequence[DualEncoder]) -> list[Posterior]:
    """The samples in as many nearly equal shares as there are encoders, each share with a learner of its own.

    Threads may not share a learner: its parameters are replaced while a sample passes. Encoders may be shared.
    """
    each, more = divmod(len(whole), len(encoders))
    shares, first = [], 0
    for index, encoder in enumerate(encoders):
        last = first + each + (index < more)
        if last > first:
            names, template = whole.class_names, whole.learner.template
            learner = build_learner("maple", encoder, names, template, generator(1, "latency")).eval()
            samples = {name: stack[first:last] for name, stack in whole.samples.items()}
            shares.append(Posterior(learner, samples, torch.full((last - first,), 1 / (last - first)), whole.about))
        first = last
    return shares


def predict(shares: Sequence[Posterior], views: Tensor, pool: ThreadPoolExecutor) -> Tensor:
    """The averaged probabilities (N, C) of all samples, each share in a thread."""
    logits = pool.map(lambda posterior: posterior.sample_logits(views), shares)
    return torch.cat(list(logits)).softmax(-1).mean(0)


def efficiency_choices(suite: Suite) -> list[tuple[str, Choice]]:
    """Maximum likelihood with its own epochs and with as many as ReBaPL, then ReBaPL without and with repulsion."""
    rebapl = suite.rebapl("maple")
    data = suite.data_of("efficiency")
    batches = [suite.inference_of(data, choice).batch for choice in (MLE, rebapl)]
    rows = [("MaPLe", MLE), ("MaPLe", suite.longer(data))]
    if batches[0] != batches[1]:  # as many steps as ReBaPL, too
        rows.append(("MaPLe", replace(suite.longer(data, batch=batches[1]), label="maple, as many steps")))
    return [*rows, ("+ ReBaPL, no repulsion", suite.rebapl("maple", "none", repulsion=None)), ("+ ReBaPL", rebapl)]


def efficiency_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.data_of("efficiency")], [choice for _, choice in efficiency_choices(suite)])


def efficiency(context: Context) -> Product:
    """The training times that the runs have stored."""
    suite, data = context.suite, context.suite.data_of("efficiency")
    text = from_text("efficiency")
    compared = suite.compared and data == "oxford_flowers"
    rows = []
    stored = {}
    devices = set()
    choices = efficiency_choices(suite)
    for label, choice in choices:
        configs = [suite.config(data, choice, seed) for seed in suite.seeds]
        results = [context.result(config) for config in configs]
        spent = [result.seconds.training for result in results if result.seconds.training is not None]
        devices |= {result.device or "an unknown device" for result in results}
        inference, count = suite.inference_of(data, choice), steps(configs[0])
        stored[choice.label] = spent
        total, each = Cell.over(spent, 1), Cell.over([1000 * one / count for one in spent], 1)
        row: list[Cell | str] = [label, inference.epochs_in_words, str(inference.batch), str(count), total, each]
        if compared:
            whose = {choices[-1][1].label: "maple + rebapl", choices[-3][1].label: "maple"}.get(choice.label)
            theirs = Cell(text["seconds"].get(whose), digits=1, notes=(text["note"],) if whose else ())
            row += [theirs, total.minus(theirs)]
        rows.append(row)
    columns = ["MaPLe on " + printed(data), "epochs", "batch", "steps", "seconds", "ms a step"]
    notes = [f"Training alone, on {', '.join(sorted(devices))}. {seeds_note(suite.seeds)}"]
    notes.append("Runs that shared their device with others were slowed by them.")
    notes += [text["repulsion_note"]] if compared else []
    table = Table(
        "Training time of ReBaPL and of maximum likelihood with as many epochs",
        [*columns, *(["paper, s", "diff."] if compared else [])],
        rows,
        context.notes(*notes),
    )
    return Product({"efficiency": table}, data={"seconds": stored})
