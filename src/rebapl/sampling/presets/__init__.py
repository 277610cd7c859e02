"""Named settings of the one loop, as data: every value with where it comes from.

Each preset is a YAML file in this folder, in the form that `rebapl.yaml_files` describes. Its values may follow the
`QUANTITIES` of a recipe, and its variants are for methods. A file whose name begins with `_` is only there to be
extended. `register_preset` adds a preset from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebapl.errors import UserError
from rebapl.plugins import Registry
from rebapl.repulsion import DISTANCES, Inverse
from rebapl.sampling.settings import Inference, Repelling
from rebapl.settings import leaves, nested
from rebapl.yaml_files import Derived, SettingsFile, Value, combined, read_settings_file

if TYPE_CHECKING:
    from rebapl.learners import Recipe

__all__ = ["PRESETS", "has_own_epochs", "preset", "preset_values", "register_preset"]

FOLDER = Path(__file__).parent

ORDER = "mle tta laplace ensemble snapshot swag sgld sghmc csgld csghmc rebapl rebapl-paper rebapl-authors svgd".split()
"""From plain to elaborate, as lists show them; others come after."""

QUANTITIES = (
    "epochs batch lr lr_without_momentum momentum weight_decay sampler burn_in mass_matrix warmup averaging".split()
)
"""What a preset may take from the learner's recipe. `sampler`, `warmup` and `averaging` are settings as `Inference` has
them. Where the recipe has AdamW, `burn_in` is 1 and `mass_matrix` is `diagonal`; otherwise they are 0 and None."""

NEED_EXPLORATION = {"burn_in": 0.0, "mass_matrix": None}
"""Settings of a sampler that act in its exploration, and what they are where there is none."""

PRESETS: Registry[SettingsFile] = Registry("inference", "rebapl.presets")
"""The presets by name, those of installed plugins included."""


_read = partial(read_settings_file, names=Inference.model_fields, quantities=QUANTITIES, fallback=FOLDER)
_NAMES = {path.stem for path in FOLDER.glob("[!_]*.yaml")}
PRESETS.known |= {name: _read(FOLDER / f"{name}.yaml") for name in (*ORDER, *sorted(_NAMES.difference(ORDER)))}


def register_preset(path: Path | str) -> str:
    """Make the preset in a YAML file known by the file's name, which is returned; it may extend one of the package."""
    path = Path(path)
    read = _read(path)
    if PRESETS.known.get(path.stem, read) != read:
        raise UserError(f"the preset '{path.stem}' of {path} is taken: name the file otherwise")
    PRESETS.known[path.stem] = read
    return path.stem


def has_own_epochs(name: str, method: str) -> bool:
    """Whether a preset says itself how many epochs a cycle has, whatever the recipe says.

    >>> has_own_epochs("rebapl-paper", "maple"), has_own_epochs("rebapl", "maple")
    (True, False)
    """
    stated = [layer["epochs"].value for layer in PRESETS.find(name).under([method]) if "epochs" in layer]
    return bool(stated) and not isinstance(stated[-1], Derived)


def preset_values(
    name: str,
    recipe: Recipe,
    method: str = "",
    per_image: bool = True,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Value]:
    """Every value that a preset gives for a learner, by dotted name, with its origin.

    `method` is the learner's name: `rebapl-paper` takes the values of the paper's table for those it names. `per_image`
    says whether the space in which the learner repels has a point per image; where it has not, no images are compared,
    unless the preset names another space. The `changes`, by dotted name, lie on top of the values of the preset, and
    what follows from both lies on top of these; see `preset`.
    """
    changes = changes or {}
    quantities, layers = _quantities(recipe), PRESETS.find(name).under([method])
    values = combined(layers, quantities)
    if not per_image and "repulsion.images" in values and "repulsion.space" not in values:
        layers.append({f"repulsion.{each}": Value(None, "definition") for each in ("images", "pool")})
    layers.append({key: Value(value, "asked for") for key, value in changes.items()})
    follows = _following({key: each.value for key, each in combined(layers, quantities).items()})
    asked = tuple(f"{key}." for key in changes)  # a setting is asked for if it, or one inside it, is
    layers.append(
        {key: Value(value, "ours") for key, value in follows.items() if not any(a.startswith(f"{key}.") for a in asked)}
    )
    return combined(layers, quantities)


