"""How long a training step and an answer take here, beside the same work done the obvious way (`plain_baseline`).

Steps are those of a whole `Chain`: batches, passes, repulsion, optimizer, checks. They are repelled by samples that are
remembered before the first. They are timed in a row, without waiting for the device in between, once libraries are set
up and passes captured and compiled. The median is that of an ordinary step; the mean also has the steps that measure
norms and those that check the numbers. Answers are calls of `Posterior.predict_views` with views on the CPU.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.captured import accelerated
from rebapl.compiled import compiling
from rebapl.errors import UserError, unknown
from rebapl.learners import METHODS
from rebapl.randomness import generator
from rebapl.reproduce.bench_inputs import bench_chain, bench_encoder, class_names, resolved_case
from rebapl.reproduce.bench_records import AnswerTimes, Case, Measured, StepTimes, in_words
from rebapl.reproduce.plain_baseline import PlainPosterior, PlainTraining, full_length
from rebapl.reproduce.timing import milliseconds, random_posterior
from rebapl.runs.machine import environment
from rebapl.wording import number_of

FIRST_ROUND, ROUND = 9, 10
"""Steps until norms are measured as rarely as they are from then on, and the steps between two such measurements."""

IMPULSE = 4
"""A row has the force every so many steps only, as an impulse so many times as strong."""

TEMPLATE = "a photo of a {}."

Say = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """What is measured, and how often: so many `steps` in a row after `warm_up`, or a round of `ROUND` if that is more;
    answers up to `repeats` times within so many `seconds`. Without `plain`, the plain baseline is left out."""

    distances: Sequence[str]
    classes: Sequence[int]
    samples: Sequence[int]
    methods: Sequence[str]
    images: int
    warm_up: int
    steps: int
    repeats: int
    seconds: float
    plain: bool = True

    @classmethod
    def usual(cls, device: str, quick: bool) -> Effort:
        """What is bearable: about three minutes on a GPU, one on two cores with `mini`, and much less if `quick`."""
        methods = ("maple", "mmrl", "coop")
        if device.startswith("cuda"):
            distances = ("mmd", "energy", "sinkhorn", "wasserstein")
            effort = cls(distances, (5, 50, 500), (1, 10), methods, 2048, warm_up=39, steps=40, repeats=30, seconds=3)
            return replace(effort, classes=(5, 50), images=512, repeats=10, seconds=1) if quick else effort
        two = ("mmd", "wasserstein")
        effort = cls(two, (5, 50), (1, 10), methods, 64, warm_up=FIRST_ROUND, steps=ROUND, repeats=10, seconds=1)
        return replace(effort, classes=(5,), methods=("maple",), images=16, repeats=3) if quick else effort


PARTS = ("steps", "answers", "growth")
"""What can be measured."""

SIZES: Mapping[str, Sequence[int]] = {
    "classes": (5, 50, 200, 1000),
    "images": (8, 32, 128),
    "samples": (1, 5, 20),
    "words": (3, 16, 64),
}
"""How large each thing grows: classes, reference images, remembered samples, and words of a class name."""

GROWING: Mapping[str, Sequence[str | None]] = {
    "classes": (None, "wasserstein"),
    "images": ("sinkhorn", "wasserstein"),
    "samples": ("sinkhorn", "wasserstein"),
    "tokens": (None,),
}
"""What the repulsion is beside MMD where growth is timed, by what grows."""

ANSWER_CLASSES = 50
"""Classes among which answers are given."""


class Bench:
    """Measures on one device with one backbone; `say` hears what is being timed."""

    def __init__(self, encoder: DualEncoder, effort: Effort, say: Say) -> None:
        self.encoder, self.effort, self.say = encoder, effort, say
        self.device = str(encoder.device)

    def steps(self, cases: Iterable[Case], along: str = "") -> Iterator[StepTimes]:
        """The times of each case. The plain baseline applies the force at every step, also where ours does not."""
        plain: dict[Case, tuple[list[float], int | None]] = {}
        for case in cases:
            self.say(f"a training step, {in_words(case)}")
            times, peak = self._ours(case)
            usual = replace(case, every=1)
            if self.effort.plain and usual not in plain:
                self.say(f"the same, plain, {in_words(usual)}")
                plain[usual] = self._plain(usual)
            plain_times, plain_peak = plain.get(usual, ([], None))
            names = class_names(case.classes, case.words)
            yield StepTimes(
                case,
                statistics.median(times),
                statistics.fmean(times),
                peak,
                text_length(self.encoder, names),
                statistics.median(plain_times) if plain_times else None,
                statistics.fmean(plain_times) if plain_times else None,
                plain_peak,
                text_length(full_length(self.encoder), names),
                along,
            )

    def _ours(self, case: Case) -> tuple[list[float], int | None]:
        chain, _ = bench_chain(self.encoder, case)
        rounds = FIRST_ROUND * case.every, ROUND * case.every
        return self._timed(chain.step, *map(max, rounds, (self.effort.warm_up, self.effort.steps)))

    def _plain(self, case: Case) -> tuple[list[float], int | None]:
        return self._timed(PlainTraining(*bench_chain(self.encoder, case)).step, FIRST_ROUND, ROUND)

    def _timed(self, step: Callable[[], object], warm_up: int, count: int) -> tuple[list[float], int | None]:
        """The milliseconds of so many steps, and the most bytes on the GPU in these and in the warm-up."""
        self._clear()
        for _ in range(warm_up):
            step()
        times = periods(step, count, self.device)
        return times, torch.cuda.max_memory_allocated(self.device) if self.device.startswith("cuda") else None

    def answers(self, methods: Sequence[str], samples: Sequence[int], along: str = "") -> Iterator[AnswerTimes]:
        """The times of answers among 50 classes by each method with each number of samples."""
        names = class_names(ANSWER_CLASSES)
        side = self.encoder.preprocessing.crop
        shape = (self.effort.images, 3, side, side)
        views = torch.randint(256, shape, dtype=torch.uint8, generator=generator(1, "bench"))
        for method in methods:
            for count in samples:
                self._clear()
                what = f"answers of {method}, {number_of(count, 'sample')}"
                self.say(what)
                posterior = random_posterior(self.encoder, names, TEMPLATE, count, method)
                ours = self._answers(posterior.predict_views, views, compiled=accelerated(self.device))
                plain: tuple[float | None, float | None] = (None, None)
                if self.effort.plain:
                    self.say(f"the same, plain, {what}")
                    plain = self._answers(PlainPosterior(posterior).probabilities, views)
                yield AnswerTimes(method, len(names), count, len(views), *ours, *plain, along)

    def _answers(
        self, answer: Callable[[Tensor], object], views: Tensor, compiled: bool = False
    ) -> tuple[float, float]:
        """Medians for one image and for all; `compiled`, as the passes of many images are after the first 200 000."""
        effort = self.effort
        captures = self.device.startswith("cuda")  # which it does after some calls
        one = milliseconds(
            lambda: answer(views[:1]), effort.repeats, self.device, warm_up=5 if captures else 1, seconds=effort.seconds
        )
        with compiling(compiled):
            many = milliseconds(
                lambda: answer(views), effort.repeats, self.device, warm_up=2 if captures else 1, seconds=effort.seconds
            )
        return statistics.median(one), statistics.median(many)

    def growth(self, method: str) -> Iterator[StepTimes | AnswerTimes]:
        """How a step grows with classes, reference images, remembered samples and tokens, and an answer with samples.

        The plain baseline is timed with the first distance only.
        """
        gpu, limit = self.device.startswith("cuda"), self.encoder.tokenizer.limit
        base = Case(method)
        along: dict[str, list[Case]] = {
            "classes": [replace(base, classes=count) for count in SIZES["classes"] if gpu or count <= 200],
            "images": [replace(base, images=count) for count in SIZES["images"]],
            "samples": [replace(base, samples=count) for count in SIZES["samples"]],
            "tokens": [replace(base, words=words) for words in SIZES["words"] if words + 8 < limit],
        }
        for name, growing in along.items():
            yield from self.steps(growing, name)
            for distance in GROWING[name]:
                others = Bench(self.encoder, replace(self.effort, plain=False), self.say)
                yield from others.steps([replace(case, repulsion=distance) for case in growing], name)
        yield from self.answers([method], (1, 3, 10, 30), "samples")

    def _clear(self) -> None:
        """Free what earlier work has left, and begin to count memory."""
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)


def cases(method: str, distances: Sequence[str], classes: Sequence[int], batch: int) -> list[Case]:
    """The rows of the table of steps: no repulsion, each distance, and the first as an impulse now and then."""
    kinds = [(None, 1), *((distance, 1) for distance in distances), (distances[0], IMPULSE)]
    return [Case(method, count, distance, batch=batch, every=every) for count in classes for distance, every in kinds]


def text_length(encoder: DualEncoder, names: Sequence[str]) -> int:
    """How many tokens the texts of these classes have, in the usual template."""
    return encoder.tokenize([[TEMPLATE.replace("{}", name)] for name in names]).ids.shape[1]


def periods(call: Callable[[], object], count: int, device: str) -> list[float]:
    """The milliseconds from the end of each of `count` calls to that of the next, all in a row.

    On a GPU its own clock is read, so that nothing waits between the calls.
    """
    if not device.startswith("cuda"):
        marks = [time.perf_counter()]
        for _ in range(count):
            call()
            marks.append(time.perf_counter())
        return [1000 * (end - start) for start, end in pairwise(marks)]
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairwise(events)]


def measure(
    backbone: str | None,
    device: str,
    effort: Effort,
    say: Say,
    *,
    method: str = "maple",
    batch: int = 1,
    parts: Sequence[str] = PARTS[:2],
    keep: Callable[[Measured], None] = lambda _: None,
) -> Measured:
    """The given parts: the table of steps, that of answers, and the growth of both.

    `keep` is given all that is measured so far, after each row, so that an interruption loses nothing.
    """
    if not parts:
        raise UserError(f"nothing to time: name one or more of {', '.join(PARTS)}")
    for part in parts:
        if part not in PARTS:
            raise unknown("part of the measurement", part, PARTS)
    for count in effort.classes:
        class_names(count)
    for each in effort.methods:
        METHODS.find(each)
    for distance in effort.distances:
        resolved_case(Case(method, repulsion=distance))
    encoder = bench_encoder(backbone, device)
    bench = Bench(encoder, effort, say)
    here = environment(device)
    about = {
        **{name: here[name] for name in ("device", "threads", "versions")},
        "backbone": encoder.name,
        "dtype": str(encoder.dtype).removeprefix("torch."),
        "captured": accelerated(device),
        "warm_up": effort.warm_up,
        "steps": effort.steps,
        "plain_warm_up": FIRST_ROUND,
        "plain_steps": ROUND,
        "repeats": effort.repeats,
        "seconds": effort.seconds,
    }
    measured = Measured(about, [], [])
    rows: dict[str, Iterator[StepTimes | AnswerTimes]] = {  # each is timed when it is asked for
        "steps": bench.steps(cases(method, effort.distances, effort.classes, batch)),
        "answers": bench.answers(effort.methods, effort.samples),
        "growth": bench.growth(method),
    }
    for part in PARTS:
        for row in rows[part] if part in parts else ():
            if isinstance(row, StepTimes):
                measured = replace(measured, steps=[*measured.steps, row])
            else:
                measured = replace(measured, answers=[*measured.answers, row])
            keep(measured)
    return measured
