"""Tokens put in at each layer of each tower, against a loop over the modules of `transformers` written out by hand."""

from pathlib import Path

import pytest
import torch
from checkpoints import of_transformers
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, Insert, Replace, States, Tower

N = 2  # tokens put in


@pytest.fixture(scope="module")
def encoders(clip_folder: Path, siglip_folder: Path) -> dict[str, DualEncoder]:
    return {"clip": of_transformers(clip_folder), "siglip": of_transformers(siglip_folder)}


def start(encoder: DualEncoder, side: str) -> tuple[Tower, States]:
    if side == "vision":
        pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        return encoder.vision, encoder.embed_images(pixels)
    return encoder.text, encoder.embed_text(encoder.tokenize([["a photo of a cat."], ["the old dog"], ["rain"]]))


def tokens(tower: Tower, rows: int | None = None) -> Tensor:
    shape = (N, tower.width) if rows is None else (rows, N, tower.width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def by_hand(encoder: DualEncoder, side: str, states: States, layer: int, change) -> Tensor:
    """All states that leave the last layer; `change` rewrites a sequence (L, d) before `layer`."""
    model = encoder.model.vision_model if side == "vision" else encoder.model.text_model
    causal = encoder.model.config.model_type == "clip" and side == "text"
    rows = []
    for row, hidden in enumerate(states.hidden):
        x = hidden
        for index, block in enumerate(model.encoder.layers):
            if index == layer:
                x = change(x, row)
            if index == 0:
                x = getattr(model, "pre_layrnorm", nn.Identity())(x)
            mask = torch.full((len(x), len(x)), -torch.inf).triu(1) if causal else torch.zeros(len(x), len(x))
            x = block(x[None], attention_mask=mask[None, None])[0]
        rows.append(x)
    return torch.stack(rows)


CASES = [(kind, side, layer) for kind in ("clip", "siglip") for side in ("vision", "text") for layer in (0, 2)]


@pytest.mark.parametrize(("kind", "side", "layer"), CASES)
@pytest.mark.parametrize("at", [1, None, -1])
def test_insert(encoders: dict[str, DualEncoder], kind: str, side: str, layer: int, at: int | None) -> None:
    tower, states = start(encoders[kind], side)
    new = tokens(tower, rows=3)

    def change(x: Tensor, row: int) -> Tensor:
        place = len(x) if at is None else at % len(x)
        return torch.cat([x[:place], new[row], x[place:]])

    found = tower.run(states, {layer: Insert(new, at)})
    torch.testing.assert_close(found.hidden, by_hand(encoders[kind], side, states, layer, change), atol=1e-5, rtol=1e-5)
    place = states.hidden.shape[1] if at is None else at % states.hidden.shape[1]
    assert found.read.tolist() == [r + N if r >= place else r for r in states.read.tolist()]


@pytest.mark.parametrize(("kind", "side", "layer"), CASES)
@pytest.mark.parametrize("mix", [1.0, 0.3])
def test_replace_shares_tokens_between_sequences(
    encoders: dict[str, DualEncoder], kind: str, side: str, layer: int, mix: float
) -> None:
    tower, states = start(encoders[kind], side)
    new = tokens(tower)

    def change(x: Tensor, _: int) -> Tensor:
        x = x.clone()
        x[-N:] = mix * new + (1 - mix) * x[-N:]
        return x

    found = tower.run(states, {layer: Replace(new, -N, mix)})
    torch.testing.assert_close(found.hidden, by_hand(encoders[kind], side, states, layer, change), atol=1e-5, rtol=1e-5)
    assert found.read.tolist() == states.read.tolist()


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("side", ["vision", "text"])
def test_the_walk_can_stop_and_go_on(encoders: dict[str, DualEncoder], kind: str, side: str) -> None:
    tower, states = start(encoders[kind], side)
    edits = {1: Insert(tokens(tower), 1)}
    halfway = tower.run(states, stop=1)
    assert halfway.layer == 1
    whole, continued = tower.run(states, edits), tower.run(halfway, edits)
    assert torch.equal(whole.hidden, continued.hidden)
    assert torch.equal(tower.features(whole), tower.features(continued))
    assert torch.equal(tower.features(states, edits), tower.features(halfway, edits))


@pytest.mark.parametrize(("kind", "side", "layer"), CASES)
@pytest.mark.parametrize("at", [1, None, -1])
def test_features_and_their_gradients_are_those_of_all_positions(
    encoders: dict[str, DualEncoder], kind: str, side: str, layer: int, at: int | None
) -> None:
    """The texts have different lengths, and tokens are put in before, behind and at the positions that are read."""
    tower, states = start(encoders[kind], side)
    found = []
    for by_edits in (True, False):
        new = tokens(tower).requires_grad_()
        edits = {layer: Insert(new, at)}
        if by_edits:
            features = tower.features(states, edits)
        else:
            place = states.hidden.shape[1] if at is None else at % states.hidden.shape[1]

            def change(x: Tensor, _: int, new: Tensor = new, place: int = place) -> Tensor:
                return torch.cat([x[:place], new, x[place:]])

            hidden = tower.last_norm(by_hand(encoders[kind], side, states, layer, change))
            read = states.read + N * (states.read >= place)
            features = tower.projection(tower.pool(hidden) if tower.pool else hidden[torch.arange(3), read])
        along = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
        found.append((features, *torch.autograd.grad((features * along).sum(), new)))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_the_states_behind_the_read_one_are_those_of_all_positions(encoders: dict[str, DualEncoder]) -> None:
    tower, states = start(encoders["clip"], "vision")
    edits = {1: Insert(tokens(tower), 1), 2: Replace(tokens(tower), 1, 0.5)}
    found = tower.last_states(states, edits, 1 + N)
    expected = tower.last_norm(tower.run(states, edits).hidden)[:, : 1 + N]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_slots_are_filled_before_positions_are_added(encoders: dict[str, DualEncoder], kind: str) -> None:
    encoder = encoders[kind]
    text = encoder.tokenize([[N, "cat."], [N, "the old dog."]])
    first = encoder.tokenizer.first
    assert text.slots.tolist() == [[first, first + 1]] * 2
    fill = tokens(encoder.text)
    plain, filled = encoder.embed_text(text).hidden, encoder.embed_text(text, fill).hidden
    positions = encoder.model.text_model.embeddings.position_embedding.weight
    expected = plain.clone()
    expected[:, first : first + N] = fill + positions[first : first + N]
    torch.testing.assert_close(filled, expected)


@pytest.mark.parametrize(
    "edit", [Replace(torch.zeros(4, 8), -3), Replace(torch.zeros(4, 8), 3), Insert(torch.zeros(1, 8), 7)]
)
def test_edits_that_do_not_fit_are_refused(edit: Insert | Replace) -> None:
    states = States(torch.zeros(2, 6, 8), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="do not fit into a sequence of 6"):
        states.edited(edit)
