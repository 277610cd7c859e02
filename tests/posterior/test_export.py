"""Exported posteriors, used as programs without rebapl use them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from methods import CASES
from pages import blocks, run_code
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import CLIPModel

from rebapl.backbones import DualEncoder, find_backbone
from rebapl.data.batches import LabelledImages
from rebapl.data.task import load_task
from rebapl.errors import UserError
from rebapl.posterior import Posterior
from rebapl.posterior.export import class_embeddings

Make = Callable[..., Posterior]
NORMS = (("ln_pre", "pre_layrnorm"), ("ln_post", "post_layernorm"))
BLOCK = (
    ("ln_1", "layer_norm1"),
    ("ln_2", "layer_norm2"),
    ("attn.out_proj", "self_attn.out_proj"),
    ("mlp.c_fc", "mlp.fc1"),
    ("mlp.c_proj", "mlp.fc2"),
)
"""The names of open_clip and of transformers."""
TEXT_ONLY = {"zero-shot", "coop", "proda", "linear", "lp++"}


@pytest.fixture(scope="module")
def digits(mini: DualEncoder) -> Tensor:
    """Five real images, uint8 (5, 3, 64, 64)."""
    task = load_task("digits", shots=1)
    return LabelledImages(task.dataset, task.dataset.test[:5]).views(mini.preprocessing)


def image_features(encoder: DualEncoder, views: Tensor) -> Tensor:
    """As `transformers` computes them, normalised."""
    pixels = encoder.preprocessing.normalize(views)
    ids = torch.zeros(1, 2, dtype=torch.long)
    model = CLIPModel.from_pretrained(find_backbone(encoder.name), dtype=torch.float32).eval()
    with torch.no_grad():
        return model(pixel_values=pixels, input_ids=ids).image_embeds


@pytest.mark.parametrize("method", CASES)
def test_which_methods_are_a_matrix(make: Make, method: str) -> None:
    posterior = make(method, 1 if method == "zero-shot" else 2)
    if method in TEXT_ONLY:
        assert class_embeddings(posterior).shape == (len(posterior), 4, 48)
    else:
        with pytest.raises(UserError, match=rf"'{method.replace('+', '.')}' with its settings is no matrix"):
            class_embeddings(posterior)


@pytest.mark.parametrize("method", ["coop", "linear"])
def test_one_matrix_drops_into_a_clip_pipeline(
    make: Make, mini: DualEncoder, digits: Tensor, tmp_path: Path, method: str
) -> None:
    """The formula that open_clip documents: softmax(scale · image_features @ text_features.T)."""
    posterior = make(method, 1, mini)
    expected = posterior.predict(digits).probabilities.numpy()
    image, scale = image_features(mini, digits), mini.model.logit_scale.exp()
    stored = load_file(posterior.export(tmp_path / "classes.safetensors"))
    text = stored["text_features"]
    if method == "coop":  # a head's weights have lengths of their own
        torch.testing.assert_close(text.norm(dim=-1), torch.ones(4))
    torch.testing.assert_close(stored["logit_scale"], scale)
    np.testing.assert_allclose((scale * image @ text.T).softmax(-1), expected, atol=1e-5)
    array = np.load(posterior.export(tmp_path / "classes.npy"))
    np.testing.assert_array_equal(array, text)
    about = json.loads((tmp_path / "classes.json").read_text())
    assert about["class_names"] == posterior.class_names
    assert about["logit_scale"] == pytest.approx(float(scale))


def test_open_clip_uses_the_matrix(make: Make, mini: DualEncoder, digits: Tensor, tmp_path: Path) -> None:
    """An image tower of open_clip with mini's weights, used as open_clip's own page says."""
    open_clip = pytest.importorskip("open_clip", reason="open_clip needs torchvision: pip install open_clip_torch")
    config, theirs = mini.model.config.vision_config, mini.model.state_dict()
    shape = {name: getattr(config, name) for name in ("image_size", "patch_size")}
    width, layers = config.hidden_size, config.num_hidden_layers
    tower = {**shape, "width": width, "layers": layers, "head_width": width // config.num_attention_heads}
    text = {"width": 64, "heads": 1, "layers": 1}
    model = open_clip.CLIP(mini.joint_width, tower, text, quick_gelu=config.hidden_act == "quick_gelu").eval()
    weights = {"proj": theirs["visual_projection.weight"].T}
    for ours, name in (
        ("class_embedding", "embeddings.class_embedding"),
        ("positional_embedding", "embeddings.position_embedding.weight"),
        ("conv1.weight", "embeddings.patch_embedding.weight"),
        *((f"{a}.{end}", f"{b}.{end}") for a, b in NORMS for end in ("weight", "bias")),
    ):
        weights[ours] = theirs[f"vision_model.{name}"]
    for layer in range(layers):
        here, there = f"transformer.resblocks.{layer}", f"vision_model.encoder.layers.{layer}"
        for end in ("weight", "bias"):
            for ours, name in BLOCK:
                weights[f"{here}.{ours}.{end}"] = theirs[f"{there}.{name}.{end}"]
            parts = [theirs[f"{there}.self_attn.{each}_proj.{end}"] for each in "qkv"]
            weights[f"{here}.attn.in_proj_{end}"] = torch.cat(parts)
    model.visual.load_state_dict(weights)
    posterior = make("coop", 1, mini)
    text_features = load_file(posterior.export(tmp_path / "classes.safetensors"))["text_features"]
    with torch.no_grad():
        image_features = model.encode_image(mini.preprocessing.normalize(digits))
        image_features /= image_features.norm(dim=-1, keepdim=True)
        text_probs = (mini.logit_scale * image_features @ text_features.T).softmax(dim=-1)
    np.testing.assert_allclose(text_probs, posterior.predict(digits).probabilities.numpy(), atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("method", ["coop", "proda", "linear"])
def test_the_matrices_of_all_samples_give_the_posterior(
    make: Make,
    mini: DualEncoder,
    digits: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    temperature: float,
) -> None:
    """By the code of docs/sharing.md. Samples of a head differ so much that the order of averaging matters."""
    posterior = make(method, 3, mini)
    posterior = posterior.with_weights(torch.tensor([0.5, 0.2, 0.3])).with_temperature(temperature)
    monkeypatch.chdir(tmp_path)
    (code,) = [each for each in blocks("docs/sharing.md") if "def exactly" in each]
    names = run_code(code, "docs/sharing.md", posterior=posterior)
    stored, image = names["classes"], image_features(mini, digits)
    found = names["exactly"](image)
    np.testing.assert_allclose(found, posterior.predict(digits).probabilities.numpy(), atol=1e-5)
    if temperature != 1 and method == "linear":  # the average of tempered samples is another one
        logits = stored["logit_scale"] * image @ stored["sample_text_features"].mT
        other = torch.einsum("s,snc->nc", stored["weights"], logits.softmax(-1))
        assert (other - found).abs().max() > 1e-3
    with safe_open("classes.safetensors", "pt") as file:
        assert json.loads(file.metadata()["class_names"]) == posterior.class_names


def test_a_whole_predictor_in_onnx(
    make: Make, mini: DualEncoder, digits: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as docs/sharing.md shows it."""
    runtime = pytest.importorskip("onnxruntime")
    posterior = make("maple", 2, mini).with_weights(torch.tensor([0.7, 0.3]))
    path = posterior.export(tmp_path / "predictor.onnx")
    session = runtime.InferenceSession(path)
    for count in (1, 5):
        pixels = mini.preprocessing.normalize(digits[:count]).numpy()
        whole, each = session.run(["probabilities", "per_sample"], {"pixels": pixels})
        expected = posterior.predict_views(digits[:count])
        np.testing.assert_allclose(whole, expected.probabilities, atol=1e-5)
        np.testing.assert_allclose(each, expected.per_sample, atol=1e-5)
    (block,) = [each for each in blocks("docs/sharing.md") if "onnxruntime" in each]
    monkeypatch.chdir(tmp_path)
    Image.fromarray(digits[0].permute(1, 2, 0).numpy()).save("photo.png")
    names: dict[str, Any] = {}
    exec(compile(block, "docs/sharing.md", "exec"), names)
    assert names["names"] == posterior.class_names
    np.testing.assert_allclose(names["probabilities"], posterior.predict(digits[:1]).probabilities.numpy(), atol=1e-5)
    assert path.stat().st_size < 8e6, "the image tower is there once, and the text tower is not"


