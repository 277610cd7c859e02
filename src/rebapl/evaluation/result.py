"""What `evaluate` gives: the scores of each test part, to be read by name, by attribute, or as a short table."""

from __future__ import annotations

from typing import Any

from rebapl.numbers import harmonic_mean

SHOWN = {"images": "{:.0f}", "accuracy": "{:.1f} %", "nll": "{:.3f}", "ece": "{:.1f} %", "brier": "{:.3f}"}
"""The scores that the table has, and how they are written."""


class ScoredPart(dict[str, Any]):
    """The scores of one test part by name, also as attributes.

    >>> part = ScoredPart(accuracy=60.0, images=9)
    >>> part["accuracy"], part.accuracy
    (60.0, 60.0)
    """

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"there is no '{name}': there are {', '.join(self)}")
        return self[name]


class Evaluation(ScoredPart):
    """The scores of a posterior by test part; printed, it is a short table.

    >>> scores = ScoredPart(images=9, accuracy=60.0, nll=0.5, ece=2.0, brier=0.5)
    >>> found = Evaluation(base=scores, novel=ScoredPart(scores, accuracy=30.0))
    >>> found
           images  accuracy    nll    ece  brier
    base        9    60.0 %  0.500  2.0 %  0.500
    novel       9    30.0 %  0.500  2.0 %  0.500
    harmonic mean of the accuracies: 40.0 %
    >>> found.base.accuracy, found.harmonic_mean
    (60.0, 40.0)
    """

    @property
    def harmonic_mean(self) -> float | None:
        """That of the accuracies on base and novel classes; None where not both were scored."""
        both = {"base", "novel"} <= self.keys()
        return harmonic_mean(self["base"]["accuracy"], self["novel"]["accuracy"]) if both else None

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The same as plain dictionaries, with all scores."""
        return {name: dict(part) for name, part in self.items()}

    def __repr__(self) -> str:
        rows = [["", *SHOWN]]
        for name, part in self.items():
            rows.append([name, *(how.format(part[key]) if key in part else "" for key, how in SHOWN.items())])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        mean = self.harmonic_mean
        return "\n".join([*lines, *([] if mean is None else [f"harmonic mean of the accuracies: {mean:.1f} %"])])
