"""How well an outside score tells outside images (of other classes, or of another data set) from images of the trained
classes."""

from __future__ import annotations

from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior import UNCERTAINTIES, Prediction


def outside_scores(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """AUROC, FPR95 and AUPR, in percent, from the outside scores (N,) of inside images and (M,) of outside images.

    AUROC is the probability that, of an outside and an inside image, the outside one has the higher score; a tie counts
    as one half. FPR95 is the share of outside images that pass as inside images if the threshold lets at least 95 % of
    the inside images pass. AUPR is the area under the curve of precision over recall, computed as average precision,
    with the outside images as positives; a score by chance has their share.
    """
    if len(inside) == 0 or len(outside) == 0:
        raise UserError("images of both kinds are needed, inside and outside")
    from sklearn.metrics import average_precision_score, roc_auc_score  # late: scikit-learn is slow to import

    truth, values = [0] * len(inside) + [1] * len(outside), [*inside.tolist(), *outside.tolist()]
    auroc, aupr = roc_auc_score(truth, values), average_precision_score(truth, values)
    passing = -(-len(inside) * 95 // 100)  # rounded up, in whole numbers
    threshold = inside.sort().values[passing - 1]
    passed = (outside <= threshold).double().mean().item()
    return {"auroc": 100 * float(auroc), "fpr95": 100 * passed, "aupr": 100 * float(aupr)}


def all_outside_scores(inside: Prediction, outside: Prediction) -> dict[str, dict[str, float]]:
    """The `outside_scores` of each outside score, by its name.

    Both predictions must be among the same class names, those of the training.
    """
    if inside.class_names != outside.class_names:
        raise UserError("inside and outside images are compared among the same class names: bind the posterior once")
    names = [*UNCERTAINTIES, *(name for name in inside.scores if name in outside.scores)]
    return {by: outside_scores(inside.outside_score(by), outside.outside_score(by)) for by in names}