def test_a_whole_predictor_by_torch_export(make: Make, encoder: DualEncoder, views: Tensor, tmp_path: Path) -> None:
    posterior = make("bpl", 2)
    extra = {"class_names": ""}
    program = torch.export.load(posterior.export(tmp_path / "predictor.pt2"), extra_files=extra).module()
    whole, each = program(encoder.preprocessing.normalize(views))
    torch.testing.assert_close(whole, posterior.predict_views(views).probabilities, atol=1e-5, rtol=0)
    assert each.shape == (2, 7, 4)
    assert json.loads(extra["class_names"]) == posterior.class_names


def test_what_cannot_be_exported_leaves_no_file(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"one of .safetensors, .npy, .onnx, .pt2"):
        make("coop").export(tmp_path / "x.pkl")
    with pytest.raises(UserError, match="'maple' with its settings is no matrix"):
        make("maple").export(tmp_path / "x.npy")
    with pytest.raises(UserError, match=r"'cocoop' with its settings is no graph .*cocoop, app, vamp, and bpl"):
        make("cocoop", 1).export(tmp_path / "x.pt2")
    with pytest.raises(UserError, match="'vamp' with its settings is no graph"):
        make("vamp", 1).export(tmp_path / "x.pt2")
    monkeypatch.setattr("rebapl.posterior.export.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'rebapl\[onnx\]'"):
        make("coop").export(tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
