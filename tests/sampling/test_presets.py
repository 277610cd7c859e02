"""Presets are data: what each resolves to, and where each value comes from."""

from __future__ import annotations

import math

import pytest
import torch

from rebapl.errors import UserError
from rebapl.learners.base import Recipe
from rebapl.sampling import PRESETS, Adaptive, Chain, Inference, Repelling, begin, preset, preset_values
from rebapl.sampling.presets import Value

from .toy import ToyLearner, batches, data

MAPLE = Recipe(lr=0.0035, epochs=5, batch=4)
MMRL = Recipe(lr=0.001, epochs=10, batch=4, optimizer="adamw")
PROMPTSRC = Recipe(lr=0.0025, epochs=20, batch=4, averaging=(15.0, 1.0))
ORIGINS = {"recipe", "paper", "authors' code", "definition", "ours"}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("method", "recipe"), [("maple", MAPLE), ("mmrl", MMRL), ("promptsrc", PROMPTSRC)])
def test_every_preset_resolves_runs_and_says_where_its_values_come_from(name, method, recipe):
    assert {value.origin for value in preset_values(name, recipe, method).values()} <= ORIGINS
    repulsion = None if preset(name, recipe, method).repulsion is None else {"reference": 6, "pool": 16}
    inference = preset(name, recipe, method, epochs=2, averaging=None, lr=1e-4, repulsion=repulsion)
    run = begin(ToyLearner(), inference, batches, num_data=40, steps_per_epoch=5, reference=data()[0])
    samples = list(run.run())
    assert run.steps_done == run.steps_in_all
    assert math.isfinite(run.last_loss)
    assert len(samples) == inference.cycles * inference.chains * inference.samples_per_cycle


def test_mle_is_the_published_recipe():
    inference = preset("mle", MAPLE, "maple")
    assert (inference.lr, inference.epochs, inference.batch) == (0.0035, 5, 4)
    assert (inference.temperature, inference.cycles, inference.sampler) == (0.0, 1, "sghmc")
    learner, other = ToyLearner(), ToyLearner()
    (sample,) = Chain(learner, inference, batches, num_data=40, steps_per_epoch=10).run()
    sgd = torch.optim.SGD([other.image, other.text], lr=1.0, momentum=0.9, weight_decay=5e-4)
    for step in range(50):
        epoch = step // 10
        # published training starts the cosine's clock after the warm-up, over as many epochs as the whole run has
        cosine = 0.0035 * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / 5))
        sgd.param_groups[0]["lr"] = cosine if epoch else 1e-5
        x, y = batches(step)
        sgd.zero_grad()
        other.loss(other(x), y).backward()
        sgd.step()
    torch.testing.assert_close(sample.parameters["image"], other.image.detach(), rtol=0, atol=1e-7)


def test_mle_of_an_adamw_recipe_is_adamw_and_of_an_averaging_one_averages():
    assert preset("mle", MMRL).sampler == "adamw"
    assert preset("mle", PROMPTSRC).averaging == (15.0, 1.0)
    assert preset("rebapl", PROMPTSRC).averaging is None


def test_what_the_literature_compares_with_is_the_same_loop():
    shape = {
        name: (i.cycles, i.restart, i.temperature > 0, i.sampler, i.repulsion is not None)
        for name in PRESETS
        for i in [preset(name, MAPLE, "maple")]
    }
    assert shape["ensemble"][:3] == (3, "cold", False)
    assert shape["snapshot"][:3] == (3, "warm", False)
    assert shape["sgld"] == (1, "warm", True, "sgld", False)
    assert shape["csghmc"] == (3, "warm", True, "sghmc", False)
    assert shape["rebapl"] == (3, "cold", True, "sghmc", True)
    assert preset("sghmc", MAPLE).floor == 1.0  # a constant rate


