"""Settings that cannot work are refused when they are made."""

from __future__ import annotations

import pytest

from rebapl.errors import UserError
from rebapl.sampling import Adaptive, Inference, Repelling


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sampler": "sgmcmc"}, "Accepted: sghmc"),
        ({"restart": "hot"}, "warm, cold"),
        ({"cycles": 0}, "cycles is 0"),
        ({"cycles": "3"}, "cycles is '3'; it must be a whole number"),
        ({"epochs": 2.5}, r"epochs is 2\.5; it must be a whole number"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"burn_in_lr": "x"}, "burn_in_lr is 'x'; it must be a number or null"),
        ({"gradient_noise": []}, "must be a number or a name or null"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"burn_in_lr": -1.0}, r"burn_in_lr is -1\.0; .* not negative"),
        ({"sampler": "adamw", "temperature": 0.01}, "temperature 0"),
        ({"sampler": "adamw", "temperature": 0.0, "prior_std": 0.1}, "weight_decay"),
        ({"sampler": "adamw", "temperature": 0.0, "center": "init"}, "weight_decay"),
        ({"averaging": (3.0, 1.0), "samples_per_cycle": 2}, "one sample per cycle"),
        ({"averaging": (3.0, 0.0)}, "positive std"),
        ({"keep_momentum": True, "chains": 2}, "one chain"),
    ],
)
def test_bad_settings_say_what_is_accepted(changes, says):
    with pytest.raises(UserError, match=says):
        Inference(**{"lr": 0.05, "epochs": 2, "batch": 8, **changes})


def test_bad_settings_of_its_parts_too():
    with pytest.raises(UserError, match=r"reference is 0; .* at least 1"):
        Repelling(reference=0)
    with pytest.raises(UserError, match="fraction is 'x'; it must be a number"):
        Repelling(fraction="x")
    with pytest.raises(UserError, match="patience is None; it must be a whole number"):
        Adaptive(patience=None)
    with pytest.raises(UserError, match=r"pool is 0; .* at least 1"):
        Repelling(pool=0)
    with pytest.raises(UserError, match=r"patience is 0; .* at least 1"):
        Adaptive(patience=0)
