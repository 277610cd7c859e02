"""Presets: named settings of the loops as data, in which every value stands with its origin.

Each preset is a YAML file in this folder, in the form that `rebapl.yaml_files` describes. Its values may depend on the
`QUANTITIES` of a recipe, and its variants are for methods. A file whose name begins with `_` is no preset: presets
extend it. `register_preset` adds a preset from outside the package.
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
"""The order in which lists show the presets, from plain to elaborate. Other presets come after these."""

QUANTITIES = (
    "epochs batch lr lr_without_momentum momentum weight_decay sampler burn_in mass_matrix warmup averaging".split()
)
"""The quantities of a learner's recipe on which a preset may depend.

`sampler`, `warmup` and `averaging` are settings of `Inference`. If the recipe has AdamW, `burn_in` is 1 and
`mass_matrix` is `diagonal`; otherwise they are 0 and None."""

NEED_EXPLORATION = {"burn_in": 0.0, "mass_matrix": None}
"""The settings of a sampler that act in its exploration, with their values for a sampler without exploration."""

PRESETS: Registry[SettingsFile] = Registry("inference", "rebapl.presets")
"""The presets by name, those of installed plugins included."""


_read = partial(read_settings_file, names=Inference.model_fields, quantities=QUANTITIES, fallback=FOLDER)
_NAMES = {path.stem for path in FOLDER.glob("[!_]*.yaml")}
PRESETS.known |= {name: _read(FOLDER / f"{name}.yaml") for name in (*ORDER, *sorted(_NAMES.difference(ORDER)))}


def register_preset(path: Path | str) -> str:
    """Register the preset in a YAML file under the file's name, and return this name.

    The preset may extend one of the package.
    """
    path = Path(path)
    settings = _read(path)
    if PRESETS.known.get(path.stem, settings) != settings:
        raise UserError(f"{path} cannot be registered: there is another preset '{path.stem}', so rename the file")
    PRESETS.known[path.stem] = settings
    return path.stem


def has_own_epochs(name: str, method: str) -> bool:
    """Whether the preset itself gives the number of epochs of a cycle, instead of deriving it from the recipe.

    >>> has_own_epochs("rebapl-paper", "maple"), has_own_epochs("rebapl", "maple")
    (True, False)
    """
    epochs = [layer["epochs"].value for layer in PRESETS.find(name).under([method]) if "epochs" in layer]
    return bool(epochs) and not isinstance(epochs[-1], Derived)


def preset_values(
    name: str,
    recipe: Recipe,
    method: str = "",
    per_image: bool = True,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Value]:
    """Every value that a preset gives for a learner, by dotted name, with its origin.

    `method` is the learner's name: for the methods in the paper's table of settings, `rebapl-paper` takes the values of
    the table. `per_image` says whether the space in which the learner repels has one point per image. If it does not,
    no images are compared, unless the preset names another space. The `changes`, by dotted name, replace values of the
    preset. Settings that follow from the result replace values in turn; see `preset`.
    """
    changes = changes or {}
    quantities, layers = _quantities(recipe), PRESETS.find(name).under([method])
    values = combined(layers, quantities)
    if not per_image and "repulsion.images" in values and "repulsion.space" not in values:
        layers.append({f"repulsion.{key}": Value(None, "definition") for key in ("images", "pool")})
    layers.append({key: Value(value, "asked for") for key, value in changes.items()})
    consequences = _consequences({key: entry.value for key, entry in combined(layers, quantities).items()})

    def is_changed(key: str) -> bool:
        """Whether the setting itself, or one inside it, is among the changes."""
        return any(f"{change}.".startswith(f"{key}.") for change in changes)

    layers.append({key: Value(value, "ours") for key, value in consequences.items() if not is_changed(key)})
    return combined(layers, quantities)


def preset(name: str, recipe: Recipe, method: str = "", per_image: bool = True, /, **changes: Any) -> Inference:
    """The settings of a preset for a learner's recipe, with `changes`, which may be nested or have dotted names.

    `method` and `per_image` are as in `preset_values`.

    If a change names another `kind`, the settings of the old kind are dropped, and those of the new one have their
    defaults. Settings that follow from a change are changed too: without exploration there is no burn-in and no mass
    matrix, a warm-up leaves at least one epoch, and a run of one cycle has no restart. If the preset's first cycle is
    longer than the others, and the change makes all cycles begin alike (cold restarts, or one cycle), all cycles are as
    long as the first. A normalised force does not depend on the potential, so it drops the preset's potential. A
    distance between class probabilities compares the logits of images.

    >>> from types import SimpleNamespace
    >>> recipe = SimpleNamespace(lr=0.0035, epochs=5, batch=4, optimizer="sgd", momentum=0.9, weight_decay=5e-4,
    ...                          warmup_epochs=1, warmup_lr=1e-5, averaging=None)
    >>> preset("rebapl", recipe, cycles=5).sampler.lr, preset("rebapl-paper", recipe, "maple").sampler.lr
    (0.0035, 0.002)
    >>> preset("rebapl", recipe, **{"repulsion.distance": "energy"}).repulsion.distance
    Energy()
    """
    values = preset_values(name, recipe, method, per_image, dict(leaves(nested(changes))))
    return Inference(**nested({key: entry.value for key, entry in values.items()}))


def _quantities(recipe: Recipe) -> dict[str, Any]:
    """The `QUANTITIES` of a recipe. Without momentum, a step must be 1/(1−momentum) times as long to get as far."""
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


def _consequences(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that follow from the values of other settings, by dotted name."""
    settings: dict[str, Any] = {}
    if values.get("sampler.exploration") == 0:
        settings |= {f"sampler.{key}": none for key, none in NEED_EXPLORATION.items() if values.get(f"sampler.{key}")}
    one_cycle, restart = values.get("cycles") == 1, values.get("restart.kind", values.get("restart"))
    if one_cycle and restart is not None:
        settings["restart"] = None
    first, warmup = values.get("first_epochs"), values.get("warmup.epochs")
    if first is not None and (one_cycle or restart == "cold"):
        settings |= {"epochs": first, "first_epochs": None}
    length = values.get("epochs") if first is None else first
    if isinstance(length, int) and isinstance(warmup, int) and warmup >= length:
        settings |= {"warmup.epochs": length - 1} if length > 1 else {"warmup": None}
    force = values.get("repulsion.force.kind", values.get("repulsion.force"))
    if force == "normalised" and values.get("repulsion.stage") != "both":
        settings["repulsion.potential"] = {"kind": Inverse.kind, "epsilon": Inverse().epsilon}
    kind = values.get("repulsion.distance.kind", values.get("repulsion.distance"))
    if isinstance(kind, str) and kind in DISTANCES and (space := DISTANCES[kind].space) is not None:
        settings["repulsion.space"] = space
        if values.get("repulsion.images") is None:
            settings["repulsion.images"] = Repelling.model_fields["images"].default
    return settings
