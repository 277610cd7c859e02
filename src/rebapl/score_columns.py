"""How tables show the scores: one entry each, by the name that the score has in `results.json`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScoreColumn:
    """A score as the column of a table: its title, its digits after the point, and which values are better.

    `better` is ↑ if higher values are better, ↓ if lower ones are, and empty otherwise.

    >>> ScoreColumn("ECE", 1, "↓").heading
    'ECE ↓'
    """

    title: str
    digits: int = 2
    better: str = ""

    @property
    def heading(self) -> str:
        """The title with the arrow."""
        return f"{self.title} {self.better}".strip()


SCORE_COLUMNS = {
    "images": ScoreColumn("images", 0),
    "base": ScoreColumn("base", 2, "↑"),
    "novel": ScoreColumn("novel", 2, "↑"),
    "hm": ScoreColumn("HM", 2, "↑"),
    "accuracy": ScoreColumn("accuracy", 2, "↑"),
    "nll": ScoreColumn("NLL", 3, "↓"),
    "ece": ScoreColumn("ECE", 1, "↓"),
    "adaptive_ece": ScoreColumn("adaptive ECE", 1, "↓"),
    "brier": ScoreColumn("Brier", 3, "↓"),
    "aurc": ScoreColumn("AURC", 1, "↓"),
    "tempered_nll": ScoreColumn("NLL at τ", 3, "↓"),
    "tempered_ece": ScoreColumn("ECE at τ", 1, "↓"),
    "auroc": ScoreColumn("AUROC", 1, "↑"),
    "fpr95": ScoreColumn("FPR95", 1, "↓"),
    "aupr": ScoreColumn("AUPR", 1, "↑"),
    "training_seconds": ScoreColumn("train s", 0),
}
"""The scores by name. Accuracies, ECE, AURC, AUROC, FPR95 and AUPR are in percent, and NLL is in nats."""


def columns(*names: str) -> dict[str, ScoreColumn]:
    """Some of `SCORE_COLUMNS`, in this order."""
    return {name: SCORE_COLUMNS[name] for name in names}


def headings(*names: str) -> list[str]:
    """The headings of the columns of these scores.

    >>> headings("accuracy", "nll")
    ['accuracy ↑', 'NLL ↓']
    """
    return [SCORE_COLUMNS[name].heading for name in names]