def preset(name: str, recipe: Recipe, method: str = "", per_image: bool = True, /, **changes: Any) -> Inference:
    """The settings of a preset for a learner's recipe, with `changes` on top, nested or with dots.

    `method` and `per_image` are as in `preset_values`.

    A `kind` that is changed takes its own defaults: nothing of the other kind's settings stays. What follows from a
    change is changed with it: without exploration there is no burn-in and no mass matrix, a warm-up leaves at least one
    epoch, and a run of one cycle has no restart. Where a preset's first cycle is longer than the others, and the change
    makes all cycles begin alike (cold restarts, or one cycle), all are as long as the first. A normalised force does
    not depend on the potential, so the preset's potential falls away with it. A distance between class probabilities
    compares the logits of images.

    >>> from types import SimpleNamespace
    >>> recipe = SimpleNamespace(lr=0.0035, epochs=5, batch=4, optimizer="sgd", momentum=0.9, weight_decay=5e-4,
    ...                          warmup_epochs=1, warmup_lr=1e-5, averaging=None)
    >>> preset("rebapl", recipe, cycles=5).sampler.lr, preset("rebapl-paper", recipe, "maple").sampler.lr
    (0.0035, 0.002)
    >>> preset("rebapl", recipe, **{"repulsion.distance": "energy"}).repulsion.distance
    Energy()
    """
    values = preset_values(name, recipe, method, per_image, dict(leaves(nested(changes))))
    return Inference(**nested({key: each.value for key, each in values.items()}))


def _quantities(recipe: Recipe) -> dict[str, Any]:
    """The `QUANTITIES` of a recipe. Without momentum the same progress takes 1/(1−momentum) times the step."""
    sgd = recipe.optimizer == "sgd"
    momentum = {"momentum": recipe.momentum} if sgd else {}
    return {
        **{name: getattr(recipe, name) for name in ("epochs", "batch", "lr", "momentum", "weight_decay")},
        "lr_without_momentum": recipe.lr / (1 - recipe.momentum) if sgd else recipe.lr,
        "sampler": {"kind": recipe.optimizer, "lr": recipe.lr, **momentum, "weight_decay": recipe.weight_decay},
        "burn_in": 0.0 if sgd else 1.0,
        "mass_matrix": None if sgd else "diagonal",
        "warmup": {"epochs": recipe.warmup_epochs, "lr": recipe.warmup_lr} if recipe.warmup_epochs else None,
        "averaging": None if recipe.averaging is None else dict(zip(("mean", "std"), recipe.averaging, strict=True)),
    }


def _following(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that follow from others; all have dotted names."""
    follows: dict[str, Any] = {}
    if values.get("sampler.exploration") == 0:
        follows |= {f"sampler.{name}": none for name, none in NEED_EXPLORATION.items() if values.get(f"sampler.{name}")}
    one_cycle, restart = values.get("cycles") == 1, values.get("restart.kind", values.get("restart"))
    if one_cycle and restart is not None:
        follows["restart"] = None
    first, warmup = values.get("first_epochs"), values.get("warmup.epochs")
    if first is not None and (one_cycle or restart == "cold"):
        follows |= {"epochs": first, "first_epochs": None}
    length = values.get("epochs") if first is None else first
    if isinstance(length, int) and isinstance(warmup, int) and warmup >= length:
        follows |= {"warmup.epochs": length - 1} if length > 1 else {"warmup": None}
    force = values.get("repulsion.force.kind", values.get("repulsion.force"))
    if force == "normalised" and values.get("repulsion.stage") != "both":
        follows["repulsion.potential"] = {"kind": Inverse.kind, "epsilon": Inverse().epsilon}
    kind = values.get("repulsion.distance.kind", values.get("repulsion.distance"))
    if isinstance(kind, str) and kind in DISTANCES and (space := DISTANCES[kind].space) is not None:
        follows["repulsion.space"] = space
        if values.get("repulsion.images") is None:
            follows["repulsion.images"] = Repelling.model_fields["images"].default
    return follows
