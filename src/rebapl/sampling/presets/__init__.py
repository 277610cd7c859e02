"""Named settings of the one loop, as data: every value with where it comes from.

Each preset is a YAML file in this folder; `reading` says how they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebapl.errors import UserError, unknown
from rebapl.sampling.presets.reading import FromRecipe, Value, read_presets
from rebapl.sampling.settings import Adaptive, Inference, Repelling

if TYPE_CHECKING:
    from rebapl.learners.base import Recipe

_FILES = read_presets(Path(__file__).parent)

PRESETS: dict[str, Mapping[str, Value]] = {name: each.values for name, each in _FILES.items()}
"""The values of each preset for any method; see `preset_values` for those for one."""

ABOUT: dict[str, str] = {name: each.about for name, each in _FILES.items()}
"""A line for people on each."""


def preset_values(name: str, recipe: Recipe, method: str = "") -> dict[str, Value]:
    """Every setting of a preset for a learner, with its origin; nested ones as `repulsion.metric`.

    `method` is the learner's name: `rebapl-paper` takes the values of the paper's table for those it names.
    """
    if name not in PRESETS:
        raise unknown("inference", name, PRESETS)
    values = {**_FILES[name].values, **_FILES[name].methods.get(method, {})}
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
        return {"sampler": Value("sghmc" if recipe.optimizer == "sgd" else "adamw", "recipe")}
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
