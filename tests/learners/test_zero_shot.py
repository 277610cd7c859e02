"""Template ensembles."""

from typing import Any

import pytest
import torch
from plain import PROMPTSRC_TEMPLATES, Task, unit
from torch import Tensor

from rebapl.errors import UserError
from rebapl.learners.templates import TEMPLATE_SETS, read_templates

SEVEN = TEMPLATE_SETS["imagenet-7"]


def test_the_published_sets() -> None:
    assert {name: len(templates) for name, templates in TEMPLATE_SETS.items()} == {
        "imagenet-7": 7,
        "imagenet-60": 60,
        "imagenet-80": 80,
    }
    for templates in TEMPLATE_SETS.values():
        assert len(set(templates)) == len(templates)
        assert all(template.count("{}") == 1 and template.endswith(".") for template in templates)
    assert set(SEVEN) < set(TEMPLATE_SETS["imagenet-80"])
    assert set(TEMPLATE_SETS["imagenet-60"]) == set(PROMPTSRC_TEMPLATES)


@pytest.mark.parametrize(
    ("settings", "templates"),
    [
        ({"templates": "imagenet-7"}, [*SEVEN, "a drawing of a {}, a type of thing."]),
        ({"templates": "imagenet-7", "with_own": False}, list(SEVEN)),
        ({"templates": ["the {}.", "one {}."], "with_own": False}, ["the {}.", "one {}."]),
        ({"templates": ["a drawing of a {}, a type of thing."]}, ["a drawing of a {}, a type of thing."]),
    ],
)
def test_ensemble_is_the_mean_of_normalised_features(
    build: Any, images: Tensor, plain_task: Task, settings: dict, templates: list[str]
) -> None:
    expected = unit(sum(unit(plain_task.templated(template)) for template in templates))
    torch.testing.assert_close(build("zero-shot", settings)(images).cloud("text"), expected, atol=1e-4, rtol=1e-4)


def test_no_template_at_all_is_refused(build: Any) -> None:
    with pytest.raises(UserError, match=r"method.with_own = false leaves no template at all"):
        build("zero-shot", {"with_own": False})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("imagenet-8", "did you mean 'imagenet-80'"),
        (["a photo"], "'a photo' must hold '{}' once"),
        (["{} and {}"], "must hold '{}' once"),
        ([], "at least one"),
    ],
)
def test_bad_templates_are_refused(build: Any, given: str | list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        build("zero-shot", {"templates": given})


def test_braces_in_a_name_stay() -> None:
    assert read_templates("a {} {x}.")[0].replace("{}", "{y}") == "a {y} {x}."


def test_text_is_computed_once(build: Any, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    learners = [build(method) for method in ("zero-shot", "vpt")]
    monkeypatch.setattr(learners[0].encoder.text, "run", lambda *_: pytest.fail("text tower ran again"))
    for learner in learners:
        assert torch.equal(learner(images).cloud("text"), learner(images).cloud("text"))


def test_templates_of_a_set_that_cannot_be_read_are_left_out(
    build: Any, images: Tensor, plain_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backbone with a small vocabulary. Only templates of a named set are left out, not those that a person gives."""
    learner = build("zero-shot")
    encode = learner.encoder.tokenizer.encode

    def few_words(text: str) -> list[int]:
        if "origami" in text or "video" in text:
            raise UserError(f"{text!r}: unknown word")
        return encode(text)

    monkeypatch.setattr(learner.encoder.tokenizer, "encode", few_words)
    readable = [template for template in SEVEN if "origami" not in template and "video" not in template]
    expected = unit(sum(unit(plain_task.templated(template)) for template in readable))
    given = build("zero-shot", {"templates": "imagenet-7", "with_own": False})(images).cloud("text")
    torch.testing.assert_close(given, expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match="unknown word"):
        build("zero-shot", {"templates": ["a {}.", "a origami {}."]})


def test_a_name_that_fits_into_no_template_is_refused(build: Any) -> None:
    with pytest.raises(UserError, match="room for 77"):
        build("zero-shot", {"templates": "imagenet-7", "with_own": False}, names=["word " * 90])
