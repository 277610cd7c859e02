"""The demonstration: a few methods on two embedded tasks, with the embedded backbone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rebapl.backbones import load_backbone
from rebapl.data.task import load_task
from rebapl.evaluation import base_novel_scores, evaluate
from rebapl.files import write_atomically, write_json
from rebapl.reports.figures import base_novel_figure
from rebapl.reports.results import MethodScores, base_novel_markdown
from rebapl.reproduce.suites import TableRow
from rebapl.training.checkpoint import Progress
from rebapl.training.fit import fit

TASKS = ("digits", "shapes")
SELECTION = (
    TableRow("zero-shot", "zero-shot", "none"),
    TableRow("tip-adapter-f · mle", "tip-adapter-f", "mle"),
    TableRow("coop · mle", "coop", "mle", {"epochs": 5}),
    TableRow("maple · mle", "maple", "mle", {"epochs": 3}),
    TableRow("maple · ensemble", "maple", "ensemble", {"epochs": 3}),
    TableRow("maple · rebapl", "maple", "rebapl", {"first_epochs": 1, "epochs": 1}),
)
SHOTS, SEED, TEST_IMAGES = 8, 1, 240
REMARK = (
    "One seed on small tasks: this shows what the software does, not what is better. On real tasks an ensemble is at "
    "least as good as rebapl with MaPLe, and rebapl has the better probabilities with MMRL (docs/which-inference.md)."
)


def run_demo(
    out: Path, bar: Callable[[str], Progress], tasks: Sequence[str] = TASKS, selection: Sequence[TableRow] = SELECTION
) -> list[MethodScores]:
    """Base-to-novel for every choice on every task; leaves `results.json`, `table.md` and `figure.png` in `out`.

    `bar(title)` gives the progress callback for one training.
    """
    encoder = load_backbone("mini")
    rows = []
    for name in tasks:
        task = load_task(name, SHOTS, SEED, test_images=TEST_IMAGES)
        for choice in selection:
            start = time.perf_counter()
            progress, settings = bar(f"{name}: {choice.label}"), choice.settings
            how = (choice.method, choice.inference)
            posterior = fit(task, encoder, *how, inference_settings=settings, progress=progress)
            seconds = time.perf_counter() - start
            parts = evaluate(posterior, task)
            rows.append(MethodScores(name, choice.label, base_novel_scores(parts["base"], parts["novel"]), seconds))
    write_json(out / "results.json", [row._asdict() for row in rows])
    write_atomically(out / "table.md", base_novel_markdown(rows))
    note = f"{SHOTS} images per class, one seed, {TEST_IMAGES} test images per half of the classes"
    base_novel_figure(rows, out / "figure.png", note)
    return rows
