"""Whatever a file holds, the answer is a right result or a `UserError` of one line, soon and in little memory."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from rebapl.backbones import load_backbone
from rebapl.backbones.text import clean_class_names
from rebapl.data.dataset import read_split
from rebapl.data.images import read_image
from rebapl.data.own_images import load_own
from rebapl.errors import UserError
from rebapl.files import content_sha256, read_json
from rebapl.learners import build_learner
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.randomness import generator
from rebapl.runs.config_file import build_config, read_config_file, read_words
from rebapl.runs.folder import config_from_json, run_folder
from rebapl.runs.results import read_result
from rebapl.training.checkpoint import load_checkpoint, save_checkpoint
from rebapl.yaml_files import read_settings_file

few = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

text = st.text(max_size=12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


def refused_or_fine(call: Any, *arguments: Any, **named: Any) -> Any:
    """What a call gives, or None if it refuses in one line. Anything else is an error of ours."""
    try:
        return call(*arguments, **named)
    except UserError as error:
        if not str(error) or "\n" in str(error):
            raise AssertionError("the error is not one line") from error
        return None


SETTINGS = (
    "data method inference protocol shots seed backbone epochs test_images split template targets cache extends".split()
)
likely = st.dictionaries(
    st.sampled_from(SETTINGS) | text,
    st.sampled_from(["digits", "coop", "rebapl", "few-shot", "mini", 1, 16, None, -1, 10**30, {"name": "maple"}])
    | plain,
    max_size=5,
)


PLACES = "sampler sampler.lr sampler.kind restart restart.kind curve curve.kind warmup epochs cycles repulsion "
PLACES += "repulsion.force repulsion.force.kind repulsion.distance recipe method self name per_image"


@few
@given(
    st.sampled_from(["mle", "rebapl", "svgd"]),
    st.dictionaries(st.sampled_from(PLACES.split()) | text, plain, max_size=3),
    st.sampled_from(["method", "inference"]),
)
def test_settings_of_a_method_and_an_inference(inference: str, content: dict[str, Any], section: str) -> None:
    chosen: dict[str, Any] = {"data": "digits", "method": {"name": "mmrl"}, "inference": {"name": inference}}
    chosen[section] = {**chosen[section], **content}
    config = refused_or_fine(build_config, chosen)
    if config is not None:
        refused_or_fine(config.resolved)


@few
@given(
    st.dictionaries(
        st.sampled_from(["ours", "paper", "variants", "about"]) | text,
        st.dictionaries(st.sampled_from(["cycles", "sampler", "sampler.lr"]) | text, plain, max_size=2) | plain,
        max_size=3,
    )
)
def test_files_of_presets(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps(content), encoding="utf-8", errors="surrogatepass")
    refused_or_fine(read_settings_file, tmp_path / "own.yaml", ["cycles", "sampler"], ["epochs"])


@few
@given(likely)
def test_settings(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "run.yaml").write_text(json.dumps(content), encoding="utf-8", errors="surrogatepass")
    found = refused_or_fine(read_config_file, tmp_path / "run.yaml")
    config = None if found is None else refused_or_fine(build_config, found)
    if config is not None:
        folder = refused_or_fine(run_folder, config, tmp_path / "runs")
        assert folder is None or folder.parent == tmp_path / "runs", "no name leads outside"
    refused_or_fine(config_from_json, content, "a job")
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@few
@given(st.binary(max_size=200) | text.map(lambda word: word.encode("utf-8", "surrogatepass")))
def test_bytes_in_the_place_of_any_text_file(tmp_path: Path, content: bytes) -> None:
    for name in ("run.yaml", "split.json", "list.csv", "posterior.json", "results.json"):
        (tmp_path / name).write_bytes(content)
    refused_or_fine(read_config_file, tmp_path / "run.yaml")
    refused_or_fine(read_split, tmp_path / "split.json")
    refused_or_fine(load_own, tmp_path / "list.csv", keep_split=False)
    refused_or_fine(read_json, tmp_path / "posterior.json", "a posterior")
    refused_or_fine(read_result, tmp_path)


@few
@given(st.lists(text, max_size=4))
def test_words(words: list[str]) -> None:
    refused_or_fine(read_words, [*words, *(f"{word}={word}" for word in words)])


item = st.tuples(text, st.integers(-1, 3), text) | plain
listed = st.lists(item, max_size=4)


@few
@given(st.fixed_dictionaries({"train": listed, "val": listed, "test": listed}) | plain)
def test_splits(tmp_path: Path, content: Any) -> None:
    (tmp_path / "split.json").write_text(json.dumps(content))
    splits = refused_or_fine(read_split, tmp_path / "split.json")
    for key, _, _ in [] if splits is None else [*splits.train, *splits.val, *splits.test]:
        assert (tmp_path / key).resolve().is_relative_to(tmp_path.resolve()), "no path leads outside"


cell = st.sampled_from(["a.png", "b.png", "../a.png", "cat", "dog", "train", "test", '"', ""]) | text


@few
@given(st.lists(st.lists(cell, min_size=1, max_size=4), max_size=6))
def test_lists(tmp_path: Path, rows: list[list[str]]) -> None:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    lines = ["path,label,split", *(",".join(row) for row in rows)]
    (tmp_path / "list.csv").write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    refused_or_fine(load_own, tmp_path / "list.csv", keep_split=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png", "list.csv"]


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    learner = build_learner("coop", load_backbone("mini"), ["cat", "dog"], None, generator(1, "start"))
    return Posterior.of(learner.eval(), [dict(learner.named_parameters())], {"seed": 1, "data": "none"})


@few
@given(st.data())
def test_manifests(tmp_path: Path, posterior: Posterior, data: st.DataObject) -> None:
    """With a right checksum, so that what is inside is looked at."""
    folder = save_posterior(posterior, tmp_path / "posterior")
    manifest = json.loads((folder / "posterior.json").read_text())
    key = data.draw(st.sampled_from(sorted(manifest)))
    value = manifest[key]
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        value[data.draw(st.sampled_from(sorted(value)))] = data.draw(plain)
    else:
        manifest[key] = data.draw(plain)
    try:
        manifest["sha256"] = content_sha256(manifest)
        (folder / "posterior.json").write_text(json.dumps(manifest), encoding="utf-8", errors="surrogatepass")
    except (TypeError, ValueError):
        return
    refused_or_fine(load_posterior, folder, posterior.learner.encoder)


shape = st.lists(st.integers(-1, 2**63), max_size=3)
header = st.dictionaries(
    text | st.sampled_from(["0", "__metadata__", "tokens"]),
    st.fixed_dictionaries(
        {"dtype": st.sampled_from(["F32", "I64", "BOOL", "X"]), "shape": shape, "data_offsets": shape}
    )
    | st.fixed_dictionaries({"outline": text, "sha256": text})
    | plain,
    max_size=3,
)


@few
@given(
    header.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=60),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
def test_headers_of_safetensors(tmp_path: Path, content: bytes, size: int, right: bool) -> None:
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(struct.pack("<Q", len(content) if right else size) + content + b"\0" * 64)
    assert refused_or_fine(load_checkpoint, path) is None


@few
@given(plain)
def test_checkpoints_come_back_as_they_were(tmp_path: Path, content: Any) -> None:
    save_checkpoint(content, tmp_path / "state.safetensors")
    assert repr(load_checkpoint(tmp_path / "state.safetensors")) == repr(content)


@few
@given(st.lists(st.text(max_size=80), min_size=1, max_size=3))
def test_class_names(posterior: Posterior, names: list[str]) -> None:
    bound = refused_or_fine(posterior.bind, names)
    assert bound is None or bound.class_names == clean_class_names(names)


FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
PICTURES = {}
for each in FORMATS:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 12), "orange").save(buffer, each)
    PICTURES[each] = buffer.getvalue()


@few
@given(st.sampled_from(FORMATS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6), st.data())
def test_images(tmp_path: Path, kind: str, changes: list[tuple[int, int]], data: st.DataObject) -> None:
    content = bytearray(PICTURES[kind])
    for place, value in changes:
        content[place % len(content)] = value
    path = tmp_path / "picture"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    picture = refused_or_fine(read_image, path)
    assert picture is None or picture.mode == "RGB"
