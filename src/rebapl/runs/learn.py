"""Learning from all of the user's photos, with an honest estimate of how well that works.

The posterior in the folder of the run is trained on every image, so it cannot be measured on these images. Therefore
the same training is repeated once for each fold of `folds_for`, without the images of that fold. The answers of these
trainings for the images that they have not seen give the estimate. They also fit the temperature of the probabilities,
and choose the threshold of uncertainty above which the posterior answers "I don't know" and, if requested, the
prediction sets. The trainings of the folds are ordinary runs in the folder `estimate`, which is deleted in the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rebapl.backbones.features import FOLDER, features_kept_in
from rebapl.data.batches import LabelledImages
from rebapl.data.checking import broken_images
from rebapl.data.dataset import Dataset
from rebapl.data.folds import ALL, folds_for, without_copies
from rebapl.data.task import Part, Task, load_task
from rebapl.errors import UserError
from rebapl.evaluation.tasks import part_labels, predict_part, prediction_scores
from rebapl.files import alone_in, csv_text, read_csv, write_atomically
from rebapl.learners import published
from rebapl.posterior import Posterior, Prediction, load_posterior, save_posterior
from rebapl.posterior.conformal import check_level, choose_cross_conformal
from rebapl.posterior.fitting import threshold_on
from rebapl.posterior.prediction import Threshold
from rebapl.posterior.selective import CONFIDENCE, check_risk
from rebapl.posterior.storage import ESTIMATE
from rebapl.posterior.temperature import PRIOR, Temperature, fit_temperature
from rebapl.runs.config import RunConfig
from rebapl.runs.engine import LocalEngine
from rebapl.runs.folder import (
    CONFIG,
    HELD_OUT,
    POSTERIOR,
    RESULTS,
    data_changes,
    is_trained,
    note_checksum,
    read_config,
)
from rebapl.runs.jobs import OnEvent, check_outcomes
from rebapl.runs.machine import device_name, kept_backbone
from rebapl.runs.results import PartScores, RunResult, write_result
from rebapl.runs.run import Job
from rebapl.wording import few

FULL_SHOTS = 8
"""With fewer images per class, a training has more epochs, so that it takes as many steps as with this number."""

RISK = 0.05
"""The share of wrong answers that `learn` promises if nobody names another."""

COVERAGE = 0.95
"""The largest share of held-out images that the threshold may answer, rounded up to whole images."""

COLUMNS = ("image", "class", "answer", "probability", "uncertainty")


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer for a held-out image: its true class `class_name`, the likeliest class and the probability of that.

    `uncertainty` is the measure on which the threshold is chosen.
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
    """All images of a data set, to be learned in the folder `out`, and the trainings that measure the result.

    `final` is the run that trains on all images. `tasks` has the task of each training by its fold. The first task has
    all images; each of the others leaves the images of its fold out, which are its test part. Without folds, nothing
    can be measured.
    """

    dataset: Dataset
    final: RunConfig
    out: Path
    tasks: Mapping[str, Task]

    @classmethod
    def of(cls, config: RunConfig, out: Path) -> Lesson:
        """The lesson that learns all images of a configuration's data in the folder `out`; see `by`."""
        dataset = config.changed(fold=ALL).dataset()
        folds = (ALL, *folds_for(dataset))
        tasks = {fold: load_task(dataset, config.shots, config.seed, "few-shot", fold=fold) for fold in folds}
        return cls(dataset, config, out, tasks).by(config, out)

    def by(self, config: RunConfig, out: Path) -> Lesson:
        """The lesson that learns the same images with another configuration and folder. Bad input is refused.

        Unless the configuration has a number of epochs, it is the one published for the method, and larger if there are
        few images; see `FULL_SHOTS`.
        """
        final, train = config.changed(protocol="few-shot", fold=ALL), self.tasks[ALL].train
        epochs = published(config.method, "few-shot", self.dataset.catalogue_name, config.shots)[1].epochs
        per_class = len(train.items) / len(train.class_names)
        if config.epochs is None and epochs and per_class < FULL_SHOTS:
            final = final.changed(epochs=math.ceil(epochs * FULL_SHOTS / per_class))
        final.resolved()  # refuses settings that contradict each other
        return dataclasses.replace(self, final=final, out=out)

    @property
    def folds(self) -> list[str]:
        """The folds that are held out in turn."""
        return [fold for fold in self.tasks if fold != ALL]

    @property
    def unmeasured(self) -> list[str]:
        """The classes with a single image, which is always used for training and never held out."""
        counts = Counter(item.class_name for item in without_copies(self.dataset, self.dataset.items))
        return [name for name, count in counts.items() if count == 1]

    def held_out(self, fold: str) -> Part:
        """The images of a fold."""
        return self.tasks[fold].tests["test"]

    def jobs(self) -> list[Job]:
        """The trainings: first on all images, then without each fold in turn."""
        folder = self.out / ESTIMATE
        runs = {self.out: self.final}
        runs |= {folder / fold.replace("/", "-of-"): self.final.changed(fold=fold) for fold in self.folds}
        return [Job.of(config, out.parent, out=out, score=False, wait=False) for out, config in runs.items()]

    def is_done(self) -> bool:
        """Whether everything is learned and measured. A folder with anything else, or of other photos, is refused."""
        if changed := data_changes(self.final, self.out):
            raise UserError(
                f"{self.final.data} has changed since {self.out} was learned: {changed}. To learn it anew in the same "
                "place, give --anew; to keep what was learned before, too, give --out FOLDER"
            )
        done = is_trained(self.final, self.out) and (not self.folds or (self.out / RESULTS).exists())
        if done:
            shutil.rmtree(self.out / ESTIMATE, ignore_errors=True)  # left if the process was killed at the very end
        return done

    def forget(self) -> None:
        """Delete the run of an earlier lesson in the folder. A folder with anything else stays and is refused later."""
        if (self.out / CONFIG).exists() and read_config(self.out).fold == ALL:
            with alone_in(self.out):
                shutil.rmtree(self.out)

    def check(self, risk: float, confidence: float = CONFIDENCE, set_level: float | None = None) -> None:
        """Refuse impossible settings and unreadable images. To find those, all images are decoded."""
        check_risk(risk, confidence)
        if set_level is not None:
            check_level(set_level, sum(len(self.held_out(fold).items) for fold in self.folds))
        self.refuse_broken()

    def refuse_broken(self) -> None:
        """Refuse images that cannot be read."""
        broken = broken_images(self.dataset, self.dataset.items)
        if len(broken) == 1:
            raise UserError(broken[0])
        if broken:
            raise UserError(f"{len(broken)} images cannot be read; remove or replace them: {few(broken, 3)}")


