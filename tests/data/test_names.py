"""Class-name rules, against the names in the published split files."""

import json
from pathlib import Path

import pytest

from rebapl.data.published import NAME_RULES, PUBLISHED, place_last, words_apart, year_first


@pytest.mark.shared
@pytest.mark.parametrize("name", ["caltech101", "dtd", "eurosat", "oxford_pets", "ucf101"])
def test_paths_give_the_published_names(shared: Path, name: str) -> None:
    raw = json.loads((shared / "splits" / PUBLISHED[name].lists[0]).read_text())
    entries = [entry for items in raw.values() for entry in items]
    assert len({label for _, label, _ in entries}) == PUBLISHED[name].classes
    for key, _, published in entries:
        assert NAME_RULES[name](key) == published


@pytest.mark.shared
def test_words_of_ucf101_come_apart_as_published(shared: Path) -> None:
    raw = json.loads((shared / "splits" / "split_zhou_UCF101.json").read_text())
    together = {(Path(key).stem.split("_")[1], name) for items in raw.values() for key, _, name in items}
    assert len(together) == 101
    assert {(word, name) for word, name in together if words_apart(word) != name} == {
        ("HandStandPushups", "Handstand_Pushups")  # the videos' own spelling differs from their folder's
    }
    assert words_apart("HandstandPushups") == "Handstand_Pushups"


def test_rules_without_a_published_file_here() -> None:
    assert year_first("AM General Hummer SUV 2000") == "2000 AM General Hummer SUV"
    assert place_last("t/theater/indoor_procenium") == "indoor_procenium theater"
    assert NAME_RULES["sun397"]("a/apartment_building/outdoor/sun_x.jpg") == "outdoor apartment_building"
    assert NAME_RULES["sun397"]("a/abbey/sun_x.jpg") == "abbey"
    assert NAME_RULES["food101"]("apple_pie/1005649.jpg") == "apple_pie"
    assert NAME_RULES["caltech101"]("BACKGROUND_Google/image_0001.jpg") is None
    assert NAME_RULES["eurosat"]("Desert/Desert_1.jpg") is None
    assert "stanford_cars" not in NAME_RULES
