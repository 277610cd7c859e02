"""The prediction of a posterior for images: averaged probabilities, and measures of how sure it is of them.

With samples' probabilities p_s(c|x), weights ω and H[p] = −Σ_c p_c log p_c in nats:

    average           p = Σ_s ω_s p_s               or, with average="logits", p = softmax(Σ_s ω_s z_s)
    temperature       p^(1/τ) and p_s^(1/τ), normalised, replace p and p_s: see `rebapl.posterior.temperature`
    predictive        H[p]                          all uncertainty
    expected          Σ_s ω_s H[p_s]                how unsure each sample is by itself: high for ambiguous images
    mutual            H[Σ_s ω_s p_s] − Σ_s ω_s H[p_s] ≥ 0        how much samples disagree: high for unfamiliar images
    disagreement      1 − Σ_c v_c²,   v_c = Σ_s ω_s·[argmax p_s = c]      the probability that two samples, drawn
                                                                       by their weights, give different answers

The interval of a class at level 1 − α goes from the smallest p_s at or below which samples of weight ≥ α/2 lie to the
largest p_s at or above which samples of weight ≥ α/2 lie. With few samples (all ω ≥ α/2), these are the smallest and
the largest p_s. It shows how far samples differ. If the averaged probability lies outside the interval (because a few
samples differ greatly, or logits are averaged), the nearer end is moved to it. One sample has no interval: both ends
are its probability, and the command line shows no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import pydantic
import torch
from torch import Tensor

from rebapl.errors import UserError, printable, unknown
from rebapl.numbers import entropy
from rebapl.posterior.conformal import Conformal, HoldsFor
from rebapl.posterior.records import LEVEL, MEASURES, Record, as_text, columns, head_of, row_of, said
from rebapl.posterior.selective import expected_risk
from rebapl.posterior.temperature import tempered
from rebapl.wording import number_of

if TYPE_CHECKING:
    import pandas

Average = Literal["probabilities", "logits"]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
SHOWN = 10
"""The number of images that a notebook shows of a prediction."""
NO_THRESHOLD = (
    "no threshold was chosen for these class names, this template and this averaging: choose one on validation images "
    "(`choose_threshold`, or `rebapl evaluate RUN --fit-threshold coverage=0.9`)"
)
NO_SETS = (
    "no prediction sets were fitted for these class names, this template and this averaging: fit them on validation "
    "images (`choose_conformal`, or `rebapl evaluate RUN --fit-conformal 0.9`)"
)


@dataclass(frozen=True)
class Threshold(HoldsFor):
    """Answer "I don't know" where the uncertainty named `by` is above `value`.

    It was chosen on `images` held-out images: `coverage` is the share of them that is answered, and `risk` the share of
    these answers that is wrong. With this `confidence`, at most the share `promised` of the answers to new images is
    wrong. If nothing was promised, `promised` is None and `confidence` is 0. See `rebapl.posterior.selective`.
    """

    by: Annotated[str, pydantic.AfterValidator(lambda by: check_uncertainty(by))]
    value: float
    average: str
    class_names: tuple[str, ...]
    risk: Share
    coverage: Share
    images: int
    promised: Share | None = None
    confidence: Share = 0.0

    @property
    def promise(self) -> str:
        """Its promise and its expectation, in words, for new images that are drawn as the held-out ones were."""
        answered = round(self.coverage * self.images)
        expected = f"Expectation: {100 * expected_risk(round(self.risk * answered), answered):.1f} %"
        if self.promised is None:
            return f"Promise: none. {expected} of the answers to new images are wrong"
        surely = f"at confidence {100 * self.confidence:g} %"
        return (
            f"Promise: at most {100 * self.promised:g} % of the answers to new images are wrong, {surely}. {expected}"
        )


@dataclass(frozen=True)
class Outside(HoldsFor):
    """Answer "none of these" where the outside score named `by` is above `value`.

    It was chosen on `images` held-out images of the classes: a new image of the classes is called "none of these" with
    probability ≤ `rate`; see `rebapl.posterior.outside`.
    """

    by: str
    value: float
    rate: Annotated[float, pydantic.Field(gt=0, lt=1)]
    average: str
    class_names: tuple[str, ...]
    images: int


class Top(NamedTuple):
    """The k likeliest classes of N images, likeliest first; all (N, k): labels, probabilities and their intervals."""

    labels: Tensor
    probabilities: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True, repr=False)
class Prediction:
    """The averaged probabilities (N, C) of N images (`names`) among C classes, and those of each sample (S, N, C).

    `prediction[3]` and `prediction[:10]` are predictions of these images alone, and a loop yields one image at a time.
    `to_pandas()` and `to_dict()` return the answers as plain values.
    """

    class_names: list[str]
    names: list[str]
    probabilities: Tensor
    per_sample: Tensor
    weights: Tensor
    average: str = "probabilities"
    threshold: Threshold | None = None
    """The posterior's threshold of "I don't know", if it was chosen for these class names and this averaging."""
    conformal: Conformal | None = None
    """The posterior's prediction sets, if they were chosen for these class names and this averaging."""
    temperature: float = 1.0
    """The temperature that both the averaged probabilities and those of each sample have."""
    outside: Outside | None = None
    """The posterior's threshold of "none of these", if it was chosen for these class names and this averaging."""
    scores: Mapping[str, Tensor] = field(default_factory=dict)
    """The outside scores (N,) that need more than probabilities: of logits, and of features if `outside` uses them."""
    by_fold: Tensor | None = None
    """Probabilities (K, N, C) by each of the K trainings whose held-out images `conformal` was chosen on."""

    def __len__(self) -> int:
        return len(self.probabilities)

    def __getitem__(self, index: int | slice) -> Prediction:
        if isinstance(index, slice):
            rows = index
        else:
            position = range(len(self))[index]  # an index out of range is an IndexError, as in a list
            rows = slice(position, position + 1)
        return replace(
            self,
            names=self.names[rows],
            probabilities=self.probabilities[rows],
            per_sample=self.per_sample[:, rows],
            scores={name: values[rows] for name, values in self.scores.items()},
            by_fold=None if self.by_fold is None else self.by_fold[:, rows],
        )

    def __iter__(self) -> Iterator[Prediction]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        images, samples = number_of(len(self), "image"), number_of(len(self.weights), "sample")
        first = [
            f"{printable(record['image'])}: {said(record)} {record['top'][0]['probability']:.2f}"
            for record in self[:1].records(top=1)
        ]
        more = ["…"] if len(self) > 1 else []
        return f"Prediction({', '.join([images, f'{len(self.class_names)} classes', samples, *first, *more])})"

    def _repr_html_(self) -> str:
        """A small table of the first images, which notebooks show."""
        head = "".join(f"<th>{title}</th>" for title in ("image", "answer", "probability", "interval", "disagreement"))
        rows = []
        for record in self[:SHOWN].records(top=1):
            (best,) = record["top"]
            interval = "–" if best["low"] is None else f"{best['low']:.3f} … {best['high']:.3f}"
            probability, disagreement = f"{best['probability']:.3f}", f"{record['disagreement']:.3f}"
            cells = (record["image"], said(record), probability, interval, disagreement)
            rows.append("".join(f"<td>{escape(printable(cell))}</td>" for cell in cells))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        more = f"<p>… and {len(self) - SHOWN} more images</p>" if len(self) > SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def records(self, top: int = 3, abstain: bool | None = None, sets: bool | None = None) -> list[Record]:
        """A dictionary of plain values per image, unrounded: image, answer, the measures and the `top` classes.

        If the posterior should not answer, `answer` is None, and `outside` is true if that is because the image belongs
        to none of the classes. The posterior's thresholds decide this, if they were chosen for these class names;
        `abstain=False` answers always. There are prediction sets if the posterior has them for these class names;
        `sets=False` leaves them out.
        """
        abstain = (self.threshold or self.outside) is not None if abstain is None else abstain
        sets = self.conformal is not None if sets is None else sets
        one_sample = len(self.weights) == 1
        nothing: list[Any] = [None] * len(self)
        unsure, outside, set_classes = nothing, nothing, nothing
        if abstain and (self.threshold is not None or self.outside is None):
            unsure = self.unsure().tolist()
        if abstain and self.outside is not None:
            outside = self.none_of_these().tolist()
        if sets:
            order = self.probabilities.argsort(dim=-1, descending=True, stable=True)
            pairs = zip(order.tolist(), self.sets().gather(1, order).tolist(), strict=True)
            set_classes = [[self.class_names[c] for c, inside in zip(*row, strict=True) if inside] for row in pairs]
        measures = (self.predictive_entropy, self.expected_entropy, self.mutual_information, self.disagreement)
        measures_by_image = zip(*(values.tolist() for values in measures), strict=True)
        best = [part.tolist() for part in self.top(top)]
        records = []
        for name, is_unsure, is_outside, numbers, in_set, *ranked in zip(
            self.names, unsure, outside, measures_by_image, set_classes, *best, strict=True
        ):
            classes = [
                {
                    "class": self.class_names[label],
                    "probability": probability,
                    "low": None if one_sample else low,
                    "high": None if one_sample else high,
                }
                for label, probability, low, high in zip(*ranked, strict=True)
            ]
            records.append(
                {
                    "image": as_text(name),
                    "answer": None if is_unsure or is_outside else classes[0]["class"],
                    "outside": is_outside,
                    **dict(zip(MEASURES, numbers, strict=True)),
                    "set": in_set,
                    "top": classes,
                    "error": None,
                }
            )
        return records

    def to_dict(self, top: int = 3, abstain: bool | None = None) -> dict[str, Any]:
        """The content of JSON output: all `records`, with the class names, the averaging and the level of intervals."""
        head = head_of(self.class_names, self.average, len(self.weights), self.conformal, self.temperature)
        return {**head, "images": self.records(top, abstain)}

    def to_pandas(self, top: int = 3, abstain: bool | None = None) -> pandas.DataFrame:
        """The `records` as a data frame with a row per image; its columns are those of CSV output."""
        try:
            import pandas
        except ImportError as error:
            raise UserError("to_pandas() needs pandas, which is not installed: pip install pandas") from error
        top = min(top, len(self.class_names))
        rows = [row_of(record, top) for record in self.records(top, abstain)]
        return pandas.DataFrame(rows, columns=columns(top))

    def tempered(self, temperature: float) -> Prediction:
        """The same prediction with softer probabilities if the temperature is above 1, and sharper ones if it is below.

        The order of the classes stays. The temperature that the probabilities have already is multiplied by this one.
        Thresholds and prediction sets are removed, because they were chosen for other probabilities. 1 changes nothing.
        """
        if temperature == 1:
            return self
        return replace(
            self,
            probabilities=tempered(self.probabilities, temperature),
            per_sample=tempered(self.per_sample, temperature),
            temperature=self.temperature * temperature,
            threshold=None,
            conformal=None,
            outside=None,
            by_fold=None,
        )

    @property
    def labels(self) -> Tensor:
        """The likeliest class (N,)."""
        return self.probabilities.argmax(-1)

    @property
    def predictive_entropy(self) -> Tensor:
        """H[p] (N,) of the averaged probabilities."""
        return entropy(self.probabilities)

    @property
    def expected_entropy(self) -> Tensor:
        """Σ ω H[p_s] (N,)."""
        return self.weights @ entropy(self.per_sample)

    @property
    def mutual_information(self) -> Tensor:
        """H[Σ ω p_s] − Σ ω H[p_s] (N,), even if logits were averaged."""
        mixture = torch.einsum("s,snc->nc", self.weights, self.per_sample)
        return (entropy(mixture) - self.expected_entropy).clamp_min(0)

    @property
    def disagreement(self) -> Tensor:
        """The probability (N,) that two samples drawn by their weights answer differently."""
        votes = torch.zeros_like(self.probabilities)
        votes.scatter_add_(1, self.per_sample.argmax(-1).T, self.weights.expand(len(self), -1))
        return (1 - votes.square().sum(-1)).clamp_min(0)

    def uncertainty(self, by: str = "max-probability") -> Tensor:
        """One of `UNCERTAINTIES` by name (N,): the higher it is, the less sure the answer."""
        return UNCERTAINTIES[check_uncertainty(by)](self)

    def interval(self, level: float = LEVEL) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (N, C) of the samples' probabilities, which enclose the averaged probabilities."""
        return _interval(self.per_sample, self.weights, self.probabilities, level)

    def top(self, k: int = 3, level: float = LEVEL) -> Top:
        """The k likeliest classes, all if there are fewer."""
        if k < 1:
            raise UserError(f"top {k}: ask for at least one class")
        # The sort is stable, so that among equal probabilities the first class is the one in `labels`.
        probabilities, labels = (x[:, :k] for x in self.probabilities.sort(dim=-1, descending=True, stable=True))
        per_sample = self.per_sample.gather(2, labels.expand(len(self.weights), -1, -1))
        return Top(labels, probabilities, *_interval(per_sample, self.weights, probabilities, level))

    def unsure(self, threshold: Threshold | None = None) -> Tensor:
        """Booleans (N,): the images to answer with "I don't know", by this threshold or by the posterior's own."""
        threshold = threshold or self.threshold
        if threshold is None:
            raise UserError(NO_THRESHOLD)
        return self.uncertainty(threshold.by) > threshold.value

    def outside_score(self, by: str) -> Tensor:
        """One of `OUTSIDE_SCORES` by name (N,): the higher it is, the less an image belongs to any of the classes."""
        if by not in self.scores and by not in UNCERTAINTIES:
            raise unknown("outside score of this prediction", by, [*UNCERTAINTIES, *self.scores])
        return self.scores[by] if by in self.scores else self.uncertainty(by)

    def none_of_these(self) -> Tensor:
        """Booleans (N,): the images that belong to none of the classes, by the posterior's threshold."""
        if self.outside is None:
            raise UserError(
                "no threshold of 'none of these' was chosen for these class names, this template and this averaging: "
                "choose one on held-out images (`fit_outside`, or `rebapl evaluate RUN --fit-outside energy`)"
            )
        return self.outside_score(self.outside.by) > self.outside.value

    def sets(self, conformal: Conformal | None = None) -> Tensor:
        """Booleans (N, C): the classes in the prediction set of each image, by `conformal` or by the posterior's sets.

        The likeliest class is in every set.
        """
        conformal = conformal or self.conformal
        if conformal is None:
            raise UserError(NO_SETS)
        return conformal.sets(self.probabilities, self.by_fold)