def learn(
    lesson: Lesson,
    engine: LocalEngine,
    risk: float,
    on_event: OnEvent | None = None,
    confidence: float = CONFIDENCE,
    set_level: float | None = None,
    temperature: bool = True,
) -> None:
    """Do what is missing of a lesson: train and measure. Interrupted work continues where it stopped.

    The threshold answers as many held-out images as possible, but no more than 95 % of them (rounded up to whole
    images, so all of fewer than 20), such that with this `confidence` at most the share `risk` of the answers is wrong.
    If there are too few images for this promise, it is chosen without one. With `set_level`, prediction sets of this
    level are chosen on the same images. If `temperature` is true, the temperature is fitted on them first, and
    everything else is measured with it.
    """
    images = LabelledImages(lesson.dataset, lesson.dataset.items)
    with features_kept_in(lesson.out.parent / FOLDER, images):
        jobs = lesson.jobs()
        for stage in (jobs[:1], jobs[1:]):  # if the training on all images fails, the others are not started
            check_outcomes(list(engine.run(stage, on_event)))
        if not lesson.folds:
            return
        device = engine.devices[0]
        with alone_in(lesson.out):
            trained, predictions, by_fold = _held_out(lesson, jobs[1:], device)
            prediction, labels = _joined(predictions), torch.cat(by_fold)
            posterior = load_posterior(lesson.out, kept_backbone(lesson.final.backbone_name, device), device)
            fitted = None
            if temperature:
                tau = fit_temperature(prediction.probabilities, labels, PRIOR)
                fitted = Temperature(tau, prediction.average, tuple(prediction.class_names), images=len(labels))
                prediction = prediction.tempered(tau)
            answers = _answers(prediction, labels)
            threshold = _threshold(answers, posterior, risk, confidence)
            posterior = dataclasses.replace(posterior, temperature=fitted, threshold=threshold)
            if set_level is not None:
                sets = choose_cross_conformal(predictions, by_fold, set_level)
                posterior = dataclasses.replace(posterior, conformal=sets, folds=tuple(trained))
            save_posterior(posterior, lesson.out / POSTERIOR)
            write_atomically(lesson.out / HELD_OUT, csv_text([COLUMNS, *map(dataclasses.astuple, answers)]))
            note_checksum(lesson.out, HELD_OUT)
            result = RunResult(
                parts={"test": PartScores(**prediction_scores(prediction, labels))},
                protocols={"few-shot": ["test"]},
                samples=len(posterior),
                weights=posterior.weights.tolist(),
                device=device_name(device),
                run=lesson.final.hash(),
            )
            write_result(lesson.out, result)
            shutil.rmtree(lesson.out / ESTIMATE)


