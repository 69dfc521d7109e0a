"""Randomness as a function of where one is in a run: nothing to save, nothing to restore."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for one place of a run, e.g. `derive(seed, "crop", 5)`: a hash, so that places are unrelated."""
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with torch's CPU generator at `seed`, and put it back as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
