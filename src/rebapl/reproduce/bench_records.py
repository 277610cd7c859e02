"""What `rebapl bench` has measured, in memory and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rebapl.errors import UserError
from rebapl.files import read_json


@dataclass(frozen=True)
class Case:
    """One kind of training step.

    `repulsion` is a distance or None, on `images` reference images, from `samples` remembered ones, `every` so many
    steps. Class names have at least so many `words`.
    """

    method: str = "maple"
    classes: int = 50
    repulsion: str | None = "mmd"
    images: int = 32
    batch: int = 1
    samples: int = 1
    every: int = 1
    words: int = 3


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of a case's step, the most bytes on the GPU (None elsewhere), and tokens of a text; then plainly.

    `along` says to which growth it belongs, if to any.
    """

    case: Case
    median: float
    mean: float
    peak: int | None
    tokens: int
    plain_median: float | None
    plain_mean: float | None
    plain_peak: int | None
    plain_tokens: int
    along: str = ""


@dataclass(frozen=True)
class AnswerTimes:
    """Milliseconds (medians) of an answer to one image and to `images`, ours and plain."""

    method: str
    classes: int
    samples: int
    images: int
    one: float
    many: float
    plain_one: float | None
    plain_many: float | None
    along: str = ""


@dataclass(frozen=True)
class Measured:
    """Everything of one run of `rebapl bench`; `about` says where, with what and how it was measured."""

    about: Mapping[str, Any]
    steps: Sequence[StepTimes] = ()
    answers: Sequence[AnswerTimes] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> Measured:
        """The inverse of `plain`, from a file."""
        if not path.exists():
            raise UserError(f"{path}: there is no such file; `rebapl bench --export {path}` makes one")
        content = read_json(path, "a measurement of rebapl bench")
        try:
            steps = [StepTimes(**{**each, "case": Case(**each["case"])}) for each in content["steps"]]
            answers = [AnswerTimes(**each) for each in content["answers"]]
            return cls(content["about"], steps, answers)
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} is no measurement that rebapl bench wrote: {error}") from error

    @classmethod
    def joined(cls, parts: Sequence[Measured]) -> Measured:
        """Several measurements of one machine, backbone and version as one."""
        first = parts[0].about
        for part in parts[1:]:
            if differing := [name for name in first if part.about.get(name) != first[name]]:
                raise UserError(f"these measurements do not belong together: they differ in {', '.join(differing)}")
        steps, answers = (
            [each for part in parts for each in part.steps],
            [each for part in parts for each in part.answers],
        )
        return cls(first, steps, answers)


def in_words(case: Case) -> str:
    """A case as a line of progress has it.

    >>> in_words(Case(classes=5, repulsion=None)), in_words(Case(every=4))
    ('maple, 5 classes, no repulsion', 'maple, 50 classes, mmd every 4 steps')
    """
    repulsion = "no repulsion" if case.repulsion is None else case.repulsion
    every = f" every {case.every} steps" if case.every > 1 else ""
    return f"{case.method}, {case.classes} classes, {repulsion}{every}"
