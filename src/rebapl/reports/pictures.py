"""The test images that a report shows: those that samples disagree about, and the surest mistakes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from rebapl.data.dataset import Dataset
from rebapl.errors import UserError
from rebapl.posterior import Prediction
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


class Card(NamedTuple):
    """An image with its true class, the answer of all samples together and how sure it is.

    `votes` has the classes that samples answer, and which samples answer them; nothing if there is one sample.
    """

    picture: EmbeddedPicture
    part: str
    truth: str
    answer: str
    sure: str
    votes: Mapping[str, str]


Pictures = tuple[Sequence[Card], Sequence[str]]
"""Images, and a sentence for each that is lost."""


def disputed(parts: Mapping[str, Answered]) -> Pictures:
    """The images that samples answer differently, those of the highest mutual information first."""
    return _cards(parts, lambda found, _: found.mutual_information.masked_fill(found.disagreement <= 1e-6, -1))


def sure_mistakes(parts: Mapping[str, Answered]) -> Pictures:
    """The images that are answered wrongly, the answers of the highest probability first."""
    return _cards(parts, lambda found, right: found.probabilities.amax(-1).masked_fill(right, -1))


def _cards(parts: Mapping[str, Answered], measure: Callable[[Prediction, Tensor], Tensor]) -> Pictures:
    """The images of the highest measure (N,) of their answers and of which are right, as far as it is above −1."""
    found = [
        (-value, name, index)
        for name, answered in parts.items()
        for index, value in enumerate(measure(answered.prediction, answered.right).tolist())
        if value > -1
    ]
    shown, lost = [], []
    for _, name, index in sorted(found)[:SHOWN]:
        try:
            shown.append(_card(name, parts[name], index))
        except (UserError, OSError) as error:
            lost.append(f"A picture is missing: {error}")
    return shown, lost


def _card(name: str, answered: Answered, index: int) -> Card:
    item, names, prediction = answered.part.items[index], answered.part.class_names, answered.prediction[index]
    truth, given = names[int(answered.labels[index])], int(prediction.labels[0])
    sure, votes = f"{100 * prediction.probabilities[0, given]:.1f} %", {}
    if (samples := len(prediction.weights)) > 1:
        low, high = (100 * end[0, given].item() for end in prediction.interval())
        sure += f" ({low:.0f} – {high:.0f})"
        answers = prediction.per_sample[:, 0].argmax(-1).tolist()
        for label in sorted(set(answers), key=lambda each: (-answers.count(each), each)):
            voters = [str(number) for number, answer in enumerate(answers, 1) if answer == label]
            named = f"sample{'s' * (len(voters) > 1)} {', '.join(voters)}"
            votes[names[label]] = named if samples <= NAMED else f"{len(voters)} of {samples} samples"
    picture = embedded(answered.part.dataset, item.key, f"Test image of class {truth}: {item.key}")
    return Card(picture, name, truth, names[given], sure, votes)


def embedded(dataset: Dataset, key: str, alt: str) -> EmbeddedPicture:
    """An image of a data set as a small JPEG in a data URI."""
    image = dataset.load(key).convert("RGB")
    small = max(image.size) < SIDE // 2
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return EmbeddedPicture(f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}", alt, small)
