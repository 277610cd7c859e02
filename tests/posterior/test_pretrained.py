"""What users of other libraries expect of a posterior: pretrained folders and hub ids, devices, arrays in and out."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_clip
import torch
from methods import CASES
from PIL import Image
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.posterior import load_posterior, save_posterior

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_local_folder(make: Any, encoder: DualEncoder, views: Tensor, tmp_path: Path) -> None:
    posterior = make("coop")
    folder = save_posterior(posterior, tmp_path / "p")
    for given in (folder, str(folder)):
        loaded = load_posterior(given, encoder=encoder)
        assert np.array_equal(
            loaded.predict(views).probabilities.numpy(), posterior.predict(views).probabilities.numpy()
        )
    with pytest.raises(UserError, match=r"it has no posterior.json. If it is a run, it is not trained yet"):
        load_posterior(tmp_path)
    assert len(load_posterior(save_posterior(posterior, tmp_path / "run/posterior").parent, encoder)) == 3


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["somebody/else", "somebody/else@v2"])
def test_without_a_connection_one_line_says_so(name: str) -> None:
    said = f"posterior '{name}' could not be fetched from the hub, and was not fetched before"
    with pytest.raises(UserError, match=said) as raised:
        load_posterior(f"hf://{name}")
    assert len(str(raised.value).splitlines()) == 1


def test_only_the_files_of_a_posterior_are_fetched_and_of_the_revision(
    make: Any, encoder: DualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = save_posterior(make("coop"), tmp_path / "p"), []

    def fetch(repository: str, **options: Any) -> str:
        asked.append((repository, options["revision"], options["allow_patterns"]))
        return str(folder)

    def info(_: object, repository: str, *, revision: str, timeout: float) -> Any:
        assert (repository, revision) == ("somebody/digits", "v2")
        assert timeout <= 10
        return SimpleNamespace(sha=COMMIT)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", info)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert len(load_posterior("hf://somebody/digits@v2", encoder)) == 3
    files = ["posterior.json", "samples.safetensors"]
    assert asked == [("somebody/digits", "v2", files)]  # which the cache notes


def test_the_same_device_is_the_same_posterior(make: Any) -> None:
    posterior = make("coop")
    assert posterior.to("cpu") is posterior
    assert posterior.to(torch.device("cpu")) is posterior


@pytest.mark.parametrize("method", CASES)
def test_on_another_copy_of_the_backbone_it_predicts_the_same(make: Any, views: Tensor, method: str) -> None:
    """What `to` and `spread` do on the way to a GPU; `test_gpu` goes there."""
    posterior = make(method, 1 if method == "zero-shot" else 2)
    other = small_clip.small_encoder()
    for bound in (posterior, posterior.bind(["green fish", "car"], "a photo of a {}.", transfer=True)):
        moved = replace(bound, learner=bound._learner_on(other))
        assert moved.learner.encoder is other
        assert np.array_equal(moved.predict(views).probabilities.numpy(), bound.predict(views).probabilities.numpy())
        on_both = replace(bound, copies=(other,)).predict(views).probabilities.numpy()
        np.testing.assert_allclose(on_both, bound.predict(views).probabilities.numpy(), atol=1e-5)
        back = (moved.bind(posterior.class_names, posterior.learner.template), posterior)
        assert np.array_equal(*(each.predict(views).probabilities.numpy() for each in back))


def test_probabilities_of_images_in_any_form(make: Any, views: Tensor, tmp_path: Path) -> None:
    posterior = make("coop")
    array = views.permute(0, 2, 3, 1).numpy()
    expected = posterior.predict_views(views).probabilities.numpy()
    pictures = [Image.fromarray(each) for each in array]
    files = [tmp_path / f"{index}.png" for index in range(len(pictures))]
    for picture, file in zip(pictures, files, strict=True):
        picture.save(file)
    for images in (array, list(array), views, pictures, files, [str(file) for file in files], tmp_path):
        found = posterior.predict(images).probabilities.numpy()
        assert found.dtype == np.float32
        assert found.shape == (7, 4)
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        posterior.predict(pictures[0]).probabilities.numpy(), posterior.predict(array[:1]).probabilities.numpy()
    )
    with pytest.raises(UserError, match=r"uint8 \(N, H, W, 3\)"):
        posterior.predict([array[0] / 255]).probabilities.numpy()


def test_it_says_what_it_is(make: Any) -> None:
    assert repr(make("maple")) == "Posterior(maple · custom, 3 samples, 4 classes, backbone small)"
