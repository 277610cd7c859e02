"""`rebapl embed`, and `train`, `learn`, `predict` and `evaluate` on what it stored, as a person meets them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from small_features import pack, pictures
from typer.testing import CliRunner

from rebapl.backbones import features, load_backbone
from rebapl.cli.commands import app
from rebapl.data.batches import LabelledImages
from rebapl.data.features import StoredFeatures
from rebapl.data.folds import ALL
from rebapl.data.task import load_task
from rebapl.errors import UserError
from rebapl.evaluation import evaluate
from rebapl.learners import build_learner
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.posterior.answers import CPU_PORTION, answer_files
from rebapl.posterior.per_sample import encode_classes, unstacked
from rebapl.runs.config import RunConfig
from rebapl.runs.learn import Lesson
from rebapl.runs.run import run as do_run
from rebapl.training import fit


def rebapl(*words: object) -> str:
    """What it prints; a `UserError` comes through."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("images") / "pets", cat=20, dog=15)


@pytest.fixture(scope="module")
def exact(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features in float32."""
    out = tmp_path_factory.mktemp("features") / "exact"
    rebapl("embed", images, "--backbone", "mini", "--out", out, "--precision", "float32", "--shard", 32)
    return out


@pytest.fixture(scope="module")
def posteriors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Posteriors of two samples that nothing has trained, by method."""
    folder, encoder, stream = tmp_path_factory.mktemp("posteriors"), load_backbone("mini"), torch.Generator()
    found = {}
    for method in ("coop", "cocoop", "proda", "maple"):
        learner = build_learner(method, encoder, ["cat", "dog"], "a {}.", stream.manual_seed(1), {})
        samples = [
            {name: x.detach() + 0.3 * torch.randn(x.shape, generator=stream) for name, x in learner.named_parameters()}
            for _ in range(2)
        ]
        found[method] = Path(save_posterior(Posterior.of(learner.eval(), samples), folder / method))
    return found


@pytest.mark.parametrize("method", ["coop", "cocoop", "proda"])
def test_answers_for_features_are_those_for_the_images_to_the_last_bit(
    images: Path, exact: Path, posteriors: dict[str, Path], method: str, tmp_path: Path
) -> None:
    """The passes through the tower have the same images in both ways; of float16, they are rounded features."""
    posterior = load_posterior(posteriors[method])
    files = sorted(images.rglob("*.png"))
    of_images = [record for portion in answer_files(posterior, files) for record in portion]
    rebapl("predict", posteriors[method], exact, "--out", tmp_path / "x.jsonl")
    of_features = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [each.pop("image") for each in of_features] == [file.relative_to(images).as_posix() for file in files]
    assert of_features == [{key: value for key, value in each.items() if key != "image"} for each in of_images]


def test_float16_answers_are_those_for_rounded_features(
    images: Path, posteriors: dict[str, Path], tmp_path: Path
) -> None:
    rebapl("embed", images, "--backbone", "mini", "--out", tmp_path / "half")
    posterior = load_posterior(posteriors["coop"])
    encoder = posterior.learner.encoder
    frame = pandas.read_parquet(tmp_path / "half")
    rounded = torch.from_numpy(np.stack(frame["feature"].tolist()).astype(np.float32))
    stored = StoredFeatures.read(tmp_path / "half")
    records = [each for portion in answer_files(posterior, stored) for each in portion]
    texts = [each["text"] for each in encode_classes(posterior.learner, unstacked(posterior.samples, 2))]
    with torch.no_grad():
        expected = torch.stack([(encoder.logit_scale * rounded @ text.T).softmax(-1) for text in texts]).mean(0)
    found = [{each["class"]: each["probability"] for each in record["top"]} for record in records]
    ours = torch.tensor([[each["cat"], each["dog"]] for each in found])
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_two_jobs_embed_and_predict(images: Path, exact: Path, posteriors: dict[str, Path], tmp_path: Path) -> None:
    words = ("--backbone", "mini", "--precision", "float32", "--shard", 20, "--jobs", 2, "--quiet")
    assert rebapl("embed", images, "--out", tmp_path / "two", *words).startswith("35 images: ")
    assert "35 images (35 were there before)" in rebapl("embed", images, "--out", tmp_path / "two", *words)
    first, second = (np.stack(pandas.read_parquet(each)["feature"].tolist()) for each in (exact, tmp_path / "two"))
    np.testing.assert_allclose(first, second, atol=1e-6)
    rebapl("predict", posteriors["coop"], tmp_path / "two", "--jobs", 2, "--out", tmp_path / "answers", "--quiet")
    rebapl("predict", posteriors["coop"], exact, "--out", tmp_path / "x.parquet", "--quiet")
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(tmp_path / "answers"), pandas.read_parquet(tmp_path / "x.parquet"), rtol=1e-5, atol=1e-6
    )


