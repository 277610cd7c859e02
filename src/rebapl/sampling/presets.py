"""Named settings of the one loop, as data: every value with where it comes from.

Origins: `recipe` (the method's published recipe), `paper` (the ReBaPL paper), `authors' code` (its released
code), `definition` (what makes the preset what it is), `ours` (chosen here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from rebapl.errors import UserError, unknown
from rebapl.sampling.settings import Adaptive, Inference, Repelling

if TYPE_CHECKING:
    from rebapl.learners.base import Recipe


@dataclass(frozen=True)
class Value:
    """One setting and where it comes from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class FromRecipe:
    """A setting taken from a field of the learner's recipe, perhaps so many times of it."""

    name: str
    times: int = 1


def _are(origin: str, **values: Any) -> dict[str, Value]:
    return {name: Value(value, origin) for name, value in values.items()}


def _repel(origin: str, **values: Any) -> dict[str, Value]:
    return {f"repulsion.{name}": Value(value, origin) for name, value in values.items()}


RECIPE = _are(
    "recipe",
    **{
        name: FromRecipe(name)
        for name in ("lr", "epochs", "batch", "momentum", "weight_decay", "warmup_epochs", "warmup_lr")
    },
)

OPTIMISE = {
    **RECIPE,
    **_are("recipe", floor=0.0, granularity="epoch", averaging=FromRecipe("averaging")),
    **_are("definition", temperature=0.0, exploration=1.0, samples_per_cycle=1),
}

SAMPLE = {
    **RECIPE,
    **_are("paper", warmup_epochs=0),  # Algorithm 1 has the cosine alone
    **_are("authors' code", exploration=0.4),
    **_are("ours", temperature=0.1, integrator="kdod", gradient_noise=None),
}

CYCLICAL = {
    **SAMPLE,
    **_are("paper", cycles=3, samples_per_cycle=1),
    **_are("authors' code", restart="warm"),
    **_are("ours", floor=0.05),
}

REBAPL = {
    **CYCLICAL,
    **_are("definition", sampler="sghmc"),
    **_are("ours", restart="cold"),
    **_repel("paper", metric="mmd", reference=32, potential="inverse", memory="previous"),
    **_repel("ours", size="normalised", fraction=0.3, epsilon=1.0, stage="exploration", kick=0.01),
}

PRESETS: dict[str, dict[str, Value]] = {
    "mle": {**OPTIMISE, **_are("definition", cycles=1)},
    "ensemble": {**OPTIMISE, **_are("definition", restart="cold"), **_are("ours", cycles=3)},
    "snapshot": {
        **OPTIMISE,
        **_are("definition", restart="warm", granularity="step", averaging=None),
        **_are("ours", cycles=3),
    },
    "sgld": {
        **SAMPLE,
        **_are("definition", sampler="sgld", cycles=1, floor=1.0),
        **_are("ours", epochs=FromRecipe("epochs", 3), samples_per_cycle=3),
    },
    "sghmc": {
        **SAMPLE,
        **_are("definition", sampler="sghmc", cycles=1, floor=1.0),
        **_are("ours", epochs=FromRecipe("epochs", 3), samples_per_cycle=3),
    },
    "csgld": {**CYCLICAL, **_are("definition", sampler="sgld")},
    "csghmc": {**CYCLICAL, **_are("definition", sampler="sghmc")},
    "rebapl": REBAPL,
    # ξ, which the paper puts outside the step size, is strength = ξ/lr inside the loss
    "rebapl-paper": {
        **REBAPL,
        **_are("paper", temperature=1.0),
        **_are("authors' code", restart="warm"),
        **_repel("paper", size="absolute", stage="both", strength=0.5),
    },
    "rebapl-authors": {
        **REBAPL,
        **_are("authors' code", integrator="authors", temperature=100.0, floor=0.0, keep_momentum=True),
        **_are("authors' code", granularity="epoch", restart="warm"),
        **_repel("authors' code", metric="paired", reference=5, pool=128, size="absolute", strength=0.75),
        **_repel("authors' code", space="both", epsilon=1e-6, scale=1.0, kick=0.0),
        **_repel("paper", stage="both"),
    },
    "svgd": {
        **RECIPE,
        **_are("definition", sampler="svgd", cycles=1, exploration=1.0, floor=0.0),
        **_are("ours", chains=3, temperature=0.1),
        **_repel("ours", space="weights", reference=32, kick=0.1),
    },
}

# The paper's table of settings, for the two methods it has.
PAPER_TABLE: dict[str, dict[str, Value]] = {
    "maple": {
        **_are("paper", lr=0.002, batch=1, epochs=5, weight_decay=5e-4),
        **_repel("paper", metric="mmd", reference=32, strength=0.001 / 0.002),
    },
    "mmrl": {
        **_are("paper", lr=0.001, batch=4, epochs=5, weight_decay=5e-4),
        **_repel("paper", metric="wasserstein", reference=64, strength=1e-4 / 0.001),
    },
}


