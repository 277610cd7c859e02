"""The way of a person with photos: learn, predict, and what is said on the way."""

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import Result
from drawn_folder import class_folders, draw
from typer.testing import CliRunner

from rebapl.backbones import DualEncoder, features
from rebapl.cli.commands import app
from rebapl.errors import UserError
from rebapl.posterior import Posterior, load_posterior
from rebapl.posterior.prediction import Threshold
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import changed_files, is_finished, read_config
from rebapl.runs.learn import Answer, Lesson, _threshold

QUICK = ("--backbone", "mini", "--method", "coop", "--inference", "ensemble", "--epochs", "1")


def rebapl(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, words)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        class_folders(folder / "photos", cat=3, dog=2, emu=1)
        draw(folder / "photos" / "loose.png")
        (folder / "photos" / "cat" / "notes.txt").touch()
        return folder, rebapl("learn", "photos/", *QUICK)


@pytest.fixture(autouse=True)
def _in_the_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = "learned" in request.fixturenames
    monkeypatch.chdir(request.getfixturevalue("learned")[0] if named else tmp_path)


def test_it_says_what_it_chose_and_how_well_it_went(learned: tuple[Path, Result]) -> None:
    folder, result = learned
    assert result.exit_code == 0, result.output
    for words in (
        "photos: 6 images of 3 classes, 1 to 3 of each",
        "passed over: 1 image beside the class folders; 1 file whose ending is not that of an image: 1 .txt",
        "learns all classes by coop · ensemble, backbone mini",
        "measures itself: by cross-validation: 3 trainings",
        "of 5 held-out images were right",
        "95 % interval",
        "mixes up: ",
        '"I don\'t know": ',
        "Answered at confidence 90 % (without a promise): 0 % (",
        " %) with --risk 0.01, ",
        "not measured, because they have one image each (copies count once): emu",
        "runs/photos/held-out.csv",
        "next: rebapl predict runs/photos NEW-PHOTOS/",
    ):
        assert words in result.output, words
    assert result.output.count("mini knows only drawings") == 2
    assert not list((folder / "photos").glob("*.json"))


def test_the_posterior_is_of_every_image_and_the_answers_of_held_out_ones(learned: tuple[Path, Result]) -> None:
    run = learned[0] / "runs" / "photos"
    assert sorted(json.loads((run / "data.json").read_text())["trained"]) == sorted(
        ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png", "emu/0.png"]
    )
    rows = list(csv.DictReader((run / "held-out.csv").open()))
    assert sorted(row["image"] for row in rows) == ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png"]
    assert all(row["class"] == row["image"][:3] for row in rows)
    threshold = load_posterior(run / "posterior").threshold
    if threshold is not None:
        answered = [row for row in rows if float(row["uncertainty"]) <= threshold.value]
        assert (len(answered) / len(rows), threshold.images) == (threshold.coverage, 5)
    assert is_finished(read_config(run), run)
    assert not (run / "estimate").exists()


def test_the_same_command_again_says_that_it_is_done(learned: tuple[Path, Result]) -> None:
    again = rebapl("learn", "photos", *QUICK)
    assert again.stdout.startswith("already learned: runs/photos")
    assert again.stdout.splitlines()[1:] == learned[1].stdout.splitlines()[1:]


def test_another_risk_chooses_the_threshold_again_from_the_answers_that_are_kept(tmp_path: Path) -> None:
    """It is the one that learning with that risk chooses, and nothing is trained."""
    class_folders(tmp_path / "photos", cat=9, dog=9, emu=9)

    def learned(*words: str, out: str = "runs/photos") -> Posterior:
        result = rebapl("learn", "photos", *QUICK, "--out", out, *words)
        assert result.exit_code == 0, result.output
        return load_posterior(tmp_path / out / "posterior")

    first = learned("--risk", "0.6", "--confidence", "0")
    samples = (tmp_path / "runs/photos/posterior/samples.safetensors").stat().st_mtime_ns
    chosen = [first.threshold]
    for words, kept in (
        (("--risk", "0.4", "--confidence", "0"), ()),
        (("--risk", "0.8"), ()),  # nothing was promised before, so the confidence is the default
        (("--confidence", "0.5"), ("--risk", "0.8")),
        (("--risk", "0.9"), ("--confidence", "0.5")),
        (("--risk", "0"), ("--confidence", "0.5")),
    ):
        expected = learned(*words, *kept, out="runs/" + "-".join(words))
        again = learned(*words)
        assert again.threshold == expected.threshold
        assert again.temperature == first.temperature
        assert learned().threshold == again.threshold, "what is not asked for stays"
        chosen.append(again.threshold)
    assert len(set(chosen)) >= 3, "the risks make a difference"
    assert (tmp_path / "runs/photos/posterior/samples.safetensors").stat().st_mtime_ns == samples
    refused = rebapl("learn", "photos", *QUICK, "--no-temperature")
    assert "was learned with a temperature: give --anew" in str(refused.exception)


