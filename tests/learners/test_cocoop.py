"""CoCoOp: text that differs from image to image."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rebapl.errors import UserError


def test_text_cloud_has_a_row_of_length_one_per_image(build: Any, images: Tensor) -> None:
    output = build("cocoop")(images)
    cloud = output.cloud("text")
    assert cloud.shape == (3, 4 * 48)
    torch.testing.assert_close(cloud.norm(dim=-1), torch.ones(3))
    assert not torch.allclose(cloud[0], cloud[1], atol=1e-4)
    text = 2 * cloud.unflatten(1, (4, 48))
    torch.testing.assert_close(10 * torch.einsum("be,bce->bc", output.cloud("image"), text), output.logits)
    with pytest.raises(UserError, match="unknown feature space 'both'"):
        output.cloud("both")


def test_contradicting_tokens_and_words_are_refused(build: Any) -> None:
    with pytest.raises(UserError, match="'a photo of a' is 4 tokens, but tokens = 3"):
        build("cocoop", {"tokens": 3})
