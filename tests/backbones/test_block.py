"""A layer computed our way equals the layer of `transformers`: values and gradients, captured and compiled or not."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import of_transformers
from torch import Tensor

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.backbones.tower import ACTIVATIONS, Block
from rebapl.captured import Capturing
from rebapl.compiled import Compiled, compiling


def blocks(encoder: DualEncoder) -> list[Block]:
    found = [tower.layers[0] for tower in (encoder.vision, encoder.text)]
    assert all(isinstance(block, Block) for block in found)
    return found  # type: ignore[return-value]


READ = [torch.tensor([[0], [6], [3]]), torch.tensor([[0, 1, 2], [6, 5, 0], [2, 3, 4]])]
"""Positions in three sequences of seven states."""


def check(
    block: Block,
    width: int,
    ours: Any,
    device: str = "cpu",
    tolerance: float = 1e-5,
    read: Tensor | None = None,
    theirs: Block | None = None,
) -> None:
    """Ours against all states that the layer of `transformers` computes, or those of them at the positions `read`.

    `theirs` is the same layer with the module of `transformers`, in float32, if that of `block` is another.
    """
    theirs = theirs or block
    start = torch.randn(3, 7, width, generator=torch.Generator().manual_seed(0))
    along = torch.randn(3, 7, width, generator=torch.Generator().manual_seed(1)).to(device)
    given = {"is_causal": True} if block.causal else {}
    rows = torch.arange(3, device=device).unsqueeze(1)
    along = along if read is None else along[rows, read]

    def full(hidden: Tensor) -> Tensor:
        made = theirs.module(hidden, attention_mask=None, **given)
        return made if read is None else made[rows, read]

    results = []
    for way, dtype in ((full, torch.float32), (ours, block.weights.query.dtype)):
        hidden = start.to(device, dtype).requires_grad_()
        made = way(hidden)
        gradient = torch.autograd.grad((made.float() * along).sum(), hidden)[0]
        results.append((made.detach().float(), gradient.float()))
    torch.testing.assert_close(results[1], results[0], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("folder", ["clip_folder", "siglip_folder"])
@pytest.mark.parametrize("which", [0, 1], ids=["vision", "text"])
@pytest.mark.parametrize("read", [None, *READ], ids=["all positions", "one position", "three positions"])
def test_our_way_equals_that_of_transformers(
    request: pytest.FixtureRequest, folder: str, which: int, read: Tensor | None
) -> None:
    encoder = of_transformers(request.getfixturevalue(folder))
    block = blocks(encoder)[which]
    check(block, (encoder.vision, encoder.text)[which].width, lambda hidden: block(hidden, read), read=read)


def test_nothing_is_compiled_on_a_cpu(clip_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled"))
    encoder = load_backbone(clip_folder)
    with compiling():
        encoder.text_features(encoder.tokenize([["a cat"]]))


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
    encoder = of_transformers(clip_folder, "cuda")
    for block, tower in zip(blocks(encoder), (encoder.vision, encoder.text), strict=True):
        with compiling(compile):
            check(block, tower.width, block, "cuda", tolerance=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True], ids=["as usual", "compiled"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("read", READ, ids=["one position", "three positions"])
def test_on_a_gpu_the_states_that_are_read_are_those_among_all(
    clip_folder: Path, compile: bool, dtype: torch.dtype, tolerance: float, read: Tensor
) -> None:
    """Also where it is recorded as a graph and replayed, with other positions than at its recording."""
    exact, encoder = of_transformers(clip_folder, "cuda"), load_backbone(clip_folder, "cuda", dtype)
    read = read.cuda()
    for block, theirs, tower in zip(blocks(encoder), blocks(exact), (encoder.vision, encoder.text), strict=True):
        with compiling(compile):
            ours = partial(block, positions=read)
            check(block, tower.width, ours, "cuda", tolerance, read, theirs)
            capturing = Capturing()
            hidden = torch.randn(3, 7, tower.width, device="cuda", dtype=dtype)
            with torch.no_grad():
                for positions in (read, read, read, read.flip(0)):
                    replayed = capturing("a layer", block, hidden, positions).clone()
                torch.testing.assert_close(replayed, block(hidden, read.flip(0)), atol=tolerance, rtol=tolerance)
            assert not capturing.failed