def preset_values(name: str, recipe: Recipe, method: str = "") -> dict[str, Value]:
    """Every setting of a preset for a learner, with its origin; nested ones as `repulsion.metric`.

    `method` is the learner's name: `rebapl-paper` takes the values of the paper's table for those it names.
    """
    if name not in PRESETS:
        raise unknown("inference", name, PRESETS)
    values = dict(PRESETS[name])
    if name == "rebapl-paper":
        values |= PAPER_TABLE.get(method, {})
    elif name == "rebapl-authors" and method == "maple":
        values |= _are("authors' code", lr=0.002, batch=1, epochs=5)
    values |= _optimizer(values, recipe)
    resolved = {}
    for key, entry in values.items():
        value = entry.value
        if isinstance(value, FromRecipe):
            value = getattr(recipe, value.name, None)
            value = value if entry.value.times == 1 else value * entry.value.times
        resolved[key] = Value(value, entry.origin)
    return resolved


def _optimizer(values: Mapping[str, Value], recipe: Recipe) -> dict[str, Value]:
    """What follows from the recipe's optimiser."""
    if recipe.optimizer not in ("sgd", "adamw"):
        raise UserError(f"the recipe's optimizer is '{recipe.optimizer}'; the loop knows sgd and adamw")
    if values["temperature"].value == 0:
        return _are("recipe", sampler="sghmc" if recipe.optimizer == "sgd" else "adamw")
    sampler = values["sampler"].value
    if recipe.optimizer == "adamw" and sampler in ("sghmc", "sgld"):
        # the paper burns MMRL in with AdamW and does not say how long: all of the exploration
        return {"burn_in": Value(values["exploration"].value, "ours")}
    if sampler == "sgld" and values["lr"].origin == "recipe":
        # without momentum the same progress takes 1/(1−momentum) times the step
        return {"lr": Value(recipe.lr / (1 - recipe.momentum), "ours")}
    return {}


def preset(name: str, recipe: Recipe, method: str = "", **changes: Any) -> Inference:
    """The settings of a preset for a learner's recipe, with `changes` on top.

    A change to the repulsion is a mapping of its own: repulsion={"metric": "energy"}; None removes it. So is one to
    the adaptive cycles. Both may be written with a dot, as `preset_values` does: "repulsion.metric". The burn-in
    lasts as long as the exploration unless it is changed, and a warm-up leaves at least one epoch.

    >>> from types import SimpleNamespace
    >>> recipe = SimpleNamespace(lr=0.0035, epochs=5, batch=4, optimizer="sgd", momentum=0.9, weight_decay=5e-4,
    ...                          warmup_epochs=1, warmup_lr=1e-5, averaging=None)
    >>> preset("rebapl", recipe, "maple", cycles=5).lr, preset("rebapl-paper", recipe, "maple").lr
    (0.0035, 0.002)
    """
    values = _nested({key: entry.value for key, entry in preset_values(name, recipe, method).items()})
    changes = _nested(changes)
    _refuse_unknown("inference", changes, Inference)
    for key, kind in (("repulsion", Repelling), ("adaptive", Adaptive)):
        start = kind(**values[key]) if key in values else None
        values[key] = _changed(key, start, changes.pop(key), kind) if key in changes else start
    if values.get("burn_in") and "exploration" in changes:
        values["burn_in"] = changes["exploration"]
    if "epochs" in changes and "warmup_epochs" not in changes:
        values["warmup_epochs"] = min(values["warmup_epochs"], changes["epochs"] - 1)
    return Inference(**{**values, **changes})


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"repulsion.metric": x} → {"repulsion": {"metric": x}}"""
    out: dict[str, Any] = {}
    for key, value in flat.items():
        outer, dot, inner = key.partition(".")
        if dot:
            out[outer] = {**(out.get(outer) or {}), inner: value}
        else:
            out[key] = value
    return out


def _changed(name: str, start: Any, change: Any, kind: type[Repelling] | type[Adaptive]) -> Any:
    if change is None or isinstance(change, kind):
        return change
    if not isinstance(change, Mapping):
        raise UserError(f'{name} is {change!r}; give its settings, as in {{"{fields(kind)[0].name}": ...}}, or None')
    _refuse_unknown(name, change, kind)
    return replace(start or kind(), **change)


def _refuse_unknown(what: str, given: Mapping[str, Any], kind: type) -> None:
    known = [f.name for f in fields(kind)]
    for key in given:
        if key not in known:
            raise unknown(f"setting of the {what}", key, known)
