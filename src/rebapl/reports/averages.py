"""Averages over data sets, with both conventions of their harmonic mean."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rebapl.errors import unknown
from rebapl.evaluation import harmonic_mean

CONVENTIONS = ("of-averages", "average")
"""How the harmonic mean over data sets is taken: of the two averages, or the average of the data sets' own."""


def averaged(per_data: Sequence[Mapping[str, float]], convention: str = CONVENTIONS[0]) -> dict[str, float]:
    """The average over data sets of one seed's scores: `hm` by a convention, and by either under its own name.

    >>> scores = [{"base": 60.0, "novel": 30.0, "hm": 40.0}, {"base": 80.0, "novel": 80.0, "hm": 80.0}]
    >>> {name: round(value, 2) for name, value in averaged(scores).items()}
    {'base': 70.0, 'novel': 55.0, 'hm': 61.6, 'hm of-averages': 61.6, 'hm average': 60.0}
    """
    check_convention(convention)
    means = {name: statistics.fmean(scores[name] for scores in per_data) for name in per_data[0]}
    both = dict(zip(CONVENTIONS, (harmonic_mean(means["base"], means["novel"]), means["hm"]), strict=True))
    return {**means, "hm": both[convention], **{f"hm {name}": value for name, value in both.items()}}


def check_convention(name: str) -> None:
    """Refuses what is no convention of the harmonic mean."""
    if name not in CONVENTIONS:
        raise unknown("convention of --hm", name, CONVENTIONS)
