"""The test images that a report shows: those that samples disagree about, and the surest mistakes."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rebapl.data.dataset import Dataset
from rebapl.errors import UserError
from rebapl.reports.inspection import Answered

SHOWN = 12
"""The images in each of the two lists."""

SIDE = 160
"""The most pixels of the longer side of an embedded picture; with JPEG that is a few kilobytes."""

NAMED = 16
"""The most samples that are named by their number; more are counted."""


class EmbeddedPicture(NamedTuple):
    """An image in the page itself. One that is `small` is enlarged without blurring."""

    uri: str
    alt: str
    small: bool


class Vote(NamedTuple):
    """A class that some samples answer, and which samples."""

    name: str
    who: str
    right: bool


class Card(NamedTuple):
    """An image with its true class, the answer of all samples together, and the votes of the samples."""

    picture: EmbeddedPicture
    part: str
    truth: str
    answer: str
    sure: str
    right: bool
    votes: Sequence[Vote]


def most_disputed(parts: Mapping[str, Answered]) -> tuple[list[Card], list[str]]:
    """The images of highest mutual information among those that samples answer differently, and what went wrong."""
    found = [
        (each.prediction.mutual_information[index].item(), name, index)
        for name, each in parts.items()
        for index in (each.prediction.disagreement > 1e-6).nonzero()[:, 0].tolist()
    ]
    return _cards(parts, found)


def surest_mistakes(parts: Mapping[str, Answered]) -> tuple[list[Card], list[str]]:
    """The wrong answers of highest probability, and what went wrong."""
    found = [
        (each.prediction.probabilities[index].max().item(), name, index)
        for name, each in parts.items()
        for index in (~each.right).nonzero()[:, 0].tolist()
    ]
    return _cards(parts, found)


def _cards(parts: Mapping[str, Answered], found: Sequence[tuple[float, str, int]]) -> tuple[list[Card], list[str]]:
    cards, errors = [], []
    for _, name, index in sorted(found, key=lambda each: (-each[0], each[1], each[2]))[:SHOWN]:
        try:
            cards.append(_card(name, parts[name], index))
        except (UserError, OSError) as error:
            errors.append(f"A picture is missing: {error}")
    return cards, errors


def _card(name: str, answered: Answered, index: int) -> Card:
    item, names = answered.part.items[index], answered.part.class_names
    prediction = answered.prediction[index]
    truth, given = int(answered.labels[index]), int(prediction.labels[0])
    low, high = (end[0, given].item() for end in prediction.interval())
    sure = f"{100 * prediction.probabilities[0, given]:.1f} %"
    votes = []
    if len(prediction.weights) > 1:
        sure += f" ({100 * low:.0f} – {100 * high:.0f})"
        answers = prediction.per_sample[:, 0].argmax(-1).tolist()
        for label in sorted(set(answers), key=lambda each: (-answers.count(each), each)):
            numbers = [str(number) for number, answer in enumerate(answers, 1) if answer == label]
            who = f"{len(numbers)} of {len(answers)} samples"
            if len(answers) <= NAMED:
                who = f"sample{'' if len(numbers) == 1 else 's'} {', '.join(numbers)}"
            votes.append(Vote(names[label], who, label == truth))
    picture = embedded(answered.part.dataset, item.key, f"Test image of class {names[truth]}: {item.key}")
    return Card(picture, name, names[truth], names[given], sure, truth == given, votes)


def embedded(dataset: Dataset, key: str, alt: str) -> EmbeddedPicture:
    """An image of a data set as a small JPEG in a data URI."""
    image = dataset.load(key).convert("RGB")
    small = max(image.size) < SIDE // 2
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return EmbeddedPicture(f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}", alt, small)
