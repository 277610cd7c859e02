"""Turn class names into token sequences with slots for learnable vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rebapl.data.dataset import NOT_UNICODE
from rebapl.errors import UserError

Piece = str | int  # words, or a number of slots to be filled with learnable vectors

_NO_SPACE_BEFORE = frozenset(".,;:!?")
_SENTENCE = "The quick brown fox jumps over 13 lazy dogs, a type of animal. Sphinx of black quartz: judge my vow!"


@dataclass(frozen=True)
class Text:
    """C token sequences. As the backbone needs, they are cut after the longest one, or padded to the full length.

    `ids` has the shape (C, L). `read` (C,) holds the positions at which features are read, and `slots` (C, b) the
    positions that learnable vectors fill.
    """

    ids: Tensor
    read: Tensor
    slots: Tensor

    def repeated(self, times: int) -> Text:
        """All C sequences, repeated `times` times, for text that differs from image to image."""
        return Text(self.ids.repeat(times, 1), self.read.repeat(times), self.slots.repeat(times, 1))


def clean_class_names(names: Sequence[str]) -> list[str]:
    """Class names as they stand in a text, where underscores become spaces. Empty names are refused.

    Two classes may have the same name, as in ImageNet's published list. Then they have the same text.
    """
    if isinstance(names, str):
        raise UserError(f"class names must be a list of names; got the one string {names!r}")
    names = list(names)
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise UserError(f"class name {index} is {name!r}: every class needs a name in words")
    cleaned = [" ".join(name.replace("_", " ").split()) for name in names]
    if not cleaned:
        raise UserError("no class names were given: at least one is needed")
    for index, name in enumerate(cleaned):
        if not name:
            raise UserError(f"class name {index} ({names[index]!r}) is empty: every class needs a name")
        if NOT_UNICODE.search(name):
            raise UserError(f"class name {index} ({name!r}) is not valid Unicode: write it anew (UTF-8)")
    return cleaned


@dataclass(eq=False)
class TextTokenizer:
    """Turns pieces of text and slots into padded token sequences.

    `encode` maps a string to ids that begin with `start`, if there is one, and end with `end`, as a checkpoint's
    tokenizer does. `limit` is the number of positions of the text tower. Without `pad`, attention is causal and
    features are read at the end token. So padding after the longest sequence would change no feature and is cut off.
    With `pad`, all sequences are filled up to `limit` with it, and features are read at the last position.
    `vocabulary` has the id of every token. It only serves to distinguish tokenizers; see `fingerprint`.
    """

    encode: Callable[[str], list[int]]
    start: int | None
    end: int
    limit: int
    pad: int | None = None
    vocabulary: Mapping[str, int] | None = None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary, the special tokens, and the ids of a sentence, which depend on merges and case."""
        sentence = [] if self.vocabulary is None else self.encode(_SENTENCE)
        tokens = sorted((self.vocabulary or {}).items())
        content = repr((self.start, self.end, self.limit, self.pad, sentence, tokens))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def first(self) -> int:
        """The position of the first word or slot: 1 if there is a start token, else 0."""
        return 0 if self.start is None else 1

    def words(self, text: str, continued: bool = False) -> list[int]:
        """The ids of a text without start and end tokens. `continued` says that words or slots stand in front of it."""
        if not continued:
            return self._inner(text)
        lead = "a"
        joint = lead + ("" if set(text) <= _NO_SPACE_BEFORE else " ") + text
        ids = self._inner(joint)[len(self._inner(lead)) :]
        if not ids and text != ".":  # some tokenizers drop punctuation
            raise _nothing_in(text)
        return ids

    def assemble(self, sequences: Sequence[Sequence[Piece]]) -> Text:
        """Token sequences from pieces such as `[4, "cat."]`: four slots, then words. All must have as many slots."""
        rows, slots = [], []
        for pieces in sequences:
            ids: list[int] = [] if self.start is None else [self.start]
            filled: list[int] = []
            for piece in pieces:
                if isinstance(piece, int):
                    filled += range(len(ids), len(ids) + piece)
                    ids += [self.end if self.start is None else self.start] * piece
                elif piece:
                    ids += self.words(piece, continued=len(ids) > self.first)
            ids.append(self.end)
            if len(ids) > self.limit:
                text = " ".join(f"[{piece} tokens]" if isinstance(piece, int) else piece for piece in pieces)
                raise UserError(
                    f"text too long: {text!r} takes {len(ids)} tokens and this backbone has room for "
                    f"{self.limit}: shorten the class name or the prompt"
                )
            rows.append(ids)
            slots.append(filled)
        if self.pad is None:
            length, filler = max(map(len, rows)), self.end
            read = torch.tensor([len(row) - 1 for row in rows])
        else:
            length, filler = self.limit, self.pad
            read = torch.full((len(rows),), self.limit - 1)
        padded = torch.tensor([row + [filler] * (length - len(row)) for row in rows])
        return Text(padded, read, torch.tensor(slots, dtype=torch.long).reshape(len(rows), -1))

    def _inner(self, text: str) -> list[int]:
        ids = self.encode(text)[self.first : -1]
        if not ids:
            raise _nothing_in(text)
        if {self.start, self.end, self.pad} & set(ids):
            raise UserError(
                f"{text!r} contains one of the tokenizer's special tokens, or a character that it does not know: "
                f"choose another name"
            )
        return ids


def _nothing_in(text: str) -> UserError:
    return UserError(f"the tokenizer finds nothing in {text!r}: give a name in letters or digits")


def tokenizer_of_transformers(folder: Path) -> Any:
    """The tokenizer of a checkpoint as `transformers` reads it, which takes seconds to import."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
