"""`fit` takes names or objects, a data set or images, and says what is wrong with them before any work."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn_folder import class_folders
from PIL import Image

from rebapl.backbones import DEFAULT_BACKBONE, DualEncoder, load_backbone
from rebapl.data.catalogue import load_dataset
from rebapl.data.own_images import dataset_of
from rebapl.data.task import Task, load_task, task_of
from rebapl.errors import UserError
from rebapl.learners import Learner, build_learner
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.randomness import generator
from rebapl.sampling import Inference
from rebapl.training import fit

NAMES = ["cat", "dog"]
LABELS = [0, 1, 0, 1]


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(4, 40, 50, 3), dtype=np.uint8)


def same(first: Posterior, second: Posterior) -> bool:
    assert first.samples.keys() == second.samples.keys()
    return all(torch.equal(stack, second.samples[name]) for name, stack in first.samples.items())


def test_a_name_a_data_set_and_their_task_are_the_same(nano: Path) -> None:
    task, encoder = load_task("digits", protocol="few-shot"), load_backbone(nano)
    expected = fit(task, encoder, "coop", "mle", epochs=1)
    assert len(task.train.items) == 16 * len(task.train.class_names)
    assert same(fit("digits", str(nano), "coop", "mle", epochs=1), expected)
    assert same(fit(load_dataset("digits"), encoder, "coop", "mle", epochs=1), expected)


def test_images_in_any_form_are_all_learned_from(encoder: DualEncoder, pictures: np.ndarray, tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(4)]
    for path, picture in zip(paths, pictures, strict=True):
        Image.fromarray(picture).save(path)
    given: dict[str, Any] = {"labels": LABELS, "class_names": NAMES, "epochs": 1}
    dataset = dataset_of(pictures, LABELS, NAMES)
    expected = fit(task_of(dataset), encoder, epochs=1)
    for images in (
        pictures,
        list(pictures),
        [Image.fromarray(each) for each in pictures],
        paths,
        list(map(str, paths)),
    ):
        assert same(fit(images, encoder, **given), expected)
    assert same(fit(pictures, encoder, **{**given, "labels": np.array(LABELS)}), expected)
    assert not same(fit(pictures, encoder, **{**given, "labels": [1, 0, 1, 0]}), expected)
    assert expected.class_names == NAMES
    other = fit(pictures, encoder, **given, template="a drawing of a {}.")
    assert other.about["template"] == "a drawing of a {}."


def test_paths_are_read_and_a_bar_is_shown(
    encoder: DualEncoder, pictures: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"{number}.png" for number in range(len(pictures))]
    for file, picture in zip(files, pictures, strict=True):
        Image.fromarray(picture).save(file)
    expected = fit(pictures, encoder, labels=LABELS, class_names=NAMES, epochs=1)
    shown = fit(files, "mini", labels=LABELS, class_names=NAMES, epochs=1, progress=True)
    assert same(shown, expected)
    assert "coop · mle" in capsys.readouterr().out


def test_a_folder_with_a_name_of_the_catalogue_is_somebodys_own(
    encoder: DualEncoder, pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`letters` is an embedded task, which uses `mini`; EuroSAT has published settings of its own."""
    loaded: list[str] = []
    module = import_module("rebapl.training.fit")
    monkeypatch.setattr(module, "load_backbone", lambda name: loaded.append(name) or encoder)
    fit(str(class_folders(tmp_path / "letters", cat=3, dog=3)), epochs=1)
    fit(str(class_folders(tmp_path / "eurosat", cat=3, dog=3)), epochs=1, method="promptsrc")
    assert loaded == [DEFAULT_BACKBONE] * 2
    named, other = (
        fit(task_of(dataset_of(pictures, LABELS, NAMES, name=name)), encoder, "promptsrc", epochs=1)
        for name in ("eurosat", "pets")
    )
    assert named.about["data"] == "eurosat"
    assert named.about["inference"] == other.about["inference"]


