"""Presets are data: the settings to which each resolves, and the origin of each value."""

from __future__ import annotations

import math

import pytest
import torch

from rebapl.errors import UserError
from rebapl.repulsion import Fading, Inverse
from rebapl.repulsion.distances import Paired
from rebapl.repulsion.force import Absolute, Printed
from rebapl.repulsion.mmd import Energy
from rebapl.sampling import PRESETS, SVGD, Adaptive, Chain, Inference, preset, preset_values, register_preset
from rebapl.sampling.settings import (
    AdamWSettings,
    Averaging,
    Cold,
    Constant,
    Cosine,
    Repelling,
    SGDSettings,
    Warm,
    Warmup,
)
from rebapl.yaml_files import ORIGINS, Derived, Value

from .toy import ToyLearner, batches, data
from .toy import ToyRecipe as Recipe

MAPLE = Recipe(lr=0.0035, epochs=5, batch=4)
MMRL = Recipe(lr=0.001, epochs=10, batch=4, optimizer="adamw")
PROMPTSRC = Recipe(lr=0.0025, epochs=20, batch=4, averaging=(15.0, 1.0))


def batches_of(size):
    return lambda step: batches(step, size)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("method", "recipe"), [("maple", MAPLE), ("mmrl", MMRL), ("promptsrc", PROMPTSRC)])
def test_every_preset_resolves_runs_and_says_where_its_values_come_from(name, method, recipe):
    whole = preset(name, recipe)
    assert Inference(**whole.plain()) == whole  # what is saved is what is resolved
    assert {value.origin for value in preset_values(name, recipe, method).values()} <= set(ORIGINS)
    changes = {"epochs": 2, "sampler.lr": 0.01}
    if preset(name, recipe, method).repulsion is not None:
        changes |= {"repulsion.images": 6, "repulsion.pool": 16}
    inference = preset(name, recipe, method, **changes)
    loop, more = (SVGD, {}) if name == "svgd" else (Chain, {"reference": data()[0]})
    given = batches_of(inference.batch)
    run = loop(ToyLearner(), inference, given, num_data=40, steps_per_epoch=5, **more)
    samples = list(run.run())
    assert run.schedule.steps == run.steps_in_all
    assert math.isfinite(run.last_loss)
    assert len(samples) == inference.samples


def test_a_method_without_points_per_image_compares_no_images():
    assert preset("rebapl", MAPLE, "", False).repulsion.images is None
    authors = preset("rebapl-authors", MAPLE, "", False).repulsion
    assert (authors.space, authors.images, authors.pool) == ("both", 128, 128)  # it names a space that has images
    assert preset("mle", MAPLE, "", False) == preset("mle", MAPLE)


def test_mle_is_the_published_recipe():
    inference = preset("mle", MAPLE, "maple")
    assert inference.sampler == SGDSettings(lr=0.0035, momentum=0.9, weight_decay=5e-4)
    assert (inference.epochs, inference.batch, inference.cycles) == (5, 4, 1)
    learner, other = ToyLearner(), ToyLearner()
    (sample,) = Chain(learner, inference, batches_of(4), num_data=40, steps_per_epoch=10).run()
    sgd = torch.optim.SGD([other.image, other.text], lr=1.0, momentum=0.9, weight_decay=5e-4)
    for step in range(50):
        epoch = step // 10
        # published training starts the cosine's clock after the warm-up, over as many epochs as the whole run has
        cosine = 0.0035 * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / 5))
        sgd.param_groups[0]["lr"] = cosine if epoch else 1e-5
        x, y = batches(step, 4)
        sgd.zero_grad()
        other.loss(other(x), y).backward()
        sgd.step()
    torch.testing.assert_close(sample.parameters["image"], other.image.detach(), rtol=0, atol=1e-7)


def test_mle_of_an_adamw_recipe_is_adamw_and_of_an_averaging_one_averages():
    assert preset("mle", MMRL).sampler == AdamWSettings(lr=0.001, weight_decay=5e-4)
    assert preset("mle", PROMPTSRC).averaging == Averaging(mean=15.0, std=1.0)
    assert preset("snapshot", PROMPTSRC).averaging is None
    assert preset("rebapl", PROMPTSRC).averaging is None


