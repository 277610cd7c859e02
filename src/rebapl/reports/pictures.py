"""The test images that a report shows: those on which samples disagree most, and the surest mistakes."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from rebapl.data.dataset import Dataset
from rebapl.errors import UserError
from rebapl.reports.inspection import Answered

SHOWN = 12
"""The number of images in each of the two lists."""

SIDE = 160
"""The longer side of an embedded picture has at most this many pixels. As JPEG, that takes a few kilobytes."""

NAMED = 16
"""Up to this number of samples, a card lists the samples that give an answer. With more, it counts them."""


class EmbeddedPicture(NamedTuple):
    """An image that the page itself contains, as a data URI. A `small` one is enlarged without blurring."""

    uri: str
    alt: str
    small: bool


class Card(NamedTuple):
    """An image with its true class, and the answer of all samples together with its probability, `sure`.

    `votes` has each class that a sample answers, with the samples that answer it. It is empty if there is one sample.
    """

    picture: EmbeddedPicture
    part: str
    truth: str
    answer: str
    sure: str
    votes: Mapping[str, str]


Pictures = tuple[Sequence[Card], Sequence[str]]
"""Cards, and a sentence for each image that cannot be read any more."""


def disputed(parts: Mapping[str, Answered]) -> Pictures:
    """The images that samples answer differently, those with the highest mutual information first."""
    return _cards(
        parts, lambda part: part.prediction.mutual_information.masked_fill(part.prediction.disagreement <= 1e-6, -1)
    )


def sure_mistakes(parts: Mapping[str, Answered]) -> Pictures:
    """The images that are answered wrongly, those with the most probable answers first."""
    return _cards(parts, lambda part: part.prediction.probabilities.amax(-1).masked_fill(part.right, -1))


def _cards(parts: Mapping[str, Answered], measure: Callable[[Answered], Tensor]) -> Pictures:
    """The cards of the `SHOWN` images with the highest measure.

    `measure` gives one number for each image (N,) of a test part. Images with −1 are left out.
    """
    ranked = sorted(
        (-value, name, index)
        for name, answered in parts.items()
        for index, value in enumerate(measure(answered).tolist())
        if value > -1
    )
    cards, lost = [], []
    for _, name, index in ranked[:SHOWN]:
        try:
            cards.append(_card(name, parts[name], index))
        except (UserError, OSError) as error:
            lost.append(f"A picture is missing: {error}")
    return cards, lost


def _card(name: str, answered: Answered, index: int) -> Card:
    item, names, prediction = answered.part.items[index], answered.part.class_names, answered.prediction[index]
    truth, answer = names[int(answered.labels[index])], int(prediction.labels[0])
    sure, votes = f"{100 * prediction.probabilities[0, answer]:.1f} %", {}
    if (samples := len(prediction.weights)) > 1:
        low, high = (100 * end[0, answer].item() for end in prediction.interval())
        sure += f" ({low:.0f} – {high:.0f})"
        answers = prediction.per_sample[:, 0].argmax(-1).tolist()
        for label, count in sorted(Counter(answers).items(), key=lambda pair: (-pair[1], pair[0])):
            voters = ", ".join(str(number) for number, vote in enumerate(answers, 1) if vote == label)
            listed = f"sample{'s' * (count > 1)} {voters}"
            votes[names[label]] = listed if samples <= NAMED else f"{count} of {samples} samples"
    picture = embedded(answered.part.dataset, item.key, f"Test image of class {truth}: {item.key}")
    return Card(picture, name, truth, names[answer], sure, votes)


def embedded(dataset: Dataset, key: str, alt: str) -> EmbeddedPicture:
    """An image of a data set as a small JPEG in a data URI."""
    image = dataset.load(key).convert("RGB")
    small = max(image.size) < SIDE // 2
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return EmbeddedPicture(f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}", alt, small)
