"""The hash of a run: equal for runs that train in the same way, different for runs that do not."""

import json
import re
import shutil
from pathlib import Path

import pytest
from drawn_folder import class_folders

import rebapl.backbones.loading
from rebapl.errors import UserError
from rebapl.learners import METHODS
from rebapl.runs.config import RunConfig, hash_of, with_full_paths
from rebapl.runs.folder import run_folder
from rebapl.runs.run import run
from rebapl.sampling import Inference

CONFIG = RunConfig("digits", "maple", "rebapl", backbone="mini")


def changed(**values) -> RunConfig:
    return CONFIG.changed(**values)


@pytest.mark.parametrize(
    "same",
    [
        changed(epochs=5),  # what MaPLe was published with
        changed(inference_settings={"cycles": 2, "sampler": {"temperature": 0.001}}),
        changed(inference_settings={"repulsion.distance": "wasserstein"}),
        changed(inference_settings={"repulsion.distance": {"kind": "wasserstein"}}),
        changed(inference_settings={"repulsion": {"force": {"fraction": 1}}}),  # 1.0 written otherwise
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
        changed(epochs=10),
        changed(protocol="few-shot"),
        changed(protocol="selection"),
        changed(template="a {}."),
        changed(split="other.json"),
        changed(test_images=10),
        changed(backbone="openai/clip-vit-base-patch32"),
        changed(inference_settings={"repulsion.force.fraction": 0.31}),
        changed(method_settings={"tokens": 3}),
    ],
)
def test_what_changes_the_numbers_changes_the_name(other: RunConfig) -> None:
    assert other.hash() != CONFIG.hash()


def test_a_folder_with_the_name_of_a_published_data_set_has_no_settings_of_it(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "eurosat", cat=3, dog=3, emu=3, fox=3)
    own = RunConfig(str(folder), "promptsrc", protocol="few-shot", backbone="mini")
    averaging = {
        name: config.resolved().training.inference.averaging
        for name, config in (("own", own), *((data, own.changed(data=data)) for data in ("caltech101", "eurosat")))
    }
    assert averaging["own"] == averaging["caltech101"] != averaging["eurosat"]


@pytest.mark.parametrize("method", METHODS)
def test_both_transfers_of_imagenet_are_one_training(method: str) -> None:
    cross = RunConfig("imagenet", method, protocol="cross-dataset", backbone="mini")
    domain = cross.changed(protocol="domain-generalization")
    assert cross.hash() == domain.hash() == cross.changed(targets=["eurosat"]).hash()
    if method in ("maple", "mmrl", "mmrl++", "promptsrc"):  # published to train otherwise for few shots
        assert cross.changed(protocol="few-shot").hash() != cross.hash()


def test_selection_takes_the_settings_published_for_base_to_novel() -> None:
    first, second = (
        RunConfig("eurosat", "mmrl++", protocol=protocol, backbone="mini").resolved().settings["method"]
        for protocol in ("base-to-novel", "selection")
    )
    assert first == second
    assert first["mix"] == 0.2


def test_where_nothing_is_learned_in_steps_an_inference_acts_or_is_refused() -> None:
    folders = {run_folder(changed(method="zero-shot", inference=name), Path()).name for name in ("mle", None)}
    assert len(folders) == 1
    assert folders.pop().startswith("digits-zero-shot-none-s1-")
    views = changed(method="zero-shot", inference="tta")
    assert run_folder(views, Path()).name.startswith("digits-zero-shot-tta-s1-")
    assert views.resolved().settings["inference"] == {"name": "tta", "views": 3}
    with pytest.raises(UserError, match="'zero-shot' learns nothing in steps, so 'rebapl' would do nothing: leave"):
        changed(method="zero-shot", inference="rebapl").resolved()


def test_a_local_backbone_is_known_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    source = Path(rebapl.backbones.loading.__file__).parent / "mini"
    for place in ("a", "b"):
        shutil.copytree(source, tmp_path / place / "model")
    first, second = (changed(backbone=str(tmp_path / place / "model")) for place in ("a", "b"))
    assert first.hash() == second.hash()
    for name in ("config.json", "tokenizer.json"):
        file = tmp_path / "b/model" / name
        before, content = second.hash(), file.read_text()
        file.write_text(content.replace("1", "2", 1))
        assert second.hash() != before


def test_a_local_backbone_is_known_by_the_weights_that_are_read(tmp_path: Path) -> None:
    """Weights in a pickle are read only if there are no others, so adding a pickle to other weights changes nothing."""
    folder = Path(shutil.copytree(Path(rebapl.backbones.loading.__file__).parent / "mini", tmp_path / "model"))
    run = changed(backbone=str(folder))
    first, pickled = run.hash(), folder / "pytorch_model.bin"
    pickled.write_bytes(b"never read")
    assert run.hash() == first
    (folder / "model.safetensors").unlink()
    hashes = {first, run.hash()}
    pickled.write_bytes(b"other weights")
    assert len({*hashes, run.hash()}) == 3


