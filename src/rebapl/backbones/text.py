"""From class names to token sequences with slots for learnable vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rebapl.errors import UserError

Piece = str | int  # words, or a number of slots to be filled with learnable vectors

_NO_SPACE_BEFORE = ".,;:!?"


@dataclass(frozen=True)
class Text:
    """C token sequences cut after the longest end-of-text.

    ids (C, L), read (C,) the end-of-text positions, slots (C, b) the positions that learnable vectors fill.
    """

    ids: Tensor
    read: Tensor
    slots: Tensor

    def repeated(self, times: int) -> Text:
        """All C sequences `times` over, for text that differs from image to image."""
        return Text(self.ids.repeat(times, 1), self.read.repeat(times), self.slots.repeat(times, 1))


def clean_class_names(names: Sequence[str]) -> list[str]:
    """Class names as they are put into text: underscores become spaces. Empty and repeated names are refused."""
    cleaned = [" ".join(name.replace("_", " ").split()) for name in names]
    if not cleaned:
        raise UserError("no class names were given: at least one is needed")
    for index, name in enumerate(cleaned):
        if not name:
            raise UserError(f"class name {index} ({names[index]!r}) is empty: every class needs a name")
        if name in cleaned[:index]:
            raise UserError(f"class name {name!r} is given twice: names must differ")
    return cleaned


class TextTokenizer:
    """Turns pieces of text and slots into padded token sequences.

    `encode` maps a string to ids that begin with `start` and end with `end`, as a checkpoint's tokenizer does.
    `limit` is the number of positions the text tower has. Attention is causal, so what follows the longest
    end-of-text changes no feature and is cut off.
    """

    def __init__(self, encode: Callable[[str], list[int]], start: int, end: int, limit: int) -> None:
        self.encode = encode
        self.start = start
        self.end = end
        self.limit = limit

    def words(self, text: str, continued: bool = False) -> list[int]:
        """The ids of a text without start and end; `continued` when other words stand in front of it."""
        if not continued:
            return self._inner(text)
        lead = "a"
        joint = lead + ("" if text[0] in _NO_SPACE_BEFORE else " ") + text
        return self._inner(joint)[len(self._inner(lead)) :]

    def assemble(self, sequences: Sequence[Sequence[Piece]]) -> Text:
        """Sequences such as `[4, "cat."]`: four slots, then words. All must have equally many slots."""
        rows, slots = [], []
        for pieces in sequences:
            ids, places = [self.start], []
            for piece in pieces:
                if isinstance(piece, int):
                    places += range(len(ids), len(ids) + piece)
                    ids += [self.start] * piece
                elif piece:
                    ids += self.words(piece, continued=len(ids) > 1)
            ids.append(self.end)
            if len(ids) > self.limit:
                text = " ".join(f"[{piece} tokens]" if isinstance(piece, int) else piece for piece in pieces)
                raise UserError(
                    f"text too long: {text!r} takes {len(ids)} tokens and this backbone has room for "
                    f"{self.limit}: shorten the class name or the prompt"
                )
            rows.append(ids)
            slots.append(places)
        longest = max(map(len, rows))
        ids = torch.tensor([row + [self.end] * (longest - len(row)) for row in rows])
        read = torch.tensor([len(row) - 1 for row in rows])
        return Text(ids, read, torch.tensor(slots, dtype=torch.long).reshape(len(rows), -1))

    def _inner(self, text: str) -> list[int]:
        ids = self.encode(text)[1:-1]
        if not ids:
            raise UserError(f"the tokenizer finds nothing in {text!r}: give a name in letters or digits")
        if self.end in ids or self.start in ids:
            raise UserError(f"{text!r} contains one of the tokenizer's special tokens: choose another name")
        return ids
