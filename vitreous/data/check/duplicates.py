"""Which pictures are the same, to the byte, to the pixel, or to the eye.

Near-duplicates (encoded anew, resized, brightened, turned grey) are found by a hash of 64 bits,
whose few differing bits are searched exactly, and then compared by what small thumbnails show:
the correlation of their details. Measured on 150 photographs of 224 pixels each: at JPEG
quality 40, half and twice the size, 10 % brighter and 20 % more contrast, it is above 0.94, and
of 3,925 photographs no two exceed 0.2; of 2,062 photographs of hands before a wall, 0.7.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

RADIUS = 7  # bits of 64 in which the hashes of near-duplicates may differ
ALIKE = 0.8  # least correlation of details
LEAST_DETAIL = 1.0  # levels of 255: standard deviation of the details below which there is nothing to compare
OTHER_COLOURS = 40.0  # levels of 255 that the coarse colours may differ by
_BLOCK = 2048  # hashes compared with all others of their band at a time


def same(digests: Sequence[bytes]) -> list[list[int]]:
    """Groups of two or more places that hold the same digest; empty digests belong to none."""
    groups: dict[bytes, list[int]] = {}
    for place, digest in enumerate(digests):
        if digest:
            groups.setdefault(digest, []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def near(hashes: np.ndarray, radius: int = RADIUS) -> np.ndarray:
    """All pairs of hashes that differ in at most `radius` bits.

    Cut into radius + 1 bands, two such hashes are equal in at least one band, so only hashes
    that share a band are compared: exact, and far from all pairs.

    Args:
        hashes: (n,) uint64.
        radius: at most 63.

    Returns:
        (m, 2) places, the lower one first, each pair once.
    """
    bands = radius + 1
    edges = [64 * band // bands for band in range(bands + 1)]
    found = [np.empty((0, 2), np.int64)]
    for low, high in pairwise(edges):
        keys = (hashes >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(keys[order]) != 0, True])
        for first, last in pairwise(starts):
            if last - first > 1:
                found += _within(hashes, order[first:last], radius)
    pairs = np.sort(np.concatenate(found), axis=1)
    return np.unique(pairs, axis=0)


def _within(hashes: np.ndarray, members: np.ndarray, radius: int) -> Iterable[np.ndarray]:
    """Pairs among some hashes, a block of them at a time."""
    for start in range(0, len(members), _BLOCK):
        block, rest = members[start : start + _BLOCK], members[start:]
        distance = bit_count(hashes[block][:, None] ^ hashes[rest][None, :])  # (b, r)
        a, b = np.nonzero(distance <= radius)
        yield np.stack([block[a], rest[b]], axis=1)[a < b]


def bit_count(values: np.ndarray) -> np.ndarray:
    """How many bits are set in each uint64."""
    if hasattr(np, "bitwise_count"):  # numpy 2
        return np.bitwise_count(values)
    halves = np.ascontiguousarray(values).view(np.uint16).reshape(*values.shape, 4)
    return _BITS[halves].sum(axis=-1)


_BITS = np.array([bin(value).count("1") for value in range(2**16)], np.uint8)


def alike(grey: np.ndarray, colour: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Which pairs show the same to the eye.

    Args:
        grey: (n, h, w) uint8 thumbnails.
        colour: (n, h, w, 3) uint8 smaller ones.
        pairs: (m, 2) places.

    Returns:
        (m,) bool.
    """
    verdicts = [np.empty(0, bool)]
    for start in range(0, len(pairs), _BLOCK):
        first, second = pairs[start : start + _BLOCK].T
        a, b = _details(grey[first]), _details(grey[second])  # (m, d)
        deviation = np.sqrt((a * a).mean(-1) * (b * b).mean(-1))
        correlation = (a * b).mean(-1) / np.maximum(deviation, 1e-6)
        apart = np.abs(colour[first].astype(np.float32) - colour[second]).mean((1, 2, 3))
        verdicts.append((correlation >= ALIKE) & (deviation >= LEAST_DETAIL**2) & (apart <= OTHER_COLOURS))
    return np.concatenate(verdicts)


def _details(grey: np.ndarray) -> np.ndarray:
    """(m, h, w) -> (m, (h-2)(w-2)) how much each pixel differs from its four neighbours, mean 0."""
    x = grey.astype(np.float32)
    around = x[:, :-2, 1:-1] + x[:, 2:, 1:-1] + x[:, 1:-1, :-2] + x[:, 1:-1, 2:]
    details = (4 * x[:, 1:-1, 1:-1] - around).reshape(len(x), -1)
    return details - details.mean(-1, keepdims=True)


def groups(count: int, pairs: np.ndarray) -> list[list[int]]:
    """The connected components of two or more places."""
    parent = list(range(count))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for a, b in pairs.tolist():
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    members: dict[int, list[int]] = {}
    for place in sorted(set(pairs.flatten().tolist())):
        members.setdefault(root(place), []).append(place)
    return list(members.values())
