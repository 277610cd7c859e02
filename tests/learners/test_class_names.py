"""Class names as people write them: handled, or refused with the name and the reason."""

from typing import Any

import pytest
import torch
from methods import CASES
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.learners import METHODS, build_learner

ODD = ["McDonald's", "AC/DC", "Käsespätzle", "🐸", "🐸 frog", "C++", "rock & roll", "{}", "Ünïcödé, naïve"]
LONG = "a very long name of " + " ".join(["word"] * 55)
TOO_LONG = "an endless name of " + " ".join(["word"] * 90)
every_method = pytest.mark.parametrize("method", METHODS)


def logits(method: str, encoder: DualEncoder, names: list[str]) -> Tensor:
    template = "a drawing of a {}, a type of thing."
    learner = build_learner(method, encoder, names, template, torch.Generator().manual_seed(0), CASES[method].settings)
    size = encoder.preprocessing.crop
    return learner.eval()(torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))).logits


def refusal(method: str, encoder: DualEncoder, name: str) -> str | None:
    """The reason why a name is refused, or None if it is accepted."""
    try:
        given = logits(method, encoder, ["cat", name])
    except UserError as error:
        return str(error)
    assert given.isfinite().all()
    return None


@every_method
def test_odd_names_are_handled(encoder: DualEncoder, method: str) -> None:
    given = logits(method, encoder, ODD)
    assert given.isfinite().all()
    apart = (given[:, :, None] - given[:, None, :]).abs().amin(0) + 9 * torch.eye(len(ODD))
    assert apart.min() > 0, "two names have the same text"


@pytest.mark.parametrize("name", [*ODD, LONG, TOO_LONG])
def test_any_name_is_handled_or_refused_by_name(mini: DualEncoder, name: str) -> None:
    reason = refusal("maple", mini, name)
    if reason is not None:
        assert name in reason
        assert any(part in reason for part in ("too long", "finds nothing", "special tokens"))


@every_method
def test_sixty_words_fit_or_are_refused_and_ninety_are_refused(encoder: DualEncoder, method: str) -> None:
    for name in (LONG, TOO_LONG):
        reason = refusal(method, encoder, name)
        assert (reason is None and name is LONG) or (name in str(reason) and "room for 77" in str(reason))


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["cat", ""], r"class name 1 \(''\) is empty"),
        (["cat", " _ "], r"class name 1 \(' _ '\) is empty"),
        (["cat", 1], "class name 1 is 1: every class needs a name in words"),
        ([], "no class names"),
    ],
)
def test_names_that_cannot_be_are_refused(encoder: DualEncoder, names: list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        logits("coop", encoder, names)


@every_method
def test_a_name_may_come_twice_as_in_imagenets_list(encoder: DualEncoder, method: str) -> None:
    given = logits(method, encoder, ["cat", "dog", "cat"])
    torch.testing.assert_close(given[:, 0], given[:, 2])
    assert not torch.allclose(given[:, 0], given[:, 1])


def test_binding_checks_names_too(build: Any) -> None:
    with pytest.raises(UserError, match="is empty"):
        build("maple").bind(["cat", ""])
    with pytest.raises(UserError, match="template '' must hold"):
        build("maple").bind(["cat"], "")


def test_underscores_are_spaces(encoder: DualEncoder) -> None:
    torch.testing.assert_close(logits("coop", encoder, ["red_cat", "dog"]), logits("coop", encoder, ["red cat", "dog"]))
