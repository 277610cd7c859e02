"""Measure how long a training step and an answer take on this machine, and the same work done the obvious way.

    make bench                                                    # steps and answers: three minutes on a GPU
    python benchmarks/speed.py --parts steps --forces none,mmd --no-plain --out steps.json
    python benchmarks/speed.py --parts growth --out docs/benchmarks/bench-h200.json     # adds to what the file holds

It needs no data and downloads nothing: pictures are noise, and on a GPU the backbone has the shape of CLIP ViT-B/16
with random weights, which takes as long to compute as the real one. Every row is written into `--out` as soon as it is
measured. `speed_page.py` makes the tables and the figure of docs/performance.md from these files.

A step is a complete step of a training in its second cycle: batch, passes, repulsion from the samples of the first
cycle, optimizer, checks. Steps are timed in a row, without waiting for the device in between, after libraries are set
up and passes are captured and compiled. The median is the time of an ordinary step. The mean includes the steps that
measure norms and those that check the numbers. An answer is a call of `Posterior.predict_views` with views on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from plain_baseline import PlainPosterior, PlainTraining, full_length
from rebapl.backbones import DualEncoder, TextTokenizer, load_backbone
from rebapl.captured import accelerated
from rebapl.compiled import compiling
from rebapl.data.embedded import NUMBER_WORDS, shape_classes
from rebapl.data.own_images import dataset_of
from rebapl.data.task import Task, task_of
from rebapl.errors import UserError
from rebapl.files import read_json, write_json
from rebapl.learners import METHODS
from rebapl.randomness import generator
from rebapl.reproduce.timing import random_posterior
from rebapl.runs.machine import environment
from rebapl.training.fit import Training
from rebapl.training.resolution import ResolvedTraining, resolve_training

FIRST_ROUND, ROUND = 9, 10
"""The force measures norms often in the first 9 steps of a cycle, and later at every tenth step."""

TEMPLATE = "a photo of a {}."
ANSWER_CLASSES = 50
RANDOM = "random"
"""The name of the backbone with the shape of CLIP ViT-B/16 and random weights."""

PICTURES, LARGER = 128, 1.25
"""The number of different pictures, and their side as a multiple of the backbone's, so that they are cropped."""

PARTS = ("steps", "answers", "growth")
SIZES = {"classes": (5, 50, 200, 1000), "images": (8, 32, 128), "samples": (1, 5, 20), "words": (3, 16, 64)}
"""The sizes for which the growth of a step is measured. `words` is the number of words of a class name."""
BESIDE_MMD = {"classes": ("none", "wasserstein"), "words": ("none",)}
"""The forces that are measured for a size in addition to MMD. For other sizes these are Sinkhorn and Wasserstein."""


@dataclass(frozen=True)
class Case:
    """One kind of training step. The force acts at every step or, as an impulse, at each `every`-th one."""

    method: str = "maple"
    classes: int = 50
    repulsion: str | None = "mmd"
    images: int = 32
    batch: int = 1
    samples: int = 1
    every: int = 1
    words: int = 3

    def with_force(self, name: str) -> Case:
        """The case with a force by its name: `none`, a distance such as `mmd`, or `mmd/4` for every fourth step.

        >>> Case().with_force("energy/4").every, Case().with_force("none").repulsion
        (4, None)
        """
        distance, _, every = name.partition("/")
        if every and not every.isdecimal():
            raise UserError(f"--forces {name}: write none, a distance, or a distance and a number of steps as in mmd/4")
        return replace(self, repulsion=None if distance == "none" else distance, every=int(every or 1))

    def settings(self) -> dict[str, Any]:
        """Settings for a short first cycle, whose samples are remembered, and a long second one, which is measured."""
        settings: dict[str, Any] = {"batch": self.batch, "chains": 1, "cycles": 2, "first_epochs": 1, "epochs": 1000}
        settings |= {"sampler.exploration": 0.5, "sampler.burn_in": 0, "warmup": None}
        if self.repulsion is None:
            return {**settings, "repulsion": None}
        settings |= {"sampler.samples_per_cycle": self.samples, "repulsion.distance.kind": self.repulsion}
        if METHODS.find(self.method).learner.per_image(METHODS.find(self.method).settings()):
            settings["repulsion.images"] = self.images
        return {**settings, "repulsion.every": self.every}

    def resolved(self) -> ResolvedTraining:
        """All settings of the training. Names that do not exist are refused."""
        names = {"protocol": "few-shot", "data": "noise", "shots": 16}
        return resolve_training(self.method, "rebapl", **names, inference_settings=self.settings())  # type: ignore[arg-type]


