"""Look for everything that would spoil training, before training."""

from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path

from vitreous.base.progress import progress as progress_bar
from vitreous.data.check.findings import KINDS, Check, Finding, Item
from vitreous.data.check.rules import Seen, of_classes, of_copies, of_folders, of_pictures
from vitreous.data.dataset import DataSet
from vitreous.data.open import open_as_it_is

__all__ = ["KINDS", "Check", "Finding", "Item", "check"]


def check(data: str | Path | DataSet, *, num_workers: int | None = None, progress: bool = True) -> Check:
    """Read every picture of a data set, and say what is wrong with it.

    Args:
        data: whatever `open_data` takes.
        num_workers: processes that read pictures; None for one a core.
        progress: show it on stderr.

    Returns:
        The findings, errors first; `ok` where nothing would spoil training.

    Raises:
        DataError: it cannot be opened at all, or holds no pictures.
    """
    dataset = open_as_it_is(data)
    seen = _look(dataset, num_workers, progress)
    found: dict[str, list[Item]] = defaultdict(list)
    for kind, item in chain(of_folders(dataset), of_classes(dataset), of_pictures(seen), of_copies(seen)):
        found[kind].append(item)
    counts = {name: dict(zip(split.classes, split.counts(), strict=True)) for name, split in dataset.splits.items()}
    findings = tuple(Finding(kind, tuple(found[kind])) for kind in KINDS if kind in found)
    sides = Counter((look.width, look.height) for look in seen.looks if look.width and look.height)
    return Check(
        dataset.root.resolve().name if dataset.root.exists() else str(dataset.root),
        len(seen.looks),
        sum(look.size for look in seen.looks),
        counts,
        findings,
        dict(sides),
    )


def _look(dataset: DataSet, num_workers: int | None, progress: bool) -> Seen:
    from vitreous.data.check.look import look_at_all

    seen = Seen(dataset, [], [], [])
    total = sum(map(len, dataset.splits.values()))
    with progress_bar("checking", total, show=progress) as advance:
        for name, split in dataset.splits.items():
            seen.splits.extend([name] * len(split))
            seen.indices.extend(range(len(split)))
            for looks in look_at_all(split, num_workers):
                seen.looks.extend(looks)
                advance(len(looks))
    return seen
