"""Everything that a report shows about a run: the content of its folder, and its samples' answers to the test images.

The folder is enough for settings, scores and the log. The answers are computed anew from the posterior and the test
images. If one of these is missing, `InspectedRun.missing` has a sentence that says so, and everything else is shown.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from rebapl.data.task import Part, Task
from rebapl.errors import UserError
from rebapl.evaluation.intervals import resampled_scores
from rebapl.evaluation.scores import scores
from rebapl.evaluation.tasks import Predicted, bound_to, part_labels, predict_part
from rebapl.files import read_json
from rebapl.posterior import Posterior, Prediction, load_posterior
from rebapl.runs.config import RunConfig, data_name
from rebapl.runs.folder import CONFIG, LOG, RESULTS, Run, changed_files, config_from_json, read_environment
from rebapl.runs.machine import best_device, kept_backbone
from rebapl.runs.results import RunResult, read_result
from rebapl.sampling import Inference
from rebapl.sampling.schedule import build_timetable
from rebapl.training.log import EVERY, read_log

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Answered:
    """The answers of the samples to the images of one test part, and the right `labels` (N,)."""

    part: Part
    prediction: Prediction
    labels: Tensor

    @property
    def right(self) -> Tensor:
        """For each image, whether its answer is right (N,)."""
        return self.prediction.labels == self.labels

    @cached_property
    def scores(self) -> Mapping[str, float]:
        """The scores of all samples together."""
        return scores(self.prediction.probabilities, self.labels)

    def tempered(self, temperature: float) -> Answered:
        """The same answers with the probabilities that a temperature gives them. The order of the classes stays."""
        return dataclasses.replace(self, prediction=self.prediction.tempered(temperature))

    @cached_property
    def resampled(self) -> Mapping[str, Tensor]:
        """Scores (draws,) over bootstrap samples of the images."""
        return resampled_scores(self.prediction.probabilities, self.labels)


@dataclasses.dataclass(frozen=True)
class Course:
    """The schedule of a training, step by step.

    * `lr`: the learning rate of each step. `exploring`: whether the step is in the exploration stage.
    * `samples`: the numbers of the steps after which a sample was kept, counted from 1.
    * `cycles`: the steps at which cycles begin, counted from 0; with several chains that take turns, those of all.
    """

    lr: Sequence[float]
    exploring: Sequence[bool]
    samples: Sequence[int]
    cycles: Sequence[int]

    def sampling_stages(self) -> list[tuple[int, int]]:
        """The first step and the number of steps of each stage that does not explore.

        >>> Course([1.0] * 4, [True, False, False, True], [2], [0, 3]).sampling_stages()
        [(1, 2)]
        """
        stages, first = [], 0
        for exploring, steps in groupby(self.exploring):
            count = len(list(steps))
            stages += [] if exploring else [(first, count)]
            first += count
        return stages


def attempted(before: str, otherwise: Any = None) -> Callable[[Callable[[InspectedRun], T]], cached_property[T]]:
    """Turn a method of `InspectedRun` into an attribute that is computed once. If that fails, its value is `otherwise`.

    `missing` then has a sentence under the name of the attribute, which begins with `before`.
    """

    def attribute(work: Callable[[InspectedRun], T]) -> cached_property[T]:
        @functools.wraps(work)
        def attempt(inspected: InspectedRun) -> T:
            try:
                return work(inspected)
            except (UserError, OSError) as error:
                inspected.missing[work.__name__] = f"{before}: {' '.join(str(error).split()).rstrip('.')}."
                return otherwise

        return cached_property(attempt)

    return attribute


class InspectedRun:
    """A run and everything that can be found out about it. Each attribute is read or computed on first use.

    `root` is the folder of data sets, and `backbone` the present place of the backbone, if it was moved. `progress` is
    called with the number of images predicted so far. A folder that holds no run, or a damaged one, is an error. If
    anything else is missing, `missing` has a sentence under the name of the attribute.
    """

    def __init__(
        self,
        folder: Path,
        *,
        root: Path | None = None,
        device: str | None = None,
        backbone: str | None = None,
        progress: Predicted | None = None,
    ) -> None:
        self.run, self.config = read_run(folder)
        self.root, self.device, self.backbone, self.progress = root, device, backbone, progress
        self.missing: dict[str, str] = {}
        self._predicted = 0

    @property
    def name(self) -> str:
        """The run in words: its method, inference, data and seed."""
        config, inference = self.run.config, self.run.resolved["inference"]["name"]
        how = config["method"] if inference == "none" else f"{config['method']} · {inference}"
        return f"{how} on {data_name(config['data'])}, seed {config['seed']}"

    @property
    def result(self) -> RunResult:
        """The stored scores; without parts if the run is not scored."""
        return self.run.result

    @property
    def samples(self) -> int:
        """The number of samples; 0 if the posterior cannot be loaded."""
        return 0 if self.posterior is None else len(self.posterior)

    @cached_property
    def inference(self) -> Inference | None:
        """The settings of the inference; None if the method learns nothing."""
        return self.config.resolved().training.inference

    @attempted("The files of this run cannot be checked", otherwise=())
    def remarks(self) -> Sequence[str]:
        """A sentence for each file that has changed since the run wrote it. They are shown before everything else."""
        changed = changed_files(self.run.folder)
        return [f"{name} has changed since this run wrote it: its checksum is another one." for name in changed]

    @attempted("The posterior cannot be loaded")
    def posterior(self) -> Posterior | None:
        device = best_device(self.device)
        return load_posterior(
            self.run.folder, kept_backbone(self.backbone or self.config.backbone_name, device), device
        )

    @attempted("The data of this run cannot be read")
    def task(self) -> Task | None:
        return self.config.task(self.root)

    @attempted("The log cannot be read", otherwise=())
    def log(self) -> Sequence[Mapping[str, float]]:
        return read_log(self.run.folder / LOG)

    @attempted("The environment cannot be read", otherwise={})
    def environment(self) -> Mapping[str, Any]:
        return read_environment(self.run.folder)

    @attempted("The test images cannot be predicted", otherwise={})
    def parts(self) -> Mapping[str, Answered]:
        """The answers to each test part that has images, by the name of the part."""
        if self.posterior is None or self.task is None:
            return {}
        if not self.task.tests:
            self.missing["parts"] = (
                "This run learned from every image, so that there are no test images to answer. Its stored scores are "
                "those on images that were held out while it measured itself."
            )
        return {name: self._answered(part) for name, part in self.task.tests.items() if part.items}

    @cached_property
    def temperature(self) -> float | None:
        """The temperature that an evaluation fitted and stored. If there can be none, `missing` says why."""
        if self.task is not None and not self.task.val.items:
            self.missing["temperature"] = "No temperature was fitted: the data set has no validation images."
        elif self.config.protocol == "selection":
            self.missing["temperature"] = "No temperature was fitted: this protocol tests on the validation images."
        return next((part.temperature for part in self.result.parts.values() if part.temperature), None)

    @cached_property
    def course(self) -> Course | None:
        """The schedule that the training followed; None if nothing was trained or its images are not there."""
        if self.inference is None or self.task is None:
            return None
        return course_of(self.inference, len(self.task.train.items), self.log)

    def _answered(self, part: Part) -> Answered:
        assert self.posterior is not None
        assert self.task is not None
        before, progress = self._predicted, self.progress
        self._predicted += len(part.items)
        total = sum(len(each.items) for each in self.task.tests.values())
        report = None if progress is None else lambda images: progress(before + images, total)
        prediction = predict_part(bound_to(self.posterior, self.task, part), part, report)
        return Answered(part, prediction, part_labels(part))


def read_run(folder: Path) -> tuple[Run, RunConfig]:
    """The run in a folder, and its configuration. A run that is not scored has a result without parts."""
    content = read_json(folder / CONFIG, "a run")
    config = config_from_json(content, folder / CONFIG)
    result = read_result(folder) if (folder / RESULTS).exists() else RunResult(parts={})
    if not isinstance(content.get("resolved"), dict):
        raise UserError(f"{folder / CONFIG} is damaged (it lacks the resolved settings): train the run again")
    return Run(folder, content, content["resolved"], result), config


def course_of(inference: Inference, num_data: int, log: Sequence[Mapping[str, float]]) -> Course:
    """The schedule that a training on `num_data` images followed. With adaptive cycles, it ends where the log ends."""
    per_epoch = num_data // min(inference.batch, num_data)
    steps = inference.all_epochs * per_epoch
    if inference.adaptive is not None and log:
        steps = min(steps, int(log[-1]["step"]) + EVERY)
    table = build_timetable(inference, per_epoch)
    places = [table.locate(step) for step in range(steps)]
    return Course(
        lr=[table.lr(inference.sampler.lr, *place) for place in places],
        exploring=[table.explores(*place) for place in places],
        samples=[step + 1 for step in range(steps) if table.marks_sample(step)],
        cycles=[step for step, (_, within) in enumerate(places) if within == 0],
    )
