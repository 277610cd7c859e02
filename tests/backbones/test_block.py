"""A layer computed our way equals the layer of `transformers`: values and gradients, captured and compiled or not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.backbones.block import ACTIVATIONS, Block, layer
from rebapl.compiled import Compiled, compiling


def blocks(encoder: DualEncoder) -> list[Block]:
    found = [tower.layers[0] for tower in (encoder.vision, encoder.text)]
    assert all(isinstance(block, Block) for block in found)
    return found  # type: ignore[return-value]


def by_our_way(block: Block, hidden: Tensor) -> Tensor:
    return layer(hidden, block.weights, block.heads, block.epsilon, block.activation, block.causal)


def check(block: Block, width: int, ours: Any, device: str = "cpu", tolerance: float = 1e-5) -> None:
    start = torch.randn(3, 7, width, generator=torch.Generator().manual_seed(0)).to(device)
    along = torch.randn(3, 7, width, generator=torch.Generator().manual_seed(1)).to(device)
    given = {"is_causal": True} if block.causal else {}
    results = []
    for way in (lambda hidden: block.module(hidden, attention_mask=None, **given), ours):
        hidden = start.clone().requires_grad_()
        made = way(hidden)
        results.append((made.detach(), *torch.autograd.grad((made * along).sum(), hidden)))
    torch.testing.assert_close(results[1], results[0], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("folder", ["clip_folder", "siglip_folder"])
@pytest.mark.parametrize("which", [0, 1], ids=["vision", "text"])
def test_our_way_equals_that_of_transformers(request: pytest.FixtureRequest, folder: str, which: int) -> None:
    encoder = load_backbone(request.getfixturevalue(folder))
    block = blocks(encoder)[which]
    check(block, (encoder.vision, encoder.text)[which].width, lambda hidden: by_our_way(block, hidden))


def test_every_activation_is_that_of_transformers() -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-5, 5, 101)
    for name, own in ACTIVATIONS.items():
        torch.testing.assert_close(own(x), ACT2FN[name](x))


def test_compiling_happens_where_it_is_asked_for_and_failing_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compiled(function: Any, **_: Any) -> Any:
        def fast(x: Tensor) -> Tensor:
            if len(x) == 3:
                raise RuntimeError("no compiler here\nand more")
            asked.append(len(x))
            return function(x)

        return fast

    monkeypatch.setattr(torch, "compile", compiled)
    double = Compiled(lambda x: 2 * x)
    assert double(torch.ones(2)).tolist() == [2, 2]
    assert not asked
    with compiling():
        assert double(torch.ones(2)).tolist() == [2, 2]
        with compiling(False):
            double(torch.ones(1))
        with pytest.warns(RuntimeWarning, match=r"could not be compiled .* \(no compiler here\)") as said:
            assert [double(torch.ones(3)).sum().item() for _ in range(3)] == [6, 6, 6]
    assert asked == [2]
    assert len(said) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True], ids=["as usual", "compiled"])
def test_on_a_gpu_a_layer_equals_that_of_transformers(clip_folder: Path, compile: bool) -> None:
    encoder = load_backbone(clip_folder, "cuda", torch.float32)
    for block, tower in zip(blocks(encoder), (encoder.vision, encoder.text), strict=True):
        with compiling(compile):
            check(block, tower.width, block, "cuda", tolerance=1e-4)
