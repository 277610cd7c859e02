"""Methods by name: what is refused, and where recipes come from."""

from pathlib import Path

import pytest

from rebapl.errors import UserError
from rebapl.learners import METHODS, Learner, Recipe, build_learner, published, register
from rebapl.learners.registry import FOLDER, Method
from rebapl.settings import Settings
from rebapl.yaml_files import ORIGINS


class OwnConfig(Settings):
    tokens: int = 4


@pytest.fixture
def nothing_registered_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "known", dict(METHODS))


pytestmark = pytest.mark.usefixtures("nothing_registered_stays")


def own_class(**members: object) -> type[Learner]:
    return type("Own", (Learner,), {"repels_in": None, **members})


RECIPE = Recipe(lr=0.1, epochs=3, batch=2)


def test_a_class_with_a_recipe_is_found_by_name() -> None:
    learner = register("own", OwnConfig)(own_class(recipe=RECIPE))
    assert METHODS["own"].learner is learner
    assert METHODS["own"].config is OwnConfig
    assert published("own", "few-shot", "dtd", 4) == ({}, RECIPE)
    assert METHODS.find("own").settings({"tokens": 2}) == OwnConfig(tokens=2)


def test_a_class_without_a_recipe_is_refused() -> None:
    with pytest.raises(UserError, match=r"method 'own' has no recipe: .*recipe = Recipe\(lr=.*recipes=path"):
        register("own", OwnConfig)(own_class())
    assert "own" not in METHODS


def test_a_name_that_another_class_has_is_refused() -> None:
    with pytest.raises(UserError, match=r"method 'coop' is rebapl\.learners\.coop\.CoOp already"):
        register("coop", OwnConfig)(own_class(recipe=RECIPE))
    assert METHODS["coop"].learner.__name__ == "CoOp"


def test_the_same_class_may_be_registered_again_under_its_name_only() -> None:
    learner = register("own", OwnConfig)(own_class(recipe=RECIPE))
    assert register("own", OwnConfig)(learner) is learner
    again = register("own", OwnConfig)(own_class(recipe=RECIPE))  # a notebook cell that is run twice
    assert METHODS["own"].learner is again
    with pytest.raises(UserError, match="registered as 'own' already"):
        register("other", OwnConfig)(again)


def test_a_recipe_file_beside_the_class(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("published: {lr: 0.1, epochs: 3, batch: 2}\nvariants:\n  dtd:\n    ours: {method.tokens: 7}\n")
    learner = register("own", OwnConfig, recipes=path)(own_class())
    assert learner.recipe == RECIPE
    assert published("own", "few-shot", "dtd") == ({"tokens": 7}, RECIPE)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    for look in (lambda: published("cop", "few-shot", "dtd"), lambda: METHODS.find("cop").settings()):
        with pytest.raises(UserError, match="unknown method 'cop': did you mean 'coop'"):
            look()
    with pytest.raises(UserError, match="unknown method 'cop'"):
        build_learner("cop", None, [], None, None)  # type: ignore[arg-type]


# Recipe files


def test_every_method_has_a_file_and_every_file_a_method() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(METHODS)
    for method in METHODS.values():
        assert method.recipes is not None
        layers = method.recipes.under(method.recipes.variants)
        assert {value.origin for layer in layers for value in layer.values()} <= set(ORIGINS)


def test_no_learner_names_a_data_set() -> None:
    from rebapl.data.published import PUBLISHED

    names = [name for name in PUBLISHED if name != "imagenet"]  # which also names sets of templates
    for path in FOLDER.parent.glob("*.py"):
        assert not [name for name in names if f'"{name}"' in path.read_text(encoding="utf-8")], path


def recipes(tmp_path: Path, text: str) -> Method:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    register("own", OwnConfig, recipes=path)(own_class())
    return METHODS["own"]


GENERAL = "published: {lr: 0.1, epochs: 9, batch: 2}\n"


def test_variants_lie_on_top_of_each_other_in_a_fixed_order(tmp_path: Path) -> None:
    variants = {
        "few-shot": 1,
        "few-shot@2": 2,
        "dtd": 3,
        "few-shot/dtd": 4,
        "few-shot/dtd@2": 5,
    }
    text = (
        GENERAL
        + "variants:\n"
        + "".join(f"  {key}:\n    published: {{epochs: {epochs}}}\n" for key, epochs in reversed(variants.items()))
    )
    found = recipes(tmp_path, text)

    def epochs(*arguments: object) -> int:
        return found.published(*arguments)[1].epochs  # type: ignore[arg-type]

    assert epochs("base-to-novel", "eurosat", 2) == 9
    assert [epochs("few-shot", "eurosat", shots) for shots in (None, 2, 20)] == [1, 2, 1]
    assert (epochs("base-to-novel", "dtd", 2), epochs("few-shot", "dtd"), epochs("few-shot", "dtd", 2)) == (3, 4, 5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("publised: {lr: 1}", r"unknown origin in own\.yaml 'publised': did you mean 'published'"),
        ("published: {lr: 0.1, epochs: 9}", "batch is missing"),
        (GENERAL.replace("epochs: 9", "epochs: nine"), "epochs is 'nine': it must be a whole number"),
        (GENERAL + "ours: {method.tokenz: 2}", "tokenz: there is no such setting, did you mean 'tokens'"),
        (GENERAL + "variants: {dtd: {published: {lrr: 2}}}", "unknown setting in own.yaml 'lrr': did you mean 'lr'"),
        (GENERAL + "variants: {dtd: {ours: {method.tokens: x}}}", "dtd: tokens is 'x': it must be a whole number"),
        (GENERAL + "variants: {few-shot@few: {ours: {epochs: 2}}}", "'few-shot@few' does not end in a number of shots"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        recipes(tmp_path, text)


def test_coop_trains_longer_with_more_shots() -> None:
    by_shots = {shots: published("coop", "few-shot", "dtd", shots)[1].epochs for shots in (1, 2, 4, 8, 16)}
    assert by_shots == {1: 50, 2: 100, 4: 100, 8: 200, 16: 200}
    assert {published("coop", "few-shot", "imagenet", shots)[1].epochs for shots in (1, 4, 16)} == {50}
    assert published("coop", "base-to-novel", "dtd", 1)[1].epochs == 200


def test_a_recipe_may_name_its_inference_and_settings_of_it(tmp_path: Path) -> None:
    text = "ours: {lr: 0.1, epochs: 3, batch: 4, inference.name: svgd, inference.sampler.particles: 5}"
    recipe = recipes(tmp_path, text).published("few-shot", "dtd")[1]
    assert (recipe.inference, recipe.inference_settings) == ("svgd", {"sampler": {"particles": 5}})
