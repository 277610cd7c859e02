"""Suites: the data, the backbone and the sizes with which the paper's tables and figures are made.

`PAPER` has the paper's own. Everything that the miniature reduces is in `MINI`. `photo_suite` takes what a user has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rebapl.backbones import DEFAULT_BACKBONE
from rebapl.data.catalogue import data_root
from rebapl.data.published import PUBLISHED
from rebapl.data.task import SOURCE, TARGETS
from rebapl.errors import UserError, unknown
from rebapl.learners import METHODS, published
from rebapl.runs.config import RunConfig
from rebapl.sampling import PRESETS, Inference
from rebapl.sampling.presets import has_own_epochs
from rebapl.training.resolution import published_protocol
from rebapl.wording import number_of

TABLE1_METHODS = ("zero-shot", "coop", "cocoop", "app", "promptsrc", "maple", "mmrl")
"""The methods of the paper's first table, in its order. ReBaPL on a method of `REBAPL_ON` follows that method."""

REBAPL_ON = ("maple", "mmrl")
ELEVEN = (SOURCE, *TARGETS["cross-dataset"])


@dataclass(frozen=True)
class Choice:
    """One row of a table: a method, how it is learned, and settings that replace those of the inference.

    `inference` None is the one that the method was published with.
    """

    label: str
    method: str
    inference: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def learns(self) -> bool:
        """Whether anything is learned, so that another seed may give another result."""
        return learns(self.method)


def learns(method: str) -> bool:
    """Whether a method learns something.

    >>> learns("zero-shot"), learns("coop")
    (False, True)
    """
    return METHODS.find(method).learner.recipe.epochs > 0


