"""Posteriors of format 1, which earlier versions wrote, are read, and predict what they did."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rebapl.backbones import DualEncoder
from rebapl.learners import METHODS, resolve_method
from rebapl.learners.registry import earlier_settings
from rebapl.posterior import load_posterior, save_posterior
from rebapl.posterior.manifest import content_sha256

FOLDER = Path(__file__).parent / "format1"
PREDICTIONS = json.loads((FOLDER / "predictions.json").read_text())
DEFAULTS = json.loads((FOLDER / "defaults.json").read_text())


@pytest.mark.parametrize("name", PREDICTIONS)
def test_it_predicts_what_it_did_and_is_saved_in_full(name: str, mini: DualEncoder, tmp_path: Path) -> None:
    views = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    posterior = load_posterior(FOLDER / name, mini)
    torch.testing.assert_close(posterior.probabilities(views), torch.tensor(PREDICTIONS[name]), atol=1e-5, rtol=1e-4)
    again = load_posterior(save_posterior(posterior, tmp_path / "p"), mini)
    assert json.loads((tmp_path / "p/posterior.json").read_text())["format"] == 2
    assert again.about == posterior.about
    assert torch.equal(again.probabilities(views), posterior.probabilities(views))


def test_old_names_of_settings_are_read(mini: DualEncoder) -> None:
    assert load_posterior(FOLDER / "ivlp", mini).about["method_settings"]["depth"] == "5/12"
    assert load_posterior(FOLDER / "zero-shot", mini).about["method_settings"]["with_own"] is True


@pytest.mark.parametrize("method", DEFAULTS)
def test_what_it_left_out_is_what_the_defaults_were(method: str) -> None:
    """When a default changes, `earlier_settings` must give the old one for posteriors of format 1."""
    then = resolve_method(method, earlier_settings(method, DEFAULTS[method]))
    assert then == resolve_method(method, earlier_settings(method, {}))
    assert then == METHODS[method].config()


@pytest.mark.parametrize(
    ("method", "today", "before"),
    [
        ("mmrl", {}, {}),
        ("maple", {"depth": "3/12"}, {"depth_of_12": 3}),
        ("promptsrc", {"depth": 2}, {"depth_of_12": 3, "depth": 2}),
    ],
)
def test_larger_ones_laid_out_by_hand(
    make: Any, encoder: DualEncoder, views: torch.Tensor, tmp_path: Path, method: str, today: dict, before: dict
) -> None:
    posterior = make(method, 2, settings=today)
    folder = save_posterior(posterior, tmp_path / "p")
    manifest = json.loads((folder / "posterior.json").read_text())
    manifest |= {"format": 1, "method_settings": before}
    del manifest["crop_scale"]
    manifest["sha256"] = content_sha256(manifest)
    (folder / "posterior.json").write_text(json.dumps(manifest))
    loaded = load_posterior(folder, encoder)
    assert loaded.about["method_settings"] == resolve_method(method, today).plain()
    assert torch.equal(loaded.probabilities(views), posterior.probabilities(views))
