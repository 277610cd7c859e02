"""Where a backbone comes from: folders, the hub (an offline cache of it), and what is said when something is wrong."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import checkpoints
import pytest
import torch
from huggingface_hub.errors import RevisionNotFoundError
from safetensors.torch import load_file, save_file

from rebapl.backbones import load_backbone
from rebapl.errors import UserError
from rebapl.settings import overlaid


@pytest.fixture
def folder(clip_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(clip_folder, tmp_path / "backbone"))


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


def test_mini_is_the_embedded_one_beside_a_folder_of_that_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A posterior stores the name, and must find `mini` on other machines."""
    (tmp_path / "mini").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_backbone("mini").name == "mini"


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
def test_a_revision_that_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise RevisionNotFoundError("404", response=MagicMock())

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", none)
    assert "the hub has the model, but no revision 'v9' of it" in message("somebody/clip@v9")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "somebody/no-such-clip",
            "is not on this machine, and the hub cannot be reached.*give --backbone a local folder",
        ),
        *((name, "is no folder, and cannot be a hub id") for name in ("somebody/a--b", "somebody/.clip", "-a/b")),
        *(
            (name, "unknown backbone.*Accepted: 'mini' .embedded., a local folder.*openai/clip-vit-base-patch16")
            for name in ("vit-b16", "./nowhere/at/all", "", "a/b/c", "../no-such-clip")
        ),
        (__file__, "is a file. Accepted: 'mini'"),
    ],
)
def test_a_name_that_leads_to_no_backbone(name: str, said: str) -> None:
    found = message(name)
    assert name in found
    assert re.search(said, found)
    assert "\n" not in found


def weights(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


LOST = "text_model.encoder.layers.1.mlp.fc1.weight"
FIRST_HALF = lambda folder: os.truncate(folder / "model.safetensors", 40_000)  # noqa: E731
BROKEN: list[tuple[Any, str]] = [
    # a file that is missing: its name; content to write: bytes; JSON to change: a mapping
    ("config.json", r"has no config\.json.*Accepted:"),
    ("preprocessor_config.json", r"has no preprocessor_config\.json.*Accepted:"),
    ("model.safetensors", "cannot be read"),
    ("tokenizer.json", r"has no tokenizer.*tokenizer\.json, or vocab\.json with merges\.txt, or spiece\.model"),
    (("config.json", b"{"), r"config\.json.*is damaged.*get the checkpoint again"),
    (("preprocessor_config.json", b""), r"preprocessor_config\.json.*is damaged.*get the checkpoint again"),
    (("preprocessor_config.json", b"[]"), "no JSON object.*get the checkpoint again"),
    (("tokenizer.json", b"{"), r"the tokenizer of backbone.*fetch tokenizer\.json again"),
    (("model.safetensors", b""), "cannot be read"),
    (("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), "cannot be read"),
    (FIRST_HALF, "the weights of backbone .* cannot be read.*missing, truncated or of another model"),
    (
        lambda folder: weights(folder, lambda tensors: (tensors.pop(LOST), tensors.pop("visual_projection.weight"))),
        f"lack 2 tensors of its configuration.*{LOST}",
    ),
    (
        lambda folder: weights(folder, lambda tensors: tensors.update({LOST: torch.zeros(7, 7)})),
        "of another model",
    ),
    *(
        (
            lambda folder, value=value: weights(folder, lambda tensors: tensors[LOST].view(-1)[1].fill_(value)),
            f"hold NaN or infinity .first: {LOST}",
        )
        for value in (float("nan"), float("inf"))
    ),
    (
        lambda folder: checkpoints.siglip_tokenizer(limit=60).save_pretrained(folder),
        "does not put a start and an end token around text, as a CLIP tokenizer does",
    ),
    *(
        (
            ("config.json", {"model_type": kind}),
            f"is a '{kind}' checkpoint, not a dual encoder that is supported.*Accepted model types: clip, siglip",
        )
        for kind in ("bert", "clip_text_model", "siglip2", "metaclip_2", None)
    ),
    (("config.json", {"text_config": {"hidden_size": "wide"}}), "cannot be used.*hidden_size.*wide"),
    (("config.json", {"vision_config": {"num_attention_heads": 5}}), "cannot be used.*heads"),
    (("config.json", {"vision_config": {"num_hidden_layers": 10**9}}), "num_hidden_layers is 1000000000 and should"),
    (("config.json", {"vision_config": {"image_size": 10**9}}), "image_size is 1000000000 and should"),
    (("config.json", {"text_config": {"layer_norm_eps": float("nan")}}), "layer_norm_eps is nan and should"),
    (("config.json", {"text_config": {"vocab_size": 10**12}}), "vocab_size is 1000000000000 and should"),
    (("preprocessor_config.json", {"crop_size": 48}), "48 px but the model sees 32 px"),
    (("preprocessor_config.json", {"image_mean": [float("nan"), 0, 0]}), "image_mean must be three numbers"),
    (("preprocessor_config.json", {"image_std": [0.3, 0, 0.3]}), "image_std must be three numbers above 0"),
    (("preprocessor_config.json", {"size": 10**9}), r"size must be pixels \(at most 8192\)"),
    (
        ("preprocessor_config.json", {"resample": "bicubic"}),
        "resample is 'bicubic' and should be the number of a filter",
    ),
    *(
        (("preprocessor_config.json", {"rescale_factor": factor}), f"rescale_factor is {factor}; pixels are always")
        for factor in (1 / 127.5, 1)
    ),
    (("preprocessor_config.json", {"resample": 9}), "resample is 9 and should be the number of a filter"),
]


@pytest.mark.parametrize(("damage", "said"), BROKEN, ids=[said for _, said in BROKEN])
def test_a_checkpoint_that_is_broken(folder: Path, damage: Any, said: str) -> None:
    match damage:
        case str():
            (folder / damage).unlink()
        case str(name), bytes(content):
            (folder / name).write_bytes(content)
        case str(name), dict(change):
            rewrite(folder / name, lambda given: given.update(overlaid(given, change)))
        case _:
            damage(folder)
    found = message(folder)
    assert re.search(said, found)
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
    (folder / "processor_config.json").write_text(json.dumps({**given, "image_processor": "CLIPImageProcessor"}))
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