@dataclass(frozen=True)
class Suite:
    """What a suite runs.

    * `data`: the data sets of the base-to-novel tables; `data_by_target`: the one data set of each study.
    * `seeds`: the seeds of every run; `seeds_by_target`: other seeds of some studies.
    * `source`: the data set that transfers are trained on; `cross`, `shifted`: the data sets that table 2 and table 3
      test on.
    * `inference`: the preset that ReBaPL stands for.
    * `methods`: the methods of every table of methods, where a user named some; without them each has its own.
    * `epochs`: the largest number of epochs (of ReBaPL: per cycle) by method; "*" stands for every other method.
    * `splits`: split files other than the published ones, by data set.
    * `compared`: whether the paper's numbers are of these data sets, so that differences make sense.

    The other fields are the numbers of seeds, shots and images, and the grids of the studies.
    """

    name: str
    note: str
    backbone: str
    inference: str
    data: tuple[str, ...]
    data_by_target: Mapping[str, str]
    seeds_by_target: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    source: str | None = None
    cross: tuple[str, ...] = ()
    shifted: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
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

    def config(self, data: str, choice: Choice, seed: int, protocol: str = "base-to-novel") -> RunConfig:
        """The run of a choice on a data set."""
        config = RunConfig(
            data=data,
            method=choice.method,
            inference=choice.inference,
            protocol=protocol,
            shots=self.shots,
            seed=seed,
            backbone=self.backbone,
            test_images=self.test_images,
            split=self.splits.get(data),
            targets=self._named_targets(protocol),
            inference_settings=dict(choice.settings),
        )
        most = self.epochs.get(choice.method, self.epochs.get("*"))
        if most is None or most >= _recipe_epochs(config) or "epochs" in choice.settings:
            return config
        return config.changed(epochs=most)

    def inference_of(self, data: str, choice: Choice) -> Inference:
        """All settings of the inference of a choice on a data set, which must be one that learns something."""
        inference = self.config(data, choice, self.seeds[0]).resolved().training.inference
        assert inference is not None
        return inference

    def targets(self, protocol: str) -> tuple[str, ...]:
        """The data sets that a transfer tests on; none for another protocol."""
        return {"cross-dataset": self.cross, "domain-generalization": self.shifted}.get(protocol, ())

    def _named_targets(self, protocol: str) -> tuple[str, ...] | None:
        """The targets of a run, as NAME=FILE where `splits` has a file; None where there are none."""
        names = self.targets(protocol)
        return tuple(f"{name}={self.splits[name]}" if name in self.splits else name for name in names) or None

    def trained_on(self, target: str, protocol: str = "base-to-novel") -> tuple[str, ...]:
        """The data sets whose runs a table needs: the source of a transfer, the one of a study, or all of the suite.

        A transfer without a source or without targets is refused.
        """
        if protocol == "base-to-novel":
            return (self.data_by_target[target],) if target in self.data_by_target else self.data
        if self.source is None or not self.targets(protocol):
            needed = "two of the data sets" if protocol == "cross-dataset" else "ImageNet and one of its variants"
            raise UserError(f"{protocol} needs {needed} below --root: `rebapl data list` names them")
        return (self.source,)

    def rebapl(self, method: str, label: str | None = None, **settings: Any) -> Choice:
        """ReBaPL on a method, with `settings` that replace those of the inference."""
        return Choice(label or f"{method} + rebapl", method, self.inference, settings=settings)

    def longer(self, data: str, **settings: Any) -> Choice:
        """Maximum likelihood on MaPLe for as many epochs as ReBaPL has in all its cycles."""
        epochs = self.inference_of(data, self.rebapl("maple")).all_epochs
        return Choice("maple, as many epochs", "maple", "mle", {"epochs": epochs, **settings})

    def choices(self, methods: Sequence[str] = TABLE1_METHODS) -> list[Choice]:
        """The rows of a main table: each method as it was published, then ReBaPL on those that have it.

        `methods` are those that the table has if the user named none.
        """
        rows = []
        for method in self.methods or methods:
            rows.append(Choice(method, method))
            if method in REBAPL_ON:
                rows.append(self.rebapl(method))
        return rows

    def seeds_of(self, choice: Choice, target: str = "") -> Sequence[int]:
        """The seeds that a choice runs with for a table: one alone where nothing is random."""
        seeds = self.seeds_by_target.get(target, self.seeds)
        return seeds if choice.learns else seeds[:1]

    @property
    def remark(self) -> str:
        """The remark that stands below every table: the note with shots and backbone filled in."""
        return self.note.format(shots=number_of(self.shots, "shot"), backbone=Path(self.backbone).name)

    def changed(
        self,
        *,
        data: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        **plain: Any,
    ) -> Suite:
        """The suite with other data sets, methods or seeds, or with another value in `plain`; None changes nothing.

        A study whose data set is not among `data` takes the first of them. Methods may be any; those of the paper's
        first table come first, in its order. `plain` may have `shots`, `test_images`, `inference`, and `epochs`, which
        then holds for every method.
        """
        if plain.get("inference") is not None and plain["inference"] not in PRESETS:
            raise unknown("inference", plain["inference"], PRESETS)
        suite = replace(self, **{key: value for key, value in plain.items() if value is not None and key != "epochs"})
        if plain.get("epochs") is not None:
            suite = replace(suite, epochs={"*": plain["epochs"]})
        if data:
            by_target = {target: name if name in data else data[0] for target, name in self.data_by_target.items()}
            suite = replace(suite, data=tuple(data), data_by_target=by_target)
        if methods:
            for name in methods:
                METHODS.find(name)
            first = [name for name in TABLE1_METHODS if name in methods]
            suite = replace(suite, methods=(*first, *(name for name in methods if name not in first)))
        if seeds:
            suite = replace(suite, seeds=tuple(seeds), seeds_by_target={})
        return suite


def _recipe_epochs(config: RunConfig) -> int:
    """The epochs from which those of a run are derived, and which `RunConfig.epochs` replaces; 0 without training."""
    inference = config.resolved().training.inference
    if inference is not None and has_own_epochs(config.resolved().training.inference_name, config.method):
        return inference.epochs
    return published(config.method, published_protocol(config.protocol), config.data, config.shots)[1].epochs


