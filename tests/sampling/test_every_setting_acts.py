"""Every setting acts or is refused: each field of each preset is changed, and the samples change with it.

The changes are made on the plain form of the settings, as a file or a command line would make them. A field that takes
one of several kinds is given each of the others, with the fields that the kind needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import pytest
import torch

from rebapl.errors import UserError
from rebapl.repulsion import DISTANCES
from rebapl.repulsion.force import FORCES, POTENTIALS
from rebapl.sampling import PRESETS, SVGD, Chain, Inference, mass_matrix, preset, rule
from rebapl.sampling.settings import (
    CURVES,
    RESTARTS,
    SAMPLERS,
    Adaptive,
    Averaging,
    Cold,
    Laplace,
    Repelling,
    Swag,
    Warm,
    Warmup,
)
from rebapl.settings import Settings

from .toy import ToyLearner, ToyRecipe, batches, data

RECIPES = {
    "sgd": ToyRecipe(lr=0.02, epochs=3, batch=4, averaging=(2.0, 1.0)),
    "adamw": ToyRecipe(lr=0.02, epochs=3, batch=4, optimizer="adamw"),
}
STEPS_PER_EPOCH = 3

OUTSIDE = {
    "average": "what a prediction averages over samples: it acts when one predicts",
    "views": "over how many views of an image a prediction averages: it acts when one predicts",
    "pool_view": "which view of the training images the pool is of: training makes the pool, the loop is given it",
}
"""The only settings that do not act in the loop."""

OTHERS: dict[str, list[Any]] = {
    "first_epochs": [5],
    "gradient_noise": ["estimate", 0.01],
    "center": ["init"],
    "mass_matrix": ["diagonal", None],
    "space": ["image", "text", "both", "logits", "weights"],
    "prior_std": [0.3],
    "bandwidth": [0.7],
    "scale": [0.7],
    "images": [3, None],
    "pool": [9],
    "measure_every": [3],
    "tolerance": [0.02],
    "floor": [0.9],
    "rows": [2],
    "lr": [0.011],
    "warmup": [{"epochs": 1, "lr": 0.004}, None],
    "averaging": [{"mean": 1.0, "std": 1.0}, None],
    "laplace": [{"samples": 4}, None],
    "structure": ["diagonal"],  # `full` is what `auto` takes here
    "swag": [{"start": 0.5, "snapshots": 3, "samples": 2}, None],
    "adaptive": [{"min_likelihood_gain": 9.0, "min_diversity_gain": 9.0, "patience": 1}, None],
    "min_likelihood_gain": [0.0],
    "min_diversity_gain": [0.0],
    "burn_in": [0.3],
    "restart": [None],
    "repulsion": [{"images": 5, "pool": 12}, None],
}
"""Other values for fields that may be null or hold settings of their own."""

KINDS: dict[str, dict[str, type[Settings]]] = {
    "sampler": SAMPLERS,
    "curve": CURVES,
    "restart": RESTARTS,
    "distance": DISTANCES,
    "potential": POTENTIALS,
    "force": FORCES,
}
NEEDED = {"lr": 0.02, "strength": 0.05, "temperature": 0.1}


THREE = {"chains": 2, "cycles": 3}  # three cycles, so that the samples of all earlier ones are not only the previous
BASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{name: (name, "sgd", {}) for name in PRESETS},
    "mle, adamw": ("mle", "adamw", {}),
    "csgld, adamw": ("csgld", "adamw", {}),
    "rebapl, adamw": ("rebapl", "adamw", {"sampler.burn_in": 0.7}),
    # fields that no preset uses, or uses only in a form in which the others are refused
    "a prior": ("csghmc", "sgd", {"sampler.weight_decay": 0.0, "sampler.prior_std": 0.2, "sampler.center": "init"}),
    "burn-in": ("csgld", "adamw", {"sampler.weight_decay": 0.0, "sampler.prior_std": 0.2, "sampler.center": "init"}),
    "a prior of particles": ("svgd", "sgd", {"sampler.weight_decay": 0.0, "sampler.prior_std": 0.2}),
    "adaptive": (
        "ensemble",
        "sgd",
        {"cycles": 4, "adaptive": {"min_likelihood_gain": 9.0, "min_diversity_gain": 9.0}},
    ),
    "chains": ("csghmc", "sgd", {"chains": 2, "restart": {"kind": "warm", "kick": 0.1}}),
    "mmd": (
        "rebapl",
        "sgd",
        {"repulsion.distance": {"kind": "mmd", "bandwidth": 0.5}, "repulsion.force": "normalised", **THREE},
    ),
    "sinkhorn": ("rebapl", "sgd", {"repulsion.distance": "sinkhorn", "repulsion.potential": "log", **THREE}),
    "sliced": (
        "rebapl",
        "sgd",
        {"repulsion.distance": "sliced", "repulsion.force": {"kind": "absolute", "strength": 0.1}, **THREE},
    ),
    "capped": (
        "rebapl",
        "sgd",
        {
            "repulsion.force": {"kind": "capped", "strength": 0.3, "cap": 0.5},
            "repulsion.stage": "both",
            "repulsion.memory": "all",
            **THREE,
        },
    ),
    "text": ("rebapl", "sgd", {"repulsion.space": "text", "repulsion.images": None, "repulsion.pool": None, **THREE}),
    "weights": (
        "rebapl",
        "sgd",
        {
            "repulsion.space": "weights",
            "repulsion.images": None,
            "repulsion.pool": None,
            "repulsion.distance": "paired",
            **THREE,
        },
    ),
}
"""What is changed: every preset, and what they leave out."""


@cache
def base(name: str) -> dict[str, Any]:
    """Settings in plain form, small enough for the toy: forty images, of which six are compared, and cycles of a few
    steps, so that the force acts at each."""
    start, recipe, changes = BASES[name]
    repels = preset(start, RECIPES[recipe]).repulsion is not None
    small: dict[str, Any] = {"repulsion.every": 1, "epochs": 4} if repels else {}
    if start == "swag":
        small = {"swag.snapshots": 4}  # of the nine steps after its start
    if repels and "repulsion.images" not in changes:
        small |= {"repulsion.images": 6, "repulsion.pool": 16}
    return preset(start, RECIPES[recipe], **small, **changes).plain()


def paths(tree: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path to every value, and to every mapping that can be replaced as a whole."""
    found = []
    for name, value in tree.items():
        here = (*before, name)
        if isinstance(value, dict):
            found += paths(value, here)
            if name in OTHERS:
                found.append(here)
        else:
            found.append(here)
    return found


