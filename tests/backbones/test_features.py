"""Features that are kept: computed once, the same to the last bit, and never those of other images."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps
from small_features import pictures
from torch import Tensor

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.backbones import features as module
from rebapl.backbones.features import features_kept_in, features_of
from rebapl.data.batches import LabelledImages
from rebapl.data.catalogue import load_dataset
from rebapl.data.corruptions import Corruption


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of images of the passes through the tower."""
    passes: list[int] = []
    encode: Callable[[DualEncoder, Tensor], Tensor] = module.encode

    def counting(encoder: DualEncoder, views: Tensor) -> Tensor:
        passes.append(len(views))
        return encode(encoder, views)

    monkeypatch.setattr(module, "encode", counting)
    monkeypatch.setattr(module, "AT_ONCE", 4)
    return passes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pictures(tmp_path / "pets", a=5, b=5)


def images_of(data: str | Path, corruption: Corruption | None = None) -> LabelledImages:
    dataset = load_dataset(str(data), whole=True)
    return LabelledImages(dataset, dataset.train[:10], corruption)


def plain(encoder: DualEncoder, data: LabelledImages) -> Tensor:
    views = encoder.preprocessing.normalize(data.views(encoder.preprocessing))
    with torch.no_grad():
        return torch.cat([encoder.image_features(some) for some in views.split(4)])


@pytest.mark.parametrize("kind", ["files", "drawn", "spoiled files"])
def test_images_are_encoded_once_and_the_bits_are_those_of_the_tower(
    mini: DualEncoder, folder: Path, tmp_path: Path, encoded: list[int], kind: str
) -> None:
    corruption = Corruption("fog", 3) if kind == "spoiled files" else None
    data = images_of("digits" if kind == "drawn" else folder, corruption)
    with features_kept_in(tmp_path / "kept"):
        first = features_of(mini, data)
        assert encoded == [4, 4, 2]
        again = features_of(mini, LabelledImages(data.dataset, data.items, corruption))
    assert encoded == [4, 4, 2]
    assert torch.equal(first, plain(mini, data))
    assert torch.equal(again, first)
    assert len(list((tmp_path / "kept").iterdir())) == 3
    assert torch.equal(features_of(mini, data), first)
    assert encoded == [4, 4, 2] * 2, "outside of `with`, nothing is kept"


@pytest.mark.usefixtures("encoded")
def test_features_of_spoiled_images_are_not_those_of_other_ones(
    mini: DualEncoder, folder: Path, tmp_path: Path
) -> None:
    clean = images_of(folder)
    with features_kept_in(tmp_path / "kept", clean):
        for each in (None, Corruption("fog", 3), Corruption("fog", 4), Corruption("contrast", 3)):
            assert torch.equal(features_of(mini, images_of(folder, each)), plain(mini, images_of(folder, each)))


@pytest.mark.usefixtures("encoded")
def test_images_of_another_folder_with_the_same_names_are_not_taken_from_the_whole(
    mini: DualEncoder, folder: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    for path in other.rglob("*.png"):
        with Image.open(path) as image:
            ImageOps.invert(image.convert("RGB")).save(path)
    with features_kept_in(tmp_path / "kept", images_of(folder)):
        assert torch.equal(features_of(mini, images_of(other)), plain(mini, images_of(other)))


def test_what_has_changed_is_encoded_again(
    mini: DualEncoder, nano: Path, folder: Path, tmp_path: Path, encoded: list[int]
) -> None:
    with features_kept_in(tmp_path / "kept"):
        features_of(mini, images_of(folder))
        file = folder / "a" / "0.png"
        file.write_bytes((folder / "b" / "1.png").read_bytes())
        os.utime(file, ns=(1, 1))
        changed = images_of(folder)
        assert torch.equal(features_of(mini, changed), plain(mini, changed))
        assert encoded == [4, 4, 2, 4]
        other = load_backbone(nano)
        assert torch.equal(features_of(other, changed), plain(other, changed))
        assert encoded == [4, 4, 2, 4, 4, 4, 2]
        turned = replace(changed.dataset, load=replace(changed.dataset.load, upright=False))
        features_of(mini, LabelledImages(turned, changed.items))
        assert len(encoded) == 10, "another way to read the files"


def test_a_damaged_file_is_written_again_and_a_folder_that_cannot_be_written_costs_nothing(
    mini: DualEncoder, folder: Path, tmp_path: Path, encoded: list[int]
) -> None:
    data = images_of(folder)
    with features_kept_in(tmp_path / "kept"):
        first = features_of(mini, data)
        for path, content in zip((tmp_path / "kept").iterdir(), (b"", b"x" * 40), strict=False):
            path.write_bytes(content)
        assert torch.equal(features_of(mini, data), first)
        assert len(encoded) == 5
        assert torch.equal(features_of(mini, data), first)
        assert len(encoded) == 5
    (tmp_path / "file").touch()
    with features_kept_in(tmp_path / "file"):
        assert torch.equal(features_of(mini, data), first)
