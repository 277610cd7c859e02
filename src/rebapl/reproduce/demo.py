"""The demonstration: a fixed, small selection on two embedded tasks, with the embedded backbone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rebapl.backbones import load_backbone
from rebapl.data.task import load_task
from rebapl.evaluation import base_novel_scores
from rebapl.evaluation.tasks import evaluate
from rebapl.files import write_json
from rebapl.reports.base_novel import Row, write_base_novel
from rebapl.training.fit import Progress, fit


class Choice(NamedTuple):
    """A method, a kind of inference, and how many epochs each cycle has here instead of the published number."""

    method: str
    inference: str
    epochs: int | None

    @property
    def title(self) -> str:
        return self.method if self.epochs is None else f"{self.method} · {self.inference}"


TASKS = ("digits", "shapes")
SELECTION = (
    Choice("zero-shot", "none", None),
    Choice("coop", "mle", 5),
    Choice("maple", "mle", 3),
    Choice("maple", "ensemble", 3),
    Choice("maple", "rebapl", 3),
)
SHOTS, SEED, TEST_IMAGES = 8, 1, 240


def run_demo(
    out: Path, bar: Callable[[str], Progress], tasks: Sequence[str] = TASKS, selection: Sequence[Choice] = SELECTION
) -> list[Row]:
    """Base-to-novel for every choice on every task; leaves `results.json`, `table.md` and `figure.png` in `out`.

    `bar(title)` gives the progress callback for one training.
    """
    encoder = load_backbone("mini")
    rows = []
    for name in tasks:
        task = load_task(name, SHOTS, SEED, test_images=TEST_IMAGES)
        for choice in selection:
            start = time.perf_counter()
            progress = bar(f"{name}: {choice.title}")
            posterior = fit(task, encoder, choice.method, choice.inference, epochs=choice.epochs, progress=progress)
            seconds = time.perf_counter() - start
            parts = evaluate(posterior, task)
            rows.append(Row(name, choice.title, base_novel_scores(parts["base"], parts["novel"]), seconds))
    write_json(out / "results.json", [row._asdict() for row in rows])
    write_base_novel(rows, out)
    return rows
