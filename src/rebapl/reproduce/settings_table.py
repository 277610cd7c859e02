"""The paper's table of settings beside those of the presets, each of these with where it comes from."""

from __future__ import annotations

from typing import Any

from rebapl.learners import METHODS, published
from rebapl.reports.tables import EMPTY, Row, Table
from rebapl.reproduce.paper import paper, printed
from rebapl.reproduce.target import Context, Product
from rebapl.sampling.presets import preset_values

SHOWN = ("rebapl-paper", "rebapl-authors", "rebapl")
"""The presets that are ReBaPL; that of the suite joins them if it is another."""

TITLES = {
    "sampler.lr": "lr, α",
    "batch": "batch",
    "epochs": "epochs per cycle",
    "cycles": "cycles, C",
    "sampler.samples_per_cycle": "samples per cycle, K",
    "repulsion.force.strength": "strength, ξ",
    "repulsion.images": "reference images, n",
    "repulsion.distance.kind": "distance",
    "sampler.weight_decay": "weight decay",
}
"""What the paper's table has. All other settings stand below these, under their own names."""


def settings(context: Context) -> Product:
    """A section for MaPLe and one for MMRL: what the paper's table gives, then what only the presets say."""
    section = paper()["tables"]["settings"]
    presets = [*SHOWN, *([context.suite.inference] if context.suite.inference not in SHOWN else [])]
    rows: list[Row] = []
    rules = []
    stored: dict[str, Any] = {}
    for column, method in enumerate(section["columns"]):
        values = {name: _values(name, method, context.suite.shots) for name in presets}
        names = dict.fromkeys([*TITLES, *(key for found in values.values() for key in found)])
        for name in names:
            theirs = section["rows"][name][column] if name in section["rows"] else None
            ours = [values[each].get(name) for each in presets]
            shown = [EMPTY if value is None else f"{_word(value[0])} ({value[1]})" for value in ours]
            rows.append([printed(method), TITLES.get(name, name), EMPTY if theirs is None else _word(theirs), *shown])
        rules.append(len(rows))
        stored[method] = {name: {key: list(value) for key, value in found.items()} for name, found in values.items()}
    notes = [
        "The paper's seeds are 1, 2, 3. In brackets: where a preset's value comes from; recipe is what the method was "
        "published with, on data sets without settings of their own.",
        "A dash: the paper's table or the preset says nothing of it, or has a force of another kind.",
    ]
    title = "Settings of ReBaPL: the paper's table and the presets"
    table = Table(title, ["method", "setting", "paper", *presets], rows, notes, rules=rules, merged=1)
    return Product({"settings": table}, data={"presets": stored})


def _values(name: str, method: str, shots: int) -> dict[str, tuple[Any, str]]:
    """Every value of a preset on a method, by dotted name, with its origin."""
    chosen, recipe = published(method, "base-to-novel", "", shots)
    per_image = METHODS.find(method).learner.per_image(METHODS.find(method).settings(chosen))
    found = preset_values(name, recipe, method, per_image)
    return {key: (value.value, value.origin) for key, value in found.items()}


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
