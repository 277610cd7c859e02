"""Suites: the data, the backbone and the sizes with which the paper's tables and figures are made.

The defaults of `Suite` are the paper's own. `MINI` has everything that the miniature reduces. `PHOTO` is for the
backbone and the data sets of a user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rebapl.backbones import DEFAULT_BACKBONE
from rebapl.data.catalogue import is_own, own_path
from rebapl.data.published import PUBLISHED, data_root, given_root
from rebapl.data.task import SOURCE, TARGETS
from rebapl.errors import UserError, unknown
from rebapl.learners import METHODS, published
from rebapl.reproduce.paper import printed
from rebapl.runs.config import RunConfig
from rebapl.sampling import PRESETS, Inference
from rebapl.sampling.presets import has_own_epochs
from rebapl.wording import number_of

TABLE1_METHODS = ("zero-shot", "coop", "cocoop", "app", "promptsrc", "maple", "mmrl")
"""The methods of the paper's first table, in its order. Each method of `REBAPL_ON` is followed by ReBaPL on it."""

REBAPL_ON = ("maple", "mmrl")
ELEVEN = (SOURCE, *TARGETS["cross-dataset"])

PAPER_STUDIES = {
    "xi": "ucf101",
    "cycles": "dtd",
    "diversity": "eurosat",
    **dict.fromkeys(("samples", "latency", "efficiency", "overfitting"), "oxford_flowers"),
}
"""The data set on which each study of the paper was made."""


@dataclass(frozen=True)
class TableRow:
    """A row of a table: its method, its inference with settings, and the words in front of its numbers.

    * `label`: the name of the row, here and in `paper.json`.
    * `method`, `inference`: what is run. An `inference` of None is the one with which the method was published. In a
      table without runs, the method is "".
    * `settings`: settings that replace those of the inference; in a table without runs, those of the measurement.
    * `words`: the words in front of the numbers. Without them, it is the label as the paper prints it.
    * `as_long_as`: the name of an inference. This row trains for as many epochs as that one has in all its cycles.
    * `over`: the label of another row. A row Δ below this one shows this row minus that one, for runs of the same seed.
    * `name`: how sentences call the row, if not by its words.
    """

    label: str
    method: str = ""
    inference: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    as_long_as: str = ""
    over: str = ""
    name: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """The words in front of the numbers."""
        return self.words or (printed(self.label),)


def learns(method: str) -> bool:
    """Whether a method learns anything, so that another seed may give another result.

    >>> learns("zero-shot"), learns("coop"), learns("gda")
    (False, True, True)
    """
    learner = METHODS.find(method).learner
    return learner.recipe.epochs > 0 or learner.learns_from_features