def test_it_cannot_be_scored_on_what_it_was_learned_from(learned: tuple[Path, Result]) -> None:  # noqa: ARG001
    assert "there are none left to score it on" in str(rebapl("evaluate", "runs/photos").exception)


def test_changed_photos_are_refused_with_what_changed_and_learned_anew_on_request(
    learned: tuple[Path, Result], request: pytest.FixtureRequest
) -> None:
    new = learned[0] / "photos" / "emu" / "new.png"
    draw(new)
    request.addfinalizer(new.unlink)
    refused = rebapl("learn", "photos", *QUICK)
    assert "photos has changed since runs/photos was learned: 1 added (emu/new.png)" in str(refused.exception)
    assert "--anew" in str(refused.exception)
    other = rebapl("learn", "photos", *QUICK, "--out", "runs/other", "--anew")
    assert "learned: runs/other" in other.stdout
    assert "of 7 held-out images" in other.stdout
    for wrong in (("--set-level", "0.99"), ("--risk", "2"), ("--epochs", "0"), ("--backbone", "no-such-folder/clip")):
        assert rebapl("learn", "photos", *QUICK, "--out", "runs/other", "--anew", *wrong).exit_code != 0
    (bad := learned[0] / "photos" / "emu" / "bad.png").write_bytes(b"no picture")
    request.addfinalizer(bad.unlink)
    refused = rebapl("learn", "photos", *QUICK, "--out", "runs/other", "--anew")
    assert "bad.png" in str(refused.exception)
    assert load_posterior(learned[0] / "runs/other").threshold, "nothing is deleted for a lesson that is refused"
    again = rebapl("learn", "photos", *QUICK, "--out", "runs/other")
    assert "bad.png" in str(again.exception)


def test_a_head_that_is_learned_anew_is_asked_for_so_and_every_broken_photo_is_named(tmp_path: Path) -> None:
    """Without a method it times the machine first, which must not hide either."""
    class_folders(tmp_path / "photos", cat=4, dog=4)
    quick = ("learn", "photos", "--backbone", "mini", "--quick")
    first = rebapl(*quick, "--risk", "0.01", "--confidence", "0.6")
    assert first.exit_code == 0, first.output
    assert "Promise" not in first.output or "Promise: none" in first.output
    assert "Answered at confidence 60 % (without a promise)" in first.output
    draw(tmp_path / "photos/dog/new.png")
    assert "1 added (dog/new.png). To learn it anew in the same place, give --anew" in str(rebapl(*quick).exception)
    for name in ("cat/bad.png", "dog/bad.png"):
        (tmp_path / "photos" / name).touch()
    refused = str(rebapl(*quick, "--anew").exception)
    assert "2 images cannot be read" in refused
    assert "cat/bad.png" in refused
    assert "dog/bad.png" in refused
    for name in ("cat/bad.png", "dog/bad.png", "dog/new.png"):
        (tmp_path / "photos" / name).unlink()
    assert "already learned" in rebapl(*quick).output
    shutil.copy(tmp_path / "photos/cat/0.png", tmp_path / "photos/cat/again.png")
    again = rebapl(*quick, "--anew").output
    assert "each counts once in estimates: 1 (cat/0.png = cat/again.png)" in again
    assert "of 8 held-out images were right" in again


def test_a_lesson_that_is_not_measured_yet_says_so_where_it_answers(learned: tuple[Path, Result]) -> None:
    estimate = learned[0] / "runs/photos/estimate"
    assert "not measured yet" not in rebapl("predict", "runs/photos", "photos/cat").stderr
    estimate.mkdir()
    try:
        assert "runs/photos is not measured yet" in rebapl("predict", "runs/photos", "photos/cat").stderr
    finally:
        estimate.rmdir()


@pytest.mark.usefixtures("learned")
def test_what_is_shared_of_a_lesson_says_who_was_asked(tmp_path: Path) -> None:
    assert rebapl("share", "runs/photos", "--to", "a/b", "--dry-run", str(tmp_path / "card")).exit_code == 0
    card = (tmp_path / "card/README.md").read_text()
    assert "| images per class | at most 32 |" in card
    assert "| held-out images, each by a training without it | 5 |" in card


