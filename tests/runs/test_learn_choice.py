"""The estimated time for prompts follows the formula, for the images that are learned from."""

from pathlib import Path

import pytest
from drawn_folder import class_folders

from rebapl.runs.config import RunConfig
from rebapl.runs.learn import Lesson
from rebapl.runs.learn_choice import Timing


def test_the_time_is_that_of_the_images_that_are_learned_from(tmp_path: Path) -> None:
    """Two classes have nine images each, and every training learns from at most four of each class. One training may
    draw them from all images, and three draw them from the six per class that are left without a fold."""
    class_folders(tmp_path / "photos", cat=9, dog=9)
    config = RunConfig(str(tmp_path / "photos"), "coop", "mle", shots=4, backbone="mini", epochs=5)
    lesson = Lesson.of(config, tmp_path / "run")
    batch = lesson.final.resolved().training.inference.batch
    assert batch >= 8
    assert Timing(image=2.0, classes=1.0).prompts(lesson) == pytest.approx(4 * 3 * 5 * (8 * 2.0 + 1 * 1.0))
