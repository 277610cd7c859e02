"""Heads that are asked for trained and new class names in one list: the table of docs/heads.md.

    python tools/one_list.py --root DATA --photo BACKBONE

Each head learns the base classes of DTD, SCENE-15 and EuroSAT with 16 images of each and seed 1, and is then asked for
all class names at once. The table has the accuracy on the test images of the base classes and of the novel classes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rebapl import fit, load_backbone, load_task
from rebapl.backbones import DualEncoder
from rebapl.backbones.features import features_kept_in
from rebapl.data.task import Task
from rebapl.evaluation.tasks import part_labels, predict_part
from rebapl.learners import METHODS
from rebapl.reports.tables import Table
from study import LISTS, SPLITS

TASKS = {"dtd": "DTD", "scene15": "SCENE-15", "eurosat": "EuroSAT"}
HEADS = ("zero-shot", *(name for name, method in METHODS.items() if method.learner.learns_from_features))


def task_of(name: str, root: Path) -> Task:
    """The base-to-novel task of a data set, 16 shots, seed 1."""
    if name in LISTS:
        return load_task(str(root / name / "list.csv"), 16, 1)
    return load_task(name, 16, 1, root=root, split=SPLITS[name])


def accuracies(task: Task, backbone: DualEncoder, method: str) -> str:
    """The accuracy on base and on novel test images, in percent, if all class names are asked for at once."""
    base, novel = task.tests["base"], task.tests["novel"]
    posterior, shares = fit(task, backbone, method).among([*base.class_names, *novel.class_names]), []
    for first, part in ((0, base), (len(base.class_names), novel)):
        right = predict_part(posterior, part).labels == part_labels(part) + first
        shares.append(100 * right.double().mean().item())
    return " / ".join(f"{share:.1f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--photo", required=True, help="the backbone")
    options = parser.parse_args()
    backbone = load_backbone(options.photo)
    tasks = [task_of(name, options.root) for name in TASKS]
    with tempfile.TemporaryDirectory() as folder, features_kept_in(Path(folder)):
        rows = [[f"`{head}`", *(accuracies(task, backbone, head) for task in tasks)] for head in HEADS]
    print(Table("", ["head", *TASKS.values()], rows).to_markdown(bare=True))


if __name__ == "__main__":
    main()
