"""Assembling token sequences, and class names of every sort."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from rebapl.backbones import DualEncoder, clean_class_names, load_backbone
from rebapl.errors import UserError


@pytest.fixture(scope="module", params=["clip_folder", "old_clip_folder", "siglip_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> DualEncoder:
    return load_backbone(folder)


@pytest.mark.parametrize("name", ["cat", "dog's ear", "cat/dog", "Größe", "a-b", "747-400", "Bō", "two words", ".net"])
def test_pieces_give_the_tokens_of_the_whole_sentence(folder: Path, encoder: DualEncoder, name: str) -> None:
    sentence = f"a photo of a {name}."
    whole = AutoTokenizer.from_pretrained(folder)(sentence)["input_ids"]
    for pieces in ([sentence], ["a photo of", f"a {name}."], ["a photo of a", f"{name}", "."]):
        ids = encoder.tokenize([pieces]).ids[0].tolist()
        assert ids[: len(whole)] == whole
        assert set(ids[len(whole) :]) <= {
            encoder.tokenizer.end if encoder.tokenizer.pad is None else encoder.tokenizer.pad
        }


def test_slots_stand_where_they_were_put(encoder: DualEncoder) -> None:
    first = encoder.tokenizer.first
    text = encoder.tokenize([[2, "cat", 1, "."], [2, "old dog", 1, "."]])
    cat, dog = (len(encoder.tokenizer.words(name, continued=True)) for name in ("cat", "old dog"))
    assert text.slots.tolist() == [[first, first + 1, first + 2 + n] for n in (cat, dog)]


def test_repeated_text_repeats_everything(encoder: DualEncoder) -> None:
    text = encoder.tokenize([[1, "cat"], [1, "old dog"]])
    twice = text.repeated(2)
    torch.testing.assert_close(twice.ids[2:], text.ids)
    torch.testing.assert_close(twice.read[2:], text.read)
    torch.testing.assert_close(twice.slots[2:], text.slots)


def test_text_that_is_too_long_is_refused_by_name(encoder: DualEncoder) -> None:
    name = "extraordinarily " * 60
    with pytest.raises(UserError, match=r"text too long: '\[4 tokens\] extraordinarily .* room for \d+"):
        encoder.tokenize([[4, name]])


def test_the_longest_text_that_fits_is_kept(encoder: DualEncoder) -> None:
    room = encoder.tokenizer.limit - encoder.tokenizer.first - 1
    assert encoder.tokenize([[room]]).ids.shape[1] == encoder.tokenizer.limit
    with pytest.raises(UserError, match="text too long"):
        encoder.tokenize([[room + 1]])


def test_a_name_with_a_special_token_is_refused(folder: Path, encoder: DualEncoder) -> None:
    end = AutoTokenizer.from_pretrained(folder).eos_token
    with pytest.raises(UserError, match="special tokens"):
        encoder.tokenize([[f"cat {end} dog"]])


def test_class_names_are_cleaned_and_checked() -> None:
    assert clean_class_names(["annual_crop", "  big   dog "]) == ["annual crop", "big dog"]
    assert clean_class_names(["missile", "cat", "missile"]) == ["missile", "cat", "missile"]
    for names, reason in (
        ([], "no class names"),
        (["a", "_"], r"class name 1 \('_'\) is empty"),
        (["a", b"caf\xe9".decode(errors="surrogateescape")], r"class name 1 \('caf\\udce9'\) is not valid Unicode"),
        ("cat", "must be a list of names; got the one string 'cat'"),
    ):
        with pytest.raises(UserError, match=reason):
            clean_class_names(names)
