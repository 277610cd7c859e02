"""The lines that `rebapl learn` prints: its plan before the work, and afterwards how well the classes were learned."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from rebapl.data.folds import ENOUGH, TEST
from rebapl.data.own_images import passed_over
from rebapl.errors import printable
from rebapl.evaluation.scores import proportion_interval
from rebapl.posterior.prediction import Threshold
from rebapl.posterior.selective import CONFIDENCE, answered_within
from rebapl.posterior.storage import read_manifest
from rebapl.runs.folder import HELD_OUT, POSTERIOR, RESULTS
from rebapl.runs.learn import COVERAGE, Answer, Lesson, read_answers
from rebapl.runs.results import read_result
from rebapl.wording import few

MIXED_UP = 5
"""The largest number of confusions that are shown."""

RISKS = (0.01, 0.05, 0.1)
"""The allowed shares of wrong answers for which the summary reports how many images are answered."""


def plan_lines(lesson: Lesson) -> list[str]:
    """The lines of the plan: the images, how their classes are learned, and how the result is measured."""
    dataset, config = lesson.dataset, lesson.final
    counts = Counter(item.label for item in dataset.items).values()
    per_class = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    lines = [
        f"{printable(dataset.name)}: {len(dataset.items)} images of {len(counts)} classes, {per_class} of each",
        f"learns all classes by {config.method} · {config.inference_name}, backbone {config.backbone_name}",
    ]
    if (folder := Path(config.data).expanduser()).is_dir() and (others := passed_over(folder)):
        lines.append(f"passed over: {others}")
    if max(counts) > config.shots:
        lines.append(f"learns from at most {config.shots} images of each class (--shots)")
    return [*lines, f"measures itself: {_measured_by(lesson)}"]


def _measured_by(lesson: Lesson) -> str:
    """How a lesson measures its accuracy, as the end of a line."""
    folds, size = lesson.folds, len(lesson.dataset.items)
    if not folds:
        return "not at all, since no class has two different images, of which one could be held out"
    if folds == [TEST]:
        return "on the test images that the data have, by a training without them"
    parts = folds[0].partition("/")[2]
    if len(folds) == 1:
        return f"on one of {parts} parts of the images, which has {ENOUGH} or more, by a training without it"
    return (
        f"by cross-validation: {parts} trainings, each without one of {parts} parts of the images, since a part has "
        f"only {size // len(folds)} of them"
    )


def result_lines(lesson: Lesson, confidence: float = CONFIDENCE) -> list[str]:
    """The lines of the result: accuracy, confusions, fitted threshold, sets and temperature, files, the next command.

    The shares of answered images at the risks `RISKS` are computed with the confidence of the threshold's promise, or
    with `confidence` if the threshold promises nothing.
    """
    files = [f"{lesson.out / POSTERIOR} (what was learned)"]
    answers, posterior = read_answers(lesson.out), read_manifest(lesson.out / POSTERIOR)
    if not answers:
        lines = [
            "accuracy: unknown. No class has two different images, so none can be held out to measure it",
            '"I don\'t know": never, since no threshold can be chosen without held-out images',
            "with two or more different images of each class, rebapl learn measures both",
        ]
    else:
        files += [f"{lesson.out / HELD_OUT} (each held-out image and its answer)", f"{lesson.out / RESULTS} (scores)"]
        right, total = sum(answer.right for answer in answers), len(answers)
        accuracy = f"accuracy: {_share(right, total)}; {right} of {total} held-out images were right"
        lines = [accuracy, _mixed_up(answers)]
        if posterior.temperature is not None:
            lines.append(
                f"{posterior.temperature}, the held-out ones, so it cost no training (--no-temperature leaves it out)"
            )
        lines.append(_threshold(answers, posterior.threshold, confidence))
        if (conformal := posterior.conformal) is not None:
            lines.append(
                f"prediction sets: at level {100 * conformal.level:g} %; those of the held-out images have "
                f"{conformal.size:.2f} classes on average. Promise: the right class of a new image is in its set with "
                f"probability {conformal.promised:.2f} or more, and usually about {conformal.level:g}"
            )
        if lesson.unmeasured:
            lines.append(
                f"not measured, because they have one image each (copies count once): {few(lesson.unmeasured)}"
            )
    return [*lines, f"kept: {', '.join(files)}", f"next: rebapl predict {lesson.out} NEW-PHOTOS/"]


def _mixed_up(answers: Sequence[Answer]) -> str:
    """The line on the most frequent confusions."""
    of_class = Counter(answer.class_name for answer in answers)
    wrong = Counter((answer.class_name, answer.answer) for answer in answers if not answer.right)
    if not wrong:
        return "mixes up: nothing, on these images"
    most = sorted(wrong.items(), key=lambda pair: (-pair[1], pair[0]))
    words = [f"{printable(own)} for {printable(other)} ({count} of {of_class[own]})" for (own, other), count in most]
    more = f", and {len(words) - MIXED_UP} more pairs" if len(words) > MIXED_UP else ""
    return f"mixes up: {', '.join(words[:MIXED_UP])}{more}"


def _threshold(answers: Sequence[Answer], threshold: Threshold | None, confidence: float) -> str:
    """The line on the threshold of "I don't know"."""
    if threshold is None:
        never = '"I don\'t know": never, since even its surest answers were wrong too often to choose a threshold'
        return f"{never}. {_other_risks(answers, confidence)}"
    answered = [answer for answer in answers if answer.uncertainty <= threshold.value]
    wrong = sum(not answer.right for answer in answered)
    lacks = "" if threshold.promised else ". A promise takes more held-out images, or fewer wrong answers"
    return (
        f'"I don\'t know": where no class has a probability of {1 - threshold.value:.3f} or more. Of {len(answers)} '
        f"held-out images {len(answered)} ({100 * len(answered) / len(answers):.0f} %) are answered, {wrong} of them "
        f"wrongly. {threshold.promise}{lacks}. {_other_risks(answers, threshold.confidence or confidence)}"
    )


def _other_risks(answers: Sequence[Answer], confidence: float) -> str:
    """The share of held-out images that are answered at each risk of `RISKS`, with a promise and without one."""
    shares = []
    for risk in RISKS:
        promised, hoped = (100 * answered_at(answers, risk, level) / len(answers) for level in (confidence, 0.0))
        shares.append(f"{promised:.0f} % ({hoped:.0f} %) with --risk {risk:g}")
    return f"Answered at confidence {100 * confidence:g} % (without a promise): {', '.join(shares)}"


def answered_at(answers: Sequence[Answer], risk: float, confidence: float) -> int:
    """How many images are answered within a risk, see `answered_within`; at most the share `COVERAGE` of them.

    >>> sure, unsure = Answer("1.png", "cat", "cat", 0.9, 0.1), Answer("2.png", "cat", "dog", 0.6, 0.4)
    >>> answered_at([unsure, sure], 0.1, 0), answered_at([unsure, sure], 0.5, 0)
    (1, 2)
    """
    doubt = torch.tensor([answer.uncertainty for answer in answers])
    wrong = torch.tensor([not answer.right for answer in answers])
    return answered_within(doubt, wrong, risk, confidence, math.ceil(COVERAGE * len(answers) - 1e-9))


def _share(count: int, total: int) -> str:
    low, high = proportion_interval(count, total)
    return f"{100 * count / total:.1f} % (95 % interval: {100 * low:.0f} to {100 * high:.0f} %)"


def compared_line(lessons: Sequence[Lesson]) -> str:
    """The line that compares lessons on the same images by their scores on the held-out ones, and names the best."""
    if not all(lesson.folds for lesson in lessons):
        return "they cannot be compared: no images were held out"
    scored = [(lesson, read_result(lesson.out).parts["test"]) for lesson in lessons]
    words = [
        f"{lesson.final.method} · {lesson.final.inference_name} {part.accuracy:.1f} % right, NLL {part.nll:.3f}"
        for lesson, part in scored
    ]
    best, _ = min(scored, key=lambda pair: pair[1].nll)
    return f"compared on the held-out images: {'; '.join(words)}. The lower NLL has {best.out}"
