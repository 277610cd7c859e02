"""How long prompts would take, by the formula, for the images that are drawn."""

from pathlib import Path

import pytest
from drawn_folder import class_folders

from rebapl.runs.config import RunConfig
from rebapl.runs.learn import Lesson
from rebapl.runs.learn_choice import Timing


def test_the_time_is_that_of_the_images_that_are_learned_from(tmp_path: Path) -> None:
    """Nine images of each of two classes, at most four of which are learned from, by all trainings: one on everything,
    and three without a third, which leaves six to draw from."""
    class_folders(tmp_path / "photos", cat=9, dog=9)
    config = RunConfig(str(tmp_path / "photos"), "coop", "mle", shots=4, backbone="mini", epochs=5)
    lesson = Lesson.of(config, tmp_path / "run")
    batch = lesson.final.resolved().training.inference.batch
    assert batch >= 8
    assert Timing(image=2.0, classes=1.0).prompts(lesson) == pytest.approx(4 * 3 * 5 * (8 * 2.0 + 1 * 1.0))
