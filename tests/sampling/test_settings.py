"""Settings of a run that cannot work, or would do nothing, are refused when they are made."""

from __future__ import annotations

import pytest

from rebapl.errors import UserError
from rebapl.sampling import Adaptive, Inference
from rebapl.sampling.settings import Repelling

SGHMC = {"kind": "sghmc", "lr": 0.05}
CYCLES = {"cycles": 2, "restart": "warm"}


def sampler(**changes) -> dict:
    return {"sampler": {**SGHMC, **changes}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sampler": "sgmcmc"}, "sampler: unknown kind of sampler 'sgmcmc': .*Accepted: sghmc"),
        ({**CYCLES, "restart": "hot"}, "Accepted: warm, cold"),
        ({"cycles": 0}, "cycles is 0: it must be at least 1"),
        (sampler(temperature=0.0), r"sampler\.temperature is 0\.0: it must be above 0"),
        (sampler(burn_in={"share": 0.1}), r"sampler\.burn_in is \{'share': 0\.1\}: it must be a number"),
        (sampler(burn_in=1.5), r"sampler\.burn_in is 1\.5: it must be at most 1"),
        (sampler(burn_in=1.0, exploration=0.0), r"sampler\.burn_in does nothing without exploration"),
        (sampler(gradient_noise=[]), r"gradient_noise is \[\]: it must be 'estimate' or a number or null"),
        (
            sampler(gradient_noise=0.1, integrator="authors"),
            r"gradient_noise does not go with the integrator 'authors'",
        ),
        (sampler(exploration=1.0), r"sampler\.exploration is 1\.0: it must be below 1"),
        (sampler(weight_decay=0.1, prior_std=1.0), r"sampler\.prior_std and weight_decay both state the prior"),
        (
            {"sampler": {"kind": "adamw", "lr": 0.1, "temperature": 0.01}},
            r"sampler\.temperature: the sampler is",
        ),
        ({"sampler": {"kind": "adamw", "lr": 0.1, "prior_std": 0.1}}, r"sampler\.prior_std: the sampler is"),
        (sampler(center="init"), r"sampler\.center does nothing without a prior"),
        (sampler(center="zero", prior_std=1.0), r"sampler\.center is 'zero': .*init.* or null"),
        ({"sampler": {"kind": "adamw", "lr": 0.1, "center": "init"}}, r"sampler\.center: the sampler is"),
        *(({"curve": {"kind": kind}}, r"curve: unknown kind of curve") for kind in ({}, [], {"cosine": 1}, 3, True)),
        ({"averaging": {"mean": 3.0, "std": 1.0}}, "averaging is for sgd and adamw"),
        ({"sampler": {"kind": "sgd", "lr": 0.1}, "averaging": {"mean": 3.0, "std": 0.0}}, r"averaging\.std is 0\.0"),
        ({"cycles": 2, "chains": 2, "restart": {"kind": "warm", "keep_momentum": True}}, "needs one chain"),
        (
            {**CYCLES, "sampler": {"kind": "sgld", "lr": 0.1}, "restart": {"kind": "warm", "keep_momentum": True}},
            r"restart\.keep_momentum does nothing: there is no momentum in this sampler \(sgld\)",
        ),
        (
            {**CYCLES, **sampler(momentum=0.0), "restart": {"kind": "warm", "keep_momentum": True}},
            r"restart\.keep_momentum does nothing",
        ),
        ({**CYCLES, **sampler(exploration=0.0), "repulsion": {}}, "repulsion does nothing without exploration"),
        (
            {**CYCLES, **sampler(exploration=0.0), "repulsion": {"stage": "both"}},
            "repulsion does nothing without exploration",
        ),
        ({"restart": "warm"}, "restart does nothing in one cycle"),
        ({"repulsion": {}}, "repulsion does nothing in one cycle"),
        ({"adaptive": {}}, "adaptive does nothing in one cycle"),
        ({**CYCLES, "cycles": 3, "adaptive": {"patience": 2}}, "adaptive does nothing in 3 cycles.*at least 4"),
        ({"cycles": 2}, "restart is missing: say how each of the 2 cycles begins"),
        ({"warmup": {"epochs": 2}}, r"warmup\.epochs is 2: the first cycle has 2 epochs"),
        (
            {"sampler": {"kind": "sgd", "lr": 0.1}, **CYCLES, "repulsion": {"stage": "both"}},
            "an optimiser has one stage",
        ),
        ({"pool_view": "augmented"}, "no repulsion compares images here"),
    ],
)
def test_bad_settings_say_what_is_accepted(changes, says):
    with pytest.raises(UserError, match=says):
        Inference(**{"sampler": SGHMC, "epochs": 2, "batch": 8, **changes})


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (Repelling, {"images": 0}, "images is 0: it must be at least 1 or null"),
        (Repelling, {"force": {"kind": "fading", "fraction": "x"}}, r"force\.fraction is 'x': it must be a number"),
        (Repelling, {"space": "weights"}, "images does nothing in the space 'weights'"),
        (Repelling, {"space": "weights", "images": None, "rows": 3}, "rows does nothing in the space 'weights'"),
        (Repelling, {"images": None, "pool": 4}, "pool does nothing without `images`"),
        (Repelling, {"images": 6, "pool": 5}, "pool is 5: each step compares 6 of its images"),
        (Repelling, {"force": "normalised", "potential": "log"}, "potential does nothing with a normalised force"),
        (
            Repelling,
            {"force": "normalised", "potential": {"kind": "inverse", "epsilon": 0.1}},
            "potential does nothing with a normalised force",
        ),
        (Adaptive, {"patience": None}, "patience is None: it must be a whole number$"),
        (Adaptive, {"min_diversity_gain": -1.0}, r"min_diversity_gain is -1\.0: it must be at least 0"),
    ],
)
def test_bad_settings_of_its_parts_too(kind, values, says):
    with pytest.raises(UserError, match=says):
        kind(**values)


def test_what_acts_without_exploration_is_accepted():
    force = {"kind": "absolute", "strength": 0.1}
    repulsion = {"stage": "both", "force": force}
    assert Inference(**sampler(exploration=0.0), epochs=2, batch=8, **CYCLES, repulsion=repulsion).repulsion is not None
