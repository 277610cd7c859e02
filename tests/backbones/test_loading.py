"""Where a backbone comes from: folders, the hub (an offline cache of it), and what is said when something is wrong."""

import json
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import checkpoints
import huggingface_hub.constants
import pytest
import torch
from huggingface_hub.errors import RevisionNotFoundError
from safetensors.torch import load_file, save_file

from rebapl.backbones import load_backbone
from rebapl.errors import UserError


@pytest.fixture
def folder(clip_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(clip_folder, tmp_path / "backbone"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no network."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return cache


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def message(source: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        load_backbone(source)
    return str(caught.value)


def test_a_folder_is_named_by_its_path(clip_folder: Path) -> None:
    assert load_backbone(clip_folder).name == str(clip_folder.resolve())


def test_a_hub_id_is_loaded_from_the_cache(clip_folder: Path, hub: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    entry = hub / "models--somebody--tiny-clip"
    shutil.copytree(clip_folder, entry / "snapshots" / commit)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(commit)
    encoder = load_backbone("somebody/tiny-clip")
    assert (encoder.name, encoder.revision) == ("somebody/tiny-clip", commit)
    pinned = load_backbone(f"somebody/tiny-clip@{commit}")
    assert (pinned.name, pinned.revision) == (f"somebody/tiny-clip@{commit}", commit)
    assert pinned.fingerprint == encoder.fingerprint
    assert "is not on this machine" in message("somebody/tiny-clip@" + "f" * 40)
    assert encoder.fingerprint == load_backbone(clip_folder).fingerprint
    assert encoder.tokenize([["cat"]]).ids.tolist() == load_backbone(clip_folder).tokenize([["cat"]]).ids.tolist()
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(encoder.image_features(pixels), load_backbone(clip_folder).image_features(pixels))


class _Code:
    """What a pickle makes when it is read: here a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_weights_that_would_execute_code_are_refused_and_do_not(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"logit_scale": _Code(tmp_path / "executed")}, folder / "pytorch_model.bin")
    assert "the weights of backbone" in message(folder)
    assert not (tmp_path / "executed").exists()


def test_code_beside_a_checkpoint_is_not_executed(folder: Path, tmp_path: Path) -> None:
    (folder / "own.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    rewrite(folder / "config.json", lambda content: content.update(auto_map={"AutoConfig": "own.Config"}))
    load_backbone(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.usefixtures("hub")
def test_a_hub_id_that_cannot_be_fetched() -> None:
    text = message("somebody/no-such-clip")
    assert "'somebody/no-such-clip' is not on this machine, and the hub cannot be reached" in text
    assert "give --backbone a local folder" in text
    assert "\n" not in text


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["somebody/a--b", "somebody/.clip", "-a/b"])
def test_a_name_that_the_hub_cannot_have(name: str) -> None:
    assert f"backbone '{name}' is no folder, and cannot be a hub id" in message(name)


@pytest.mark.usefixtures("hub")
def test_a_revision_that_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise RevisionNotFoundError("404", response=MagicMock())

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", none)
    assert "the hub has the model, but no revision 'v9' of it" in message("somebody/clip@v9")


def test_without_a_connection_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise OSError("the network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert "the hub cannot be reached" in message("somebody/no-such-clip")


@pytest.mark.parametrize("name", ["vit-b16", "./nowhere/at/all", "", "a/b/c", "../no-such-clip"])
def test_an_unknown_name(name: str) -> None:
    text = message(name)
    assert f"unknown backbone '{name}'" in text
    assert "Accepted: 'mini' (embedded), a local folder" in text
    assert "openai/clip-vit-base-patch16" in text


def test_a_file_instead_of_a_folder(folder: Path) -> None:
    assert "is a file. Accepted: 'mini'" in message(folder / "config.json")


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_a_folder_without_a_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    text = message(folder)
    assert f"has no {name}" in text
    assert "Accepted:" in text


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "is not valid JSON"), ("[]", "does not hold a JSON object"), ("", "is not valid JSON")],
)
def test_broken_json(folder: Path, name: str, content: str, reason: str) -> None:
    (folder / name).write_text(content)
    text = message(folder)
    assert name in text
    assert reason in text
    assert "fetch the checkpoint again" in text


@pytest.mark.parametrize("kind", ["bert", "clip_text_model", None, []])
def test_a_checkpoint_that_is_no_dual_encoder(folder: Path, kind: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "hidden_size": 8}))
    text = message(folder)
    assert f"is a '{kind}' checkpoint, not a dual encoder that is supported" in text
    assert "Accepted model types: clip, siglip" in text


def test_a_config_with_a_value_of_the_wrong_kind(folder: Path) -> None:
    rewrite(folder / "config.json", lambda c: c["text_config"].update(hidden_size="wide"))
    text = message(folder)
    assert f"config.json of backbone '{folder}' cannot be used" in text
    assert "hidden_size" in text
    assert "wide" in text


def test_a_config_with_sizes_that_do_not_go_together(folder: Path) -> None:
    rewrite(folder / "config.json", lambda c: c["vision_config"].update(num_attention_heads=5))
    text = message(folder)
    assert f"config.json of backbone '{folder}' cannot be used" in text
    assert "heads" in text


def test_truncated_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    text = message(folder)
    assert f"the weights of backbone '{folder}' cannot be read" in text
    assert "missing, truncated or of another model" in text


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n"])
def test_weights_that_are_no_weights(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert "cannot be read" in message(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "cannot be read" in message(folder)


def test_weights_that_lack_tensors(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    lost = "text_model.encoder.layers.1.mlp.fc1.weight"
    del tensors[lost]
    del tensors["visual_projection.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    text = message(folder)
    assert "lack 2 tensors of its configuration" in text
    assert lost in text


def test_weights_of_another_shape(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["visual_projection.weight"] = torch.zeros(7, 7)
    save_file(tensors, path, metadata={"format": "pt"})
    assert "of another model" in message(folder)


def test_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    text = message(folder)
    assert "has no tokenizer" in text
    assert "tokenizer.json, or vocab.json with merges.txt, or spiece.model" in text


def test_a_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    text = message(folder)
    assert "the tokenizer of backbone" in text
    assert "fetch tokenizer.json again" in text


def test_a_tokenizer_of_another_kind(folder: Path) -> None:
    checkpoints.siglip_tokenizer(limit=60).save_pretrained(folder)
    assert "does not put a start and an end token around text, as a CLIP tokenizer does" in message(folder)


def test_a_siglip_tokenizer_without_end(siglip_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(siglip_folder, tmp_path / "siglip"))
    rewrite(copy / "tokenizer.json", lambda t: t.update(post_processor=None))
    assert "does not put an end token after text" in message(copy)


def test_a_preprocessor_for_another_size(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(checkpoints.clip_processor(48)))
    text = message(folder)
    assert str(folder) in text
    assert "48 px but the model sees 32 px" in text


@pytest.mark.parametrize("value", [None, "bicubic", 9])
def test_a_filter_that_is_not_known(folder: Path, value: Any) -> None:
    rewrite(folder / "preprocessor_config.json", lambda given: given.update(resample=value))
    assert f"resample is {value!r} and should be the number of a filter of PIL" in message(folder)


def test_a_processor_config_serves_as_well(folder: Path) -> None:
    """What current `transformers` saves with a whole processor."""
    expected = load_backbone(folder).preprocessing
    given = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": given}))
    assert load_backbone(folder).preprocessing == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "text_projection.weight"
    weights[name][0, 1] = value
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    said = message(folder)
    assert f"hold NaN or infinity (first: {name})" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("preprocessor_config.json", {"image_mean": [float("nan"), 0, 0]}, "image_mean must be three numbers"),
        ("preprocessor_config.json", {"image_std": [0.3, 0, 0.3]}, "image_std must be three numbers above 0"),
        ("preprocessor_config.json", {"size": 10**9}, r"size must be pixels \(at most 8192\)"),
        ("config.json", {"vision_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers is 1000000000 and should"),
        ("config.json", {"vision_config": {"image_size": 10**9}}, "image_size is 1000000000 and should"),
        ("config.json", {"text_config": {"layer_norm_eps": float("nan")}}, "layer_norm_eps is nan and should"),
        ("config.json", {"text_config": {"vocab_size": 10**12}}, "vocab_size is 1000000000000 and should"),
    ],
)
def test_settings_beyond_reason_are_refused(folder: Path, file: str, change: dict[str, Any], said: str) -> None:
    rewrite(folder / file, lambda content: content.update(change))
    assert re.search(said, message(folder))


def test_a_tokenizer_with_two_ids_exchanged_is_another_backbone(folder: Path) -> None:
    before = load_backbone(folder)

    def exchange(content: dict[str, Any]) -> None:
        words = content["model"]["vocab"]
        words["Z"], words["Y"] = words["Y"], words["Z"]

    rewrite(folder / "tokenizer.json", exchange)
    after = load_backbone(folder)
    assert torch.equal(before.model.logit_scale, after.model.logit_scale)
    assert before.tokenizer.encode("a photo") == after.tokenizer.encode("a photo")
    assert before.fingerprint != after.fingerprint


@pytest.mark.parametrize("kind", ["siglip2", "metaclip_2"])
def test_the_page_says_which_kinds_are_refused(folder: Path, kind: str) -> None:
    rewrite(folder / "config.json", lambda content: content.update(model_type=kind))
    assert f"is a '{kind}' checkpoint, not a dual encoder that is supported" in message(folder)
    page = Path(__file__).parents[2] / "docs" / "backbones.md"
    assert f"`{kind}`" in page.read_text(encoding="utf-8")