def test_one_image_per_class_is_learned_and_not_measured(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", cat=1, dog=1)
    result = rebapl("learn", "photos", *QUICK)
    assert result.exit_code == 0, result.output
    assert "accuracy: unknown. No class has two different images" in result.stdout
    assert "no threshold can be chosen" in result.stdout
    assert load_posterior(tmp_path / "runs" / "photos" / "posterior").threshold is None
    assert "already learned" in rebapl("learn", "photos", *QUICK).stdout


def test_copies_of_one_photo_measure_nothing(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", cat=1, dog=1)
    for photo in list((tmp_path / "photos").rglob("*.png")):
        for number in (1, 2):
            shutil.copy(photo, photo.with_name(f"{number}.png"))
    result = rebapl("learn", "photos", *QUICK)
    assert "6 images of 2 classes, 3 of each" in result.stderr
    assert "measures itself: not at all, since no class has two different images" in result.stderr


def test_prediction_sets_of_a_method_without_parameters_are_used_by_predict(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", cat=3, dog=3)
    words = ("--backbone", "mini", "--method", "zero-shot", "--set-level", "0.8")
    assert rebapl("learn", "photos", *words).exit_code == 0
    posterior = load_posterior(tmp_path / "runs" / "photos" / "posterior")
    assert [(len(fold), len(fold.samples)) for fold in posterior.folds] == [(1, 0)] * 3
    shown = rebapl("predict", "runs/photos", "photos", "--format", "json")
    assert shown.exit_code == 0, shown.output
    assert all(image["set"] for image in json.loads(shown.stdout)["images"])


def test_prediction_sets_are_fitted_on_request(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", cat=2, dog=2)
    refused = rebapl("learn", "photos", *QUICK, "--set-level", "0.9")
    assert "prediction sets of level 0.9 need at least 9 held-out images, and there are 4" in str(refused.exception)
    assert not (tmp_path / "runs" / "photos" / "posterior").exists(), "before any training"
    result = rebapl("learn", "photos", *QUICK, "--set-level", "0.6")
    conformal = load_posterior(tmp_path / "runs" / "photos" / "posterior").conformal
    assert conformal is not None
    assert (conformal.level, conformal.images, conformal.class_names) == (0.6, 4, ("cat", "dog"))
    temperature = load_posterior(tmp_path / "runs" / "photos" / "posterior").temperature
    assert f"{temperature}, the held-out ones" in result.stdout
    assert f": {temperature.value:.2f}, fitted on 4 images" in str(temperature)
    said = f"prediction sets: at level 60 %; those of the held-out images have {conformal.size:.2f} classes on average"
    assert f"is in its set with probability {conformal.promised:.2f} or more, and usually about 0.6" in result.stdout
    assert said in result.stdout
    assert said in rebapl("learn", "photos", *QUICK, "--set-level", "0.6").stdout
    plain = rebapl("learn", "photos", *QUICK, "--no-temperature", "--out", "runs/plain")
    assert "temperature" not in plain.stdout
    assert load_posterior(tmp_path / "runs" / "plain" / "posterior").temperature is None
    other = rebapl("learn", "photos", *QUICK, "--set-level", "0.7")
    assert "was learned without prediction sets of level 0.7" in str(other.exception)


def test_the_threshold_keeps_the_risk_and_leaves_the_least_sure_unanswered() -> None:
    """Of 40 answers with ever less confidence, all right: 38 are answered. With three wrong ones first: none can be."""
    posterior: Any = SimpleNamespace(class_names=["cat", "dog"], average="probabilities")

    def threshold(*wrong: int, risk: float = 0.05) -> Threshold | None:
        answers = [Answer("", "cat", "dog" if i in wrong else "cat", 0.9, (i + 1) / 100) for i in range(40)]
        return _threshold(answers, posterior, risk, 0.9)

    found = threshold()
    assert found is not None
    assert (found.coverage, found.risk, found.promised) == (0.95, 0.0, None), "38 answers are too few for a promise"
    found = threshold(risk=0.1)
    assert found is not None
    assert (found.coverage, found.promised, found.confidence) == (0.95, 0.1, 0.9), "0.9^22 is below a tenth"
    found = threshold(*range(10, 20))
    assert found is not None
    assert (found.coverage, found.risk) == (0.25, 0.0)
    assert threshold(*range(3), *range(10, 20)) is None


@pytest.mark.parametrize(
    ("counts", "spoil", "message"),
    [
        ({"cat": 2}, None, "has one class, 'cat'"),
        ({"cat": 2, "dog": 0}, None, "has no images"),
        ({"cat": 2, "dog": 2}, "cat/0.png", "0.png cannot be read as an image"),
    ],
)
def test_bad_photos_are_one_line_before_any_work(
    tmp_path: Path, counts: dict[str, int], spoil: str | None, message: str
) -> None:
    photos = class_folders(tmp_path / "photos", **counts)
    for name in counts:
        (photos / name).mkdir(exist_ok=True)
    if spoil:
        (photos / spoil).write_bytes(b"no image")
    error = str(rebapl("learn", "photos", *QUICK).exception)
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "runs").exists()


def test_training_on_half_of_ones_classes_says_so_and_that_mini_knows_only_drawings(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", cat=3, dog=3, emu=3, fox=3)
    result = rebapl("train", "--data", "photos", "--backbone", "mini", "--epochs", "1", "--out", "runs/x")
    assert "warning: learning 2 of 4 classes (cat, dog)" in result.stderr
    assert "To learn all of them: rebapl learn photos" in result.stderr
    assert "mini knows only drawings" in result.stderr
    sampled = result.stdout.splitlines()[-1]
    assert "this run has one sample, so it has no uncertainty of its own" in sampled
    assert "rebapl evaluate runs/x --outside FOLDER" in sampled
    draw(tmp_path / "photos" / "emu" / "new.png")
    again = rebapl("train", "--data", "photos", "--backbone", "mini", "--epochs", "1", "--out", "runs/x")
    assert "1 images are new since the split was made: emu/new.png" in str(again.exception)
    (tmp_path / "photos" / "split_rebapl.json").unlink()
    again = rebapl("train", "--data", "photos", "--backbone", "mini", "--epochs", "1", "--out", "runs/x")
    assert "have changed since runs/x was begun: 1 added (emu/new.png)" in str(again.exception)
    scored = rebapl("evaluate", "runs/x")
    assert "have changed since runs/x was begun: 1 added (emu/new.png)" in str(scored.exception)


def test_a_folder_that_has_moved_is_scored_where_it_is(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", cat=3, dog=3)
    few_shot = ("--protocol", "few-shot", "--backbone", "mini", "--epochs", "1", "--out", "runs/x")
    assert rebapl("train", "--data", "photos", *few_shot).exit_code == 0
    (tmp_path / "photos").rename(tmp_path / "pictures")
    assert "if it has moved, say where with --data" in str(rebapl("evaluate", "runs/x").exception)
    assert rebapl("evaluate", "runs/x", "--data", "pictures").exit_code == 0
    assert "already trained" in rebapl("train", "--data", "pictures", *few_shot).stdout


def test_what_is_known_before_any_work_is_said_before_anything_else(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", cat=3, dog=3)
    (tmp_path / "file").touch()
    for words in (["--inference", "rebap"], ["--set-level", "1.5"], ["--out", "file/x"], ["--set-level", "0.99"]):
        refused = rebapl("learn", "photos", *QUICK, *words)
        assert isinstance(refused.exception, UserError), words
        assert "learns all classes" not in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_an_empty_file_of_answers_is_damaged(learned: tuple[Path, Result]) -> None:
    path = learned[0] / "runs" / "photos" / "held-out.csv"
    content = path.read_text()
    try:
        for empty in ("", content.splitlines()[0] + "\n"):
            path.write_text(empty)
            assert "held-out.csv is damaged (it has no rows)" in str(rebapl("learn", "photos", *QUICK).exception)
    finally:
        path.write_text(content)


def test_an_estimate_that_a_kill_has_left_is_removed(learned: tuple[Path, Result]) -> None:
    (learned[0] / "runs" / "photos" / "estimate").mkdir()
    assert "already learned" in rebapl("learn", "photos", *QUICK).stdout
    assert not (learned[0] / "runs" / "photos" / "estimate").exists()


def test_a_bit_that_changes_in_the_held_out_answers_is_noticed_and_reported(learned: tuple[Path, Result]) -> None:
    run = learned[0] / "runs" / "photos"
    path, whole = run / "held-out.csv", (run / "held-out.csv").read_bytes()
    assert changed_files(run) == []
    try:
        path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        assert changed_files(run) == ["held-out.csv"]
        result = rebapl("report", "runs/photos", "--out", "report.html")
        assert result.exit_code == 0, result.output
        assert "held-out.csv" in Path("report.html").read_text(encoding="utf-8")
    finally:
        path.write_bytes(whole)


def test_where_nothing_is_said_a_head_is_learned_in_seconds_and_prompts_are_offered_with_their_time() -> None:
    class_folders(Path("photos"), cat=4, dog=4)
    result = rebapl("learn", "photos", "--backbone", "mini", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "learns all classes by tip-adapter-f · mle, backbone mini" in result.stderr
    assert "here to encode 8 images, and some seconds to learn; prompts (mmrl · rebapl) would take" in result.stderr
    assert not Path("runs/photos-best").exists()
    assert load_posterior("runs/photos").about["method"] == "tip-adapter-f"
    assert "already learned: runs/photos" in rebapl("learn", "photos", "--backbone", "mini", "--device", "cpu").stdout


def test_the_best_is_prompts_after_a_head_and_both_are_compared() -> None:
    class_folders(Path("photos"), cat=4, dog=4)
    words = ("learn", "photos", "--backbone", "mini", "--device", "cpu", "--epochs", "2")
    result = rebapl(*words, "--best")
    assert result.exit_code == 0, result.output
    assert "then prompts (mmrl · rebapl), about " in result.stderr
    both = [load_posterior(f"runs/{name}").about["method"] for name in ("photos", "photos-best")]
    assert both == ["tip-adapter-f", "mmrl"]
    epochs = [load_posterior(f"runs/{name}").about["inference"]["epochs"] for name in ("photos", "photos-best")]
    assert epochs[1] < 2 < epochs[0], "those of the prompts: 0.2 of 2 in a short cycle, at least one"
    compared = result.stdout.splitlines()[-1]
    nll = {name: json.loads(Path(f"runs/{name}/results.json").read_text())["parts"]["test"]["nll"] for name in BOTH}
    assert compared.endswith(f"The lower NLL has runs/{min(nll, key=nll.__getitem__)}")
    assert all(f"NLL {value:.3f}" in compared for value in nll.values())
    assert rebapl(*words).stdout.splitlines()[-1] == compared, "what was begun goes on"


BOTH = ("photos", "photos-best")


def test_images_that_are_there_to_test_measure_it_and_are_learned_in_the_end() -> None:
    for part, count in (("train", 3), ("test", 2)):
        class_folders(Path("photos") / part, cat=count, dog=count)
    result = rebapl("learn", "photos", *QUICK)
    assert "photos: 10 images of 2 classes, 5 of each" in result.output
    assert "measures itself: on the test images that the data have, by a training without them" in result.output
    assert "of 4 held-out images were right" in result.stdout
    rows = csv.DictReader(Path("runs/photos/held-out.csv").read_text().splitlines())
    assert {Path(row["image"]).parts[0] for row in rows} == {"test"}
    assert len(json.loads(Path("runs/photos/data.json").read_text())["trained"]) == 10


def test_a_class_without_an_image_that_could_be_held_out_is_named(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos" / "test", cat=2, dog=1, emu=1).parent
    class_folders(photos / "train", cat=2, emu=2)
    (photos / "train" / "dog").mkdir()
    shutil.copy(photos / "test/dog/0.png", photos / "train/dog/copy.png")
    lesson = Lesson.of(RunConfig(str(photos), "tip-adapter-f", backbone="mini"), tmp_path / "out")
    assert lesson.unmeasured == ["dog"]
    assert {item.class_name for item in lesson.held_out("test").items} == {"cat", "emu"}
    assert {item.class_name for item in lesson.tasks["test"].train.items} == {"cat", "dog", "emu"}


def test_two_ways_to_say_what_is_learned_are_refused() -> None:
    class_folders(Path("photos"), cat=2, dog=2)
    alone = rebapl("learn", "photos", "--backbone", "mini", "--device", "cpu", "--epochs", "2")
    assert "--epochs needs --quick (for the head), --best" in str(alone.exception)
    for words in (("--quick", "--best"), ("--quick", "--method", "coop")):
        assert "give one of them" in str(rebapl("learn", "photos", "--backbone", "mini", *words).exception)
    assert not Path("runs").exists()


def test_the_images_of_all_folds_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(Path("photos"), cat=4, dog=4)
    seen: list[int] = []
    original = features.encode

    def counted(encoder: DualEncoder, views: torch.Tensor) -> torch.Tensor:
        seen.append(len(views))
        return original(encoder, views)

    monkeypatch.setattr(features, "encode", counted)
    assert rebapl("learn", "photos", "--backbone", "mini", "--device", "cpu", "--quick").exit_code == 0
    assert seen == [8]
