"""A large pool of drawn pictures with captions, and a test of which captions fit which pictures."""

import multiprocessing
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch

from captioned import Facts, draw_example

CHUNK = 1000
"""The number of pictures from one random seed, so that the pool does not depend on the number of workers."""


class Pool(NamedTuple):
    """n captioned pictures: images (n, 64, 64, 3) bytes; seen and said (n, facts) integers, 0 for an open fact."""

    images: np.ndarray
    captions: list[str]
    seen: np.ndarray
    said: np.ndarray

    def part(self, which: slice) -> "Pool":
        """Some of the pictures, with their captions and facts."""
        return Pool(self.images[which], self.captions[which], self.seen[which], self.said[which])


def draw_chunk(job: tuple[int, int]) -> tuple[np.ndarray, list[str], list[Facts], list[Facts]]:
    """Draw the chunk of a pool with this number, from a seed of its own."""
    seed, number = job
    rng = np.random.default_rng([seed, number])
    examples = [draw_example(rng) for _ in range(CHUNK)]
    return (
        np.stack([example.image for example in examples]),
        [example.caption for example in examples],
        [example.seen for example in examples],
        [example.said for example in examples],
    )


def draw_pool(seed: int, chunks: int, workers: int) -> Pool:
    """Draw all chunks in `workers` processes. Each distinct fact is numbered, from 1 up."""
    numbers: list[defaultdict[str, int]] = [defaultdict() for _ in Facts._fields]
    for number_of in numbers:
        number_of.default_factory = number_of.__len__
        number_of[""] = 0

    def numbered(facts: list[Facts]) -> np.ndarray:
        return np.array([[n[fact] for n, fact in zip(numbers, row, strict=True)] for row in facts], np.int32)

    images = np.empty((chunks * CHUNK, 64, 64, 3), np.uint8)
    captions: list[str] = []
    seen, said = [], []
    jobs = [(seed, number) for number in range(chunks)]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for number, (pictures, words, shown, told) in enumerate(pool.imap(draw_chunk, jobs)):
            images[number * CHUNK : (number + 1) * CHUNK] = pictures
            captions += words
            seen.append(numbered(shown))
            said.append(numbered(told))
    return Pool(images, captions, np.concatenate(seen), np.concatenate(said))


def fits(seen: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
    """(n, m) booleans: whether each fact of caption j, said[j], is open or equals that of image i, seen[i]."""
    agree = torch.ones(len(seen), len(said), dtype=torch.bool, device=seen.device)
    for shown, told in zip(seen.unbind(1), said.unbind(1), strict=True):
        agree &= (told == 0) | (told == shown[:, None])
    return agree