UNCERTAINTIES: dict[str, Callable[[Prediction], Tensor]] = {
    "max-probability": lambda prediction: 1 - prediction.probabilities.amax(-1),
    "entropy": lambda prediction: prediction.predictive_entropy,
    "mutual-information": lambda prediction: prediction.mutual_information,
    "disagreement": lambda prediction: prediction.disagreement,
}
"""Functions by name: 1 − max_c p_c, H[p], mutual information, disagreement. Less sure answers have higher values."""


def check_uncertainty(by: str) -> str:
    """Refuse a name that is not in `UNCERTAINTIES`."""
    if by not in UNCERTAINTIES:
        raise unknown("uncertainty", by, UNCERTAINTIES)
    return by


def averaged(
    logits: Tensor, weights: Tensor, average: str = "probabilities", temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The probabilities averaged over samples (N, C) and those of each sample (S, N, C), from logits (S, N, C)."""
    check_average(average)
    per_sample = logits.softmax(-1)
    if average == "probabilities":
        together = torch.einsum("s,snc->nc", weights, per_sample)
    else:
        together = torch.einsum("s,snc->nc", weights, logits).softmax(-1)
    if temperature == 1:
        return together, per_sample
    return tempered(together, temperature), tempered(per_sample, temperature)


def check_average(average: str) -> None:
    """Refuse a name that is not in `Average`."""
    if average not in get_args(Average):
        raise unknown("average", str(average), get_args(Average))


def _interval(per_sample: Tensor, weights: Tensor, probabilities: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Lower and upper ends (N, C) of samples' probabilities (S, N, C), which enclose the averaged ones (N, C)."""
    if not 0 < level < 1:
        raise UserError(f"level = {level}: the level of an interval is between 0 and 1")
    tail = (1 - level) / 2
    low, high = _tail(per_sample, weights, tail), -_tail(-per_sample, weights, tail)
    return low.minimum(probabilities), high.maximum(probabilities)


def _tail(values: Tensor, weights: Tensor, tail: float) -> Tensor:
    """The smallest of values (S, N, C) at or below which samples of weight ≥ `tail` lie, (N, C)."""
    ordered, order = values.sort(0)
    reached = weights[order].cumsum(0) >= tail * (1 - 1e-5)  # a sum of float weights may miss by a little
    return ordered.gather(0, reached.int().argmax(0, keepdim=True))[0]