def bench_encoder(name: str, device: str) -> DualEncoder:
    """A backbone by name. `random` is the shape of CLIP ViT-B/16 with random weights and the words of `mini`."""
    if name != RANDOM:
        return load_backbone(name, device)
    from transformers import CLIPConfig, CLIPModel

    mini = load_backbone("mini", device)
    config = CLIPConfig(
        vision_config={"patch_size": 16}
    )  # the other sizes of ViT-B/16 are the defaults of `transformers`
    with torch.random.fork_rng(devices=[mini.device] if mini.device.type == "cuda" else []), mini.device:
        torch.manual_seed(0)
        model = CLIPModel(config).to(mini.dtype)
    words, side = mini.tokenizer, config.vision_config.image_size
    tokenizer = TextTokenizer(words.encode, words.start, words.end, config.text_config.max_position_embeddings)
    return DualEncoder(RANDOM, model, tokenizer, replace(mini.preprocessing, resize=side, crop=side))


def class_names(count: int, words: int = 3) -> list[str]:
    """Different names of at least `words` words each, from the words that `mini` knows.

    >>> class_names(2), class_names(2, words=5)[1], len(set(class_names(1000)))
    (['red striped circle', 'blue striped circle'], 'blue striped circle blue striped', 1000)
    """
    words_of = [name.split() for name in shape_classes()]
    colours, textures, shapes = (list(dict.fromkeys(each)) for each in zip(*words_of, strict=True))
    numbers = [[], *([word] for word in NUMBER_WORDS)]
    every = product(numbers, shapes, textures, colours)
    names = [[*number, colour, texture, shape] for number, shape, texture, colour in every]
    if not 2 <= count <= len(names):
        raise UserError(f"{count} classes cannot be timed: give numbers from 2 to {len(names)}")
    return [" ".join(islice(cycle(name), max(words, len(name)))) for name in names[:count]]


def text_length(encoder: DualEncoder, names: Sequence[str]) -> int:
    """The number of tokens of the texts of these classes, in the usual template."""
    return encoder.tokenize([[TEMPLATE.replace("{}", name)] for name in names]).ids.shape[1]


def noise(encoder: DualEncoder, count: int, larger: float = 1.0) -> Tensor:
    """Pictures of noise, uint8 (count, 3, H, W), `larger` times the size that the backbone sees."""
    side = round(larger * encoder.preprocessing.crop)
    return torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=generator(1, "bench"))


def noise_task(encoder: DualEncoder, case: Case, pool: int) -> Task:
    """A task of pictures of noise, at least one of each class. All are training images."""
    pictures: list[np.ndarray] = list(noise(encoder, PICTURES, LARGER).permute(0, 2, 3, 1).contiguous().numpy())
    count = max(case.classes, case.batch, pool, 2 * case.samples, 2 * ROUND)  # half of the first epoch is for sampling
    images, labels = islice(cycle(pictures), count), islice(cycle(range(case.classes)), count)
    return task_of(dataset_of(list(images), list(labels), class_names(case.classes, case.words)))


def training_of(encoder: DualEncoder, case: Case) -> Training:
    """The training of a case, at the beginning of its second cycle."""
    resolved = case.resolved()
    assert resolved.inference is not None
    training = Training(noise_task(encoder, case, resolved.inference.pool_size), encoder, resolved, seed=1)
    assert training.loop is not None
    while len(training.loop.samples) < resolved.inference.samples_per_cycle:
        training.loop.step()
    return training


def plain_training(encoder: DualEncoder, case: Case) -> PlainTraining:
    """The same steps done the obvious way."""
    inference = case.resolved().inference
    assert inference is not None
    task = noise_task(encoder, case, inference.pool_size)
    training = Training(task, encoder, replace(case, repulsion=None).resolved(), seed=1)
    assert training.loop is not None
    force = None if case.repulsion is None else {"distance": case.repulsion, "force": "fading"}
    pool = encoder.preprocessing.normalize(noise(encoder, max(inference.pool_size, 1)).to(encoder.device))
    return PlainTraining(training.learner, training.loop.batches, force, pool, case.images, case.samples)