def test_an_archive_is_predicted_like_its_files(images: Path, posteriors: dict[str, Path], tmp_path: Path) -> None:
    files = sorted(images.rglob("*.png"))[:6]
    tar = pack(tmp_path / "x.tar", {f"{number}.png": file.read_bytes() for number, file in enumerate(files)})
    found = json.loads(rebapl("predict", posteriors["maple"], tar, "--format", "json"))["images"]
    expected = json.loads(rebapl("predict", posteriors["maple"], *files, "--format", "json"))["images"]
    assert [each.pop("image") for each in found] == [str(tar / f"{number}.png") for number in range(6)]
    assert found == [{key: value for key, value in each.items() if key != "image"} for each in expected]


def test_what_does_not_fit_is_refused(
    images: Path, exact: Path, posteriors: dict[str, Path], nano: Path, tmp_path: Path
) -> None:
    learner = build_learner("coop", load_backbone(nano), ["cat", "dog"], "a {}.", torch.Generator(), {})
    own = [{name: x.detach() for name, x in learner.named_parameters()}]
    other = save_posterior(Posterior.of(learner.eval(), own), tmp_path / "other")
    out = ("--out", tmp_path / "x")
    for words, message in (
        (("predict", posteriors["maple"], exact), "maple changes how images are read, so that it needs the images"),
        (("predict", other, exact), r"holds features of the backbone mini .*, and this needs those of .*nano"),
        (("predict", posteriors["coop"], exact, images), "predicted by themselves: name nothing else"),
        (("predict", posteriors["coop"], exact, "--shard", 5, *out), "--shard is for images"),
        (("embed", "digits", "--unlabelled", *out), "the data set digits has its classes"),
        (("train", "--data", exact, "--protocol", "few-shot", "--method", "maple"), "maple changes how images are re"),
        (("train", "--data", exact, "--protocol", "few-shot", "--backbone", nano), "features of the backbone mini"),
        (("embed", images, *out, "--form", "csv"), "unknown form 'csv'"),
        (("embed", images, *out, "--precision", "int8"), "unknown precision 'int8'"),
        (("embed", *out), "which images"),
    ):
        with pytest.raises(UserError, match=message):
            rebapl(*words, *(["--runs", tmp_path / "runs"] if words[0] == "train" else []))


def test_a_run_on_features_trains_and_scores_as_on_the_images(exact: Path, images: Path, tmp_path: Path) -> None:
    """The backbone is that of the features. Up to rounding, scores are the same on features and on images."""
    config = RunConfig(str(exact), "coop", "ensemble", protocol="few-shot", shots=4, epochs=2)
    config = config.changed(inference_settings={"cycles": 2})
    out = do_run(config, runs=tmp_path / "runs", device="cpu")
    assert config.backbone_name == "mini"
    with pytest.raises(UserError, match="has only features of them: name the images"):
        do_run(config.changed(seed=2, corruptions=("fog@1",)), out=tmp_path / "other", device="cpu")
    assert not (tmp_path / "other").exists()
    stored = json.loads((out / "results.json").read_text())["parts"]["test"]
    task = load_task(str(images), 4, protocol="few-shot")
    scored = evaluate(load_posterior(out), task)["test"]
    for key in ("accuracy", "nll", "ece"):  # the images share their passes with others here, which rounds otherwise
        assert stored[key] == pytest.approx(scored[key], rel=1e-5), key
    again = fit(
        load_task(str(exact), 4, protocol="few-shot"),
        method="coop",
        inference="ensemble",
        epochs=2,
        inference_settings={"cycles": 2},
    )
    assert all(torch.equal(again.samples[name], stack) for name, stack in load_posterior(out).samples.items())


