"""Zero-shot scores of a CLIP folder on the training and validation images of the embedded tasks.

The test images are not used, because these scores are for tuning the drawings.

    python tools/score_mini.py src/rebapl/backbones/mini
"""

import argparse
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, CLIPModel

from rebapl.data.embedded import EMBEDDED

IMAGE_MEAN, IMAGE_STD = 0.5, 0.25
"""The same for all channels, as in preprocessor_config.json."""


class Encoders:
    """Both towers of a CLIP folder. They turn arrays of images, and captions, into features of unit length."""

    def __init__(self, folder: Path, device: str) -> None:
        self.model = CLIPModel.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.device = device

    @torch.no_grad()
    def images(self, images: np.ndarray) -> torch.Tensor:
        """(n, 64, 64, 3) bytes to (n, d)."""
        parts = []
        for chunk in torch.from_numpy(images).split(500):
            pixels = chunk.to(self.device).permute(0, 3, 1, 2).float().div(255).sub(IMAGE_MEAN).div(IMAGE_STD)
            pooled = self.model.vision_model(pixel_values=pixels).pooler_output
            parts.append(self.model.visual_projection(pooled))
        return torch.nn.functional.normalize(torch.cat(parts), dim=-1)

    @torch.no_grad()
    def texts(self, captions: Sequence[str]) -> torch.Tensor:
        """n captions to (n, d)."""
        tokens = self.tokenizer(list(captions), padding=True, truncation=True, return_tensors="pt")
        pooled = self.model.text_model(input_ids=tokens["input_ids"].to(self.device)).pooler_output
        return torch.nn.functional.normalize(self.model.text_projection(pooled), dim=-1)


def task_scores(encoders: Encoders) -> dict[str, float]:
    """Top-1 accuracy in percent by task. `digits` is left out without scikit-learn, which contains its images."""
    scores = {}
    for name, task in EMBEDDED.items():
        if name == "digits" and importlib.util.find_spec("sklearn") is None:
            continue
        data = task()
        items = [*data.train, *data.val]
        images = np.stack([np.asarray(data.load(item.key)) for item in items])
        texts = encoders.texts([data.template.format(class_name) for class_name in data.class_names])
        guesses = (encoders.images(images) @ texts.T).argmax(1).cpu().numpy()
        scores[name] = round(100 * float(np.mean(guesses == [item.label for item in items])), 2)
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a CLIP checkpoint for 64-pixel images in Hugging Face format")
    chosen = parser.parse_args()
    print(json.dumps(task_scores(Encoders(chosen.folder, "cuda" if torch.cuda.is_available() else "cpu")), indent=2))
