"""A folder of features as a data set: the images, classes, splits, shots and folds of the images that it stands for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_features import embed, pictures

from rebapl.backbones import DualEncoder
from rebapl.data.batches import LabelledImages
from rebapl.data.catalogue import load_dataset
from rebapl.data.dataset import Dataset
from rebapl.data.identity import identity
from rebapl.data.task import load_task
from rebapl.errors import UserError


@pytest.fixture(scope="module")
def digits(mini: DualEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embed(mini, ["digits"], tmp_path_factory.mktemp("features") / "digits", size=512)


def same_items(first: Dataset, second: Dataset) -> bool:
    return (first.splits, first.class_names, first.template) == (second.splits, second.class_names, second.template)


def test_a_task_on_features_has_the_images_of_the_task(digits: Path, mini: DualEncoder) -> None:
    """Also the images that the seed draws; and the features are those of the images, to the last bit."""
    for protocol, seed in (("base-to-novel", 1), ("few-shot", 2)):
        images, features = (load_task(data, 4, seed, protocol) for data in ("digits", str(digits)))
        assert features.dataset.name == "digits"
        assert features.train.items == images.train.items
        assert features.val.items == images.val.items
        assert {name: part.items for name, part in features.tests.items()} == {
            name: part.items for name, part in images.tests.items()
        }
    part, stored = (LabelledImages(task.dataset, task.train.items[:32]) for task in (images, features))
    with torch.no_grad():
        given = mini.image_features(mini.preprocessing.normalize(part.views(mini.preprocessing)))
    assert torch.equal(stored.views(mini.preprocessing), given)
    assert torch.equal(stored.views(mini.preprocessing, [5, 2]), given[[5, 2]])


@pytest.mark.parametrize("form", ["class folders", "csv", "split folders"])
def test_own_images_keep_their_classes_splits_and_folds(mini: DualEncoder, tmp_path: Path, form: str) -> None:
    """The random order of the split depends on the names of the class folders, which the classes may not have."""
    folder = pictures(tmp_path / "pets", a=6, b=4)
    (folder / "classnames.txt").write_text("b tabby cat\na old dog\n")
    (folder / "template.txt").write_text("my {}.\n")
    path = folder
    if form == "csv":
        path = folder / "list.csv"
        rows = [f"{file.relative_to(folder)},{file.parent.name}" for file in sorted(folder.rglob("*.png"))]
        path.write_text("\n".join(["path,label", *rows[::-1]]))
    elif form == "split folders":
        (folder / "template.txt").rename(tmp_path / "template.txt")
        (folder / "classnames.txt").unlink()
        for part in ("train", "test"):
            pictures(tmp_path / "all" / part, a=2, b=2)
        path = tmp_path / "all"
    out = embed(mini, [path], tmp_path / "features")
    for whole in (False, True):
        images, features = (load_dataset(str(each), whole=whole) for each in (path, out))
        assert same_items(images, features)
    tasks = [load_task(str(each), protocol="few-shot", fold="1/3", seed=3) for each in (path, out)]
    assert tasks[0].train.items == tasks[1].train.items
    load_dataset(str(out), keep_split=True)
    assert same_items(load_dataset(str(path)), load_dataset(str(out))), "the split that was kept is the same"


def test_the_identity_tells_images_backbones_and_precisions_apart(mini: DualEncoder, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pets", a=3, b=3)

    def found(name: str, **more: str) -> str:
        return identity(load_dataset(str(embed(mini, [folder], tmp_path / name, **more))))

    first = found("one")
    assert found("same") == first
    assert found("half", precision="float16") != first
    (folder / "a" / "0.png").write_bytes((folder / "b" / "0.png").read_bytes())
    assert found("changed") != first


def test_what_features_cannot_do_is_refused(digits: Path, mini: DualEncoder, tmp_path: Path) -> None:
    dataset = load_dataset(str(digits))
    with pytest.raises(UserError, match="holds features of images, and this needs the images themselves"):
        dataset.load(dataset.train[0].key)
    assert dataset.features is not None
    with pytest.raises(UserError, match="has no features of a, b: they could not be read when it was made"):
        dataset.features.of(["a", dataset.train[0].key, "b"])
    plain = embed(mini, sorted(pictures(tmp_path / "x", a=2).rglob("*.png")), tmp_path / "plain")
    with pytest.raises(UserError, match="was embedded without classes: embed a folder"):
        load_dataset(str(plain))
    unlabelled = embed(mini, [tmp_path / "x"], tmp_path / "unlabelled", gathered={"unlabelled": True})
    with pytest.raises(UserError, match="was embedded without classes"):
        load_dataset(str(unlabelled))


def test_a_damaged_shard_is_named(mini: DualEncoder, tmp_path: Path) -> None:
    out = embed(mini, [pictures(tmp_path / "pets", a=3, b=3)], tmp_path / "features")
    (out / "shard-000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"shard-000001\.parquet is damaged .*: remove it and embed again"):
        load_dataset(str(out))


def test_a_damaged_file_of_features_is_named(mini: DualEncoder, tmp_path: Path) -> None:
    out = embed(mini, [pictures(tmp_path / "pets", a=3, b=3)], tmp_path / "features", form="npy")
    stored = load_dataset(str(out)).features
    assert stored is not None
    for content in (b"", b"\x93NUMPY"):
        (out / "img_emb" / "img_emb_000001.npy").write_bytes(content)
        with pytest.raises(UserError, match=r"img_emb_000001\.npy is damaged .*: remove it and embed again"):
            list(stored.portions(100))
    (out / "metadata" / "metadata_000001.parquet").unlink()
    with pytest.raises(UserError, match=r"metadata_000001\.parquet is missing: embed again"):
        stored.shards()


def test_features_of_no_image_at_all_are_refused(mini: DualEncoder, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pets", a=2, b=2)
    for path in folder.rglob("*.png"):
        path.write_bytes(b"no picture")
    out = embed(mini, [folder], tmp_path / "features")
    with pytest.raises(UserError, match="holds no features: none of its images could be read when it was made"):
        load_dataset(str(out))


def test_few_features_are_in_memory_at_a_time(digits: Path) -> None:
    stored = load_dataset(str(digits)).features
    assert stored is not None
    portions = list(stored.portions(200))
    assert max(len(names) for names, _ in portions) == 200
    assert [name for names, _ in portions for name in names] == [row.image_path for row in stored.rows()]
    whole = torch.cat([features for _, features in portions])
    assert (whole.shape, whole.dtype) == ((1797, 128), torch.float32)
    np.testing.assert_allclose(whole.norm(dim=-1).numpy(), 1, atol=1e-6)
