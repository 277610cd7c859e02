"""What `rebapl bench` works on: a backbone, class names, pictures of noise and chains. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice, product
from typing import Any

import numpy as np
import torch

from rebapl.backbones import DualEncoder, TextTokenizer
from rebapl.data.embedded import NUMBER_WORDS, shape_classes
from rebapl.data.own import dataset_of
from rebapl.data.task import Task, task_of
from rebapl.errors import UserError
from rebapl.learners import METHODS, Learner, resolve_method
from rebapl.randomness import generator
from rebapl.reproduce.bench_records import Case
from rebapl.repulsion import kick
from rebapl.runs.machine import KeptBackbone
from rebapl.sampling import Chain
from rebapl.sampling.loop import kept
from rebapl.sampling.reference import evaluating
from rebapl.training.fit import Training
from rebapl.training.resolution import ResolvedTraining, resolve_training

RANDOM = "random"
"""The name of the shape of CLIP ViT-B/16 with random weights."""

PICTURES = 128
"""So many different pictures; more images are these again."""

LARGER = 1.25
"""The sides of the pictures, in units of what the backbone sees: they are cropped and resized as photos are."""

APART = 0.5
"""How far the remembered samples are from the start, relative to it."""

EPOCHS = 1000
"""Epochs of a cycle: more than are ever done, so that all steps explore."""


def bench_encoder(name: str | None, device: str) -> DualEncoder:
    """The backbone of that name, in the type that runs use; if none is named, `random` on a GPU and else `mini`."""
    name, load = name or (RANDOM if device.startswith("cuda") else "mini"), KeptBackbone()
    return random_vit_b16(load("mini", device)) if name == RANDOM else load(name, device)


def random_vit_b16(mini: DualEncoder) -> DualEncoder:
    """The shape of CLIP ViT-B/16 with random weights, which computes as long as the real one.

    It reads as `mini` does, and computes where `mini` is and in its type.
    """
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(vision_config={"patch_size": 16})  # the rest of ViT-B/16 is what `transformers` begins with
    with torch.random.fork_rng(devices=[mini.device] if mini.device.type == "cuda" else []), mini.device:
        torch.manual_seed(0)
        model = CLIPModel(config).to(mini.dtype)
    words, sees = mini.tokenizer, config.vision_config.image_size
    tokenizer = TextTokenizer(words.encode, words.start, words.end, config.text_config.max_position_embeddings)
    return DualEncoder(RANDOM, model, tokenizer, replace(mini.preprocessing, resize=sees, crop=sees))


def class_names(count: int, words: int = 3) -> list[str]:
    """So many names of at least three words each, of the words that `mini` knows.

    >>> class_names(2), class_names(2, words=5)[1], len(set(class_names(1000)))
    (['red striped circle', 'blue striped circle'], 'blue striped circle blue striped', 1000)
    """
    colours, textures, shapes = (list(dict.fromkeys(each)) for each in zip(*shape_classes(), strict=True))
    numbers = [[], *([word] for word in NUMBER_WORDS)]
    every = product(numbers, shapes, textures, colours)
    found = [[*number, colour, texture, shape] for number, shape, texture, colour in every]
    if not 2 <= count <= len(found):
        raise UserError(f"{count} classes cannot be timed: give numbers from 2 to {len(found)}")
    return [" ".join(islice(cycle(name), max(words, len(name)))) for name in found[:count]]


def noise_task(encoder: DualEncoder, classes: int, least: int, words: int = 3) -> Task:
    """A task of pictures of noise, at `least` so many and at least one of each class, that are all trained on."""
    side = round(LARGER * encoder.preprocessing.crop)
    pictures = np.random.default_rng(0).integers(256, size=(PICTURES, side, side, 3), dtype=np.uint8)
    count = max(least, classes)
    images, labels = [pictures[index % PICTURES] for index in range(count)], [index % classes for index in range(count)]
    return task_of(dataset_of(images, labels, class_names(classes, words)))


def resolved_case(case: Case) -> ResolvedTraining:
    """The settings of a training whose first cycle goes on longer than anybody measures, and explores with SGHMC."""
    settings: dict[str, Any] = {
        "batch": case.batch,
        "chains": 1,
        "cycles": 2,
        "epochs": EPOCHS,
        "first_epochs": None,
        "sampler.exploration": 0.9,
        "sampler.burn_in": None,
        "warmup": None,
    }
    if case.repulsion is None:
        settings["repulsion"] = None
    else:
        settings["repulsion.distance.kind"] = case.repulsion
        settings["repulsion.every"] = case.every
        if METHODS.find(case.method).learner.per_image(resolve_method(case.method)):
            settings["repulsion.images"] = case.images
    return resolve_training(
        case.method, "rebapl", protocol="few-shot", data="noise", shots=16, inference_settings=settings
    )


def bench_chain(encoder: DualEncoder, case: Case) -> tuple[Chain, Learner[Any]]:
    """A chain of a case, and its learner. Its first step is repelled already, by samples that are drawn at random."""
    resolved = resolved_case(case)
    pool = 0 if resolved.inference is None else resolved.inference.pool_size
    task = noise_task(encoder, case.classes, max(pool, case.batch), case.words)
    training = Training(task, encoder, resolved, seed=1)
    chain = training.loop
    assert isinstance(chain, Chain)
    if chain.repulsion is not None:
        stream = generator(1, "bench", "samples")
        start = kept(chain.parameters)
        for number in range(case.samples + 1):
            with torch.no_grad():
                for name, p in chain.parameters.items():
                    p.copy_(start[name])
            kick(chain.parameters.values(), APART, stream)
            if number < case.samples:
                with evaluating(chain.learner):
                    chain.repulsion.remember(chain.reference.stored())
    return chain, training.learner