def test_the_paper_preset_takes_the_papers_table_where_it_names_the_method():
    maple, mmrl = preset("rebapl-paper", MAPLE, "maple"), preset("rebapl-paper", MMRL, "mmrl")
    assert (maple.lr, maple.batch, maple.epochs, maple.cycles) == (0.002, 1, 5, 3)
    assert (maple.repulsion.metric, maple.repulsion.reference) == ("mmd", 32)
    assert (mmrl.lr, mmrl.batch, mmrl.epochs) == (0.001, 4, 5)
    assert (mmrl.repulsion.metric, mmrl.repulsion.reference) == ("wasserstein", 64)
    assert mmrl.burn_in == 0.4
    assert maple.burn_in == 0.0
    assert maple.repulsion.strength == 0.5  # ξ/lr
    assert (maple.temperature, maple.restart, maple.repulsion.stage) == (1.0, "warm", "both")
    assert preset_values("rebapl-paper", MAPLE, "maple")["lr"].origin == "paper"
    assert preset_values("rebapl-paper", PROMPTSRC, "promptsrc")["lr"].origin == "recipe"
    assert preset_values("rebapl", MAPLE, "maple")["lr"] == preset_values("mle", MAPLE, "maple")["lr"]


def test_the_authors_preset_has_every_departure_of_the_released_code():
    authors = preset("rebapl-authors", MAPLE, "maple")
    assert (authors.lr, authors.batch, authors.epochs, authors.cycles, authors.exploration) == (0.002, 1, 5, 3, 0.4)
    assert (authors.integrator, authors.temperature, authors.average) == ("authors", 100.0, "logits")
    assert (authors.restart, authors.keep_momentum) == ("warm", True)
    assert (authors.granularity, authors.floor, authors.warmup_epochs, authors.warmup_lr) == ("epoch", 0.0, 1, 1e-5)
    assert authors.repulsion == Repelling(
        space="both",
        reference=128,
        pool=128,
        rows=5,
        augmented=True,
        metric="paired",
        potential="inverse",
        size="absolute",
        strength=0.75,
        epsilon=1e-6,
        scale=1.0,
        memory="previous",
        stage="both",
        kick=0.0,
    )
    side_by_side = preset("rebapl-authors", MAPLE, "maple", restart="cold", keep_momentum=False)
    assert (side_by_side.restart, side_by_side.warmup_epochs) == ("cold", 1)  # a fresh warm-up each
    assert preset_values("rebapl-authors", MAPLE, "maple")["warmup_epochs"] == Value(1, "authors' code")


def test_what_follows_from_a_setting_follows_its_change():
    assert preset("rebapl", MMRL).burn_in == 0.4
    assert preset("rebapl", MMRL, exploration=0.25).burn_in == 0.25
    assert preset("rebapl", MMRL, exploration=0.25, burn_in=0.1).burn_in == 0.1
    assert preset("rebapl", MAPLE, exploration=0.25).burn_in == 0.0
    assert preset("mle", MAPLE).warmup_epochs == 1
    assert preset("mle", MAPLE, epochs=2).warmup_epochs == 1
    assert preset("mle", MAPLE, epochs=1).warmup_epochs == 0  # or nothing would be learned


def test_changes_go_on_top_and_unknown_ones_are_named():
    changed = preset("rebapl", MAPLE, "maple", cycles=5, repulsion={"metric": "energy"})
    assert isinstance(changed, Inference)
    assert changed.cycles == 5
    assert (changed.repulsion.metric, changed.repulsion.reference) == ("energy", 32)
    assert preset("rebapl", MAPLE, repulsion=None).repulsion is None
    dotted = preset("rebapl", MAPLE, **{"repulsion.metric": "energy", "repulsion.fraction": 0.1})
    assert (dotted.repulsion.metric, dotted.repulsion.fraction, dotted.repulsion.reference) == ("energy", 0.1, 32)
    assert preset("rebapl", MAPLE, adaptive={"patience": 2}).adaptive == Adaptive(patience=2)
    assert preset("rebapl", MAPLE).adaptive is None
    with pytest.raises(UserError, match="did you mean 'patience'"):
        preset("rebapl", MAPLE, adaptive={"patient": 2})
    with pytest.raises(UserError, match="adaptive is True; give its settings"):
        preset("rebapl", MAPLE, adaptive=True)
    with pytest.raises(UserError, match="did you mean 'cycles'"):
        preset("rebapl", MAPLE, cycels=5)
    with pytest.raises(UserError, match="did you mean 'metric'"):
        preset("rebapl", MAPLE, repulsion={"metrik": "mmd"})
    with pytest.raises(UserError, match="did you mean 'csghmc'"):
        preset("csghcm", MAPLE)


def test_a_temperature_that_would_never_act_is_refused():
    with pytest.raises(UserError, match="exploration = 1 leaves no sampling stage"):
        preset("mle", MAPLE, temperature=0.1)
