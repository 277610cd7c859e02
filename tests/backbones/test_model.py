"""Our models against those of `transformers`: what is read of config.json, the tensors, the features to the bit."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checkpoints
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, CLIPConfig, SiglipConfig

from rebapl.backbones import clip, load_backbone, siglip
from rebapl.backbones.encoder import ARCHITECTURES
from rebapl.backbones.hub import fetch, fetched_before
from rebapl.errors import UserError

FOLDERS = ["clip_folder", "old_clip_folder", "siglip_folder"]


@pytest.mark.parametrize("fixture", FOLDERS)
def test_tensors_fingerprint_and_features_are_the_same_to_the_bit(request: pytest.FixtureRequest, fixture: str) -> None:
    folder = request.getfixturevalue(fixture)
    ours, theirs = load_backbone(folder), checkpoints.of_transformers(folder)
    own, other = ours.model.state_dict(), theirs.model.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    assert ours.fingerprint == theirs.fingerprint
    assert (ours.logit_scale, ours.logit_bias) == (theirs.logit_scale, theirs.logit_bias)
    pixels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours.image_features(pixels), theirs.image_features(pixels))
    text = ours.tokenize([[sentence] for sentence in checkpoints.SENTENCES])
    assert torch.equal(ours.text_features(text), theirs.text_features(text))


LARGE = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "hidden_act": "gelu"}
GIVEN: list[dict[str, Any]] = [
    {},
    {"text_config": None, "vision_config": {"patch_size": 16}},
    {"projection_dim": 768, "text_config": {**LARGE, "max_position_embeddings": 32}, "vision_config": LARGE},
    {"text_config": {"hidden_size": 64, "num_hidden_layers": 3}, "text_config_dict": LARGE},
    {"vision_config": {"image_size": 336}, "vision_config_dict": {"patch_size": 14}, "text_config_dict": None},
    {"text_config": {"layer_norm_eps": 1e-7, "vocab_size": 99, "no such setting": 3}},
]


@pytest.mark.parametrize("given", GIVEN, ids=range(len(GIVEN)))
def test_a_clip_config_is_read_as_transformers_reads_it(given: dict[str, Any]) -> None:
    ours, theirs = clip.read_config(given), CLIPConfig(**json.loads(json.dumps(given)))
    assert ours.projection_dim == theirs.projection_dim
    assert vars(ours.text_config) == {name: getattr(theirs.text_config, name) for name in clip.TEXT}
    assert vars(ours.vision_config) == {name: getattr(theirs.vision_config, name) for name in clip.VISION}


@pytest.mark.parametrize("given", [{}, {"text_config": {"projection_size": 1152}}, *GIVEN[1:3]])
def test_a_siglip_config_is_read_as_transformers_reads_it(given: dict[str, Any]) -> None:
    ours, theirs = siglip.read_config(given), SiglipConfig(**json.loads(json.dumps(given)))
    names = {*siglip.TEXT, "projection_size"}
    assert vars(ours.text_config) == {name: getattr(theirs.text_config, name) for name in names}
    names = siglip.VISION.keys() - {"vision_use_head"}
    assert {name: getattr(ours.vision_config, name) for name in names} == {
        name: getattr(theirs.vision_config, name) for name in names
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text_config": {"hidden_size": "wide"}}, r"text_config\.hidden_size is 'wide' and should be such as 512"),
        ({"vision_config": {"patch_size": [16, 16]}}, r"vision_config\.patch_size is \[16, 16\]"),
        ({"vision_config": {"num_hidden_layers": 0}}, r"vision_config\.num_hidden_layers is 0 and should be above 0"),
        ({"vision_config": {"num_channels": True}}, r"vision_config\.num_channels is True"),
        (
            {"vision_config": {"layer_norm_eps": float("nan")}},
            r"layer_norm_eps is nan and should be above 0",
        ),
        (
            {"text_config": {"hidden_act": "mish"}},
            r"hidden_act is 'mish'; known are quick_gelu, gelu, ",
        ),
        ({"text_config": {"num_attention_heads": 7}}, r"hidden_size is 512, no multiple of its 7 attention heads"),
        ({"text_config": [1]}, r"text_config is \[1\] and should be a mapping"),
        ({"projection_dim": None}, "projection_dim is None"),
    ],
)
def test_what_a_config_may_not_say(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        clip.read_config(given)


STRINGS = [
    *checkpoints.SENTENCES,
    "The  Quick\tbrown\nfox's 12345 lbs. don't!?",
    "Ünïcödé straße İstanbul ﬁne 猫 🐈 e\u0301",
    "a_photo-of/(many) [things] <|nothing|>",
    "of a cat dog phone",
]


def test_a_tokenizer_json_is_read_as_transformers_reads_it(clip_folder: Path, tmp_path: Path) -> None:
    """Also one that truncates and pads by itself, and that of CLIP with its rules for words."""
    limiting = Path(shutil.copytree(clip_folder, tmp_path / "limiting"))
    content = json.loads((limiting / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (limiting / "tokenizer.json").write_text(json.dumps(content))
    own = tmp_path / "own"
    own.mkdir()
    checkpoints.clip_tokenizer(own, 60).save_pretrained(own)
    for name in ("vocab.json", "merges.txt"):
        (own / name).unlink(missing_ok=True)
    for folder in (clip_folder, limiting, own):
        ours, theirs = clip.text_tokenizer(folder, 60), AutoTokenizer.from_pretrained(folder)
        assert (ours.start, ours.end) == (theirs.bos_token_id, theirs.eos_token_id)
        assert [ours.encode(text) for text in STRINGS] == theirs(STRINGS)["input_ids"]


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(("role", "word"), [("pad_token", "!"), ("bos_token", "a</w>")])
def test_special_tokens_that_are_named_beside_a_tokenizer_json(tmp_path: Path, file: str, role: str, word: str) -> None:
    checkpoints.clip_tokenizer(tmp_path, 60).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config[role]
    for name, named in (("tokenizer_config.json", config), ("special_tokens_map.json", {})):
        (tmp_path / name).write_text(json.dumps({**named, role: word} if name == file else named))
    ours, theirs = clip.text_tokenizer(tmp_path, 60), AutoTokenizer.from_pretrained(tmp_path)
    assert (ours.start, ours.end) == (theirs.bos_token_id, theirs.eos_token_id)
    assert [ours.encode(text) for text in ("a cat!", "!! dog")] == theirs(["a cat!", "!! dog"])["input_ids"]


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_in_every_kind_of_file(
    clip_folder: Path, tmp_path: Path, kind: str, parts: int, dtype: torch.dtype
) -> None:
    folder = Path(shutil.copytree(clip_folder, tmp_path / "backbone"))
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["text_model.embeddings.position_ids"] = torch.arange(60)  # as early checkpoints have it, for nothing
    (folder / "model.safetensors").unlink()
    stem, save = ("model", save_file) if kind == "safetensors" else ("pytorch_model", torch.save)
    names = [f"{stem}-{part + 1:05}-of-{parts:05}.{kind}" for part in range(parts)] if parts > 1 else [f"{stem}.{kind}"]
    where = {name: names[index % parts] for index, name in enumerate(tensors)}
    for file in names:
        save({name: tensor for name, tensor in tensors.items() if where[name] == file}, folder / file)
    if parts > 1:
        (folder / f"{stem}.{kind}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    found = load_backbone(folder).model.state_dict()
    assert all(torch.equal(tensor, tensors[name].float()) for name, tensor in found.items())
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    if parts > 1:
        (folder / names[1]).unlink()
        with pytest.raises(UserError, match=r"cannot be read .*missing, truncated"):
            load_backbone(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_weights_of_every_type_and_with_the_name_of_the_model_in_front(
    clip_folder: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    folder = Path(shutil.copytree(clip_folder, tmp_path / "backbone"))
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({f"clip.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    found = load_backbone(folder).model.state_dict()
    assert all(torch.equal(tensor, tensors[name].float()) for name, tensor in found.items())


def _write_index(folder: Path, content: str) -> None:
    (folder / "parts").mkdir()
    (folder / "model.safetensors").rename(folder / "parts" / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(content)


def test_parts_may_lie_in_a_folder_of_the_checkpoint(clip_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(clip_folder, tmp_path / "backbone"))
    _write_index(folder, json.dumps({"weight_map": {"logit_scale": "parts/a.safetensors"}}))
    assert load_backbone(folder).fingerprint == load_backbone(clip_folder).fingerprint


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "does not say which files hold the weights"),
        ("[]", "does not say which files hold the weights"),
        ("{}", "does not say which files hold the weights"),
        ('{"weight_map": {"logit_scale": 3}}', "does not say which files hold the weights"),
        (
            '{"weight_map": {"logit_scale": "../a.safetensors"}}',
            "names '../a.safetensors', which is not in its",
        ),
    ],
)
def test_a_broken_index(
    clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, said: str
) -> None:
    """In a folder, and in the cache of the hub."""
    folder = Path(shutil.copytree(clip_folder, tmp_path / "snapshots" / "abc"))
    _write_index(folder, content)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: str(folder / "config.json"))
    for name in (str(folder), "somebody/clip"):
        with pytest.raises(UserError, match=said) as caught:
            load_backbone(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [2.3, torch.tensor(1e300, dtype=torch.float64)])
def test_weights_of_which_no_float32_can_be_made(clip_folder: Path, tmp_path: Path, value: Any) -> None:
    folder = Path(shutil.copytree(clip_folder, tmp_path / "backbone"))
    torch.save({**load_file(folder / "model.safetensors"), "logit_scale": value}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"cannot be read \(AttributeError|hold NaN or infinity \(first: logit_scale\)"):
        load_backbone(folder)


def test_what_is_fetched_from_the_hub(clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files of one commit, and of the weights only those that are read.

    They are asked for by the name of the revision: of a commit, the cache would not note which revision it is, and
    without a connection the checkpoint would not be found in it.
    """
    commit, asked = "c" * 40, {}

    def info(_self: object, repository: str, revision: str | None, timeout: float) -> SimpleNamespace:
        files = ["README.md", "tf_model.h5", "pytorch_model.bin", "model.safetensors", "config.json"]
        asked["info"] = (repository, revision, timeout > 0)
        return SimpleNamespace(sha=commit, siblings=[SimpleNamespace(rfilename=name) for name in files])

    def download(repository: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked["download"] = (repository, revision, allow_patterns)
        return str(shutil.copytree(clip_folder, tmp_path / "snapshots" / commit))

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", info)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    encoder = load_backbone("somebody/clip@v2")
    assert (encoder.name, encoder.revision) == ("somebody/clip@v2", commit)
    assert asked["info"] == ("somebody/clip", "v2", True)
    repository, revision, patterns = asked["download"]
    assert (repository, revision) == ("somebody/clip", "v2")
    assert {"config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"} <= set(patterns)
    assert not {"pytorch_model.bin", "tf_model.h5", "README.md"} & set(patterns)

    def lost(*_: object, **__: object) -> str:
        raise ConnectionError("the line went dead")

    monkeypatch.setattr("huggingface_hub.snapshot_download", lost)
    with pytest.raises(UserError, match=r"could not be fetched from the hub \(ConnectionError: the line went dead\)"):
        fetch("somebody/clip")


def test_a_checkpoint_that_was_fetched_in_part_is_fetched_again(
    clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(clip_folder, tmp_path / "snapshots" / "abc"))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: str(folder / "config.json"))
    assert fetched_before("somebody/clip") == folder
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fetched_before("somebody/clip") is None
    (folder / "part-2.safetensors").touch()
    assert fetched_before("somebody/clip") == folder


@pytest.mark.parametrize("fixture", ["clip_folder", "siglip_folder"])
@pytest.mark.parametrize("shape", [(1, 3, 39, 39), (1, 3, 16, 16), (3, 32, 32)])
def test_images_of_another_size_are_refused(
    request: pytest.FixtureRequest, fixture: str, shape: tuple[int, ...]
) -> None:
    """Also those that have as many whole patches, or one that would be added to every position."""
    encoder = load_backbone(request.getfixturevalue(fixture))
    with pytest.raises(UserError, match=r"should have \(B, 3, 32, 32\), as the preprocessing"):
        encoder.image_features(torch.zeros(shape))


def test_a_model_without_memory_takes_none() -> None:
    with torch.device("meta"):
        model = ARCHITECTURES["clip"].build(clip.read_config({}))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_clip_is_loaded_without_what_takes_seconds_to_import() -> None:
    script = "import sys; from rebapl.backbones import load_backbone; load_backbone('mini'); "
    script += "print([name for name in ('transformers', 'sklearn', 'torch._dynamo') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"