@dataclass(frozen=True)
class Suite:
    """The data, the backbone, the seeds and the sizes of all targets. The default values are the paper's.

    * `note`: a remark below every table, in which {shots} and {backbone} are filled in.
    * `inference`: the preset that is used for ReBaPL.
    * `data`: the data sets of the base-to-novel tables. `data_by_target`: the only data set of each study.
    * `source`: the data set on which transfers are trained. `cross`, `shifted`: those on which tables 2 and 3 test.
    * `seeds`: the seeds of every run. `seeds_by_target`: other seeds for some studies.
    * `epochs`: the largest number of epochs (of ReBaPL: per cycle) by method; "*" stands for every other method.
    * `methods`: the methods that the user named for all tables of methods. If it is empty, each table has its own.
    * `splits`: split files that replace the published ones, by data set.
    * `compared`: whether the paper's numbers are of these data sets, so that differences make sense.

    The other fields are the numbers of shots and images, and the grids of the studies.
    """

    name: str
    note: str = ""
    backbone: str = DEFAULT_BACKBONE
    inference: str = "rebapl-paper"
    data: tuple[str, ...] = ELEVEN
    data_by_target: Mapping[str, str] = field(default_factory=lambda: PAPER_STUDIES)
    source: str = SOURCE
    cross: tuple[str, ...] = TARGETS["cross-dataset"]
    shifted: tuple[str, ...] = TARGETS["domain-generalization"]
    seeds: tuple[int, ...] = (1, 2, 3)
    seeds_by_target: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    shots: int = 16
    test_images: int | None = None
    epochs: Mapping[str, int] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    splits: Mapping[str, str] = field(default_factory=dict)
    compared: bool = True
    strengths: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    references: tuple[int, ...] = (16, 32, 64)
    cycles: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20)
    samples: tuple[int, ...] = (1, 2, 3, 4, 5)
    points: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    repeats: int = 20
    latency_cycles: tuple[int, ...] = (1, 2, 3, 4, 8)
    latency_images: int = 100

    def config(self, data: str, row: TableRow, seed: int, protocol: str = "base-to-novel") -> RunConfig:
        """The run of a row on a data set."""
        targets = self.targets(protocol)
        config = RunConfig(
            data=data,
            method=row.method,
            inference=row.inference,
            protocol=protocol,
            shots=self.shots,
            seed=seed,
            backbone=self.backbone,
            test_images=self.test_images,
            split=self.splits.get(data),
            targets=tuple(f"{name}={self.splits[name]}" if name in self.splits else name for name in targets) or None,
            inference_settings=dict(row.settings),
        )
        if row.as_long_as:
            other = replace(row, inference=row.as_long_as, settings={}, as_long_as="")
            return config.changed(epochs=self.inference_of(data, other).all_epochs)
        most = self.epochs.get(row.method, self.epochs.get("*"))
        if most is None or most >= _recipe_epochs(config) or "epochs" in row.settings:
            return config
        return config.changed(epochs=most)

    def inference_of(self, data: str, row: TableRow) -> Inference:
        """All settings of the inference of a row on a data set. The method of the row must learn something."""
        inference = self.config(data, row, self.seeds[0]).resolved().training.inference
        assert inference is not None
        return inference

    def targets(self, protocol: str) -> tuple[str, ...]:
        """The data sets on which a transfer tests; empty for the other protocols."""
        return {"cross-dataset": self.cross, "domain-generalization": self.shifted}.get(protocol, ())

    def trained_on(self, target: str, protocol: str = "base-to-novel") -> tuple[str, ...]:
        """The data sets on which the runs of a table are trained.

        A transfer has its source, a study its one data set, and any other table all data sets of the suite. A transfer
        without targets is refused.
        """
        if protocol == "base-to-novel":
            return (self.data_by_target[target],) if target in self.data_by_target else self.data
        if not self.targets(protocol):
            needed = "two of the data sets" if protocol == "cross-dataset" else "ImageNet and one of its variants"
            raise UserError(f"{protocol} needs {needed} below --root: `rebapl data list` names them")
        return (self.source,)

    def rebapl(
        self, method: str, label: str = "", settings: Mapping[str, Any] | None = None, **others: Any
    ) -> TableRow:
        """A row of ReBaPL on a method. `settings` replace those of the inference; `others` are fields of `TableRow`."""
        return TableRow(label or f"{method} + rebapl", method, self.inference, settings or {}, **others)

    def rows(self, methods: Sequence[str] = TABLE1_METHODS) -> list[TableRow]:
        """The rows of a main table: each method as it was published and, for `REBAPL_ON`, ReBaPL on it with a row Δ.

        `methods` are the methods of the table if the user named none.
        """
        rows = []
        for method in self.methods or methods:
            rows.append(TableRow(method, method))
            if method in REBAPL_ON:
                rows.append(self.rebapl(method, over=method))
        return rows

    def seeds_of(self, row: TableRow, target: str = "") -> Sequence[int]:
        """The seeds of the runs of a row in a table. A method without randomness has only the first seed."""
        seeds = self.seeds_by_target.get(target, self.seeds)
        return seeds if learns(row.method) else seeds[:1]

    @property
    def remark(self) -> str:
        """The note, with shots and backbone filled in."""
        return self.note.format(shots=number_of(self.shots, "shot"), backbone=Path(self.backbone).name)

    def changed(
        self,
        *,
        data: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        epochs: int | None = None,
        inference: str | None = None,
        **plain: int | None,
    ) -> Suite:
        """The suite with other values; None changes nothing. `plain` may have `shots` and `test_images`.

        A study whose data set is not in `data` takes the first one of `data`. `methods` can be any methods; those of
        the paper's first table come first, in its order. `epochs` is the largest number for every method.
        """
        changes: dict[str, Any] = {key: value for key, value in plain.items() if value is not None}
        if data:
            by_target = {target: name if name in data else data[0] for target, name in self.data_by_target.items()}
            changes |= {"data": tuple(data), "data_by_target": by_target}
        if methods:
            for name in methods:
                METHODS.find(name)
            changes["methods"] = tuple(dict.fromkeys((*(each for each in TABLE1_METHODS if each in methods), *methods)))
        if seeds:
            changes |= {"seeds": tuple(seeds), "seeds_by_target": {}}
        if epochs is not None:
            changes["epochs"] = {"*": epochs}
        if inference is not None:
            PRESETS.find(inference)
            changes["inference"] = inference
        return replace(self, **changes)


