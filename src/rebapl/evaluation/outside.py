"""How well an uncertainty tells images of other classes, or of another data set, from those it was trained for."""

from __future__ import annotations

from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior import UNCERTAINTIES, Prediction


def outside_scores(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """AUROC and FPR95, in percent, from the uncertainties of N inside and M outside images, (N,) and (M,).

    AUROC: the probability that an outside image is the more uncertain of a pair; equal ones count half. FPR95: the
    share of outside images that pass as inside when the threshold lets at least 95 % of the inside ones pass.
    """
    if len(inside) == 0 or len(outside) == 0:
        raise UserError("images of both kinds are needed, inside and outside")
    from sklearn.metrics import roc_auc_score  # late: scikit-learn is slow to import

    truth = [0] * len(inside) + [1] * len(outside)
    auroc = roc_auc_score(truth, [*inside.tolist(), *outside.tolist()])
    passing = -(-len(inside) * 95 // 100)  # rounded up, in whole numbers
    threshold = inside.sort().values[passing - 1]
    return {"auroc": 100 * float(auroc), "fpr95": 100 * (outside <= threshold).double().mean().item()}


def all_outside_scores(inside: Prediction, outside: Prediction) -> dict[str, dict[str, float]]:
    """`outside_scores` for every kind of uncertainty; both predictions among the same class names."""
    if inside.class_names != outside.class_names:
        raise UserError("inside and outside images are compared among the same class names: bind the posterior once")
    return {by: outside_scores(inside.uncertainty(by), outside.uncertainty(by)) for by in UNCERTAINTIES}
