"""Named settings of the one loop, as data: every value with where it comes from.

Each preset is a YAML file in this folder; `reading` says how they are written. `register_preset` adds one from
outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebapl.errors import UserError
from rebapl.plugins import Registry
from rebapl.sampling.presets.reading import FromRecipe, Preset, Value, on_top, read_preset, read_presets
from rebapl.sampling.settings import Inference
from rebapl.settings import leaves, nested, overlaid

if TYPE_CHECKING:
    from rebapl.learners import Recipe

__all__ = ["PRESETS", "Value", "has_own_epochs", "preset", "preset_values", "register_preset"]

FOLDER = Path(__file__).parent

PRESETS: Registry[Preset] = Registry("inference", "rebapl.presets")
"""The presets by name, those of installed plugins included."""

PRESETS.known |= read_presets(FOLDER)


def register_preset(path: Path | str) -> str:
    """Make the preset in a YAML file known by the file's name, which is returned; it may extend one of the package."""
    path = Path(path)
    read = read_preset(path, FOLDER)
    if PRESETS.known.get(path.stem, read) != read:
        raise UserError(f"the preset '{path.stem}' of {path} is taken: name the file otherwise")
    PRESETS.known[path.stem] = read
    return path.stem


def has_own_epochs(name: str, method: str) -> bool:
    """Whether a preset says itself how many epochs a cycle has, whatever the recipe says.

    >>> has_own_epochs("rebapl-paper", "maple"), has_own_epochs("rebapl", "maple")
    (True, False)
    """
    chosen = PRESETS.find(name)
    return not isinstance(on_top(chosen.values, chosen.methods.get(method, {}))["epochs"].value, FromRecipe)


def preset_values(name: str, recipe: Recipe, method: str = "", per_image: bool = True) -> dict[str, Value]:
    """Every value that a preset gives for a learner, by dotted name, with its origin.

    `method` is the learner's name: `rebapl-paper` takes the values of the paper's table for those it names. `per_image`
    says whether the space in which the learner repels has a point per image; where it has not, no images are compared,
    unless the preset names another space.
    """
    chosen = PRESETS.find(name)
    values = on_top(chosen.values, chosen.methods.get(method, {}))
    read = {key: Value(_from_recipe(entry.value, recipe), entry.origin) for key, entry in values.items()}
    values = {
        name: Value(each, entry.origin) for key, entry in read.items() for name, each in leaves({key: entry.value})
    }
    values |= _for_optimizer(values, recipe)
    if not per_image and "repulsion.images" in values and "repulsion.space" not in values:
        values = {key: entry for key, entry in values.items() if key != "repulsion.pool"}
        values["repulsion.images"] = Value(None, "definition")
    return values


def _from_recipe(value: Any, recipe: Recipe) -> Any:
    if not isinstance(value, FromRecipe):
        return value
    if value.name == "sampler":
        momentum = {"momentum": recipe.momentum} if recipe.optimizer == "sgd" else {}
        return {"kind": recipe.optimizer, "lr": recipe.lr, **momentum, "weight_decay": recipe.weight_decay}
    if value.name == "warmup":
        return {"epochs": recipe.warmup_epochs, "lr": recipe.warmup_lr} if recipe.warmup_epochs else None
    if value.name == "averaging":
        return None if recipe.averaging is None else dict(zip(("mean", "std"), recipe.averaging, strict=True))
    found = getattr(recipe, value.name)
    if value.times == 1:
        return found
    return max(1, round(found * value.times)) if isinstance(found, int) else found * value.times


def _for_optimizer(values: Mapping[str, Value], recipe: Recipe) -> dict[str, Value]:
    """What follows for a sampler from the recipe's optimiser."""
    sampler = values["sampler.kind"].value if "sampler.kind" in values else ""
    if recipe.optimizer == "adamw" and sampler in ("sghmc", "sgld"):
        # the paper burns MMRL in with AdamW and does not say how long: all of the exploration
        return {"sampler.burn_in.share": Value(values["sampler.exploration"].value, "ours")}
    if sampler == "sgld" and values["sampler.lr"].origin == "recipe":
        # without momentum the same progress takes 1/(1−momentum) times the step
        return {"sampler.lr": Value(recipe.lr / (1 - recipe.momentum), "ours")}
    return {}


def preset(name: str, recipe: Recipe, method: str = "", *, per_image: bool = True, **changes: Any) -> Inference:
    """The settings of a preset for a learner's recipe, with `changes` on top, nested or with dots.

    A `kind` that is changed takes its own defaults: nothing of the other kind's settings stays. What follows from a
    change is changed with it: the burn-in lasts as long as the exploration, a warm-up leaves at least one epoch, and a
    run of one cycle has no restart. Where a preset's first cycle is longer than the others, and the change makes all
    cycles begin alike (cold restarts, or one cycle), all are as long as the first. A normalised force, which no
    potential changes, leaves the preset's potential behind.

    >>> from types import SimpleNamespace
    >>> recipe = SimpleNamespace(lr=0.0035, epochs=5, batch=4, optimizer="sgd", momentum=0.9, weight_decay=5e-4,
    ...                          warmup_epochs=1, warmup_lr=1e-5, averaging=None)
    >>> preset("rebapl", recipe, cycles=5).sampler.lr, preset("rebapl-paper", recipe, "maple").sampler.lr
    (0.0035, 0.002)
    >>> preset("rebapl", recipe, **{"repulsion.distance": "energy"}).repulsion.distance
    Energy()
    """
    values = nested({key: entry.value for key, entry in preset_values(name, recipe, method, per_image).items()})
    asked = nested(changes)
    _follow(values, asked)
    return Inference(**overlaid(values, asked))


def _follow(values: dict[str, Any], asked: Mapping[str, Any]) -> None:
    """Change those values of a preset that follow from what is asked, unless they are asked for themselves."""
    given = {key for key, _ in leaves(asked)} | set(asked)
    sampler = values.get("sampler", {})
    if "burn_in" in sampler and "sampler.exploration" in given and not any("burn_in" in key for key in given):
        sampler["burn_in"] = {"share": asked["sampler"]["exploration"]} if asked["sampler"]["exploration"] else None
    if isinstance(asked.get("epochs"), int) and values.get("warmup") and "warmup" not in given:
        values["warmup"]["epochs"] = min(values["warmup"]["epochs"], asked["epochs"] - 1)
        if values["warmup"]["epochs"] < 1:
            values["warmup"] = None
    one_cycle = asked.get("cycles") == 1
    if one_cycle and "restart" not in given:
        values["restart"] = None
    alike = one_cycle or _kind(asked.get("restart")) == "cold"
    if alike and values.get("first_epochs") and "first_epochs" not in given:
        values["epochs"], values["first_epochs"] = values["first_epochs"], None
    repulsion = asked.get("repulsion")
    if isinstance(repulsion, Mapping) and _kind(repulsion.get("force")) == "normalised":
        stage = repulsion.get("stage", values.get("repulsion", {}).get("stage"))
        if stage != "both" and "potential" not in repulsion:
            values.get("repulsion", {}).pop("potential", None)


def _kind(asked: Any) -> Any:
    """The kind that is asked for, by its name alone or in a mapping."""
    return asked.get("kind") if isinstance(asked, Mapping) else asked
