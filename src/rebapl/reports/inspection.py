"""Everything that a report shows of a run: what its folder holds, and what its samples answer to the test images.

The folder alone is enough for settings, scores and the log. The answers are computed anew from the posterior and the
images. Where one of these is missing, `Inspected.missing` says so in a sentence, and the rest is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rebapl.data.task import Part, Task
from rebapl.errors import UserError
from rebapl.evaluation.diversity import diversity_record
from rebapl.evaluation.tasks import Predicted, bound_to, diversity_on_test, part_labels, predict_part
from rebapl.evaluation.temperature import fit_temperature
from rebapl.files import read_json
from rebapl.posterior import Posterior, Prediction
from rebapl.runs.config import RunConfig, data_name
from rebapl.runs.folder import CONFIG, ENVIRONMENT, LOG, RESULTS, Run, config_from_json, load_trained
from rebapl.runs.machine import KeptBackbone, LoadBackbone
from rebapl.runs.results import DiversityRecord, RunResult, read_result
from rebapl.sampling import Inference
from rebapl.sampling.building import build_schedule
from rebapl.training.log import EVERY, read_log


@dataclasses.dataclass(frozen=True)
class Answered:
    """What the samples answer to the images of one test part."""

    part: Part
    prediction: Prediction
    labels: Tensor

    @property
    def right(self) -> Tensor:
        """Which answers (N,) are right."""
        return self.prediction.labels == self.labels


@dataclasses.dataclass(frozen=True)
class Course:
    """The schedule of a training, step by step: its learning rate, whether it explores, and after which steps a sample
    was kept. `cycles` are the steps at which cycles begin, those of chains that take turns included."""

    lr: Sequence[float]
    exploring: Sequence[bool]
    samples: Sequence[int]
    cycles: Sequence[int]

    def stages(self) -> list[tuple[int, int, bool]]:
        """First step, end and whether it explores, of each stage.

        >>> Course([1.0] * 4, [True, False, False, True], [2], [0, 3]).stages()
        [(0, 1, True), (1, 3, False), (3, 4, True)]
        """
        starts = [0, *(step for step in range(1, len(self.lr)) if self.exploring[step] != self.exploring[step - 1])]
        return [
            (start, end, self.exploring[start])
            for start, end in zip(starts, [*starts[1:], len(self.lr)], strict=True)
            if end > start
        ]


@dataclasses.dataclass(frozen=True)
class Inspected:
    """A run with all that could be found out about it.

    `parts` has the answers by test part. `temperature` was fitted on validation images. `missing` has a sentence for
    each thing that is not there: `posterior`, `data`, `answers`, `temperature`, `diversity`, `log`, `environment`.
    """

    run: Run
    config: RunConfig
    inference: Inference | None
    environment: Mapping[str, Any]
    log: Sequence[Mapping[str, float]]
    posterior: Posterior | None
    task: Task | None
    parts: Mapping[str, Answered]
    temperature: float | None
    diversity: DiversityRecord | None
    course: Course | None
    missing: Mapping[str, str]

    @property
    def name(self) -> str:
        """The run in words: what was learned, how, on which data and with which seed."""
        config, how = self.run.config, self.run.resolved["inference"]["name"]
        how = "" if how == "none" else f" · {how}"
        return f"{config['method']}{how} on {data_name(config['data'])}, seed {config['seed']}"


def inspect_run(
    folder: Path,
    *,
    root: Path | None = None,
    device: str | None = None,
    backbone: str | None = None,
    progress: Predicted | None = None,
    load: LoadBackbone | None = None,
) -> Inspected:
    """Find out about the run in a folder. Only a folder that holds no run, or a damaged one, is an error.

    `root` is the folder of data sets, and `backbone` says where the backbone is now, if it was moved. `progress` hears
    of the images that are predicted.
    """
    run, config = read_run(folder)
    missing: dict[str, str] = {}
    load = load or KeptBackbone()
    inference = config.resolved().training.inference

    def attempt(what: str, before: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (UserError, OSError) as error:
            missing[what] = f"{before}: {_sentence(error)}"
            return None

    posterior: Posterior | None = attempt(
        "posterior",
        "The posterior cannot be loaded",
        lambda: load_trained(folder, device=device, backbone=backbone or config.backbone_name, load=load),
    )
    task: Task | None = attempt("data", "The data of this run cannot be read", lambda: config.task(root))
    parts: dict[str, Answered] = {}
    temperature = diversity = None
    stored = run.result
    if posterior is not None and task is not None:
        answers = attempt(
            "answers", "The test images cannot be predicted", lambda: _answers(posterior, task, stored, progress)
        )
        parts, temperature = answers or ({}, None)
        if len(posterior) > 1:
            diversity = stored.diversity or attempt(
                "diversity",
                "The distances between samples cannot be measured",
                lambda: DiversityRecord(**diversity_record(diversity_on_test(posterior, task))),
            )
    diversity = diversity or stored.diversity
    if temperature is None:
        temperature = next((part.temperature for part in stored.parts.values() if part.temperature), None)
    if task is not None and not task.val.items:
        missing["temperature"] = "No temperature was fitted: the data set has no validation images."
    elif config.protocol == "selection":
        missing["temperature"] = "No temperature was fitted: this protocol tests on the validation images."
    log = attempt("log", "The log cannot be read", lambda: read_log(folder / LOG)) or []
    made_in = folder / ENVIRONMENT
    environment = (
        attempt("environment", "The environment cannot be read", lambda: read_json(made_in, "a run"))
        if made_in.exists()
        else None
    )
    return Inspected(
        run=run,
        config=config,
        inference=inference,
        environment=environment or {},
        log=log,
        posterior=posterior,
        task=task,
        parts=parts,
        temperature=temperature,
        diversity=diversity,
        course=None if inference is None or task is None else course_of(inference, len(task.train.items), log),
        missing=missing,
    )


def read_run(folder: Path) -> tuple[Run, RunConfig]:
    """What the folder of a run says of itself. A run that is not scored has a result without parts."""
    content = read_json(folder / CONFIG, "a run")
    config = config_from_json(content, folder / CONFIG)
    result = read_result(folder) if (folder / RESULTS).exists() else RunResult(parts={})
    return Run(folder, content, content.get("resolved") or config.resolved().plain(), result), config


def course_of(inference: Inference, num_data: int, log: Sequence[Mapping[str, float]]) -> Course:
    """The schedule that a training on `num_data` images followed. If its cycles are adaptive, it ends with its log."""
    per_epoch = num_data // min(inference.batch, num_data)
    steps = inference.all_epochs * per_epoch
    if inference.adaptive is not None and log:
        steps = min(steps, int(log[-1]["step"]) + EVERY)
    weight = torch.nn.Parameter(torch.zeros(1))
    schedule = build_schedule(
        inference, [weight], num_data, per_epoch, torch.Generator(), torch.optim.SGD([weight], lr=inference.sampler.lr)
    )
    weight.grad = torch.zeros(1)
    lr, exploring, samples, cycles = [], [], [], []
    for step in range(steps):
        if schedule.at_cycle_start:
            cycles.append(step)
        lr.append(schedule.lr)
        exploring.append(schedule.exploring)
        schedule.current.step()
        schedule.step()
        if schedule.at_sample:
            samples.append(step + 1)
    return Course(lr, exploring, samples, cycles)


def _answers(
    posterior: Posterior, task: Task, stored: RunResult, progress: Predicted | None
) -> tuple[dict[str, Answered], float | None]:
    """The answers to each test part, and the temperature: the stored one, or one fitted on the validation images."""
    known = next((part.temperature for part in stored.parts.values() if part.temperature), None)
    fitting = known is None and task.protocol != "selection" and bool(task.val.items)
    wanted = [*([task.val] if fitting else []), *task.tests.values()]
    total, before = sum(len(part.items) for part in wanted), 0
    predictions = []
    for part in wanted:
        done = before
        moved = None if progress is None else lambda images, done=done: progress(done + images, total)
        predictions.append(predict_part(bound_to(posterior, task, part), part, moved))
        before += len(part.items)
    if fitting:
        known = fit_temperature(predictions.pop(0).probabilities, part_labels(task.val))
    return {
        name: Answered(part, prediction, part_labels(part))
        for (name, part), prediction in zip(task.tests.items(), predictions, strict=True)
    }, known


def _sentence(error: Exception) -> str:
    """The error as the rest of a sentence, with its full stop."""
    return f"{' '.join(str(error).split()).rstrip('.')}."