def test_what_the_literature_compares_with_is_the_same_loop():
    shape = {
        name: (i.cycles, i.restart, i.sampler.kind, i.repulsion is not None)
        for name in PRESETS
        for i in [preset(name, MAPLE, "maple")]
    }
    assert shape["ensemble"] == (3, Cold(), "sgd", False)
    assert shape["snapshot"] == (3, Warm(), "sgd", False)
    assert shape["sgld"] == (1, None, "sgld", False)
    assert shape["csghmc"] == (3, Warm(), "sghmc", False)
    assert shape["rebapl"] == (2, Warm(kick=0.01), "sghmc", True)
    assert shape["rebapl-paper"] == (3, Warm(kick=0.01), "sghmc", True)
    assert preset("sghmc", MAPLE).curve == Constant()
    assert preset("sgld", MAPLE).sampler.lr == pytest.approx(0.035)  # lr/(1 − momentum)


def test_the_paper_preset_takes_the_papers_table_where_it_names_the_method():
    maple, mmrl = preset("rebapl-paper", MAPLE, "maple"), preset("rebapl-paper", MMRL, "mmrl")
    assert (maple.sampler.lr, maple.batch, maple.epochs, maple.cycles) == (0.002, 1, 5, 3)
    assert (maple.repulsion.distance.kind, maple.repulsion.images) == ("mmd", 32)
    assert (mmrl.sampler.lr, mmrl.batch, mmrl.epochs) == (0.001, 4, 5)
    assert (mmrl.repulsion.distance.kind, mmrl.repulsion.images) == ("wasserstein", 64)
    assert (maple.sampler.burn_in, mmrl.sampler.burn_in) == (0, 1)
    assert (maple.sampler.temperature, maple.restart, maple.repulsion.stage) == (1.0, Warm(kick=0.01), "both")
    assert preset_values("rebapl-paper", MAPLE, "maple")["sampler.lr"].origin == "paper"
    assert preset_values("rebapl-paper", PROMPTSRC, "promptsrc")["sampler.lr"].origin == "recipe"
    assert preset_values("rebapl", MAPLE, "maple")["sampler.lr"] == Value(0.0035, "recipe")


def test_the_papers_force_is_the_printed_one_and_its_size_is_the_papers_only_where_the_paper_has_it():
    """ξ itself, outside the step: it was ξ/lr at MaPLe's lr inside the loss, tagged *paper* for every method."""
    sizes = {"maple": (0.001, "paper"), "mmrl": (0.0001, "paper"), "promptsrc": (0.001, "ours")}
    for method, (strength, origin) in sizes.items():
        recipe = {"maple": MAPLE, "mmrl": MMRL, "promptsrc": PROMPTSRC}[method]
        assert preset("rebapl-paper", recipe, method).repulsion.force == Printed(strength=strength)
        found = preset_values("rebapl-paper", recipe, method)["repulsion.force.strength"]
        assert found == Value(strength, origin)


def test_the_authors_preset_has_every_departure_of_the_released_code():
    authors = preset("rebapl-authors", MAPLE, "maple")
    sampler = authors.sampler
    assert (sampler.lr, authors.batch, authors.epochs, authors.cycles, sampler.exploration) == (0.002, 1, 5, 3, 0.4)
    assert (sampler.integrator, sampler.temperature, authors.average) == ("authors", 100.0, "logits")
    assert authors.restart == Warm(keep_momentum=True)
    assert authors.curve == Cosine(floor=0.0, every="epoch")
    assert authors.warmup == Warmup(epochs=1, lr=1e-5)
    assert authors.pool_view == "augmented"
    assert authors.repulsion == Repelling(
        space="both",
        images=128,
        pool=128,
        rows=5,
        distance=Paired(),
        potential=Inverse(epsilon=1e-6, scale=1.0),
        force=Absolute(strength=0.75),
        memory="previous",
        stage="both",
    )
    side_by_side = preset("rebapl-authors", MAPLE, "maple", restart="cold")
    assert (side_by_side.restart, side_by_side.warmup) == (Cold(), Warmup(epochs=1))  # a fresh warm-up each
    assert preset_values("rebapl-authors", MAPLE, "maple")["warmup.epochs"] == Value(1, "recipe")