def test_ones_own_data_are_known_by_their_images_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = class_folders(tmp_path / "my photos", cat=3, dog=3, emu=3, fox=3)
    monkeypatch.chdir(tmp_path)
    whole = changed(data=str(photos))
    first = whole.hash()
    assert changed(data="my photos").hash() == changed(data="./my photos/").hash() == first
    assert run_folder(whole, Path()).name.startswith("my_photos-maple-rebapl-s1-")
    shutil.copytree(photos, tmp_path / "elsewhere")  # with other times
    assert changed(data="elsewhere").hash() == first
    run_folder(whole, tmp_path / "runs").mkdir(parents=True)
    assert run_folder(changed(data="elsewhere"), tmp_path / "runs") == run_folder(whole, tmp_path / "runs")
    (photos / "template.txt").write_text("a sketch of a {}.")
    assert changed(data="my photos").hash() != first


def test_a_list_of_images_is_known_by_its_content(tmp_path: Path) -> None:
    class_folders(tmp_path, cat=3, dog=3)
    csv = tmp_path / "list.csv"
    rows = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(3)]
    csv.write_text("path,label\n" + "".join(f"{row},{row[:3]}\n" for row in rows))
    before = changed(data=str(csv)).hash()
    csv.write_text("path,label\n" + "".join(f"{row},{'emu' if row[0] == 'd' else 'cat'}\n" for row in rows))
    assert changed(data=str(csv)).hash() != before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "mapl"}, "unknown method 'mapl': did you mean 'maple'?"),
        ({"inference": "rebap"}, "unknown inference 'rebap': did you mean 'rebapl'?"),
        ({"protocol": "few-shots"}, "protocol is 'few-shots': did you mean 'few-shot'?"),
        ({"epochs": 2.5}, "epochs is 2.5: it must be a whole number or null"),
        ({"targets": ["shapes"]}, "protocol 'base-to-novel' has no targets"),
        ({"method_settings": {"tokns": 4}}, "method.tokns: there is no such setting, did you mean 'tokens'?"),
        ({"method": "zero-shot", "method_settings": {"tokens": 4}}, "method.tokens: there is no such setting"),
        ({"method": "zero-shot", "inference_settings": {"cycles": 4}}, "method 'zero-shot' learns nothing"),
        (
            {"inference_settings": {"sampler.integrator": "foo"}},
            "inference.sampler.integrator is 'foo': Accepted: kdod, symplectic, printed, authors",
        ),
        (
            {"inference": "svgd", "inference_settings": {"sampler": {"integrator": "kdod"}}},
            "inference.sampler.integrator: the sampler is 'svgd', and this is a setting of sghmc",
        ),
        (
            {"inference_settings": {"sampler.temprature": 0.1}},
            "inference.sampler.temprature: there is no such setting, did you mean 'temperature'?",
        ),
        (
            {"inference_settings": {"repulsion.distance": "enrgy"}},
            "inference.repulsion.distance: unknown kind of distance 'enrgy': did you mean 'energy'?",
        ),
        (
            {"inference_settings": {"repulsion.force.strength": 50}},
            "inference.repulsion.force.strength: the force is 'fading', and this is a setting of absolute and capped",
        ),
        ({"inference_settings": {"repulsion": "energy"}}, "inference.repulsion is 'energy': it must be a mapping"),
        (
            {"inference": "mle", "inference_settings": {"repulsion": {}}},
            "inference.repulsion does nothing in one cycle",
        ),
    ],
)
def test_settings_that_make_no_sense_have_no_name(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        changed(**wrong).resolved()
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", ["coop", "mmrl"])
def test_what_is_hashed_is_what_is_run_and_saved(tmp_path: Path, method: str) -> None:
    config = RunConfig(
        "digits",
        method,
        "rebapl",
        shots=1,
        epochs=1,
        inference_settings={"cycles": 2, "sampler.temperature": 0.5, "repulsion": {"distance": "energy"}},
    )
    out = run_folder(config, tmp_path)
    run(config, out, device="cpu", score=False)
    asked = json.loads((out / "config.json").read_text())
    resolved = asked["resolved"]
    assert out.name.endswith(f"-{asked['hash']}")
    assert asked["hash"] == hash_of(resolved) == config.hash()
    saved = json.loads((out / "posterior/posterior.json").read_text())
    assert resolved["method"] == {"name": saved["method"], **saved["method_settings"]}
    assert resolved["inference"] == saved["inference"]
    assert resolved["inference"]["sampler"]["temperature"] == 0.5
    assert Inference(**{key: value for key, value in saved["inference"].items() if key != "name"}) == (
        config.resolved().training.inference
    )


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


def test_outside_images_in_a_folder_have_a_full_path_and_other_names_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the working folder, such as the data root, has folders of these names."""
    names = ("novel", "noise", "base", "dtd", "dtd=few.json", "photos", "things", "list.csv", "nowhere")
    for name in names[:-2]:
        (tmp_path / name).mkdir()
    (tmp_path / "list.csv").touch()
    monkeypatch.chdir(tmp_path)
    config = with_full_paths(RunConfig("photos", outside=names))
    assert config.outside == (*names[:6], str(tmp_path / "things"), str(tmp_path / "list.csv"), "nowhere")
