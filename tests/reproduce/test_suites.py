"""Suites: what each runs, how it is cut down, what a local one finds; and which runs are done."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_suite import TINY

from rebapl.backbones import load_backbone
from rebapl.errors import UserError
from rebapl.files import write_json
from rebapl.learners import METHODS
from rebapl.reproduce.make import planned
from rebapl.reproduce.paper import printed
from rebapl.reproduce.suites import MINI, PAPER, TABLE1_METHODS, TableRow, learns, named_suite
from rebapl.reproduce.targets import PAPER_TARGETS, steps
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import RESULTS, run_folder
from rebapl.training.fit import Training


def runs_of(name: str) -> list[RunConfig]:
    return PAPER_TARGETS[name].runs(PAPER)


def test_the_paper_suite_has_the_paper_s_runs() -> None:
    assert len(runs_of("table1")) == 11 * (8 * 3 + 1), "zero-shot has no randomness and runs once"
    assert len(runs_of("table4")) == 11 * 4 * 3
    assert len(runs_of("xi")) == (2 * 3 * 3 + 1) * 3
    assert {config.data for config in runs_of("xi")} == {"ucf101"}
    assert {config.data for config in runs_of("cycles")} == {"dtd"}
    assert {config.data for config in runs_of("table2")} == {"imagenet"}
    assert {len(config.targets or ()) for config in runs_of("table2")} == {10}
    assert {config.shots for config in runs_of("table1")} == {16}
    longest = [config.resolved().settings["inference"]["cycles"] for config in runs_of("cycles")]
    assert max(longest) == 20
    assert sorted(
        {config.resolved().settings["inference"]["sampler"]["samples_per_cycle"] for config in runs_of("samples")}
    ) == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_app_runs_as_it_was_published() -> None:
    """Stein's update of four particles, in the miniature too; every other method by maximum likelihood."""
    for suite in (MINI, PAPER):
        runs = {config.method: config for config in PAPER_TARGETS["table1"].runs(suite) if config.inference is None}
        assert set(runs) == set(TABLE1_METHODS)
        training = runs["app"].resolved().training
        assert training.inference is not None
        assert (training.inference_name, training.inference.samples) == ("svgd", 4)
        assert training.method_settings.plain()["prior_weight"] == 1 / suite.shots
        assert {config.inference_name for config in runs.values()} == {"none", "mle", "svgd"}
        assert [name for name, config in runs.items() if config.inference_name == "svgd"] == ["app"]


def test_methods_may_be_any_and_are_those_of_every_table() -> None:
    suite = MINI.changed(methods=["vpt", "maple", "bpl"])
    assert suite.methods == ("maple", "vpt", "bpl"), "the first table's first"
    for name in ("table1", "table2", "plug-and-play"):
        assert {config.method for config in PAPER_TARGETS[name].runs(suite)} == {"maple", "vpt", "bpl"}
    with pytest.raises(UserError, match="unknown method 'vtp': did you mean 'vpt'"):
        MINI.changed(methods=["vtp"])
    with pytest.raises(UserError, match="zero-shot learns nothing"):
        PAPER_TARGETS["plug-and-play"].runs(MINI.changed(methods=["zero-shot"]))


def test_plug_and_play_is_on_every_method_that_learns_prompts() -> None:
    runs = runs_of("plug-and-play")
    methods = {name for name, method in METHODS.items() if learns(name) and not method.learner.learns_from_features}
    assert {config.method for config in runs} == methods
    by_inference = Counter(config.inference for config in runs)
    each = len(methods) * 11 * 3  # of data sets and seeds
    assert by_inference == {"mle": each, "rebapl-paper": each}


def test_the_strengths_are_the_paper_s_xi() -> None:
    """The paper: n of 16, 32, 64, ξ of 10⁻³, 10⁻², 10⁻¹, both distances; ξ·F is added beside the step."""
    found = Counter()
    for config in runs_of("xi"):
        repulsion = config.resolved().settings["inference"].get("repulsion")
        if repulsion:
            distance, force = repulsion["distance"]["kind"], repulsion["force"]
            assert force.keys() == {"kind", "strength"}
            assert force["kind"] == "printed"
            found[distance, repulsion["images"], round(force["strength"], 9)] += 1
    by_hand = itertools.product(("mmd", "wasserstein"), (16, 32, 64), (0.001, 0.01, 0.1))
    assert found == dict.fromkeys(by_hand, 3), "each with three seeds"


def test_shared_runs_are_the_same_runs() -> None:
    first = {config.hash() for config in runs_of("table1")}
    repelled = [config for config in runs_of("table4") if config.inference_settings.get("repulsion.distance") == "mmd"]
    assert len(repelled) == 33
    assert {config.hash() for config in repelled} <= first, "the paper's MaPLe + ReBaPL uses MMD"
    assert {config.hash() for config in runs_of("table2")} == {config.hash() for config in runs_of("table3")}


