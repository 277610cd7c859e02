"""`rebapl predict` and what `rebapl evaluate` fits, as a person meets them."""

import csv
import io
import json
import math
import os
import re
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import small_run
import torch
from PIL import Image
from small_shards import rows_of, save_small
from typer.testing import CliRunner

from rebapl.cli.commands import app, main
from rebapl.cli.evaluate import _print_weights
from rebapl.cli.options import parse_fit
from rebapl.data.task import load_task
from rebapl.errors import UserError
from rebapl.evaluation.outside import outside_scores
from rebapl.evaluation.tasks import predict_part
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.runs.run import run as do_run
from rebapl.runs.shards import Shard


@pytest.fixture(scope="module")
def run(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    do_run(small_run.CONFIG.changed(test_images=10, backbone=str(nano)), out, device="cpu", score=False)
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for seed, name in enumerate(("a.png", "b [1].png", "c.jpg")):
        noise = np.random.default_rng(seed).integers(0, 256, (70, 90, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / name)
    return folder


def rebapl(*words: object) -> str:
    """What it prints; a `UserError` comes through."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_holds_the_prediction_unrounded(run: Path, images: Path) -> None:
    content = json.loads(rebapl("predict", run, images, "--format", "json", "--top", 2))
    prediction = load_posterior(run).predict(images)
    low, high = prediction.interval()
    assert content["class_names"] == ["zero", "one", "two", "three", "four"]
    assert (content["samples"], content["average"], content["interval_level"]) == (2, "probabilities", 0.9)
    for index, image in enumerate(content["images"]):
        best = int(prediction.labels[index])
        assert image["image"] == prediction.names[index]
        assert image["answer"] == image["top"][0]["class"] == content["class_names"][best]
        assert len(image["top"]) == 2
        assert image["top"][0]["probability"] == prediction.probabilities[index, best].item()
        assert image["top"][0]["low"] == low[index, best].item()
        assert image["top"][0]["high"] == high[index, best].item()
        assert image["mutual_information"] == prediction.mutual_information[index].item()
        assert image["entropy"] == prediction.predictive_entropy[index].item()


def test_csv_holds_the_same_as_json(run: Path, images: Path) -> None:
    words = ["predict", run, images / "a.png", images / "c.jpg"]
    rows = list(csv.DictReader(io.StringIO(rebapl(*words, "--format", "csv"))))
    records = json.loads(rebapl(*words, "--format", "json"))["images"]
    assert [row["image"] for row in rows] == [str(images / "a.png"), str(images / "c.jpg")]
    for row, record in zip(rows, records, strict=True):
        assert row["answer"] == record["answer"]
        for key in ("entropy", "expected_entropy", "mutual_information", "disagreement"):
            assert float(row[key]) == record[key]
        for rank, best in enumerate(record["top"], start=1):
            assert row[f"class_{rank}"] == best["class"]
            for key in ("probability", "low", "high"):
                assert float(row[f"{key}_{rank}"]) == best[key]


def test_the_table_shows_every_image_and_its_answer(run: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(images)
    shown = rebapl("predict", run, ".", "--top", 1)
    for word in ("a.png", "b [1].png", "c.jpg", "probability", "interval", "mutual information", "90%"):
        assert word in shown
    answer = json.loads(rebapl("predict", run, images, "--format", "json"))["images"][0]["answer"]
    assert answer in shown


def test_one_sample_says_that_it_has_no_uncertainty_between_samples(run: Path, images: Path, tmp_path: Path) -> None:
    alone = save_posterior(load_posterior(run).sample(0), tmp_path / "alone")
    said = CliRunner().invoke(app, ["predict", str(alone), str(images)])
    assert said.stderr.count("one sample, so it has no uncertainty of its own") == 1
    assert "take --inference rebapl or ensemble" in said.stderr
    assert "rebapl evaluate" not in said.stderr, "which scores runs, and not a posterior by itself"
    assert "one sample, so" not in said.stdout
    assert CliRunner().invoke(app, ["predict", str(run), str(images)]).stderr == ""


def test_one_sample_has_no_interval(run: Path, images: Path, tmp_path: Path) -> None:
    alone = save_posterior(load_posterior(run).sample(0), tmp_path / "alone")
    words = ["predict", alone, images / "a.png", "--top", 1]
    (best,) = json.loads(rebapl(*words, "--format", "json"))["images"][0]["top"]
    assert (best["low"], best["high"]) == (None, None)
    (row,) = csv.DictReader(io.StringIO(rebapl(*words, "--format", "csv")))
    assert (row["low_1"], row["high_1"]) == ("", "")
    shown = rebapl(*words)
    assert "one sample: no interval" in shown
    assert "…" not in shown


def test_other_class_names_from_the_command_line_or_a_file(run: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\n\nbig dog\n")
    words = ["predict", run / "posterior", images / "a.png", "--format", "json"]
    given = json.loads(rebapl(*words, "--classes", "cat, big dog"))
    assert given["class_names"] == ["cat", "big dog"]
    assert json.loads(rebapl(*words, "--classes", f"@{tmp_path / 'classes.txt'}")) == given
    averaged = json.loads(rebapl(*words, "--classes", "cat, big dog", "--average", "logits"))
    assert averaged["average"] == "logits"
    assert averaged["images"][0]["top"][0]["probability"] != given["images"][0]["top"][0]["probability"]


@pytest.mark.parametrize("kind", ["table", "json", "csv"])
def test_a_file_gets_what_the_terminal_would(run: Path, images: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "answers" / "x"
    shown = rebapl("predict", run, images, "--format", kind)
    assert "3 images" in rebapl("predict", run, images, "--format", kind, "--out", out)
    assert out.read_text() == shown


@pytest.mark.parametrize("kind", ["table", "json", "csv"])
def test_a_name_that_is_no_text_is_shown(run: Path, images: Path, tmp_path: Path, kind: str) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    try:
        (tmp_path / name).write_bytes((images / "a.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes valid names only")
    shown = rebapl("predict", run, tmp_path, "--format", kind, "--top", 1)
    assert "udce9.png" in "".join(shown.split()).replace("│", "")


@pytest.mark.parametrize("path", [".", "a.png/x.csv"])
def test_a_path_that_cannot_be_written_is_refused_before_any_work(images: Path, path: str) -> None:
    with pytest.raises(UserError, match=r"cannot be written: name a file|no _about\.json says that it is"):
        rebapl("predict", "nowhere", images, "--out", images / path)


def test_it_shows_prediction_sets_where_they_were_fitted(run: Path, images: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no prediction sets were fitted"):
        rebapl("predict", run, images, "--sets")
    with pytest.raises(UserError, match=r"prediction sets of level 0\.99 need at least 99 held-out images"):
        rebapl("evaluate", run, "--fit-conformal", "0.99")
    rebapl("evaluate", run, "--fit-conformal", "0.5")
    conformal = load_posterior(run).conformal
    assert conformal is not None
    content = json.loads(rebapl("predict", run, images, "--format", "json", "--top", "5"))
    assert content["conformal"] == {"level": 0.5, "score": "probability", "quantile": conformal.quantile}
    for record in content["images"]:
        likely = [each["class"] for each in record["top"] if 1 - each["probability"] <= conformal.quantile]
        assert record["set"] == (likely or [record["top"][0]["class"]])
    table = rebapl("predict", run, images)
    assert "set: the classes among which the right one is for 50 % of images" in table
    assert content["images"][0]["set"][0] in table
    rows = csv.DictReader(io.StringIO(rebapl("predict", run, images, "--format", "csv")))
    assert [row["set"] for row in rows] == ["; ".join(record["set"]) for record in content["images"]]
    rebapl("predict", run, images, "--shard", 2, "--device", "cpu", "--out", tmp_path / "answers")
    assert rows_of(tmp_path / "answers")["set"].tolist() == ["; ".join(record["set"]) for record in content["images"]]
    without = json.loads(rebapl("predict", run, images, "--no-sets", "--format", "json"))
    assert without["conformal"] is None
    assert {record["set"] for record in without["images"]} == {None}
    with pytest.raises(UserError, match="answers was made with conformal = "):
        rebapl("predict", run, images, "--no-sets", "--shard", 2, "--device", "cpu", "--out", tmp_path / "answers")
    with pytest.raises(UserError, match="no prediction sets were fitted"):
        rebapl("predict", run, images, "--sets", "--average", "logits")


def test_it_says_none_of_these_apart_from_i_dont_know(run: Path, images: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a false-alarm rate of 0\.05 needs at least 19 held-out images"):
        rebapl("evaluate", run, "--fit-outside", "neighbours")
    with pytest.raises(UserError, match="write the name of a score"):
        rebapl("evaluate", run, "--fit-outside", "rate=0.1")
    rebapl("evaluate", run, "--fit-outside", "neighbours,rate=0.2", "--fit-threshold", "coverage=0.1")
    posterior = load_posterior(run)
    assert posterior.outside is not None
    assert (posterior.outside.by, posterior.outside.rate, posterior.outside.images) == ("neighbours", 0.2, 10)
    expected = posterior.predict(images)
    records = json.loads(rebapl("predict", run, images, "--format", "json"))["images"]
    assert [record["outside"] for record in records] == expected.none_of_these().tolist() == [True] * 3  # noise
    assert rebapl("predict", run, images).count("none of these") == 3
    rebapl("predict", run, images, "--out", tmp_path / "answers.csv")
    assert (
        pandas.read_csv(tmp_path / "answers.csv")[["answer", "outside"]].values.tolist()
        == [["none of these", True]] * 3
    )
    rebapl("predict", run, images, "--out", tmp_path / "answers")
    assert rows_of(tmp_path / "answers")["outside"].tolist() == [True] * 3
    always = json.loads(rebapl("predict", run, images, "--no-abstain", "--format", "json"))["images"]
    assert {record["outside"] for record in always} == {None}
    assert all(record["answer"] for record in always)
    save_posterior(posterior.with_temperature(2).with_temperature(1), run / "posterior")  # as it was for other tests


def test_it_answers_at_the_fitted_temperature_and_says_so(run: Path, images: Path, tmp_path: Path) -> None:
    before = json.loads(rebapl("predict", run, images, "--format", "json"))
    rebapl("evaluate", run, "--fit-threshold", "coverage=0.5")
    with pytest.raises(UserError, match="--fit-temperature and --no-temperature contradict each other"):
        rebapl("evaluate", run, "--fit-temperature", "--no-temperature")
    shown = rebapl("evaluate", run, "--fit-temperature")
    posterior = load_posterior(run)
    assert posterior.threshold is None
    tau = posterior.temperature_for()
    assert f"temperature of the probabilities: {tau:.2f}, fitted on 10 images" in shown
    after = json.loads(rebapl("predict", run, images, "--format", "json"))
    assert (before["temperature"], after["temperature"]) == (1.0, tau)
    for soft, plain in zip(after["images"], before["images"], strict=True):
        ratio, was = (math.log(each["top"][0]["probability"] / each["top"][1]["probability"]) for each in (soft, plain))
        assert ratio == pytest.approx(was / tau, rel=1e-4)
    note = f"temperature of the probabilities: {tau:.2f}, fitted on 10 images"
    assert note in CliRunner().invoke(app, ["predict", str(run), str(images)]).stderr
    rebapl("predict", run, images, "--out", tmp_path / "answers.csv")
    rebapl("evaluate", run, "--no-temperature")
    assert load_posterior(run).temperature is None
    with pytest.raises(UserError, match="was made with temperature = "):
        rebapl("predict", run, images, "--out", tmp_path / "answers.csv")


def test_it_says_that_it_does_not_know_above_the_threshold(
    run: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="no threshold was chosen"):
        rebapl("predict", run, images, "--abstain")
    shown = rebapl("evaluate", run, "--fit-weights", "--fit-threshold", "coverage=0.1,by=entropy", "--outside", "novel")
    assert re.search(r"novel +│ max-probability.*\n│ +│ entropy", shown), shown
    threshold = load_posterior(run).threshold
    assert threshold is not None
    assert f"of {threshold.images} validation images" in shown
    assert f"wrongly. {threshold.promise}" in shown
    records = json.loads(rebapl("predict", run, images, "--abstain", "--format", "json"))["images"]
    assert [record["answer"] is None for record in records] == [r["entropy"] > threshold.value for r in records]
    unsure = [record["answer"] is None for record in records]
    assert any(unsure)  # noise is not a digit
    assert rebapl("predict", run, images, "--abstain").count("I don't know") == sum(unsure)
    rows = csv.DictReader(io.StringIO(rebapl("predict", run, images, "--abstain", "--format", "csv")))
    assert [row["answer"] == "I don't know" for row in rows] == unsure
    assert "I don't know" not in rebapl("predict", run, images, "--no-abstain")
    assert rebapl("predict", run, images).count("I don't know") == sum(unsure)  # a threshold that is there is used
    monkeypatch.setattr(Posterior, "predict_portions", lambda *_: pytest.fail("worked before refusing"))
    for other in (("--classes", "cat,dog"), ("--average", "logits")):
        with pytest.raises(UserError, match="no threshold was chosen"):
            rebapl("predict", run, images, "--abstain", *other)


def test_fitted_weights_are_shown_and_can_be_undone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = rebapl("evaluate", run, "--fit-weights")
    weights = load_posterior(run).weights
    assert f"weights: {weights[0]:.3g}, {weights[1]:.3g} (effective number of samples: " in shown
    rebapl("evaluate", run, "--uniform-weights")
    undone = load_posterior(run)
    assert undone.weights.tolist() == [0.5, 0.5]
    assert undone.earlier_weights[-1].weights == tuple(weights.tolist())
    with pytest.raises(UserError, match="give one of them"):
        rebapl("evaluate", run, "--uniform-weights", "--fit-weights")
    _print_weights(run, torch.tensor([0.99, 0.005, 0.005]))
    assert "almost all weight is on one of 3 samples" in capsys.readouterr().err


def test_outside_may_be_a_flat_folder_and_earlier_scores_stay(run: Path, images: Path) -> None:
    before = sorted(images.iterdir())
    rebapl("evaluate", run, "--uniform-weights", "--outside", "novel")
    shown = rebapl("evaluate", run, "--outside", images)
    assert re.search(rf"{re.escape(str(images))} +│ max-probability", shown), shown
    assert sorted(images.iterdir()) == before
    rebapl("evaluate", run)
    outside = json.loads((run / "results.json").read_text())["outside"]
    assert outside.keys() == {"novel", str(images)}
    trained = load_posterior(run)
    digits = load_task("digits", shots=2, test_images=10).tests["base"]
    inside = predict_part(trained, digits).uncertainty("entropy")
    expected = outside_scores(inside, trained.predict(images).uncertainty("entropy"))
    assert outside[str(images)]["entropy"]["auroc"] == pytest.approx(expected["auroc"])


def test_the_heat_map_is_drawn(run: Path) -> None:
    assert "diversity.png" in rebapl("evaluate", run, "--heat-map").replace("\n", "")
    assert (run / "diversity.png").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "xml"], "unknown format 'xml'"),
        (["--format", "parquet"], "--format parquet needs a file"),
        (["--out", "x.xls"], "its ending does not say the format"),
        (["--out", "x.csv", "--format", "json"], "contradict each other"),
        (["--average", "mean"], "unknown average 'mean'"),
        (["--classes", "cat,,dog"], "is empty"),
        (["--classes", "cat"], r"one class name \(cat\) would be the answer to every image"),
        (["--template", "a {}."], "the template has no effect: maple does not use it"),
        (["--classes", "@nowhere.txt"], r"nowhere\.txt cannot be read"),
        (["--template", "no place"], "template"),
        (["--backbone", "nowhere"], "unknown backbone 'nowhere'"),
        (["nowhere.png"], r"nowhere\.png: no such image or folder"),
    ],
)
def test_bad_input_is_refused(run: Path, images: Path, words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rebapl("predict", run, images, *words)


def test_control_characters_in_names_are_shown_as_escapes(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a\x1b[31m\nb.png").write_bytes((images / "a.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    shown = rebapl("predict", run, ".", "--classes", "c\x1bat,dog")
    assert "a\\x1b[31m\\nb.png" in "".join(shown.split()).replace("│", "")
    assert "c\\x1bat" in shown
    assert "\x1b" not in shown
    (tmp_path / "bad\x1b[2J\n.png").write_bytes(b"x")
    monkeypatch.setattr(sys, "argv", ["rebapl", "predict", str(run), "."])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert "bad\\x1b[2J\\n.png cannot be read" in said
    assert (said.count("\n"), said.count("\x1b")) == (1, 0)


def test_a_broken_image_is_named_and_skipped_and_strict_stops(run: Path, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "c.jpg"):
        (folder / name).write_bytes((images / name).read_bytes())
    (folder / "b.png").write_bytes(b"no image")
    (folder / "notes.txt").write_text("no image either")
    (folder / "gone.png").symlink_to("nowhere.png")
    said = CliRunner().invoke(app, ["predict", str(run), str(folder), "--out", str(tmp_path / "x.csv")])
    assert said.exit_code == 0, said.output
    assert said.stdout == f"3 images (1 cannot be read): {tmp_path / 'x.csv'}\n"
    assert f"skipped: {folder / 'b.png'} cannot be read (it is in no format" in said.stderr
    others = "1 file whose ending is not that of an image: 1 .txt; broken links, pipes or devices: 1"
    assert f"passed over: {others}" in " ".join(said.stderr.split())
    rows = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert [bool(row["error"]) for row in rows] == [False, True, False]
    assert (rows[1]["answer"], rows[1]["class_1"]) == ("", "")
    broken = json.loads(rebapl("predict", run, folder, "--format", "json"))["images"][1]
    assert (broken["answer"], broken["top"], broken["error"]) == (None, [], rows[1]["error"])
    assert "cannot be read" in rebapl("predict", run, folder)
    with pytest.raises(UserError, match=r"b\.png cannot be read as an image"):
        rebapl("predict", run, folder, "--strict")
    with pytest.raises(UserError, match=r"none of the 2 images can be read; the first: .*b\.png"):
        rebapl("predict", run, folder / "b.png", folder / "notes.txt")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_it_goes_on_after_what_is_written(run: Path, images: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"x.{ending}"
    rebapl("predict", run, images / "c.jpg", "--out", out)
    shown = rebapl("predict", run, images, "--out", out)
    assert shown == f"3 images (1 was there before): {out}\n"
    assert rebapl("predict", run, images, "--out", out).startswith("3 images (3 were there before)")
    frame = {"csv": pandas.read_csv, "jsonl": partial(pandas.read_json, lines=True), "parquet": pandas.read_parquet}
    found = frame[ending](out)
    assert [Path(name).name for name in found["image"]] == ["c.jpg", "a.png", "b [1].png"]
    whole = load_posterior(run).predict([images / "c.jpg", images / "a.png", images / "b [1].png"])
    assert found["entropy"].tolist() == pytest.approx(whole.predictive_entropy.tolist(), rel=1e-5)
    for words, difference in ((["--top", 2], "top = 3, not 2"), (["--classes", "x,y"], "class_names = .* not")):
        with pytest.raises(UserError, match=rf"x\.{ending} was made with {difference}.*another --out, or delete"):
            rebapl("predict", run, images, "--out", out, *words)
    other = save_posterior(load_posterior(run).sample(0), tmp_path / "other")
    with pytest.raises(UserError, match="holds answers of another run"):
        rebapl("predict", other, images, "--out", out)


def test_an_engine_writes_shards_into_a_folder(run: Path, images: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "answers", tmp_path / "x.parquet"
    (tmp_path / "list.txt").write_text("".join(f"{images / name}\n" for name in ("c.jpg", "nowhere.png", "a.png")))
    words = ["predict", str(run), "--list", str(tmp_path / "list.txt"), "--device", "cpu"]
    sharded = [*words, "--engine", "local", "--shard", "2", "--out", str(out)]
    said = CliRunner().invoke(app, sharded)
    assert said.exit_code == 0, said.output
    assert said.stdout == f"3 images (1 cannot be read): {out}\n"
    for line in (f"predicting 3 images into {out}", "shard-000001: done in", "nowhere.png cannot be read"):
        assert line in said.stderr
    rebapl(*words, "--out", whole)
    pandas.testing.assert_frame_equal(rows_of(out), pandas.read_parquet(whole), rtol=1e-5, atol=1e-6)
    assert rebapl(*sharded) == f"3 images (3 were there before, 1 cannot be read): {out}\n"
    with pytest.raises(UserError, match="answers was made with top = 3, not 1"):
        rebapl(*sharded, "--top", 1)
    (tmp_path / "list.txt").write_text(f"{images / 'b [1].png'}\n")
    assert rebapl(*sharded) == f"4 images (3 were there before, 1 cannot be read): {out}\n"
    assert rebapl(*sharded[:-1], tmp_path / "y.csv") == f"1 image: {tmp_path / 'y.csv'}\n"


def test_several_devices_write_one_file_and_say_what_limits_them(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebapl.cli.progress.EVERY_SECONDS", 0.0)
    monkeypatch.setattr("rebapl.posterior.answers.CPU_PORTION", 1)
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    rebapl("predict", run, images, "--device", "cpu", "--out", one)
    said = CliRunner().invoke(app, ["predict", str(run), str(images), "--devices", "cpu,cpu", "--out", str(two)])
    assert said.exit_code == 0, said.output
    assert re.search(
        r"predicting: 3 of 3 images, limited by (decoding|the model|writing): [\d.]+ images/s", said.stderr
    )
    pandas.testing.assert_frame_equal(pandas.read_csv(two), pandas.read_csv(one), rtol=1e-4, atol=1e-6)
    shown = json.loads(rebapl("predict", run, images / "a.png", "--devices", "cpu,cpu", "--format", "json"))
    assert shown["images"][0]["top"][0]["probability"] == pytest.approx(
        pandas.read_csv(one)["probability_1"][0], rel=1e-4
    )


@pytest.mark.parametrize("name", ["answers", "x.csv"])
def test_an_interruption_says_what_is_answered_and_how_to_go_on(
    run: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    write, out = Shard.write, tmp_path / name

    def interrupted(shard: Shard, *given: Any) -> None:
        write(shard, *given)
        raise KeyboardInterrupt

    words = ["predict", str(run), str(images), "--device", "cpu", "--shard", "2", "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "write", interrupted)
        patch.setattr(sys, "argv", ["rebapl", *words])
        with pytest.raises(SystemExit) as left:
            main()
    assert left.value.code == 130
    assert f"stopped; 2 of 3 images are answered in {out}. Go on with: rebapl predict" in capsys.readouterr().err
    assert rebapl(*words) == f"3 images (2 were there before): {out}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jobs", 2], r"--jobs do shards of a \.csv, \.jsonl or \.parquet file, or of a folder: name it"),
        (["--jobs", 2, "--out", "x.txt"], r"--jobs do shards of a \.csv"),
        (["--shard", 2], r"--shard is the size of shards of a \.csv"),
        (["--shard", 2, "--out", "x.json"], r"--shard is the size of shards of a \.csv"),
        (["--devices", "cpu,tpu9", "--out", "x.csv"], "device 'tpu9' is not available here"),
        (["--engine", "local", "--out", "{images}"], "is there already, and no _about.json says"),
        (["--engine", "local", "--out", "{images}", "--format", "csv"], "--format csv: a folder of answers holds Parq"),
        (["--engine", "ray", "--out", "answers", "--jobs", 2], "--jobs is for --engine local, not for ray"),
        (["--engine", "rai", "--out", "answers"], "unknown engine 'rai'"),
    ],
)
def test_engine_options_are_refused_before_any_work(images: Path, words: list[object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rebapl("predict", "nowhere", images, *(str(word).format(images=images) for word in words))


def test_photos_are_not_for_mini(images: Path, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "drawing.png")
    for file, warned in ((images / "c.jpg", True), (tmp_path / "drawing.png", False)):
        said = CliRunner().invoke(app, ["predict", str(save_small(tmp_path / "on-mini")), str(file)])
        assert said.exit_code == 0, said.output
        assert ("mini knows only drawings" in " ".join(said.stderr.split())) == warned


def test_lists_and_paths_through_a_pipe(run: Path, images: Path, tmp_path: Path) -> None:
    (images / "names.txt").write_text("a.png\n\nc.jpg\n")
    (images / "names.csv").write_text("path,label\nb [1].png,x\nnowhere.png,y\n")
    lists = ["--list", images / "names.txt", "--list", images / "names.csv"]
    lines = [json.loads(line) for line in rebapl("predict", run, *lists, "--format", "jsonl").splitlines()]
    assert [Path(line["image"]).name for line in lines] == ["a.png", "c.jpg", "b [1].png", "nowhere.png"]
    assert [line["error"] for line in lines] == [None, None, None, "no such image"]
    piped = CliRunner().invoke(app, ["predict", str(run), "-", "--format", "csv"], input=f"{images / 'a.png'}\n")
    assert [row["image"] for row in csv.DictReader(piped.stdout.splitlines())] == [str(images / "a.png")]
    for name in ("names.txt", "names.csv"):
        (images / name).unlink()
    with pytest.raises(UserError, match="no path came through the pipe"):
        rebapl("predict", run, "-")
    (tmp_path / "far.txt").write_text("a.png\n")
    with pytest.raises(UserError, match="none of the 1 paths in it is there; they are taken from the folder"):
        rebapl("predict", run, "--list", tmp_path / "far.txt")


def test_one_clear_line_names_the_bad_image(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.png").write_bytes(b"not an image")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["rebapl", "predict", str(run), "bad.png"])
    with pytest.raises(SystemExit) as left:
        main()
    shown = capsys.readouterr()
    assert left.value.code == 2
    assert shown.err.startswith("error: bad.png cannot be read as an image")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_damaged_exif_is_no_reason_for_warnings(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exif = Image.Exif()
    exif[0x010E] = "a long description"
    with Image.open(images / "c.jpg") as image:
        image.save(tmp_path / "x.jpg", exif=exif.tobytes()[:-12])
    monkeypatch.setattr(sys, "argv", ["rebapl", "predict", str(run), str(tmp_path / "x.jpg"), "--format", "csv"])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with Image.open(tmp_path / "x.jpg") as image:
            image.getexif()
        assert warned
        with pytest.raises(SystemExit):
            main()
        assert len(warned) == 1
    assert capsys.readouterr().out.count("x.jpg") == 1


@pytest.mark.parametrize(
    "given",
    [
        "",
        "risk",
        "risk=low",
        "risk=0.1,coverage=0.5",
        "by=entropy",
        "risk=0.1,x=2",
        "coverage=0.5,confidence=0.9",
        "risk=0.1,confidence=high",
        "risk=0.1,risk=0.2",
    ],
)
def test_thresholds_that_make_no_sense_are_refused(given: str) -> None:
    with pytest.raises(UserError, match=r"write risk=0\.05"):
        parse_fit("threshold", given)