def periods(call: Callable[[], object], count: int, device: str) -> list[float]:
    """The milliseconds between the ends of successive calls, for `count` calls in a row.

    On a GPU they are read from its own clock, so that nothing waits between the calls.
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


@dataclass(frozen=True)
class Bench:
    """Measurements on one device with one backbone.

    `steps` steps are timed in a row after `warm_up` others. Both numbers are raised to at least one round of the
    force's measurements of norms. Answers are called for about `seconds`.
    """

    encoder: DualEncoder
    plain: bool = True
    warm_up: int = 39
    steps: int = 40
    seconds: float = 1.0

    @property
    def device(self) -> str:
        """The device of the backbone."""
        return str(self.encoder.device)

    def step(self, case: Case, along: str = "") -> dict[str, Any]:
        """Measure a case. The plain baseline applies the force at every step."""
        names = class_names(case.classes, case.words)
        row = {**asdict(case), "along": along, "tokens": text_length(self.encoder, names)}
        training = training_of(self.encoder, case)
        loop = training.loop
        assert loop is not None
        warm_up = max(FIRST_ROUND * case.every, self.warm_up)
        row |= self._timed(loop.step, warm_up, max(ROUND * case.every, self.steps))
        if self.plain and case.every == 1:
            del training, loop
            plain = plain_training(self.encoder, case)
            times = self._timed(plain.step, min(FIRST_ROUND, self.warm_up), min(ROUND, self.steps))
            row |= {f"plain_{name}": value for name, value in times.items()}
            row["plain_tokens"] = text_length(full_length(self.encoder), names)
        return row

    def _timed(self, step: Callable[[], object], warm_up: int, count: int) -> dict[str, float | int | None]:
        """Median and mean milliseconds of a step, and the peak of the GPU's memory in bytes, including the warm-up."""
        self._clear()
        for _ in range(warm_up):
            step()
        times = periods(step, count, self.device)
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.startswith("cuda") else None
        return {"median": statistics.median(times), "mean": statistics.fmean(times), "peak": peak}

    def answer(self, method: str, samples: int, images: int, along: str = "") -> dict[str, Any]:
        """Milliseconds (medians) of an answer to one image and to `images`, among 50 classes."""
        row = {"method": method, "classes": ANSWER_CLASSES, "samples": samples, "images": images, "along": along}
        names, views = class_names(ANSWER_CLASSES), noise(self.encoder, images)
        posterior = random_posterior(self.encoder, names, TEMPLATE, samples, method)
        self._clear()
        row["one"] = self._call(posterior.predict_views, views[:1])
        with compiling(accelerated(self.device)):  # as it is for many images after the first 200 000
            row["many"] = self._call(posterior.predict_views, views)
        if self.plain:
            plain = PlainPosterior(posterior)
            row["plain_one"] = self._call(plain.probabilities, views[:1])
            row["plain_many"] = self._call(plain.probabilities, views)
        return row

    def _call(self, answer: Callable[[Tensor], object], views: Tensor) -> float:
        for _ in range(6 if len(views) == 1 else 2):  # passes are captured only after some calls
            answer(views)
        timer = Timer("answer(views)", globals={"answer": answer, "views": views}, num_threads=torch.get_num_threads())
        return 1000 * timer.blocked_autorange(min_run_time=self.seconds).median

    def _clear(self) -> None:
        """Free the memory of earlier work, and reset the peak of memory."""
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def growth(self, base: Case, images: int) -> Iterator[dict[str, Any]]:
        """Measure how a step grows with four sizes, and an answer with samples. The baseline is timed only with MMD."""
        gpu, limit = self.device.startswith("cuda"), self.encoder.tokenizer.limit
        for name, sizes in SIZES.items():
            along = "tokens" if name == "words" else name
            for force in ("mmd", *BESIDE_MMD.get(name, ("sinkhorn", "wasserstein"))):
                bench = replace(self, plain=self.plain and force == "mmd")
                for size in sizes:
                    grown: dict[str, Any] = {name: size}
                    if not ((name == "words" and size + 8 >= limit) or (name == "classes" and not gpu and size > 200)):
                        yield bench.step(replace(base.with_force(force), **grown), along)
        for samples in (1, 3, 10, 30):
            yield self.answer(base.method, samples, images, "samples")

    def about(self) -> dict[str, Any]:
        """The machine, the backbone and the settings of the measurements."""
        here = environment(self.device)
        return {
            **{name: here[name] for name in ("device", "threads", "versions")},
            "backbone": self.encoder.name,
            "dtype": str(self.encoder.dtype).removeprefix("torch."),
            "captured": accelerated(self.device),
            "warm_up": self.warm_up,
            "steps": self.steps,
            "plain_warm_up": FIRST_ROUND,
            "plain_steps": ROUND,
            "seconds": self.seconds,
        }


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    """The fields that identify a row of steps: all except its times."""
    return tuple(row.get(name) for name in ("along", *asdict(Case())))


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure what the words of the command line request. Each row is also printed, in a line of its own."""
    gpu = torch.cuda.is_available()
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")  # noqa: E731
    numbers = lambda text: [int(word) for word in text.split(",")]  # noqa: E731
    forces = "none,mmd,energy,sinkhorn,wasserstein,mmd/4" if gpu else "none,mmd,wasserstein,mmd/4"
    options.add_argument(
        "--parts", type=listed, default="steps,answers", help="what to measure: steps, answers, growth"
    )
    options.add_argument("--method", default="maple", help="the method whose step is timed")
    options.add_argument(
        "--forces", type=listed, default=forces, help="none, or distances; mmd/4 is MMD at every fourth step"
    )
    options.add_argument(
        "--classes", type=numbers, default="5,50,500" if gpu else "5,50", help="numbers of classes of a step"
    )
    options.add_argument("--batch", type=int, default=1, help="images in a step")
    options.add_argument(
        "--answers", type=listed, default="maple,mmrl,coop", help="the methods whose answers are timed"
    )
    options.add_argument("--samples", type=numbers, default="1,10", help="numbers of samples of an answer")
    options.add_argument(
        "--images", type=int, default=2048 if gpu else 64, help="number of images that are answered at once"
    )
    options.add_argument("--backbone", default=RANDOM if gpu else "mini", help="mini, random, a folder or a hub id")
    options.add_argument("--device", default="cuda" if gpu else "cpu")
    options.add_argument(
        "--plain", action=argparse.BooleanOptionalAction, default=True, help="also time the plain baseline"
    )
    options.add_argument("--steps", type=int, default=40 if gpu else ROUND, help="number of steps that are timed")
    options.add_argument("--warm-up", type=int, default=39 if gpu else FIRST_ROUND, help="number of steps before them")
    options.add_argument("--seconds", type=float, default=1.0, help="time for which each kind of answer is called")
    options.add_argument("--out", type=Path, help="file for the rows; other rows of the same machine in it are kept")
    chosen = options.parse_args(words)
    if unknown := set(chosen.parts) - set(PARTS):
        options.error(f"--parts has {', '.join(sorted(unknown))}, which is none of {', '.join(PARTS)}")
    base = Case(chosen.method, batch=chosen.batch)
    cases = [replace(base.with_force(force), classes=count) for count in chosen.classes for force in chosen.forces]
    for case in cases:
        class_names(case.classes)
        case.resolved()
    for method in chosen.answers:
        METHODS.find(method)
    encoder = bench_encoder(chosen.backbone, chosen.device)
    bench = Bench(encoder, chosen.plain, chosen.warm_up, chosen.steps, chosen.seconds)
    measured: dict[str, Any] = {"about": bench.about(), "steps": [], "answers": []}
    if chosen.out is not None and chosen.out.exists():
        earlier = read_json(chosen.out, "a measurement")
        if earlier["about"] != measured["about"]:
            raise UserError(f"{chosen.out} has other measurements, of {earlier['about']['device']}: name another file")
        measured = earlier

    def rows() -> Iterator[dict[str, Any]]:
        if "steps" in chosen.parts:
            yield from map(bench.step, cases)
        if "answers" in chosen.parts:
            yield from (bench.answer(each, count, chosen.images) for each in chosen.answers for count in chosen.samples)
        if "growth" in chosen.parts:
            yield from bench.growth(base, chosen.images)

    for row in rows():
        print(json.dumps(row), flush=True)
        kind = "answers" if "one" in row else "steps"
        measured[kind] = [*(each for each in measured[kind] if identity(each) != identity(row)), row]
        if chosen.out is not None:
            write_json(chosen.out, measured)
    return measured


if __name__ == "__main__":
    main()
