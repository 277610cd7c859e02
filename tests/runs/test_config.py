"""What a run depends on, and its name: equal for runs that are alike, different for those that are not."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

import rebapl.backbones.loading
from rebapl.errors import UserError
from rebapl.learners import METHODS
from rebapl.runs.config import RunConfig, first_difference, with_full_paths
from rebapl.runs.folder import run_folder

CONFIG = RunConfig("digits", "maple", "rebapl", backbone="mini")


def changed(**values) -> RunConfig:
    return dataclasses.replace(CONFIG, **values)


@pytest.mark.parametrize(
    "same",
    [
        changed(epochs=5),  # what MaPLe was published with
        changed(inference_settings={"cycles": 3, "temperature": 0.01}),
        changed(inference_settings={"repulsion.metric": "mmd"}),
        changed(inference_settings={"repulsion": {"fraction": 1}}),  # 1.0 written otherwise
        changed(method_settings={"tokens": 2}),
    ],
)
def test_saying_what_holds_anyway_changes_nothing(same: RunConfig) -> None:
    assert same.hash() == CONFIG.hash()
    assert run_folder(same, Path("runs")) == run_folder(CONFIG, Path("runs"))


@pytest.mark.parametrize(
    "other",
    [
        changed(seed=2),
        changed(shots=4),
        changed(data="shapes"),
        changed(method="vpt"),
        changed(inference="csghmc"),
        changed(epochs=4),
        changed(protocol="few-shot"),
        changed(protocol="selection"),
        changed(template="a {}."),
        changed(split="other.json"),
        changed(cache=256),
        changed(test_images=10),
        changed(backbone="openai/clip-vit-base-patch32"),
        changed(inference_settings={"repulsion.fraction": 0.31}),
        changed(method_settings={"tokens": 3}),
    ],
)
def test_what_changes_the_numbers_changes_the_name(other: RunConfig) -> None:
    assert other.hash() != CONFIG.hash()


@pytest.mark.parametrize("method", METHODS)
def test_both_transfers_of_imagenet_are_one_training(method: str) -> None:
    cross = RunConfig("imagenet", method, protocol="cross-dataset", backbone="mini")
    domain = dataclasses.replace(cross, protocol="domain-generalization")
    assert cross.hash() == domain.hash() == dataclasses.replace(cross, targets=["eurosat"]).hash()
    if method in ("maple", "mmrl", "mmrl++", "promptsrc"):  # published to train otherwise for few shots
        assert dataclasses.replace(cross, protocol="few-shot").hash() != cross.hash()


def test_selection_takes_the_settings_published_for_base_to_novel() -> None:
    first, second = (
        RunConfig("eurosat", "mmrl++", protocol=protocol, backbone="mini").resolved()["method"]
        for protocol in ("base-to-novel", "selection")
    )
    assert first == second
    assert first["mix"] == 0.2


def test_where_nothing_is_learned_the_inference_does_not_matter() -> None:
    folders = {run_folder(changed(method="zero-shot", inference=name), Path()).name for name in ("mle", "rebapl")}
    assert len(folders) == 1
    assert folders.pop().startswith("digits-zero-shot-none-s1-")


def test_a_local_backbone_is_known_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    source = Path(rebapl.backbones.loading.__file__).parent / "mini"
    for place in ("a", "b"):
        shutil.copytree(source, tmp_path / place / "model")
    first, second = (changed(backbone=str(tmp_path / place / "model")) for place in ("a", "b"))
    assert first.hash() == second.hash()
    config = tmp_path / "b/model/config.json"
    config.write_text(config.read_text() + "\n")
    assert first.hash() != second.hash()


def test_ones_own_data_are_known_by_path_and_a_list_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my photos").mkdir()
    monkeypatch.chdir(tmp_path)
    whole = changed(data=str(tmp_path / "my photos"))
    assert changed(data="my photos").hash() == changed(data="./my photos/").hash() == whole.hash()
    assert run_folder(whole, Path()).name.startswith("my_photos-maple-rebapl-s1-")
    csv = tmp_path / "list.csv"
    csv.write_text("a.png,cat\n")
    before = changed(data="list.csv").hash()
    csv.write_text("a.png,dog\n")
    assert changed(data="list.csv").hash() != before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "mapl"}, "did you mean 'maple'"),
        ({"inference": "rebap"}, "did you mean 'rebapl'"),
        ({"protocol": "few-shots"}, "did you mean 'few-shot'"),
        ({"method_settings": {"tokns": 4}}, "did you mean 'tokens'"),
        ({"method": "zero-shot", "method_settings": {"tokns": 4}}, r"method\.tokns: there is no such setting"),
        ({"inference_settings": {"repulsion.metrik": 4}}, "did you mean 'metric'"),
        ({"targets": ["shapes"]}, "has no targets"),
    ],
)
def test_settings_that_make_no_sense_have_no_name(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        changed(**wrong).hash()


def test_resolved_settings_are_plain() -> None:
    resolved = CONFIG.resolved()
    assert json.loads(json.dumps(resolved)) == resolved
    assert resolved["inference"]["lr"] == 0.0035
    assert resolved["inference"]["repulsion"]["metric"] == "mmd"


def test_the_first_difference_is_named_with_dots() -> None:
    assert first_difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == ("a.c", 2, 3)
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == ("b", None, 2)
    assert first_difference({"a": 1}, {"a": 1}) is None


def test_own_data_and_a_local_backbone_are_found_from_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("photos", "clip"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    config = with_full_paths(RunConfig("photos", backbone="clip"))
    assert (config.data, config.backbone) == (str(tmp_path / "photos"), str(tmp_path / "clip"))
    (tmp_path / "digits").mkdir()
    assert with_full_paths(RunConfig("digits", backbone="mini")).data == "digits"
