"""What `learn` chooses by the estimated time, and that this time follows the formula."""

import re
from pathlib import Path

import pytest
from drawn_folder import class_folders
from small_features import embed

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.runs import learn_choice
from rebapl.runs.config import RunConfig
from rebapl.runs.learn import Lesson
from rebapl.runs.learn_choice import PATIENCE, Plan, Timing, plan_lessons


def test_the_time_is_that_of_the_images_that_are_learned_from(tmp_path: Path) -> None:
    """Two classes have nine images each, and every training learns from at most four of each class. One training may
    draw them from all images, and three draw them from the six per class that are left without a fold."""
    class_folders(tmp_path / "photos", cat=9, dog=9)
    config = RunConfig(str(tmp_path / "photos"), "coop", "mle", shots=4, backbone="mini", epochs=5)
    lesson = Lesson.of(config, tmp_path / "run")
    batch = lesson.final.resolved().training.inference.batch
    assert batch >= 8
    assert Timing(image=2.0, classes=1.0).prompts(lesson) == pytest.approx(4 * 3 * 5 * (8 * 2.0 + 1 * 1.0))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "photos", cat=4, dog=4)


def planned(
    photos: Path, monkeypatch: pytest.MonkeyPatch, timing: Timing, device: str = "cuda", **given: object
) -> Plan:
    """What is planned for a machine with this timing."""
    monkeypatch.setattr(learn_choice, "kept_backbone", lambda *_: None)
    monkeypatch.setattr(Timing, "of", lambda *_: timing)
    said = {name: given.pop(name, False) for name in ("quick", "best", "anew")}
    config = RunConfig(str(photos), "", backbone="mini").changed(**given)
    return plan_lessons(config, photos.parent / "run", device, **said)  # type: ignore[arg-type]


def methods(plan: Plan) -> list[str]:
    return [lesson.final.method for lesson in plan.lessons]


def test_a_gpu_learns_a_head_and_then_prompts_if_they_take_five_minutes_at_most(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = planned(photos, monkeypatch, Timing(0.0, 0.0))
    assert methods(both) == ["tip-adapter-f", "mmrl"]
    assert [lesson.out.name for lesson in both.lessons] == ["run", "run-best"]
    seconds_of_an_image = PATIENCE / Timing(1.0, 0.0).prompts(both.lessons[1])
    below, above = (planned(photos, monkeypatch, Timing(share * seconds_of_an_image, 0.0)) for share in (0.999, 1.001))
    assert methods(below) == ["tip-adapter-f", "mmrl"]
    assert below.lines[0].endswith("some seconds to learn; then prompts (mmrl · rebapl), about 5 min")
    assert methods(above) == ["tip-adapter-f"]
    assert above.lines[0].endswith("prompts (mmrl · rebapl) would take about 5 min: --best learns them as well")
    for given, expected in (({"best": True}, ["tip-adapter-f", "mmrl"]), ({"quick": True}, ["tip-adapter-f"])):
        for share in (0.999, 1.001):
            chosen = planned(photos, monkeypatch, Timing(share * seconds_of_an_image, 0.0), **given)
            assert methods(chosen) == expected
    assert methods(planned(photos, monkeypatch, Timing(0.0, 0.0), device="cpu")) == ["tip-adapter-f"]


def test_epochs_on_a_gpu_are_those_of_the_prompts_and_refused_if_there_are_none(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, prompts = planned(photos, monkeypatch, Timing(0.0, 0.0), epochs=10).lessons
    assert (head.final.epochs == 10, prompts.final.epochs) == (False, 10)
    with pytest.raises(UserError, match="--epochs needs --quick"):
        planned(photos, monkeypatch, Timing(1e6, 0.0), epochs=10)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("linear", "takes about 80 s here to encode 8 images, and some seconds to learn"),
        ("gda", "takes about 80 s here to encode 8 images, and some seconds to learn"),
        ("zero-shot", "takes about 80 s here to encode 8 images, and some seconds to learn"),
        ("coop", "takes about {} min here to learn"),
        ("maple", "takes about {} min here to learn"),
    ],
)
def test_a_method_that_was_named_has_its_time_as_well(
    photos: Path, monkeypatch: pytest.MonkeyPatch, method: str, told: str
) -> None:
    timing = Timing(10.0, 0.0)
    epochs = None if method in ("gda", "zero-shot") else 2
    plan = planned(photos, monkeypatch, timing, method=method, epochs=epochs)
    images = sum(len(task.train.items) for task in plan.lessons[0].tasks.values())
    assert methods(plan) == [method]
    assert plan.lines == ["chosen because you asked for it; " + told.format(f"{3 * 2 * images * 10 / 60:.0f}")]


def test_stored_features_have_a_time_and_none_of_them_is_encoded(
    photos: Path, mini: DualEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = embed(mini, [photos], photos.parent / "features")
    monkeypatch.setattr(learn_choice, "encode", None)
    config = RunConfig(str(features), "", backbone="mini")
    said = {"quick": False, "best": False, "anew": False}
    for changes, line in (
        ({}, "takes some seconds to learn, since the features are there"),
        ({"method": "gda"}, "chosen because you asked for it; takes some seconds to learn, since the features are th"),
        ({"method": "coop", "epochs": 1}, r"chosen because you asked for it; takes about \d+ s here to learn"),
    ):
        plan = plan_lessons(config.changed(**changes), photos.parent / "run", "cpu", **said)
        assert re.match(line, plan.lines[0])
