"""The scores of a run, which are stored in the file `results.json` in its folder.

When the file is read, every value that this version knows is checked. The error for a damaged file names its path and
the field. Values that a newer version has added are kept and written again. The file contains a checksum of its
content, by which a report recognises that the file was changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebapl.errors import UserError
from rebapl.evaluation import Diversity, base_novel_scores
from rebapl.files import content_sha256, read_json, write_json
from rebapl.posterior.storage import WEIGHT_TOLERANCE
from rebapl.settings import Record, SettingError
from rebapl.wording import number_of

if TYPE_CHECKING:
    from rebapl.data.corruptions import Corruption

RESULTS, CONFIG = "results.json", "config.json"


class Scores(Record):
    """The scores of predictions, see `rebapl.evaluation.scores`."""

    accuracy: float
    nll: float
    ece: float
    adaptive_ece: float | None = None
    brier: float | None = None
    aurc: float | None = None
    tempered_nll: float | None = None
    tempered_ece: float | None = None


class PartScores(Scores):
    """Scores of all samples together on one test part, and of each sample alone in `per_sample`.

    `temperature` was fitted on validation images, see `rebapl.posterior.temperature`. `target_settings` are those that
    the method's authors change for this target, and `split` is the target's own split file.
    """

    entropy: float | None = None
    expected_entropy: float | None = None
    mutual_information: float | None = None
    disagreement: float | None = None
    temperature: float | None = None
    images: int
    per_sample: list[Scores] = []
    target_settings: dict[str, Any] = {}
    split: str | None = None


class Seconds(Record):
    """How many seconds the training and the evaluation of a run took."""

    training: float | None = None
    evaluation: float | None = None


class RunResult(Record):
    """Everything that was scored of one run.

    `protocols` has the names of the parts that were scored for each protocol, `outside` has AUROC and FPR95 by outside
    data and kind of uncertainty, and `corruptions` has the scores by corruption and severity. `weights` are the weights
    of the samples in these scores, `views` is the number of views of each image, and `temperature` the temperature of
    the probabilities. `run` is the hash of the run's settings.

    >>> scores = {"accuracy": 60.0, "nll": 0.5, "ece": 2.0, "images": 9}
    >>> result = RunResult(parts={"base": scores, "novel": {**scores, "accuracy": 30.0}})
    >>> result.parts["base"].accuracy, result.base_novel["hm"]
    (60.0, 40.0)
    """

    parts: dict[str, PartScores]
    protocols: dict[str, list[str]] = {}
    diversity: Diversity | None = None
    outside: dict[str, dict[str, dict[str, Any]]] = {}
    corruptions: dict[str, dict[str, Scores]] = {}
    samples: int | None = None
    weights: list[float] = []
    views: int = 1
    temperature: float = 1.0
    seconds: Seconds = Seconds()
    device: str | None = None
    run: str | None = None

    @property
    def has_base_novel(self) -> bool:
        """Whether both base and novel classes were scored."""
        return {"base", "novel"} <= self.parts.keys()

    @property
    def base_novel(self) -> dict[str, float]:
        """The row of the base-to-novel table, see `base_novel_scores`."""
        if not self.has_base_novel:
            raise UserError(f"there are no scores on base and novel classes, only on {', '.join(self.parts)}")
        base, novel = (self.parts[name] for name in ("base", "novel"))
        return base_novel_scores(base.as_json(), novel.as_json())

    def changed_answers(self, views: int) -> list[str]:
        """What has changed the answers since the training, in words. `views` is the number of views at the training."""
        fitted = bool(self.weights) and max(self.weights) - min(self.weights) > WEIGHT_TOLERANCE
        changes = ["fitted weights"] if fitted else []
        changes += ["a temperature"] if self.temperature != 1 else []
        return changes if self.views == views else [*changes, number_of(self.views, "view")]

    def lacking(self, corruptions: Iterable[Corruption]) -> list[Corruption]:
        """The corruptions in this list that have no scores."""
        scored = self.corruptions
        return [wanted for wanted in corruptions if str(wanted.severity) not in scored.get(wanted.name, {})]

    def numbers(self) -> dict[str, float]:
        """The scores of all samples together, by names such as `novel/accuracy`; with base and novel parts also `hm`.

        >>> RunResult(parts={"test": {"accuracy": 60.0, "nll": 0.5, "ece": 2.0, "images": 9}}).numbers()
        {'test/accuracy': 60.0, 'test/nll': 0.5, 'test/ece': 2.0, 'test/images': 9}
        """
        numbers = {
            f"{part}/{name}": value
            for part, scores in self.parts.items()
            for name, value in scores.as_json().items()
            if isinstance(value, int | float)
        }
        return {**numbers, "hm": self.base_novel["hm"]} if self.has_base_novel else numbers

    def as_json(self) -> dict[str, Any]:
        """The content of the file. For human readers, it also has the row of the base-to-novel table."""
        content = super().as_json()
        if not self.has_base_novel:
            return content
        first: dict[str, Any] = {key: content.pop(key) for key in ("parts", "protocols") if key in content}
        return {**first, "base_to_novel": self.base_novel, **content}


def read_result(folder: Path) -> RunResult:
    """Read the result in the folder of a run. The result of another run is refused."""
    path = folder / RESULTS
    advice = "delete it and score the run again"
    content = read_json(path, "a finished run", advice)
    for derived in ("base_to_novel", "sha256"):
        content.pop(derived, None)
    try:
        result = RunResult(**content)
    except SettingError as error:
        raise UserError(f"{path} is damaged ({error}): {advice}") from error
    if (folder / CONFIG).exists() and read_json(folder / CONFIG, "a run").get("hash") != result.run:
        raise UserError(f"{path} is of another run: {advice}")
    return result


def write_result(folder: Path, result: RunResult) -> None:
    """Store the result in the folder of its run."""
    content = result.as_json()
    write_json(folder / RESULTS, {**content, "sha256": content_sha256(content)})
