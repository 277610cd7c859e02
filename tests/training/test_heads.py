"""Heads through `fit`: features encoded once, closed forms without a loop, resumed runs, other class names."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drawn_folder import class_folders

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.backbones.features import features_kept_in
from rebapl.data.batches import LabelledImages
from rebapl.data.images import FileImages
from rebapl.data.task import Task, load_task
from rebapl.errors import UserError
from rebapl.evaluation.tasks import evaluate, part_labels, predict_part
from rebapl.interruption import Interrupted
from rebapl.learners import METHODS
from rebapl.numbers import harmonic_mean
from rebapl.posterior import load_posterior, save_posterior
from rebapl.sampling import PRESETS
from rebapl.training import fit

HEADS = [name for name, method in METHODS.items() if method.learner.learns_from_features]


@pytest.fixture(scope="module")
def mini() -> DualEncoder:
    return load_backbone("mini")


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("digits", shots=8, seed=1, test_images=100)


@pytest.mark.parametrize("method", HEADS)
def test_a_head_is_better_than_zero_shot_on_base_classes_and_the_same_on_novel_ones(
    mini: DualEncoder, task: Task, method: str
) -> None:
    before, after = (evaluate(fit(task, mini, each), task) for each in ("zero-shot", method))
    assert after["base"]["nll"] < before["base"]["nll"]
    assert after["novel"]["nll"] == pytest.approx(before["novel"]["nll"], abs=1e-5)


@pytest.mark.parametrize("method", HEADS)
def test_trained_and_new_class_names_stand_side_by_side_in_one_list(mini: DualEncoder, task: Task, method: str) -> None:
    """No head answers one kind of class at the expense of the other: it is as accurate as zero-shot, up to a point."""
    names = [*task.tests["base"].class_names, *task.tests["novel"].class_names]

    def accuracy(chosen: str) -> float:
        posterior, right = fit(task, mini, chosen).among(names), []
        for first, part in ((0, task.tests["base"]), (len(task.train.class_names), task.tests["novel"])):
            right.append((predict_part(posterior, part).labels == part_labels(part) + first).double().mean().item())
        return harmonic_mean(*(100 * share for share in right))

    assert accuracy(method) > accuracy("zero-shot") - 1


def test_images_are_encoded_once(mini: DualEncoder, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    whole = type(mini).embed_images
    monkeypatch.setattr(
        type(mini), "embed_images", lambda self, pixels: seen.append(len(pixels)) or whole(self, pixels)
    )
    fit(task, mini, "linear", epochs=5)
    assert sum(seen) == len(task.train.items)


def test_images_are_decoded_once_and_not_at_all_where_their_features_are_known(
    mini: DualEncoder, task: Task, tmp_path: Path
) -> None:
    decoded: list[str] = []

    def counted(part: Task) -> Task:
        load = part.dataset.load
        dataset = replace(part.dataset, load=lambda key: decoded.append(key) or load(key))
        return replace(part, dataset=dataset)

    fit(counted(task), mini, "linear", epochs=1)
    assert sorted(decoded) == sorted(item.key for item in task.train.items), "a drawn image is drawn once"
    files = load_task(str(class_folders(tmp_path / "photos", cat=6, dog=6, emu=6, fox=6)), shots=3)
    assert files.dataset.folder is not None
    reading = FileImages.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileImages, "__call__", lambda self, key: decoded.append(key) or reading(self, key))
        for expected in (len(files.train.items), 0):
            decoded.clear()
            with features_kept_in(tmp_path / "features"):
                fit(files, mini, "linear", epochs=1)
            assert len(decoded) == expected


def test_the_features_are_those_of_the_test_time_views(mini: DualEncoder, task: Task) -> None:
    posterior = fit(task, mini, "tip-adapter")
    data = LabelledImages(task.dataset, task.train.items)
    expected = mini.image_features(mini.preprocessing.normalize(data.views(mini.preprocessing)))
    torch.testing.assert_close(posterior.samples["keys"][0], expected, atol=1e-5, rtol=1e-5)


def test_a_cache_is_read_back_with_its_size_and_moves_to_a_copy_of_the_backbone(
    mini: DualEncoder, task: Task, tmp_path: Path
) -> None:
    posterior = fit(task, mini, "tip-adapter-f", "ensemble", epochs=1)
    views = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    again = load_posterior(save_posterior(posterior, tmp_path / "posterior"), mini)
    assert again.samples["keys"].shape == (3, len(task.train.items), mini.joint_width)
    expected = posterior.predict_views(views).probabilities
    assert torch.equal(again.predict_views(views).probabilities, expected)
    copied = again._learner_on(load_backbone("mini"))
    assert copied.keys.shape == again.learner.keys.shape


PARAMETERS = {
    "linear": {"residual", "prior_std", "text_weight"},
    "tip-adapter-f": {"keys", "values", "sharpness", "text_weight"},
    "lp++": {"weight", "blend"},
}
"""What a posterior of each head that is trained in steps has."""


@pytest.mark.parametrize("method", PARAMETERS)
@pytest.mark.parametrize("inference", ["mle", "csghmc", "laplace"])
def test_a_resumed_head_equals_an_uninterrupted_one(
    mini: DualEncoder, task: Task, tmp_path: Path, method: str, inference: str
) -> None:
    expected = fit(task, mini, method, inference, epochs=12)

    def stop(done: int, _total: int, _loss: float) -> None:
        if done == 7:
            raise KeyboardInterrupt

    path = tmp_path / "checkpoint"
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        fit(task, mini, method, inference, epochs=12, checkpoint=str(path), progress=stop)
    resumed = fit(task, mini, method, inference, epochs=12, checkpoint=path)
    assert resumed.samples.keys() == expected.samples.keys() == PARAMETERS[method]
    assert all(torch.equal(resumed.samples[name], stack) for name, stack in expected.samples.items())


@pytest.mark.parametrize("method", PARAMETERS)
@pytest.mark.parametrize(("inference", "count"), [("mle", 1), ("ensemble", 3), ("csghmc", 3), ("rebapl", 6)])
def test_every_inference_samples_a_head(mini: DualEncoder, task: Task, method: str, inference: str, count: int) -> None:
    """As many samples as the preset says. No two of them are the same, except in an ensemble: a head always starts from
    what it has seen, and if each step has all images, all trainings of an ensemble end in the same way."""
    posterior = fit(task, mini, method, inference, epochs=10)
    assert len(posterior) == count
    moved = posterior.samples[{"linear": "residual", "tip-adapter-f": "keys", "lp++": "weight"}[method]].flatten(1)
    assert moved.isfinite().all()
    different = len(moved.unique(dim=0))
    assert different == (1 if inference == "ensemble" else count)


def test_closed_forms_take_no_settings_of_an_inference(mini: DualEncoder, task: Task) -> None:
    with pytest.raises(UserError, match="method 'gda' learns nothing in steps"):
        fit(task, mini, "gda", "mle", epochs=3)


@pytest.mark.parametrize("method", ["gda", "proker"])
def test_laplace_draws_from_the_posterior_of_a_closed_form(
    mini: DualEncoder, task: Task, tmp_path: Path, method: str
) -> None:
    alone, drawn = fit(task, mini, method), fit(task, mini, method, "laplace")
    assert (len(alone), len(drawn)) == (1, 30)
    assert drawn.about["inference"] == {"name": "laplace", "laplace": {"samples": 30}}
    again = load_posterior(save_posterior(drawn, tmp_path / "posterior"), mini)
    views = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = drawn.predict_views(views)
    assert expected.per_sample.std(0).max() > 1e-3
    assert torch.equal(again.predict_views(views).per_sample, expected.per_sample)
    unseen = [posterior.bind(["a house", "a tree"]).predict_views(views) for posterior in (alone, again)]
    torch.testing.assert_close(unseen[1].per_sample, unseen[0].per_sample.expand(30, -1, -1))
    for name, seed in (("same", 1), ("other", 2)):
        given = fit(task, mini, method, "laplace", seed=seed, inference_settings={"laplace.samples": 4})
        assert torch.equal(given.predict_views(views).per_sample, expected.per_sample[:4]) == (name == "same")


def test_a_closed_form_takes_the_number_of_its_draws_alone(mini: DualEncoder, task: Task) -> None:
    for changes in ({"epochs": 3}, {"inference_settings": {"laplace.structure": "full"}}):
        alone = r"of the settings of 'laplace' it has inference\.views and inference\.laplace\.samples alone"
        with pytest.raises(UserError, match=alone):
            fit(task, mini, "gda", "laplace", **changes)
    with pytest.raises(UserError, match=r"inference\.laplace\.samples"):
        fit(task, mini, "proker", "laplace", inference_settings={"laplace.samples": 0})


@pytest.mark.parametrize("method", ["zero-shot", "gda", "proker", "tip-adapter"])
def test_without_training_steps_several_views_act_and_other_inferences_are_refused(
    mini: DualEncoder, task: Task, tmp_path: Path, method: str
) -> None:
    alone, several = fit(task, mini, method), fit(task, mini, method, "tta")
    assert (several.views, several.about["inference"]) == (3, {"name": "tta", "views": 3})
    views = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = alone.with_views(3).predict_views(views).probabilities
    again = load_posterior(save_posterior(several, tmp_path / "posterior"), mini)
    for posterior in (several, again, fit(task, mini, method, inference_settings={"views": 3})):
        assert torch.equal(posterior.predict_views(views).probabilities, expected)
    assert not torch.equal(alone.predict_views(views).probabilities, expected)
    with pytest.raises(UserError, match=r"inference\.views is 0: it must be at least 1"):
        fit(task, mini, method, "tta", inference_settings={"views": 0})
    known = ("laplace",) if method in ("gda", "proker") else ()
    for inference in PRESETS:
        if inference not in ("mle", "tta", *known):
            says = f"'{method}' learns nothing in steps, so '{inference}' would do nothing: leave .* or take tta"
            with pytest.raises(UserError, match=says):
                fit(task, mini, method, inference)


def test_the_texts_count_as_examples_of_the_loop(mini: DualEncoder, task: Task) -> None:
    posterior = fit(task, mini, "linear", epochs=2, method_settings={"texts_as_examples": True})
    assert posterior.learner.examples == len(task.train.items) + len(task.train.class_names)


def test_heads_repel_in_a_space_of_images_as_well(mini: DualEncoder, task: Task) -> None:
    """The pool holds features, and goes through the learner in one pass with the batch."""
    changes = {"chains": 1, "cycles": 2, "repulsion.space": "logits", "repulsion.images": 6, "repulsion.pool": 12}
    posterior = fit(task, mini, "linear", "rebapl", epochs=10, inference_settings=changes)
    assert len(posterior) == 2
    assert not torch.equal(*posterior.samples["residual"])
