"""Plug and play: what ReBaPL adds to every method that learns something, against maximum likelihood on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rebapl.errors import UserError
from rebapl.learners import METHODS
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce.comparison import AVERAGE, HM_NOTE, collect, seeds_note
from rebapl.reproduce.paper import printed
from rebapl.reproduce.suites import Choice, Suite, learns
from rebapl.reproduce.target import Context, Product, over_seeds
from rebapl.runs.config import RunConfig

NAME = "plug-and-play"
SCORES = {"base": 2, "novel": 2, "hm": 2, "nll": 3, "ece": 2}
"""What is compared, and the digits that are shown of it."""


def plugged(suite: Suite) -> list[str]:
    """The methods that ReBaPL is put on: all that learn something, or those of them that a user asked for."""
    methods = [method for method in suite.asked or METHODS if learns(method)]
    if not methods:
        raise UserError(f"{', '.join(suite.asked)} learns nothing: name a method that does with --methods")
    return methods


def _data(suite: Suite) -> Sequence[str]:
    """All data sets of the suite, or the one that it has for this target."""
    return [suite.data_by_target[NAME]] if NAME in suite.data_by_target else suite.data


def _pair(suite: Suite, method: str) -> tuple[Choice, Choice]:
    return Choice(method, method, "mle"), suite.rebapl(method)


def plug_and_play_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, _data(suite), [choice for method in plugged(suite) for choice in _pair(suite, method)])


def plug_and_play(context: Context) -> Product:
    """Δ of ReBaPL over maximum likelihood for each method: over all data sets, then on each of several."""
    suite, data = context.suite, _data(context.suite)
    methods = plugged(suite)
    found = collect(context, data, [choice for method in methods for choice in _pair(suite, method)])
    rows: list[Row] = []
    rules = []
    for name in (AVERAGE, *data) if len(data) > 1 else data:
        for method in methods:
            before, after = (found[choice.label][name] for choice in _pair(suite, method))
            hm = [Cell.over([each["hm"] for each in scores]) for scores in (before, after)]
            rows.append([printed(name), printed(method), *hm, *gains(before, after)])
        rules.append(len(rows))
    columns = ["data set", "method", "HM, mle", f"HM, {suite.inference}", *_columns()]
    notes = [
        HM_NOTE[context.hm],
        "Differences are of runs with the same seed. NLL and ECE are the means of base and novel; lower is better.",
        seeds_note(suite.seeds),
        "ReBaPL has more epochs than maximum likelihood here: the target overfitting compares equal ones.",
    ]
    inferences = {method: METHODS.find(method).learner.recipe.inference for method in methods}
    notes += [
        f"{printed(method)} was published with {inference}, not mle: table1 has that."
        for method, inference in inferences.items()
        if inference != "mle"
    ]
    title = "Plug and play: ReBaPL minus maximum likelihood, by method"
    table = Table(title, columns, rows, context.notes(*notes), rules=rules, merged=1)
    return Product({NAME: table}, data={"scores": found, "hm": context.hm})


def _columns() -> list[str]:
    return [f"Δ {name if name in ('base', 'novel') else name.upper()}" for name in SCORES]


def gains(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> list[Cell]:
    """The mean ± standard deviation over seeds of each score's difference between runs of the same seed.

    >>> one = {"base": 80.0, "novel": 60.0, "hm": 68.6, "nll": 0.9, "ece": 5.0}
    >>> [str(cell) for cell in gains([one], [{**one, "base": 82.0, "nll": 0.8}])]
    ['+2.00', '0.00', '0.00', '-0.100', '0.00']
    """
    cells = []
    for score, digits in SCORES.items():
        over = Cell.over([x[score] - y[score] for x, y in zip(after, before, strict=True)], digits)
        signed = score in ("base", "novel", "hm")  # green above zero: not where lower is better
        cells.append(Cell(over.value, over.std, digits, signed=signed))
    return cells
