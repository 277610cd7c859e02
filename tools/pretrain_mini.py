"""Pre-trains the embedded CLIP `mini` on drawn, captioned pictures and writes it as a Hugging Face folder.

    python tools/pretrain_mini.py --out src/rebapl/backbones/mini --pool 800000 --steps 7000

A pool of pictures is drawn once on all cores, kept on the device as bytes, and augmented there. The loss is
contrastive: with similarity s_ij of image i and caption j, positives P_i = {j : caption j fits image i} and negatives
N_i the other captions of the batch,

    L = mean_i mean_{p in P_i} log(1 + sum_{n in N_i} exp(s_in - s_ip)),

averaged with the same expression for captions against images. Captions that fit an image neither compete with one
another nor count against it, so "a red shape" and "a red striped circle" can both be right.
"""

import argparse
import csv
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

from drawn_pool import CHUNK, Pool, draw_pool, fits
from score_mini import IMAGE_MEAN, IMAGE_STD, Encoders, task_scores

HELD_OUT = 2
"""The number of further chunks, on which the finished model is scored."""

START, END = "<|startoftext|>", "<|endoftext|>"
POSITIONS = 48
WIDTH, LAYERS, HEADS = 128, 5, 4


def train_tokenizer(captions: Sequence[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A lower-casing byte-level BPE tokenizer for captions and plain words; start is token 0, end and padding 1."""
    words = (Path(__file__).parent / "plain_words.txt").read_text().split()
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Plain words are repeated, because otherwise the few words of the captions would take every merge.
    bpe.train_from_iterator([*captions, *words * 20], trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(START, 0), (END, 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=START,
        eos_token=END,
        pad_token=END,
        unk_token=END,
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "attention_mask"],
    )


def mini_config(vocabulary: int) -> CLIPConfig:
    """The shape of `mini`: two equal towers, 64-pixel images in patches of 8."""
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "projection_dim": WIDTH,
        "hidden_act": "quick_gelu",
    }
    # The text tower pools at the first end token, except that transformers reads eos_token_id 2 in an older way.
    text = {"vocab_size": vocabulary, "max_position_embeddings": POSITIONS}
    text |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    vision = {"image_size": 64, "patch_size": 8}
    return CLIPConfig(text_config=tower | text, vision_config=tower | vision, projection_dim=WIDTH)


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Turn bytes (n, 64, 64, 3) into normalised pixels (n, 3, 64, 64).

    Each picture is moved, zoomed and rotated a little, and its light and its noise vary.
    """
    n, device = len(images), images.device

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=generator, device=device)

    pixels = images.permute(0, 3, 1, 2).float() / 255
    turn, zoom, stretch = uniform(-0.15, 0.15), uniform(0.82, 1.2), uniform(0.9, 1.1)
    rows = [
        torch.stack([zoom * turn.cos(), -zoom * turn.sin(), uniform(-0.12, 0.12)], 1),
        torch.stack([zoom * stretch * turn.sin(), zoom * stretch * turn.cos(), uniform(-0.12, 0.12)], 1),
    ]
    grid = functional.affine_grid(torch.stack(rows, 1), [n, 3, 64, 64], align_corners=False)
    pixels = functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    soft = functional.avg_pool2d(functional.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    pixels = torch.lerp(pixels, soft, (uniform(-1.5, 1, 1, 1, 1)).clamp(min=0))
    middle = pixels.mean((1, 2, 3), keepdim=True)
    pixels = middle + (pixels - middle) * uniform(0.7, 1.15, 1, 1, 1)
    pixels = pixels * uniform(0.75, 1.15, 1, 1, 1) + uniform(-0.04, 0.04, 3, 1, 1)
    noise = torch.randn(pixels.shape, generator=generator, device=device)
    pixels = (pixels + noise * uniform(-0.06, 0.08, 1, 1, 1).clamp(min=0)).clamp(0, 1)
    return (pixels - IMAGE_MEAN) / IMAGE_STD


def contrastive_loss(similarity: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
    """The loss of the module's docstring for images against captions. Both arguments are (n, n)."""
    rivals = similarity.masked_fill(positive, -math.inf).logsumexp(1, keepdim=True)
    per_pair = functional.softplus(rivals - similarity) * positive
    return (per_pair.sum(1) / positive.sum(1)).mean()


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Endless batches of indices, in a new order in each epoch. The incomplete last batch of an epoch is left out."""
    while True:
        order = torch.randperm(n, generator=generator, device=generator.device)
        yield from order[: n - n % size].split(size)


def optimizer_for(model: CLIPModel, lr: float, fused: bool) -> torch.optim.Optimizer:
    """AdamW with weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=fused)


def train(model: CLIPModel, pool: Pool, tokens: torch.Tensor, chosen: argparse.Namespace, device: str) -> float:
    """Trains the model in place, writes the log, returns the mean loss of the last hundred steps."""
    generator = torch.Generator(device).manual_seed(chosen.seed)
    images, seen, said = (torch.from_numpy(part).to(device) for part in (pool.images, pool.seen, pool.said))
    tokens = tokens.to(device)
    optimizer = optimizer_for(model, chosen.lr, fused=device == "cuda")
    warm_up = min(500, chosen.steps // 10 + 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(step / warm_up, 1) * 0.5 * (1 + math.cos(math.pi * min(step / chosen.steps, 1))),
    )
    losses = torch.zeros(chosen.steps, device=device)
    start = time.perf_counter()
    with chosen.log.open("w", newline="") as file:
        log = csv.writer(file)
        log.writerow(["step", "loss", "lr", "seconds"])
        for step, index in zip(range(chosen.steps), batches(len(images), chosen.batch, generator), strict=False):
            schedule_lr = optimizer.param_groups[0]["lr"]
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                image = model.visual_projection(
                    model.vision_model(pixel_values=augment(images[index], generator)).pooler_output
                )
                text = model.text_projection(model.text_model(input_ids=tokens[index].long()).pooler_output)
            image, text = (functional.normalize(features.float(), dim=-1) for features in (image, text))
            similarity = model.logit_scale.exp() * image @ text.T
            positive = fits(seen[index], said[index])
            loss = (contrastive_loss(similarity, positive) + contrastive_loss(similarity.T, positive.T)) / 2
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                model.logit_scale.clamp_(max=math.log(100))
                losses[step] = loss.detach()
            if (step + 1) % 100 == 0 or step + 1 == chosen.steps:
                seconds = time.perf_counter() - start
                recent = losses[max(0, step - 99) : step + 1].mean().item()
                log.writerow([step + 1, f"{recent:.5f}", f"{schedule_lr:.3e}", f"{seconds:.1f}"])
                if (step + 1) % 1000 == 0 or step < 100:
                    rate = (step + 1) / seconds
                    print(f"step {step + 1} loss {recent:.4f}, {rate:.1f} steps/s", flush=True)
    return losses[-100:].mean().item()


def held_out_score(encoders: Encoders, pool: Pool) -> float:
    """Percentage of new pictures that the nearest of all new captions fits."""
    nearest = (encoders.images(pool.images) @ encoders.texts(pool.captions).T).argmax(1).cpu()
    right = fits(torch.from_numpy(pool.seen), torch.from_numpy(pool.said))
    return round(100 * right[torch.arange(len(nearest)), nearest].float().mean().item(), 2)


def save(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes the weights as float16, the tokenizer, and how images are prepared."""
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    prepare = {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": 64},
        "do_center_crop": True,
        "crop_size": {"height": 64, "width": 64},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [IMAGE_MEAN] * 3,
        "image_std": [IMAGE_STD] * 3,
        "do_convert_rgb": True,
        "resample": 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(prepare, indent=2) + "\n")


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model; made if need be")
    parser.add_argument("--log", type=Path, help="CSV of step, loss, lr, seconds (default: OUT/loss.csv)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pool", type=int, default=800_000, help=f"pictures to draw, in chunks of {CHUNK}")
    parser.add_argument("--steps", type=int, default=7_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--vocabulary", type=int, default=1500)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that draw")
    chosen = parser.parse_args()
    chosen.log = chosen.log or chosen.out / "loss.csv"
    return chosen


def main() -> None:
    """Draws, trains, saves, scores."""
    chosen = parse()
    chosen.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    chunks = math.ceil(chosen.pool / CHUNK)
    everything = draw_pool(chosen.seed, chunks + HELD_OUT, chosen.workers)
    pool, new = everything.part(slice(chunks * CHUNK)), everything.part(slice(chunks * CHUNK, None))
    print(f"drew {len(pool.images)} pictures in {time.perf_counter() - start:.0f} s", flush=True)

    tokenizer = train_tokenizer(pool.captions[:50_000], chosen.vocabulary)
    encoded = tokenizer(pool.captions, padding=True, truncation=True)["input_ids"]
    tokens = torch.tensor(np.array(encoded, np.int16))
    print(
        f"{len(tokenizer)} tokens; longest caption {tokens.shape[1]}; {time.perf_counter() - start:.0f} s", flush=True
    )

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(chosen.seed)
    torch.set_float32_matmul_precision("high")
    model = CLIPModel(mini_config(len(tokenizer))).to(device)
    loss = train(model, pool, tokens, chosen, device)
    save(model, tokenizer, chosen.out)

    encoders = Encoders(chosen.out, device)
    scores = {"held-out drawings": held_out_score(encoders, new), **task_scores(encoders)}
    record = {
        "command": " ".join(["python", *sys.argv]),
        "seed": chosen.seed,
        "pool": len(pool.images),
        "steps": chosen.steps,
        "batch": chosen.batch,
        "parameters": sum(p.numel() for p in model.parameters()),
        "final loss": round(loss, 5),
        "seconds": round(time.perf_counter() - start),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "versions": {
            "python": platform.python_version(),
            **{module.__name__: module.__version__ for module in (torch, transformers, tokenizers, np)},
        },
        "zero-shot top-1 in percent (training and validation images)": scores,
    }
    (chosen.out / "pretraining.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
