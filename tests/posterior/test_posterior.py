"""A posterior in memory: predicting, binding, thresholds."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.posterior import Posterior


def test_predict_averages_the_samples_probabilities(make: Any, views: Tensor) -> None:
    posterior = make("maple").with_weights(torch.tensor([0.2, 0.3, 0.5]))
    prediction = posterior.predict(views)
    each = [posterior.sample(index).predict_views(views).probabilities for index in range(3)]
    expected = 0.2 * each[0] + 0.3 * each[1] + 0.5 * each[2]
    torch.testing.assert_close(prediction.probabilities, expected)
    torch.testing.assert_close(posterior.predict_views(views).probabilities, expected)
    torch.testing.assert_close(prediction.per_sample, torch.stack(each))
    assert prediction.class_names == posterior.class_names
    assert len(prediction.names) == len(prediction) == 7


@pytest.mark.parametrize("given", [np.array([0.2, 0.3, 0.5]), [0.2, 0.3, 0.5], torch.tensor([0, 0, 1])])
def test_weights_may_be_numbers_of_any_type(make: Any, views: Tensor, given: Any) -> None:
    posterior = make("coop").with_weights(given)
    expected = np.einsum("s,snc->nc", np.asarray(given), posterior.predict(views).per_sample.numpy())
    np.testing.assert_allclose(posterior.predict(views).probabilities.numpy(), expected, atol=1e-6)
    assert posterior.predict(views).mutual_information.shape == (7,)


def test_other_class_names_and_template_at_predict_time(make: Any, views: Tensor) -> None:
    posterior = make("zero-shot", 1)
    others = ["green fish", "car"]
    given = posterior.predict(views, class_names=others, template="a photo of a {}.")
    assert given.class_names == others
    assert torch.equal(
        given.probabilities, posterior.bind(others, "a photo of a {}.").predict_views(views).probabilities
    )
    with_template = posterior.predict(views, template="a photo of a {}.")
    assert with_template.class_names == posterior.class_names
    assert not torch.allclose(with_template.probabilities, posterior.predict(views).probabilities)
    with pytest.raises(UserError, match="given twice"):
        posterior.predict(views, class_names=["car", "car"])
    with pytest.raises(UserError, match=r"class name 0 .* is empty"):
        posterior.predict(views, class_names=["", ""])
    published = posterior.bind(["missile", "car", "missile"])  # a data set's own list may
    assert published.predict(views, class_names=published.class_names).class_names == ["missile", "car", "missile"]
    with pytest.raises(UserError, match="template"):
        posterior.predict(views, template="no place for the name")


def test_a_threshold_belongs_to_its_class_names_averaging_and_template(make: Any, views: Tensor) -> None:
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    posterior = make("coop").fit_threshold(views, labels, coverage=0.5)
    assert posterior.threshold is not None
    assert (~posterior.predict(views).unsure()).sum() == 4
    for prediction in (
        posterior.predict(views, average="logits"),
        posterior.predict(views, class_names=["green fish", "car"]),
        posterior.predict(views, template="a photo of a {}."),
        posterior.bind(posterior.class_names, transfer=True).predict(views),
    ):
        with pytest.raises(UserError, match="no threshold was chosen"):
            prediction.unsure()
        assert prediction.unsure(posterior.threshold).shape == (7,)  # unless it is given on purpose
    back = posterior.bind(["green fish", "car"]).bind(posterior.class_names)
    assert (~back.predict(views).unsure()).sum() == 4


def test_a_risk_that_cannot_be_promised_is_refused_before_the_passes(make: Any) -> None:
    no_images = torch.zeros(7, 1)  # a pass of these would fail
    with pytest.raises(UserError, match=r"cannot be promised at confidence 0\.9 with 7 images"):
        make("coop").fit_threshold(no_images, torch.zeros(7, dtype=torch.long), risk=0.01)


def test_a_posterior_without_samples_is_refused(make: Any) -> None:
    with pytest.raises(UserError, match="at least one sample"):
        Posterior.of(make("coop").learner, [], {})


def test_an_unknown_feature_space_is_refused(make: Any, views: Tensor) -> None:
    with pytest.raises(UserError, match="unknown feature space"):
        make("coop").passes.clouds(views, "imag")