def test_fewer_images_than_a_batch_are_enough(encoder: DualEncoder, pictures: np.ndarray) -> None:
    posterior = fit(pictures, encoder, "maple", "rebapl", labels=LABELS, class_names=NAMES, epochs=1)
    assert len(posterior) == 6
    assert posterior.predict(pictures).probabilities.numpy().shape == (4, 2)


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("digits", shots=1, seed=1)


def learner_of(task: Task, encoder: DualEncoder, **settings: Any) -> Learner[Any]:
    stream = generator(task.seed, "initialisation")
    return build_learner("coop", encoder, task.train.class_names, task.dataset.template, stream, settings)


def test_a_learner_is_trained_as_it_is(encoder: DualEncoder, task: Task, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"init": None, "tokens": 3}
    learner = learner_of(task, encoder, **settings)
    posterior = fit(task, encoder, learner, epochs=1)
    assert same(posterior, fit(task, encoder, "coop", epochs=1, method_settings=settings))
    loaded = load_posterior(save_posterior(posterior, tmp_path / "p"), encoder)
    assert loaded.about["method_settings"] == learner.config.plain()
    assert loaded.about["inference"]["name"] == "mle"


def test_an_inference_is_followed_and_saved_in_full(encoder: DualEncoder, task: Task, tmp_path: Path) -> None:
    inference = Inference(
        sampler={"kind": "sgld", "lr": 0.01}, epochs=1, batch=5, cycles=2, restart="cold", average="logits"
    )
    for method in ("coop", learner_of(task, encoder)):
        posterior = fit(task, encoder, method, inference)
        assert len(posterior) == 2
        assert posterior.average == "logits"
        loaded = load_posterior(save_posterior(posterior, tmp_path / "p"), encoder)
        assert loaded.about["inference"] == {"name": "custom", **inference.plain()}
        assert loaded.about["crop_scale"] == [0.08, 1.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"give labels=.* and class_names="),
        ({"labels": LABELS}, r"give labels=.* and class_names="),
        ({"labels": LABELS[:3], "class_names": NAMES}, "4 images and 3 labels"),
        ({"labels": [0, 1, 2, 0], "class_names": NAMES}, "labels are the numbers 0 … 1"),
        ({"labels": [0, 0, 0, 0], "class_names": NAMES}, "no image has the label of class dog"),
        ({"labels": LABELS, "class_names": NAMES, "template": "a photo"}, "must hold '{}' once"),
        ({"labels": LABELS, "class_names": NAMES, "method": "cop"}, "did you mean 'coop'"),
        ({"labels": LABELS, "class_names": NAMES, "inference": "mel"}, "did you mean 'mle'"),
    ],
)
def test_images_that_cannot_be_learned_from(
    encoder: DualEncoder, pictures: np.ndarray, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        fit(pictures, encoder, **given)


def test_what_contradicts_itself_is_refused(encoder: DualEncoder, task: Task) -> None:
    learner = learner_of(task, encoder)
    inference = Inference(sampler={"kind": "sgd", "lr": 0.1}, epochs=1, batch=5)
    other = learner.bind(["cat", "dog"])
    for words, given, message in (
        ((task, encoder), {"labels": LABELS}, "a task or a data set has its own"),
        (("digits", encoder), {"class_names": NAMES}, "a task or a data set has its own"),
        ((3, encoder), {}, "a int was given"),
        (("digit", encoder), {}, "did you mean 'digits'"),
        ((task, "mine"), {}, "unknown backbone 'mine'"),
        ((task, encoder, learner), {"method_settings": {"tokens": 2}}, "has its settings already"),
        ((task, encoder, other), {}, r"give learner.bind\(task.train.class_names"),
        ((task, encoder, "coop", inference), {"epochs": 2}, "has all its settings"),
        ((task, encoder, learner, inference), {"inference_settings": {"cycles": 2}}, "has all its settings"),
        ((task, encoder, "zero-shot", inference), {}, "learns nothing"),
    ):
        with pytest.raises(UserError, match=message):
            fit(*words, **given)  # type: ignore[arg-type]
