"""A large pool of drawn, captioned pictures, and which captions fit which pictures."""

import multiprocessing
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch

from captioned import Facts, draw_example

CHUNK = 1000
"""Pictures to a random seed, so that the pool does not depend on the number of workers."""


class Pool(NamedTuple):
    """n captioned pictures: images (n, 64, 64, 3) bytes; seen and said (n, facts) integers, 0 for open."""

    images: np.ndarray
    captions: list[str]
    seen: np.ndarray
    said: np.ndarray

    def part(self, which: slice) -> "Pool":
        """Some of the pictures, with all that belongs to them."""
        return Pool(self.images[which], self.captions[which], self.seen[which], self.said[which])


def draw_chunk(job: tuple[int, int]) -> tuple[np.ndarray, list[str], list[Facts], list[Facts]]:
    """The chunk of a pool with the given number, from a seed of its own."""
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
    """All chunks in order, drawn by `workers` processes; every distinct fact gets a number from 1 up."""
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
    """(n, m) booleans: caption j, with facts said[j], fits image i, with facts seen[i], where both give a fact."""
    agree = torch.ones(len(seen), len(said), dtype=torch.bool, device=seen.device)
    for shown, told in zip(seen.unbind(1), said.unbind(1), strict=True):
        agree &= (told == 0) | (told == shown[:, None])
    return agree
