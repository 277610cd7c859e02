"""Named random streams: everything that draws has a stream of its own, derived from the one seed of a run."""

import hashlib
import random

import torch


def derived_seed(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream that `names` identify; different names give unrelated streams.

    >>> derived_seed(1, "batches", 0) == derived_seed(1, "batches", 0) != derived_seed(1, "batches", 1)
    True
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object, device: torch.device | str = "cpu") -> torch.Generator:
    """The named stream as a torch generator."""
    return torch.Generator(device).manual_seed(derived_seed(seed, *names))


def python_random(seed: int, *names: object) -> random.Random:
    """The named stream as a generator of the standard library, for choices that are made per image on the CPU."""
    return random.Random(derived_seed(seed, *names))
