"""The targets of `rebapl reproduce`. One entry makes one: what it is, which runs it needs, how it is made of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rebapl.reproduce import ablations, base_novel, diversity, timing, transfer
from rebapl.reproduce.target import Context, Output, Target, no_runs
from rebapl.reproduce.two_modes import toy


def _transfer(number: int, protocol: str, title: str) -> Callable[[Context], Output]:
    return partial(transfer.transfer, number=number, protocol=protocol, title=title)


_ALL = (
    Target("table1", "base-to-novel by data set and average, all methods", base_novel.table1_runs, base_novel.table1),
    Target(
        "table2",
        "cross-data-set transfer",
        transfer.transfer_runs("cross-dataset"),
        _transfer(2, "cross-dataset", "cross-data-set transfer"),
    ),
    Target(
        "table3",
        "domain generalisation",
        transfer.transfer_runs("domain-generalization"),
        _transfer(3, "domain-generalization", "domain generalisation"),
    ),
    Target("table4", "repulsion: none, Wasserstein, MMD", base_novel.table4_runs, base_novel.table4),
    Target("xi", "strength ξ of the repulsion × reference images × distance", ablations.xi_runs, ablations.xi),
    Target("cycles", "number of cycles C", ablations.cycles_runs, ablations.cycles),
    Target("samples", "samples per cycle K", ablations.samples_runs, ablations.samples),
    Target("overhead", "time of the distances against n", no_runs, timing.overhead, 10.0),
    Target("latency", "time of a prediction against C, on one device and spread", no_runs, timing.latency, 30.0),
    Target("efficiency", "training time against maximum likelihood", timing.efficiency_runs, timing.efficiency),
    Target("diversity", "heat maps of the samples' distances", diversity.diversity_runs, diversity.diversity),
    Target("overfitting", "maximum likelihood trained longer", ablations.overfitting_runs, ablations.overfitting),
    Target("toy", "the two-mode example", no_runs, toy, 20.0),
)

TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
"""The targets by name."""