PAPER = Suite(
    name="paper",
    note="",
    backbone=DEFAULT_BACKBONE,
    inference="rebapl-paper",
    data=ELEVEN,
    data_by_target={
        "xi": "ucf101",
        "cycles": "dtd",
        "samples": "oxford_flowers",
        "latency": "oxford_flowers",
        "efficiency": "oxford_flowers",
        "diversity": "eurosat",
        "overfitting": "oxford_flowers",
    },
    source=SOURCE,
    cross=TARGETS["cross-dataset"],
    shifted=TARGETS["domain-generalization"],
)

MINI = Suite(
    name="mini",
    note="Miniature: embedded tasks and backbone, {shots}, few epochs. It shows that the software works, not how "
    "methods rank.",
    backbone="mini",
    inference="rebapl",
    data=("digits", "shapes", "letters"),
    data_by_target={
        "xi": "letters",
        "cycles": "letters",
        "samples": "digits",
        "latency": "letters",
        "efficiency": "letters",
        "diversity": "digits",
        "overfitting": "letters",
        "plug-and-play": "digits",
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
"""All targets together take one core about an hour."""

PHOTO_NOTE = "Backbone {backbone}, {shots}; the paper's figures are of CLIP ViT-B/16 on the whole data sets, 16 shots."


def photo_suite(
    backbone: str | None, root: str | Path | None, data: Sequence[str] = (), splits: Mapping[str, str] | None = None
) -> Suite:
    """The suite of any local backbone, on those of the eleven data sets (or of `data`) that lie below `root`.

    A study whose own data set is not there takes the first that is. Transfers are trained on ImageNet if it is there,
    and else on the data set with most classes.
    """
    if backbone is None:
        raise UserError("--suite photo needs a backbone: --backbone DIR, a CLIP in Hugging Face format")
    below = data_root(ELEVEN[0], root)

    def there(names: Sequence[str]) -> tuple[str, ...]:
        entries = [PUBLISHED[name] for name in names]
        return tuple(e.name for e in entries if (below / e.folder / e.images).is_dir())

    _check_among(data, ELEVEN, "this suite")
    present = there([name for name in ELEVEN if not data or name in data])
    if not present:
        looked = ", ".join(PUBLISHED[name].folder for name in data or ELEVEN)
        raise UserError(f"none of the data sets lies below {below} (looked for {looked}): see `rebapl data list`")
    source = SOURCE if SOURCE in present else max(present, key=lambda name: PUBLISHED[name].classes)
    return replace(
        PAPER.changed(data=present),
        name="photo",
        note=PHOTO_NOTE,
        backbone=backbone,
        inference="rebapl",
        source=source,
        cross=tuple(name for name in present if name != source),
        shifted=there(TARGETS["domain-generalization"]) if source == SOURCE else (),
        splits=splits or {},
    )


SUITES = {"paper": PAPER, "mini": MINI}
"""The suites that need no arguments; `photo_suite` makes the third."""


def named_suite(
    name: str, root: Path | None, backbone: str | None, data: Sequence[str] = (), splits: Sequence[str] = ()
) -> Suite:
    """The suite of a name, on these of its data sets, with split files such as eurosat=split_subset_EuroSAT.json."""
    if name not in (*SUITES, "photo"):
        raise unknown("suite", name, (*SUITES, "photo"))
    files = {}
    for word in splits:
        of, _, file = word.partition("=")
        if not of or not file:
            raise UserError(f"--split {word}: write DATA=FILE, such as eurosat=split_subset_EuroSAT.json")
        if of not in PUBLISHED:
            raise unknown("data set of --split", of, PUBLISHED)
        files[of] = file
    if name == "photo":
        return photo_suite(backbone, root, data, files)
    suite = SUITES[name]
    _check_among(data, suite.data, f"suite {name}")
    return replace(suite.changed(data=data), splits=files, backbone=backbone or suite.backbone)


def _check_among(data: Sequence[str], known: Sequence[str], whose: str) -> None:
    for name in data:
        if name not in known:
            raise unknown(f"data set of {whose}", name, known)