@pytest.mark.parametrize(
    ("method", "how"),
    [
        *(("gda", {}), ("gda", {"inference": "laplace"}), ("proker", {}), ("tip-adapter", {})),
        *((name, {"epochs": 4}) for name in ("tip-adapter-f", "lp++", "linear")),
        *((name, {"epochs": 4, "inference": "csghmc"}) for name in ("tip-adapter-f", "linear")),
    ],
)
def test_a_head_is_the_same_on_images_and_on_their_features_to_the_last_bit(
    images: Path, exact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, how: dict[str, Any]
) -> None:
    """Its samples, and its answers. `learn` and `embed` pass the images through the tower in the same portions here."""
    monkeypatch.setattr(features, "AT_ONCE", CPU_PORTION)
    lessons = [Lesson.of(RunConfig(str(data), method, backbone="mini"), tmp_path) for data in (images, exact)]
    whole, learned = LabelledImages(lessons[0].dataset, lessons[0].dataset.items), []
    for lesson in lessons:
        with features.features_kept_in(tmp_path / "kept", whole):
            learned.append(fit(lesson.tasks[ALL], "mini", method, **how))
    assert learned[0].samples
    for name, stack in learned[0].samples.items():
        assert torch.equal(learned[1].samples[name], stack), name
    answered = []
    for posterior, files in zip(learned, (sorted(images.rglob("*.png")), StoredFeatures.read(exact)), strict=True):
        records = [record for portion in answer_files(posterior, files) for record in portion]
        answered.append([{key: value for key, value in each.items() if key != "image"} for each in records])
    assert answered[0] == answered[1]


def test_learning_from_features(exact: Path, tmp_path: Path) -> None:
    out = tmp_path / "learned"
    words = ("--method", "coop", "--inference", "mle", "--epochs", 1, "--quiet")
    assert "held-out images were right" in rebapl("learn", exact, "--out", out, *words)
    assert "already learned" in rebapl("learn", exact, "--out", out, *words)
    answers = pandas.read_csv(out / "held-out.csv")
    assert set(answers["class"]) == {"cat", "dog"}


def test_several_views_of_features_are_refused_before_anything_is_done(exact: Path, tmp_path: Path) -> None:
    words = ("--data", exact, "--method", "coop", "--quiet", "epochs=1", "protocol=few-shot", "shots=2")
    with pytest.raises(UserError, match="3 views of an image need its pixels"):
        rebapl("train", *words, "--inference", "tta", "--out", tmp_path / "tta")
    rebapl("train", *words, "--inference", "mle", "--out", tmp_path / "mle")
    with pytest.raises(UserError, match="2 views of an image need its pixels"):
        rebapl("evaluate", tmp_path / "mle", "--views", 2)
    assert load_posterior(tmp_path / "mle").views == 1


def test_photos_and_their_features_are_two_runs(images: Path, exact: Path, tmp_path: Path) -> None:
    words = ("--backbone", "mini", "--quiet", "--device", "cpu", "--out", tmp_path / "run")
    rebapl("learn", images, *words)
    with pytest.raises(UserError, match="choose another --out"):
        rebapl("learn", exact, *words)


def test_test_images_are_encoded_once_for_all_runs(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other seeds, methods and kinds of inference; the scores are those without kept features, to the last bit."""
    passes, encode = [], features.encode
    monkeypatch.setattr(features, "encode", lambda *given: passes.append(len(given[1])) or encode(*given))
    config = RunConfig(str(images), "zero-shot", backbone="mini", protocol="few-shot", shots=2)
    first = do_run(config, runs=tmp_path / "runs", device="cpu")
    tested = len(load_task(str(images), protocol="few-shot").tests["test"].items)
    assert tested in passes
    passes.clear()
    second = do_run(config.changed(method="coop", epochs=1, seed=2), runs=tmp_path / "runs", device="cpu")
    assert tested not in passes, "only validation images, which the seed draws, are new"
    alone = do_run(config, runs=tmp_path / "alone", device="cpu")
    assert tested in passes
    parts = [json.loads((out / "results.json").read_text())["parts"] for out in (first, alone)]
    assert parts[0] == parts[1]
    assert sorted(path.suffix for path in (tmp_path / "runs" / ".features").iterdir()) == [".f32"] * 3
    assert second.parent == first.parent
