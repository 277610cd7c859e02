"""Nested state survives a file exactly; a damaged file is refused."""

from pathlib import Path

import pytest
import torch

from rebapl.errors import UserError
from rebapl.training.checkpoint import load_checkpoint, save_checkpoint

STATE = {
    "weights": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(True)},
    "steps": 17,
    "optimizer": {"state": {0: {"buffer": torch.ones(2, dtype=torch.bfloat16)}, 1: {}}},
    "list": [1, 2.5, None, "text", (True, torch.zeros(0))],
}


def equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    save_checkpoint(STATE, tmp_path / "state.safetensors")
    assert equal(load_checkpoint(tmp_path / "state.safetensors"), STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_checkpoint(STATE, path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match="is damaged"):
        load_checkpoint(path)


def test_what_cannot_be_stored_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_checkpoint({"steps": 1}, path)
    with pytest.raises(TypeError, match="cannot hold a set"):
        save_checkpoint({"bad": {1}}, path)
    assert load_checkpoint(path) == {"steps": 1}
