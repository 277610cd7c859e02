"""The code of docs/sampling.md runs as it is printed there, and the page's statements about presets are true."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pages import blocks, run_code, text_of

from rebapl.repulsion import DISTANCES
from rebapl.repulsion.force import FORCES, POTENTIALS
from rebapl.sampling import PRESETS, Inference
from rebapl.sampling.settings import SAMPLERS

PAGE = "docs/sampling.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """The names that are defined after all code blocks of the page have run, one after the other."""
    found = blocks(PAGE)
    assert len(found) == 3
    with torch.random.fork_rng():
        return run_code("\n".join(found), PAGE)


def test_the_loop_of_ones_own_gives_a_sample_per_cycle_and_is_repelled(names: dict[str, Any]) -> None:
    samples, repulsion = names["samples"], names["repulsion"]
    assert len(samples) == 3
    assert len(repulsion) == 2  # the third sample has no later cycle to repel
    assert repulsion.state["norm"] > 0
    weights = torch.stack([sample["0.weight"].flatten() for sample in samples])
    assert torch.pdist(weights).min() > 1e-3


def test_the_chain_gives_a_sample_per_cycle_and_is_repelled(names: dict[str, Any]) -> None:
    chain = names["chain"]
    assert [sample.cycle for sample in chain.samples] == [0, 1, 2, 3]
    assert chain.repulsion.distance.kind == "energy"
    assert chain.repulsion.state["norm"] > 0


def test_the_prior_that_the_page_recommends_is_accepted(names: dict[str, Any]) -> None:
    assert isinstance(names["bayes"], Inference)
    assert names["bayes"].sampler.prior_std == 0.02


def test_the_tables_name_every_preset_sampler_force_potential_and_distance() -> None:
    text = text_of(PAGE)
    for name in (*PRESETS, *SAMPLERS, *FORCES, *POTENTIALS, *DISTANCES):
        assert f"`{name}`" in text, name