@pytest.mark.parametrize(
    ("method", "inference"), [("maple", "mle"), ("maple", "rebapl"), ("coop", "mle"), ("mmrl", "rebapl")]
)
def test_steps_are_those_of_the_training(method: str, inference: str) -> None:
    config = TINY.config("digits", TableRow("x", method, inference), 1)
    training = Training(config.task(), load_backbone("mini"), config.resolved().training, config.seed)
    assert training.loop is not None
    assert steps(config) == training.loop.steps_in_all


def test_a_plan_knows_which_runs_are_done(tmp_path: Path) -> None:
    target, suite = PAPER_TARGETS["table1"], replace(TINY, methods=("coop",))
    (config,) = target.runs(suite)
    assert planned([target], suite, tmp_path)[0] == [(config, False)]
    scores = {"accuracy": 50.0, "nll": 1.0, "ece": 5.0, "images": 9}
    content = {"parts": {"base": scores, "novel": scores}, "run": config.hash()}
    write_json(run_folder(config, tmp_path) / RESULTS, content)
    assert planned([target], suite, tmp_path)[0] == [(config, True)]


def test_epochs_are_at_most_those_of_the_suite() -> None:
    capped = MINI.changed(epochs=3)
    assert capped.config("digits", TableRow("maple", "maple"), 1).resolved().settings["inference"]["epochs"] == 3
    derived = capped.inference_of("digits", capped.rebapl("maple"))
    assert (derived.first_epochs, derived.epochs, derived.all_epochs) == (2, 1, 9)  # 0.8 and 0.2 of three, rounded
    longer = TableRow("longer", "maple", "mle", as_long_as="rebapl")
    assert capped.config("digits", longer, 1).resolved().settings["inference"]["epochs"] == 9
    more = PAPER.changed(epochs=1000)
    assert more.config("dtd", TableRow("maple", "maple"), 1).resolved().settings["inference"]["epochs"] == 5


def test_a_local_suite_takes_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "eurosat" / "2750").mkdir(parents=True)
    (tmp_path / "caltech-101" / "101_ObjectCategories").mkdir(parents=True)
    suite = named_suite("photo", tmp_path, "some/clip")
    assert set(suite.data) == {"eurosat", "caltech101"}
    assert (suite.source, suite.cross) == ("caltech101", ("eurosat",))
    assert suite.trained_on("diversity") == ("eurosat",)
    assert set(suite.trained_on("xi")) < set(suite.data)
    assert "clip" in suite.remark
    with pytest.raises(UserError, match="ImageNet and one of its variants"):
        PAPER_TARGETS["table3"].runs(suite)
    states, (remark,) = planned([PAPER_TARGETS["table3"]], suite, tmp_path)
    assert (states, remark.split(":")[0]) == ([], "table3 is left out")


def test_a_local_suite_takes_folders_of_photos(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for name in ("cat", "dog"):
        (photos / name).mkdir(parents=True)
    suite = named_suite("photo", None, "some/clip", [str(photos)])
    assert (suite.data, suite.source, suite.cross) == ((str(photos),), str(photos), ())
    assert suite.trained_on("doubt") == suite.trained_on("diversity") == (str(photos),)
    assert printed(str(photos)) == "photos"
    (tmp_path / "eurosat" / "2750").mkdir(parents=True)
    suite = named_suite("photo", tmp_path, "some/clip", [str(photos), "eurosat"])
    assert (suite.data, suite.source, suite.cross) == ((str(photos), "eurosat"), "eurosat", (str(photos),))
    with pytest.raises(UserError, match="no such folder or CSV file"):
        named_suite("photo", tmp_path, "x", [str(tmp_path / "nowhere")])


def test_a_transfer_takes_the_named_split_files_of_source_and_targets(tmp_path: Path) -> None:
    (tmp_path / "eurosat" / "2750").mkdir(parents=True)
    (tmp_path / "caltech-101" / "101_ObjectCategories").mkdir(parents=True)
    suite = named_suite("photo", tmp_path, "some/clip", splits=["eurosat=e.json", "caltech101=c.json"])
    for config in PAPER_TARGETS["table2"].runs(suite):
        assert (config.data, config.split, config.targets) == ("caltech101", "c.json", ("eurosat=e.json",))
        assert config.parts() == ["test", "eurosat"]


def test_a_local_suite_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--backbone"):
        named_suite("photo", tmp_path, None)
    with pytest.raises(UserError, match="none of the data sets"):
        named_suite("photo", tmp_path, "x")
    with pytest.raises(UserError, match="did you mean 'eurosat'"):
        named_suite("photo", tmp_path, "x", ["eurosatt"])