def test_what_follows_from_a_setting_follows_its_change():
    assert preset("csghmc", MMRL, **{"sampler.exploration": 0.0}).sampler.burn_in == 0
    assert preset("mle", MAPLE).warmup == Warmup(epochs=1)
    assert preset("mle", MAPLE, epochs=2).warmup == Warmup(epochs=1)
    assert preset("mle", MAPLE, epochs=1).warmup is None  # or nothing would be learned
    assert preset("csghmc", MAPLE, cycles=1).restart is None


def test_ours_is_three_chains_of_a_long_and_a_short_cycle_three_times_the_recipe_in_all():
    ours = preset("rebapl", MAPLE)
    assert (ours.chains, ours.cycles, ours.first_epochs, ours.epochs) == (3, 2, 4, 1)
    assert (ours.all_epochs, ours.samples) == (3 * MAPLE.epochs, 6)
    longer = preset("rebapl", PROMPTSRC)
    assert (longer.first_epochs, longer.epochs, longer.all_epochs) == (16, 4, 3 * PROMPTSRC.epochs)
    least = preset("rebapl", Recipe(lr=0.01, epochs=1, batch=4))
    assert (least.first_epochs, least.epochs) == (1, 1)


def test_cycles_that_begin_alike_are_all_as_long_as_the_first():
    cold = preset("rebapl", MAPLE, restart="cold")
    assert (cold.restart, cold.first_epochs, cold.epochs) == (Cold(), None, 4)
    assert preset("rebapl", MAPLE, **{"restart.kind": "cold"}) == cold
    assert preset("rebapl", MAPLE, restart="cold", epochs=7).epochs == 7
    one = preset("rebapl", MAPLE, cycles=1, repulsion=None)
    assert (one.restart, one.first_epochs, one.epochs, one.samples) == (None, None, 4, 3)
    with pytest.raises(UserError, match=r"^repulsion does nothing in one cycle: ask for more `cycles`"):
        preset("rebapl", MAPLE, cycles=1)
    with pytest.raises(UserError, match=r"^first_epochs is for warm restarts"):
        preset("rebapl", MAPLE, restart="cold", first_epochs=3)
    more = preset("rebapl", MAPLE, cycles=3, chains=1)
    assert (more.first_epochs, more.epochs, more.samples) == (4, 1, 3)
    assert preset("rebapl", MAPLE, **{"restart.kick": 0.1}).first_epochs == 4


def test_a_normalised_force_leaves_the_presets_potential_behind():
    assert preset("rebapl", MAPLE).repulsion.potential == Inverse(epsilon=0.1)
    for asked in ({"repulsion.force": "normalised"}, {"repulsion": {"force": {"kind": "normalised"}}}):
        assert preset("rebapl", MAPLE, **asked).repulsion.potential == Inverse()
    both = preset("rebapl", MAPLE, **{"repulsion.force": "normalised", "repulsion.stage": "both"})
    assert both.repulsion.potential == Inverse(epsilon=0.1)
    with pytest.raises(UserError, match=r"^repulsion\.potential does nothing with a normalised force"):
        preset("rebapl", MAPLE, **{"repulsion.force": "normalised", "repulsion.potential.epsilon": 0.2})


