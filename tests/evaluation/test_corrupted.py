"""Scores on corrupted test images equal those of predicting the corrupted views, and are stored with the others."""

from pathlib import Path

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from small_run import CONFIG

from rebapl.backbones import load_backbone
from rebapl.backbones.features import features_kept_in
from rebapl.data.batches import LabelledImages
from rebapl.data.corruptions import named_corruptions
from rebapl.data.embedded import noise_images
from rebapl.data.task import Part
from rebapl.errors import UserError
from rebapl.evaluation.corrupted import score_corruptions
from rebapl.evaluation.scores import scores
from rebapl.evaluation.tasks import evaluate, part_labels, score_outside
from rebapl.posterior.outside import FEATURE_SCORES, LOGIT_SCORES, OUTSIDE_SCORES
from rebapl.posterior.prediction import UNCERTAINTIES
from rebapl.reports.results import corruption_table
from rebapl.runs.results import RunResult, read_result
from rebapl.runs.run import Job, evaluate_run, run
from rebapl.training.fit import fit


@pytest.mark.parametrize("method", ["coop", "linear", "vpt"])  # the first two may see features of clean images
def test_scores_are_those_of_the_corrupted_views(nano: Path, tmp_path: Path, method: str) -> None:
    task, encoder = CONFIG.task(), load_backbone(nano)
    posterior = fit(task, encoder, method, "mle", epochs=1)
    heard: list[tuple[int, int]] = []
    chosen = named_corruptions(["contrast@5", "gaussian-noise@2"])
    with features_kept_in(tmp_path):
        clean = evaluate(posterior, task, ["base"])["base"]  # keeps the features of the clean images
        found = score_corruptions(posterior, task, chosen, progress=lambda *moved: heard.append(moved))
    assert heard == [(30, 60), (60, 60)]
    assert found.keys() == {"contrast", "gaussian-noise"}
    part = task.tests["base"]
    views = LabelledImages(part.dataset, part.items).views(encoder.preprocessing)
    spoiled = chosen[1](views, [item.key for item in part.items])
    assert found["gaussian-noise"]["2"] == scores(posterior.predict_views(spoiled).probabilities, part_labels(part))
    assert found["gaussian-noise"]["2"]["nll"] != clean["nll"]


def test_outside_scores_of_noise(nano: Path) -> None:
    task = CONFIG.task()
    posterior = fit(task, load_backbone(nano), "coop", "ensemble", epochs=1)
    found = score_outside(posterior, task, ["noise"])["noise"]
    noise = noise_images()
    inside, outside, train = (
        LabelledImages(part.dataset, part.items).views(posterior.learner.encoder.preprocessing)
        for part in (task.tests["base"], Part(["noise"], noise.test, noise), task.train)
    )
    known, strange = posterior.predict_views(inside), posterior.predict_views(outside)
    expected = {by: (known.outside_score(by), strange.outside_score(by)) for by in (*UNCERTAINTIES, *LOGIT_SCORES)}
    for by, score in FEATURE_SCORES.items():
        bank = score.keep(posterior.image_features(train), part_labels(task.train))
        expected[by] = tuple(score.score(posterior.image_features(views), bank) for views in (inside, outside))
    assert found.keys() == expected.keys() == {*OUTSIDE_SCORES}
    truth, a_pair = [0] * len(inside) + [1] * len(outside), 100 / (len(inside) * len(outside))
    for by, values in expected.items():  # up to the order of one pair, which rounding might change
        both = torch.cat(values).double().numpy()
        assert found[by]["auroc"] == pytest.approx(100 * roc_auc_score(truth, both), abs=1.01 * a_pair), by
        assert found[by]["aupr"] == pytest.approx(100 * average_precision_score(truth, both), abs=0.1), by
    assert len({scores["auroc"] for scores in found.values()}) > 3  # they are not all the same score


def test_a_run_keeps_them_and_scores_only_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="corruption"):
        run(CONFIG.changed(corruptions=("rain",)), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    out = run(CONFIG.changed(corruptions=("fog@1",)), tmp_path / "run", device="cpu")
    job = Job.of(CONFIG.changed(corruptions=("fog@1", "fog@3")), tmp_path, out=out)
    assert not job.is_done()
    first = read_result(out)
    run(job.config, out, device="cpu")
    assert job.is_done()
    both = read_result(out)
    assert both.corruptions["fog"].keys() == {"1", "3"}
    assert (both.corruptions["fog"]["1"], both.parts) == (first.corruptions["fog"]["1"], first.parts)
    kept = evaluate_run(out, device="cpu", config=CONFIG, undo=["weights"], fits={"threshold": {"coverage": 0.5}})
    assert kept.corruptions == both.corruptions, "neither changes an answer"
    fitted = evaluate_run(out, device="cpu", config=CONFIG, fits={"temperature": {}})
    assert fitted.temperature != 1
    assert fitted.corruptions == {}, "those were of other answers"
    assert fitted.changed_answers(1) == ["a temperature"]
    with pytest.raises(UserError, match="severity '9'"):
        evaluate_run(out, device="cpu", config=CONFIG.changed(corruptions=("fog@9",)))


def test_the_table_has_plain_means() -> None:
    def of(accuracy: float) -> dict[str, float]:
        return {"accuracy": accuracy, "nll": accuracy / 100, "ece": 1.0, "aurc": 2.0}

    found = {"fog": {"1": of(80), "5": of(40)}, "gaussian-noise": {"1": of(90)}}
    table = corruption_table(RunResult(parts={}, corruptions=found))
    shown = [[cell if isinstance(cell, str) else cell.value for cell in row] for row in table.rows]
    assert shown == [
        ["gaussian-noise", 90, None, None, None, None, 90, 0.9, 1, 2],
        ["fog", 80, None, None, None, 40, 60, pytest.approx(0.6), 1, 2],
        ["mean", 85, None, None, None, 40, 75, pytest.approx(0.75), 1, 2],
    ]
