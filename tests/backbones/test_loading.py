"""Where a backbone comes from: folders, the hub (an offline cache of it), and what is said when something is wrong."""

import json
import os
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


Damage = Callable[[Path], Any]


def says(file: str, **entries: Any) -> Damage:
    """A JSON file with other entries."""
    return lambda folder: rewrite(folder / file, lambda content: content.update(entries))


def holds(file: str, content: str | bytes | None) -> Damage:
    """A file with another content; None removes it."""

    def damage(folder: Path) -> None:
        (folder / file).unlink()
        if content is not None:
            (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def weighs(**changes: Callable[[torch.Tensor], torch.Tensor] | None) -> Damage:
    """Weights of which some tensors are changed; None removes one."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        for name, change in changes.items():
            old = tensors.pop(name.replace("__", "."))
            if change is not None:
                tensors[name.replace("__", ".")] = change(old)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return damage


CONFIG, PREPROCESSOR, WEIGHTS, TOKENIZER = (
    "config.json",
    "preprocessor_config.json",
    "model.safetensors",
    "tokenizer.json",
)
DAMAGES: list[tuple[Damage, str]] = [
    *((holds(name, None), f"has no {name}.*Accepted:") for name in (CONFIG, PREPROCESSOR)),
    *((holds(name, "{"), f"{name} is not valid JSON.*fetch the checkpoint again") for name in (CONFIG, PREPROCESSOR)),
    *((holds(name, "[]"), f"{name} does not hold a JSON object") for name in (CONFIG, PREPROCESSOR)),
    *(
        (says(CONFIG, model_type=kind), rf"is a '{re.escape(str(kind))}' checkpoint, not .*: clip, siglip")
        for kind in ("bert", "clip_text_model", "siglip2", "metaclip_2", None, [])
    ),
    (says(CONFIG, text_config={"hidden_size": "wide"}), "config.json of .* cannot be used: .*hidden_size is 'wide'"),
    (says(CONFIG, vision_config={"num_attention_heads": 5}), "config.json of .* cannot be used: .*heads"),
    (says(CONFIG, vision_config={"num_hidden_layers": 10**9}), "num_hidden_layers is 1000000000 and should"),
    (says(CONFIG, vision_config={"image_size": 10**9}), "image_size is 1000000000 and should"),
    (says(CONFIG, text_config={"vocab_size": 10**12}), "vocab_size is 1000000000000 and should"),
    (says(PREPROCESSOR, image_mean=[float("nan"), 0, 0]), "image_mean must be three numbers"),
    (says(PREPROCESSOR, image_std=[0.3, 0, 0.3]), "image_std must be three numbers above 0"),
    (says(PREPROCESSOR, size=10**9), r"size must be pixels \(at most 8192\)"),
    (holds(PREPROCESSOR, json.dumps(checkpoints.clip_processor(48))), "48 px but the model sees 32 px"),
    *(
        (says(PREPROCESSOR, resample=value), f"resample is {value!r} and should be the number of a filter of PIL")
        for value in (None, "bicubic", 9)
    ),
    *(
        (holds(WEIGHTS, content), "the weights of .* cannot be read .*missing, truncated or of another model")
        for content in (None, b"", b"\x00" * 64, b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    ),
    (lambda folder: os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size // 2), "cannot be read"),
    (weighs(logit_scale=None, visual_projection__weight=None), r"lack 2 tensors .*\(first: logit_scale\)"),
    (weighs(visual_projection__weight=lambda _: torch.zeros(7, 7)), "of another model"),
    (weighs(text_projection__weight=lambda x: x * float("nan")), r"NaN or infinity \(first: text_projection.weight\)"),
    (weighs(text_projection__weight=lambda x: x / 0), r"NaN or infinity \(first: text_projection.weight\)"),
    (holds(TOKENIZER, None), "has no tokenizer: tokenizer.json, or vocab.json with merges.txt, or spiece.model"),
    (holds(TOKENIZER, "{"), "the tokenizer of backbone .*fetch tokenizer.json again"),
    (lambda folder: checkpoints.siglip_tokenizer(limit=60).save_pretrained(folder), "as a CLIP tokenizer does"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES, ids=[said for _, said in DAMAGES])
def test_a_damaged_checkpoint_is_refused_with_the_reason(folder: Path, damage: Damage, said: str) -> None:
    damage(folder)
    found = message(folder)
    assert re.search(said, found)
    assert str(folder) in found
    assert "\n" not in found


def test_a_siglip_tokenizer_without_end(siglip_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(siglip_folder, tmp_path / "siglip"))
    rewrite(copy / "tokenizer.json", lambda t: t.update(post_processor=None))
    assert "does not put an end token after text" in message(copy)


def test_a_processor_config_serves_as_well(folder: Path) -> None:
    """What current `transformers` saves with a whole processor."""
    expected = load_backbone(folder).preprocessing
    given = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": given}))
    assert load_backbone(folder).preprocessing == expected


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
