"""Learning from all of somebody's photos, with an honest estimate of how well that works.

The posterior in the folder of the run is trained on every image. It cannot be measured on them, so the same training is
done without the images of a fold, once for each fold of `folds_for`. What these trainings answer for the images that
they have not seen makes the estimate, and chooses the threshold above which the posterior says "I don't know", and the
prediction sets if they are asked for. The trainings of the folds are ordinary runs in the folder `estimate`; they are
deleted when the estimate is done.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from rebapl.data.catalogue import load_dataset
from rebapl.data.checking import broken_images
from rebapl.data.dataset import Dataset
from rebapl.data.folds import ALL, folds_for
from rebapl.errors import UserError
from rebapl.evaluation.tasks import bound_to, part_labels, predict_part, prediction_scores
from rebapl.files import write_atomically
from rebapl.learners import published
from rebapl.posterior import Prediction, load_posterior, save_posterior
from rebapl.posterior.fitting import check_level, choose_conformal, choose_threshold
from rebapl.posterior.prediction import Conformal, Threshold
from rebapl.posterior.storage import read_manifest
from rebapl.runs.backbone import KeptBackbone
from rebapl.runs.config import RunConfig
from rebapl.runs.engine import LocalEngine
from rebapl.runs.environment import device_name
from rebapl.runs.folder import CONFIG, POSTERIOR, RESULTS, data_changes, is_trained, read_config
from rebapl.runs.jobs import Job, OnEvent, check_outcomes
from rebapl.runs.lock import alone_in
from rebapl.runs.results import PartScores, RunResult, write_result
from rebapl.wording import few

FULL_SHOTS = 8
"""With fewer images per class, a training has more epochs, so that it takes as many steps as it would with so many."""

COVERAGE = 0.95
"""The share of held-out images that are answered at most, as far as their number allows."""

ESTIMATE, ANSWERS = "estimate", "held-out.csv"
COLUMNS = ("image", "class", "answer", "probability", "uncertainty")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was answered for an image that was held out: its own class, the likeliest class and its probability.

    `uncertainty` is the one that the threshold is chosen on.
    """

    image: str
    class_name: str
    answer: str
    probability: float
    uncertainty: float

    @property
    def right(self) -> bool:
        return self.answer == self.class_name


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What is to be learned, where, and by which `folds` it is measured; without folds it cannot be.

    `final` is the run that trains on everything, in the folder `out`.
    """

    dataset: Dataset
    final: RunConfig
    out: Path
    folds: Sequence[str]

    @classmethod
    def of(cls, config: RunConfig, out: Path, root: Path | None = None) -> Lesson:
        """Plan to learn all images of a configuration's data in the folder `out`. Bad input is refused.

        The epochs, unless they are given, are those that were published for the method, and more where there are few
        images; see `FULL_SHOTS`.
        """
        dataset = load_dataset(config.data, root, template=config.template, whole=True)
        final = config.changed(protocol="few-shot", fold=ALL)
        task = final.task(root)
        epochs = published(config.method, "few-shot", dataset.name, config.shots)[1].epochs
        per_class = len(task.train.items) / len(task.train.class_names)
        if config.epochs is None and epochs and per_class < FULL_SHOTS:
            final = final.changed(epochs=math.ceil(epochs * FULL_SHOTS / per_class))
        return cls(dataset, final, out, folds_for(dataset))

    @property
    def unmeasured(self) -> list[str]:
        """The classes that have one image only, which is always learned from and never held out."""
        counts = Counter(item.class_name for item in self.dataset.train)
        return [] if self.dataset.test else [name for name, count in counts.items() if count == 1]

    def jobs(self, root: Path | None = None) -> list[Job]:
        """The trainings: on everything first, then without each fold in turn."""
        folder = self.out / ESTIMATE
        runs = {self.out: self.final}
        runs |= {folder / fold.replace("/", "-of-"): self.final.changed(fold=fold) for fold in self.folds}
        return [Job.of(each, out.parent, out=out, root=root, score=False, wait=False) for out, each in runs.items()]

    def changed(self) -> str | None:
        """What has changed of the images since the run in the folder was begun, or None."""
        return data_changes(self.final, self.out)

    def is_done(self) -> bool:
        """Whether everything is learned and measured. A folder with something else in it is refused."""
        return is_trained(self.final, self.out) and (not self.folds or (self.out / RESULTS).exists())

    def forget(self) -> None:
        """Delete what was learned before in the folder. Anything else in it stays, and is refused later."""
        if (self.out / CONFIG).exists() and read_config(self.out).fold == ALL:
            with alone_in(self.out):
                shutil.rmtree(self.out)

    def refuse_broken(self) -> None:
        """Decode every image before any work, and refuse those that cannot be read."""
        items = [*self.dataset.train, *self.dataset.val, *self.dataset.test]
        broken = broken_images(self.dataset, items)
        if len(broken) == 1:
            raise UserError(broken[0])
        if broken:
            raise UserError(f"{len(broken)} images cannot be read; remove or replace them: {few(broken, 3)}")


def learn(
    lesson: Lesson,
    engine: LocalEngine,
    risk: float,
    on_event: OnEvent | None = None,
    root: Path | None = None,
    set_level: float | None = None,
) -> None:
    """Do what is missing of a lesson: train, and measure. Interrupted work goes on where it was.

    The threshold answers as many held-out images as it can while at most the share `risk` of the answers is wrong, but
    no more than 95 % of them. `set_level` asks for prediction sets of this level, chosen on the same images.
    """
    if not 0 <= risk < 1:
        raise UserError(f"risk = {risk}: the share of wrong answers allowed is at least 0 and below 1")
    jobs = lesson.jobs(root)
    if set_level is not None:
        check_level(set_level, sum(len(job.run_config().task(root).tests["test"].items) for job in jobs[1:]))
    for some in (jobs[:1], jobs[1:]):
        check_outcomes(list(engine.run(some, on_event)))
    if not lesson.folds:
        return
    device, load = engine.devices[0], KeptBackbone()
    with alone_in(lesson.out):
        prediction, labels = _held_out(jobs[1:], device, load, root)
        posterior = load_posterior(lesson.out, load(lesson.final.backbone_name, device), device)
        threshold = _threshold(prediction, labels, risk)
        sets = None if set_level is None else choose_conformal(prediction, labels, set_level)
        fitted = dataclasses.replace(posterior, threshold=threshold, conformal=sets)
        save_posterior(fitted, lesson.out / POSTERIOR)
        write_atomically(lesson.out / ANSWERS, _as_csv(prediction, labels))
        scores = PartScores(**prediction_scores(prediction, labels))
        write_result(
            lesson.out,
            RunResult(
                parts={"test": scores},
                protocols={"few-shot": ["test"]},
                samples=len(posterior),
                weights=posterior.weights.tolist(),
                device=device_name(device),
            ),
        )
        shutil.rmtree(lesson.out / ESTIMATE)


def _held_out(jobs: Sequence[Job], device: str, load: KeptBackbone, root: Path | None) -> tuple[Prediction, Tensor]:
    """What each training answers for the images of its fold, and their labels (N,)."""
    predictions, labels = [], []
    for job in jobs:
        config = job.run_config()
        posterior = load_posterior(job.folder, load(config.backbone_name, device), device)
        task = config.task(root)
        part = task.tests["test"]
        predictions.append(predict_part(bound_to(posterior, task, part), part))
        labels.append(part_labels(part))
    first = predictions[0]
    joined = dataclasses.replace(
        first,
        names=[name for each in predictions for name in each.names],
        probabilities=torch.cat([each.probabilities for each in predictions]),
        per_sample=torch.cat([each.per_sample for each in predictions], dim=1),
    )
    return joined, torch.cat(labels)


def _threshold(prediction: Prediction, labels: Tensor, risk: float) -> Threshold | None:
    """The threshold for this risk; None if even the surest answers are wrong more often.

    It leaves the least sure of the held-out images unanswered in any case, so that where nearly all of them were right
    it still says for which images it knows too little.
    """
    try:
        thresholds = [choose_threshold(prediction, labels, risk=risk)]
    except UserError:
        return None
    thresholds.append(choose_threshold(prediction, labels, coverage=COVERAGE))
    return min(thresholds, key=lambda threshold: threshold.value)


def _as_csv(prediction: Prediction, labels: Tensor) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    columns = (
        prediction.names,
        [prediction.class_names[label] for label in labels.tolist()],
        [prediction.class_names[label] for label in prediction.labels.tolist()],
        prediction.probabilities.amax(-1).tolist(),
        prediction.uncertainty().tolist(),
    )
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def read_learned(out: Path) -> tuple[list[Answer], Threshold | None, Conformal | None]:
    """The answers for held-out images, the threshold and the prediction sets of a run that was learned.

    There are none if it was not measured.
    """
    path = out / ANSWERS
    if not path.exists():
        return [], None, None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
        answers = [Answer(name, own, said, float(sure), float(doubt)) for name, own, said, sure, doubt in rows]
    except (ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is damaged ({error}): learn anew, with --anew") from error
    manifest = read_manifest(out / POSTERIOR)
    return answers, manifest.threshold, manifest.conformal