def test_changes_go_on_top_and_unknown_ones_are_named():
    changed = preset("rebapl", MAPLE, "maple", cycles=5, repulsion={"distance": "energy"})
    assert isinstance(changed, Inference)
    assert changed.cycles == 5
    assert (changed.repulsion.distance, changed.repulsion.images) == (Energy(), 32)
    assert preset("rebapl", MAPLE, repulsion=None).repulsion is None
    dotted = preset("rebapl", MAPLE, **{"repulsion.distance": "energy", "repulsion.force.fraction": 0.1})
    assert (dotted.repulsion.distance, dotted.repulsion.images) == (Energy(), 32)
    assert dotted.repulsion.force == Fading(fraction=0.1)
    assert preset("rebapl", MAPLE, cycles=4, adaptive={"patience": 2}).adaptive == Adaptive(patience=2)
    assert preset("rebapl", MAPLE).adaptive is None
    absolute = preset("rebapl", MAPLE, repulsion={"force": {"kind": "absolute", "strength": 0.5}})
    assert absolute.repulsion.force == Absolute(strength=0.5)  # nothing of the fading one is left
    for wrong, says in (
        ({"adaptive": {"patient": 2}}, "did you mean 'patience'"),
        ({"adaptive": True}, "adaptive is True"),
        ({"cycels": 5}, "did you mean 'cycles'"),
    ):
        with pytest.raises(UserError, match=says):
            preset("rebapl", MAPLE, **wrong)
    with pytest.raises(UserError, match="did you mean 'csghmc'"):
        preset("csghcm", MAPLE)


def test_every_preset_has_a_line_for_people_and_known_origins():
    assert next(iter(PRESETS)) == "mle"
    assert all(each.about for each in PRESETS.values())
    layers = [layer for each in PRESETS.values() for layer in each.under(each.variants)]
    assert {value.origin for layer in layers for value in layer.values()} == {*ORIGINS} - {"published"}


def test_what_is_the_recipes_own_is_called_so():
    """A number that only the method's recipe gives was tagged *paper* or *authors' code*."""
    for each in PRESETS.values():
        for layer in each.under(each.variants):
            own = {v.origin for v in layer.values() if isinstance(v.value, Derived) and v.value.times == 1}
            assert own <= {"recipe", "ours"}
    origins = {
        name: preset_values(name, Recipe(lr=0.1, epochs=200, batch=4), "coop")["restart.kind"].origin
        for name in ("csghmc", "rebapl", "rebapl-paper", "rebapl-authors")
    }
    assert origins == {
        "csghmc": "authors' code",
        "rebapl": "ours",
        "rebapl-paper": "ours",
        "rebapl-authors": "authors' code",
    }
    for name in ("rebapl-paper", "rebapl-authors"):
        assert preset_values(name, Recipe(lr=0.1, epochs=200, batch=4), "coop")["epochs"] == Value(200, "recipe")


def test_a_preset_from_outside_extends_one_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(PRESETS, "known", dict(PRESETS.known))
    for name, text in {
        "longer": "about: longer\nextends: rebapl\nours: {cycles: 7}",
        "mle": "extends: ensemble",
        "misspelt": "extends: rebapl\nours: {repulsion.imags: 4}",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    assert register_preset(tmp_path / "longer.yaml") == "longer"
    values = preset_values("longer", Recipe(lr=0.1, epochs=3, batch=4))
    assert values["cycles"] == Value(7, "ours")
    assert values["repulsion.distance.kind"] == Value("wasserstein", "ours")
    assert register_preset(tmp_path / "longer.yaml") == "longer"  # once more does no harm
    with pytest.raises(UserError, match=r"repulsion\.imags: there is no such setting, did you mean 'images'\?"):
        preset(register_preset(tmp_path / "misspelt.yaml"), Recipe(lr=0.1, epochs=3, batch=4))
    with pytest.raises(UserError, match=r"there is another preset 'mle', so rename the file"):
        register_preset(tmp_path / "mle.yaml")


def test_a_distance_between_class_probabilities_compares_logits_on_images() -> None:
    for per_image in (True, False):
        chosen = preset("rebapl", MAPLE, "coop", per_image, **{"repulsion.distance": "jensen-shannon"}).repulsion
        assert chosen is not None
        assert (chosen.space, chosen.images) == ("logits", 32)
    with pytest.raises(UserError, match="is image: the distance 'jensen-shannon' compares points of the space 'log"):
        preset("rebapl", MAPLE, **{"repulsion.distance": "jensen-shannon", "repulsion.space": "image"})