def _recipe_epochs(config: RunConfig) -> int:
    """The number of epochs that `RunConfig.epochs` replaces, from which all epochs of a run follow; 0 if none."""
    inference = config.resolved().training.inference
    if inference is not None and has_own_epochs(config.resolved().training.inference_name, config.method):
        return inference.epochs
    return published(config.method, config.protocol, config.data, config.shots)[1].epochs


PAPER = Suite("paper")

MINI = Suite(
    "mini",
    "Miniature: embedded tasks and backbone, {shots}, few epochs. It shows that the software works, not how "
    "methods rank.",
    backbone="mini",
    inference="rebapl",
    data=("digits", "shapes", "letters"),
    data_by_target={
        **dict.fromkeys(("xi", "cycles", "latency", "efficiency", "overfitting"), "letters"),
        **dict.fromkeys(("samples", "diversity", "plug-and-play", "doubt", "outside"), "digits"),
    },
    source="shapes",
    cross=("digits", "letters"),
    shifted=("shapes-inverted", "shapes-sketch", "shapes-lowlight", "shapes-rotated"),
    seeds=(1, 2),
    seeds_by_target={"xi": (1,)},
    shots=8,
    test_images=200,
    epochs={"coop": 20, "cocoop": 2, "app": 20, "promptsrc": 5, "bpl": 2, "*": 4},
    compared=False,
    references=(16, 64),
    cycles=(1, 2, 3, 4, 6, 8, 10, 12),
    repeats=10,
    latency_images=25,
)
"""The miniature. All targets together take about 25 minutes of processor time."""

PHOTO = Suite(
    "photo",
    "Backbone {backbone}, {shots}; the paper's figures are of CLIP ViT-B/16 on the whole data sets, 16 shots.",
    inference="rebapl",
)
"""For any local backbone. `named_suite` reduces it to the data sets that are present."""

SUITES = {suite.name: suite for suite in (PAPER, MINI, PHOTO)}


def named_suite(
    name: str, root: Path | None, backbone: str | None, data: Sequence[str] = (), splits: Sequence[str] = ()
) -> Suite:
    """The suite of this name, on `data`, with split files such as eurosat=split_subset_EuroSAT.json.

    `data` names some of the suite's data sets. The suite photo also takes folders and CSV files of a user's own images.
    """
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    suite, files = SUITES[name], {}
    for word in splits:
        of, _, file = word.partition("=")
        if not of or not file:
            raise UserError(f"--split {word}: write DATA=FILE, such as eurosat=split_subset_EuroSAT.json")
        if of not in PUBLISHED:
            raise unknown("data set of --split", of, PUBLISHED)
        files[of] = file
    for each in data:
        if name == "photo" and is_own(each):
            own_path(each)  # refuses a path that does not exist
        elif each not in suite.data:
            raise unknown(f"data set of suite {name}", each, suite.data)
    if name != "photo":
        suite = suite.changed(data=data)
    elif backbone is None:
        raise UserError("--suite photo needs a backbone: --backbone DIR, a CLIP in Hugging Face format")
    else:
        suite = _reduced_to_present(suite, root, data)
    return replace(suite, splits=files, backbone=backbone or suite.backbone)


def _reduced_to_present(suite: Suite, root: Path | None, data: Sequence[str]) -> Suite:
    """The suite on those of its data sets (or of `data`) that lie below `root`, and on the user's own images in `data`.

    A study whose own data set is not there takes the first that is. Transfers are trained on ImageNet if it is there,
    and otherwise on the published data set with the most classes.
    """

    def is_there(name: str) -> bool:
        if is_own(name):
            return True
        entry = PUBLISHED[name]
        return (data_root(name, root) / entry.folder / entry.images).is_dir()

    present = tuple(filter(is_there, data or suite.data))
    if not present:
        folder, looked = given_root(root), ", ".join(PUBLISHED[name].folder for name in data or suite.data)
        raise UserError(f"none of the data sets lies below {folder} (looked for {looked}): see `rebapl data list`")
    source = (
        SOURCE if SOURCE in present else max(present, key=lambda name: 0 if is_own(name) else PUBLISHED[name].classes)
    )
    cross = tuple(name for name in present if name != source)
    shifted = tuple(filter(is_there, suite.shifted)) if source == SOURCE else ()
    return replace(suite.changed(data=present), source=source, cross=cross, shifted=shifted)