def at(tree: dict[str, Any], path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The same settings with another value at a path."""
    if not path:
        return value
    return {**tree, path[0]: put(tree.get(path[0], {}), path[1:], value)}


def others(tree: dict[str, Any], path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    """The values to put in place of a value, and the path of each."""
    name, value = path[-1], at(tree, path)
    if name == "kind":
        outer = path[:-1]
        kinds = KINDS[outer[-1]]
        return [(outer, with_needed(kind, kinds[kind])) for kind in kinds if kind != value]
    if name == "space" and value is None:
        return [(path, other) for other in OTHERS[name] if other != ToyLearner.repels_in]
    if name in OTHERS:
        return [(path, other) for other in OTHERS[name] if other != value]
    if isinstance(value, bool):
        return [(path, not value)]
    if isinstance(value, str):
        accepted = literals(tree, path)
        return [(path, other) for other in accepted if other != value]
    if isinstance(value, int) and name in WHOLE:
        return [(path, value + 1)]
    if isinstance(value, int | float):
        other = 0.7 * value + 0.03  # still a share where it was one, and far enough to be seen
        return [(path, 0.8 * value if math.isclose(other, value) else other)]
    raise AssertionError(f"no other value is known for {'.'.join(path)} = {value!r}: add one to OTHERS")


def with_needed(kind: str, settings: type[Settings]) -> dict[str, Any]:
    """The settings of another kind, with values for the fields that have no default."""
    needed = {name for name, field in settings.model_fields.items() if field.is_required()}
    return {"kind": kind, **{name: NEEDED[name] for name in needed}}


EVERY = [
    *(kind for kinds in KINDS.values() for kind in kinds.values()),
    *(Inference, Adaptive, Averaging, Cold, Laplace, Repelling, Swag, Warm, Warmup),
]
WHOLE = {name for kind in EVERY for name, field in kind.model_fields.items() if field.annotation is int}


@pytest.fixture(autouse=True)
def _few_gradients_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the number of gradients that a mass matrix needs, because the runs of these tests are short."""
    for module in (mass_matrix, rule):
        monkeypatch.setattr(module, "FEWEST", 1)


def literals(tree: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """The words that a field accepts."""
    for kind in EVERY:
        field = kind.model_fields.get(path[-1])
        words = [] if field is None else [word for word in getattr(field.annotation, "__args__", ()) if word]
        if at(tree, path) in words:
            return list(words)
    raise AssertionError(f"{'.'.join(path)} is text with no list of words: add other values to OTHERS")


def samples(values: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The samples (d,) of a short run with these settings, one after the other."""
    inference = Inference(**values)
    given = {"num_data": 40, "steps_per_epoch": STEPS_PER_EPOCH}
    loop: Any = SVGD if inference.sampler.kind == "svgd" else Chain
    if loop is Chain:
        given["reference"] = data()[0]
    if inference.adaptive is not None:
        given["held_out"] = data(20, seed=5)
    size = RECIPES["sgd"].batch
    run = loop(ToyLearner(), inference, lambda step: batches(step, size), **given)
    for sample in run.run():
        found = torch.cat([p.flatten() for p in sample.parameters.values()])
        assert found.isfinite().all()
        yield found


@cache
def unchanged(name: str) -> list[torch.Tensor]:
    return list(samples(base(name)))


def same_as_unchanged(name: str, changed: Iterator[torch.Tensor]) -> bool:
    """Whether a run gives the samples of the unchanged settings. It stops at the first sample that differs."""
    pairs = zip_longest(changed, unchanged(name))
    return all(one is not None and other is not None and torch.equal(one, other) for one, other in pairs)


def looked_at(name: str, path: tuple[str, ...]) -> bool:
    """Whether a field is tested in a base: every field of a preset, otherwise only those that the base changes."""
    changes = BASES[name][2]
    below = [key.split(".")[: 1 + key.startswith("repulsion")] for key in changes.keys() - THREE.keys()]
    return not changes or any(list(path[: len(names)]) == names for names in below)


def cases() -> list[Any]:
    """Each field with each of its other values; where presets have the same sampler, in the last of them only."""
    found = {}
    for name in BASES:
        for path in filter(partial(looked_at, name), paths(base(name))):
            for where, other in others(base(name), path):
                family = base(name)["sampler"]["kind"] if name in PRESETS else name
                key = (family, where, "a number" if isinstance(other, float) else str(other))
                found[key] = pytest.param(name, where, other, id=f"{name}-{'.'.join(where)}={other}")
    return list(found.values())


@pytest.mark.parametrize(("name", "where", "other"), cases())
@pytest.mark.filterwarnings("ignore:for some coordinates, the gradient noise")
def test_a_changed_setting_changes_the_samples_or_is_refused(name: str, where: tuple[str, ...], other: Any) -> None:
    try:
        same = same_as_unchanged(name, samples(put(base(name), where, other)))
    except UserError as error:
        said = str(error)
        assert "\n" not in said
        assert any(word in said for word in (where[-1], *NAMED.get(where[-1], ()))), said
        return
    if (name, ".".join(where)) in SAME:
        return
    assert same == (where[-1] in OUTSIDE), f"{'.'.join(where)} = {other!r} does nothing"


SAME = {
    ("adaptive", "cycles"): "with an adaptive rule `cycles` is the most there will be, and it stops before",
    ("rebapl", "repulsion.memory"): "before the second of two cycles there is only the previous one",
    ("rebapl, adamw", "repulsion.memory"): "the same",
    ("weights", "repulsion.distance"): "of one point, Wasserstein's distance is the paired one",
    **{
        (name, "repulsion.force.tolerance"): "the loss of each chain falls, so that nothing yields"
        for name in ("mmd", "capped")
    },
}
"""Changes that come to the same thing in one base."""

NAMED = {
    "sampler": ("averaging", "laplace", "swag", "cycles", "stage", "keep_momentum", "repulsion"),
    "cycles": ("restart",),
    "chains": ("keep_momentum",),
    "images": ("pool",),
    "space": ("distance",),
    "exploration": ("burn_in",),
    "weight_decay": ("prior_std",),
    "repulsion": ("pool_view",),
}
"""Which other setting a refusal may name: the one that would have to be changed with it."""


def test_every_field_of_every_kind_was_changed_somewhere_and_acted() -> None:
    """No field is only ever refused: somewhere among the bases it is accepted with another value."""
    accepted: set[str] = set()
    for case in cases():
        name, where, other = case.values
        try:
            Inference(**put(base(name), where, other))
        except UserError:
            continue
        accepted.add(where[-1])
        if isinstance(other, dict):
            accepted |= {*other, "kind"}
    fields = {name for kind in EVERY for name in kind.model_fields}
    assert fields - accepted == set()