def _held_out(
    lesson: Lesson, jobs: Sequence[Job], device: str
) -> tuple[list[Posterior], list[Prediction], list[Tensor]]:
    """For each fold: the posterior trained without it, its answers for the fold's images, and their labels (n)."""
    trained, predictions, labels = [], [], []
    for fold, job in zip(lesson.folds, jobs, strict=True):
        posterior = load_posterior(job.folder, kept_backbone(lesson.final.backbone_name, device), device)
        part = lesson.held_out(fold)
        trained.append(posterior.bind(part.class_names, part.dataset.template))
        predictions.append(predict_part(trained[-1], part))
        labels.append(part_labels(part))
    return trained, predictions, labels


def _joined(predictions: Sequence[Prediction]) -> Prediction:
    """The answers of all trainings as one prediction."""
    return dataclasses.replace(
        predictions[0],
        names=[name for prediction in predictions for name in prediction.names],
        probabilities=torch.cat([prediction.probabilities for prediction in predictions]),
        per_sample=torch.cat([prediction.per_sample for prediction in predictions], dim=1),
        scores={},  # the scores of the first training do not hold for the others
    )


def choose_again(lesson: Lesson, device: str, risk: float | None = None, confidence: float | None = None) -> None:
    """Choose the threshold of a finished lesson again, from the answers in its `held-out.csv`, and store it.

    The result is the threshold that `learn` would have chosen. A risk or a confidence that is not given is that of the
    stored promise or, without one, the default. Without held-out answers, nothing changes.
    """
    with alone_in(lesson.out):
        if not (answers := read_answers(lesson.out)):
            return
        posterior = load_posterior(lesson.out, kept_backbone(lesson.final.backbone_name, device), device)
        before = posterior.threshold
        kept = (RISK, CONFIDENCE) if before is None or before.promised is None else (before.promised, before.confidence)
        risk, confidence = kept[0] if risk is None else risk, kept[1] if confidence is None else confidence
        check_risk(risk, confidence)
        threshold = _threshold(answers, posterior, risk, confidence)
        if threshold != posterior.threshold:
            save_posterior(dataclasses.replace(posterior, threshold=threshold), lesson.out / POSTERIOR)


def _threshold(answers: Sequence[Answer], posterior: Posterior, risk: float, confidence: float) -> Threshold | None:
    """The threshold for this risk; None if even the surest of the held-out answers are wrong more often.

    If no threshold keeps the risk with this confidence, one is chosen that promises nothing. With 20 or more held-out
    images, the least sure of them are always left unanswered, so that the posterior abstains on unclear images even if
    nearly all answers were right.
    """
    uncertainty = torch.tensor([answer.uncertainty for answer in answers], dtype=torch.float64)
    wrong, names = torch.tensor([not answer.right for answer in answers]), posterior.class_names
    for level in (confidence, 0.0):
        with contextlib.suppress(UserError):
            return threshold_on(uncertainty, wrong, "max-probability", names, posterior.average, risk, COVERAGE, level)
    return None


def _answers(prediction: Prediction, labels: Tensor) -> list[Answer]:
    """The answer for each held-out image."""
    names, likeliest = prediction.class_names, prediction.probabilities.amax(-1)
    columns = (prediction.names, labels, prediction.labels, likeliest, prediction.uncertainty())
    return [
        Answer(image, names[label], names[answer], probability.item(), uncertainty.item())
        for image, label, answer, probability, uncertainty in zip(*columns, strict=True)
    ]


def read_answers(out: Path) -> list[Answer]:
    """The answers for held-out images of a learned run. If the run was not measured, there are none."""
    path = out / HELD_OUT
    if not path.exists():
        return []
    try:
        rows = read_csv(path)[1:]
        answers = [Answer(image, true, answer, *map(float, numbers)) for image, true, answer, *numbers in rows]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): learn anew, with --anew") from error
    if not answers:
        raise UserError(f"{path} is damaged (it has no rows): learn anew, with --anew")
    return answers
