"""The few-shot probe: how far the frozen features of a model get, with a few labelled pictures a class or with all."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.base.errors import ConfigError, DataError
from vitreous.base.files import write_text
from vitreous.base.statistics import student, wilson
from vitreous.base.version import __version__
from vitreous.classifier import Classifier
from vitreous.data.dataset import DataSet, Split
from vitreous.data.open import open_data
from vitreous.data.partition import train_and_held_out
from vitreous.evaluation.features import backbone, extract
from vitreous.evaluation.ridge import Ridge, fit, nearest

MOST_NEIGHBOURS = 20


@dataclass(frozen=True)
class Shots:
    """What so many pictures a class are good for.

    Args:
        shots: pictures a class; None for all there are.
        pictures: that the heads were made of.
        neighbours: k of the nearest neighbours: the shots, at most 20.
        ridge: accuracy on the test pictures, for each draw of the shots.
        knn: likewise.
        l2: the strength of the regularisation, for each draw.
        n: test pictures.
    """

    shots: int | None
    pictures: int
    neighbours: int
    ridge: tuple[float, ...]
    knn: tuple[float, ...]
    l2: tuple[float, ...]
    n: int

    def interval(self, accuracies: Sequence[float]) -> tuple[float, float] | None:
        """95 %: Student's over the draws; Wilson's over the test pictures where all were used; None for one draw."""
        if self.shots is None:
            return wilson(round(accuracies[0] * self.n), self.n)
        if len(accuracies) < 2:
            return None
        low, high = student(accuracies)
        return max(low, 0.0), min(high, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "shots": "all" if self.shots is None else self.shots,
            "pictures": self.pictures,
            "ridge": {"mean": mean(self.ridge), "interval": self.interval(self.ridge), "draws": list(self.ridge)},
            "knn": {
                "mean": mean(self.knn),
                "interval": self.interval(self.knn),
                "draws": list(self.knn),
                "k": self.neighbours,
            },
            "l2": list(self.l2),
        }


@dataclass(frozen=True)
class Probe:
    """What `probe` measured, and the classifier that came of it.

    Args:
        classifier: the backbone with the ridge head of the most shots measured (first draw).
        rows: one for each number of shots, in the order asked for.
        data: which data and split was measured.
        n: test pictures.
        width: features a picture, D.
    """

    classifier: Classifier
    rows: tuple[Shots, ...]
    data: str
    n: int
    width: int

    def save(self, out: str | Path) -> None:
        """Write `metrics.json`, and the classifier as `model.safetensors`, into a folder."""
        self.classifier.save(Path(out) / "model.safetensors")
        write_text(Path(out) / "metrics.json", json.dumps(self.to_dict(), indent=1))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, without the classifier."""
        pooling = self.classifier.provenance["probe"]["features"]
        return {
            "data": self.data,
            "n": self.n,
            "features": {"of": pooling, "width": self.width},
            "shots": [row.to_dict() for row in self.rows],
        }


def probe(
    clf: Classifier,
    data: str | Path | DataSet,
    shots: int | Sequence[int | None] | None = 10,
    *,
    draws: int = 5,
    features: str | None = None,
    val_fraction: float = 0.1,
    seed: int = 0,
    cache: str | Path | None = None,
    batch_size: int = 32,
    num_workers: int | None = None,
    progress: bool = True,
) -> Probe:
    """Measure frozen features: a ridge head in closed form, and nearest neighbours beside it; nothing is trained.

    The head and its regularisation are found from the chosen training pictures alone (see
    `ridge.fit`). Draw i takes the first k of a permutation of every class, seeded with `seed` + i, so that
    10 shots contain the 5 of the same draw.

    Args:
        clf: any model, with a head or without one; stays as it is.
        data: a folder, zip, ...; without a val or test split a share is held out, as in `finetune`.
        shots: pictures a class, None for all, or several of these.
        draws: how often the shots are drawn; all pictures are taken once.
        features: `"cls"`, `"mean"` over the patches, or None for what the model's own head reads.
        val_fraction: held out of data without a val or test split.
        seed: of the first draw, and of what is held out.
        cache: a folder that keeps features from call to call; None for none.
        batch_size: pictures computed at once.
        num_workers: processes that decode.

    Raises:
        DataError: fewer pictures of a class than shots, or classes that do not fit.
        ImageError: a picture that cannot be read, by name.
    """
    wanted = list(shots) if isinstance(shots, Sequence) else [shots]
    if not wanted or any(k is not None and k < 1 for k in wanted) or draws < 1:
        raise ConfigError(f"shots and draws must be whole numbers >= 1, got shots={shots!r}, draws={draws!r}")
    dataset = open_data(data)
    train, test = _splits(dataset, val_fraction, seed)
    chosen = {k: choose(train, k, draws, seed) for k in wanted}
    used = np.unique(np.concatenate([indices for each in chosen.values() for indices in each]))
    settings: dict[str, Any] = dict(cache=cache, batch_size=batch_size, num_workers=num_workers, progress=progress)
    x, y = extract(clf, train.select(used), features, **settings), torch.from_numpy(train.labels[used])  # (n, D), (n,)
    x_test, y_test = extract(clf, test, features, **settings), torch.from_numpy(test.labels)
    rows, heads = [], {}
    for k, each in chosen.items():
        parts = [np.searchsorted(used, indices) for indices in each]
        row, heads[k] = _measure(k, [(x[p], y[p]) for p in parts], (x_test, y_test), len(train.classes))
        rows.append(row)
    largest = None if None in chosen else max(k for k in chosen if k is not None)
    best = next(row for row in rows if row.shots == largest)
    held_out = {"fraction": val_fraction, "seed": seed} if dataset.unsplit() else None
    about = {
        "shots": "all" if largest is None else largest,
        "l2": best.l2[0],
        "features": features or ("cls" if clf.model.config.classifier == "token" else "mean"),
        "accuracy": best.ridge[0],
    }
    probed = with_head(clf, heads[largest], train.classes, features)
    probed.provenance = {
        "start": clf.provenance,
        "vitreous": __version__,
        "torch": torch.__version__,
        "data": {
            "name": dataset.root.resolve().name,
            "fingerprint": dataset.split("train" if "train" in dataset.splits else "all").fingerprint(),
            "train_pictures": best.pictures,
            "held_out": held_out,
        },
        "probe": about,
    }
    name = "held out" if held_out else next(s for s in ("val", "test") if s in dataset.splits)
    return Probe(probed, tuple(rows), f"{dataset.root.name} ({name})", len(test), x.shape[1])


def choose(train: Split, shots: int | None, draws: int, seed: int = 0) -> list[np.ndarray]:
    """Which training pictures each draw has: `shots` of every class; all of them, once, for None.

    Raises:
        DataError: a class with fewer pictures.
    """
    if shots is None:
        return [np.arange(len(train))]
    for name, count in zip(train.classes, train.counts(), strict=True):
        if count < shots:
            raise DataError(
                f"{train.root}: class {name!r} has {count} training pictures, fewer than {shots} shots: "
                f"ask for {min(train.counts())} at most, or for all"
            )
    places = [np.flatnonzero(train.labels == c) for c in range(len(train.classes))]
    found = []
    for draw in range(draws):
        numbers = np.random.default_rng(seed + draw)
        found.append(np.concatenate([numbers.permutation(place)[:shots] for place in places]))
    return found


def with_head(clf: Classifier, head: Ridge, labels: Sequence[str], features: str | None = None) -> Classifier:
    """A classifier of the same backbone, whose weights it shares, with a ridge head as its linear layer."""
    model = backbone(clf.model, features).reset_head(len(labels))
    assert model.head is not None
    with torch.no_grad():
        model.head.weight.copy_(head.weight)
        model.head.bias.copy_(head.bias)
    return Classifier(model, clf.preprocess, labels)


def mean(values: Sequence[float]) -> float:
    """Their arithmetic mean."""
    return sum(values) / len(values)


def _splits(dataset: DataSet, val_fraction: float, seed: int) -> tuple[Split, Split]:
    train, test = train_and_held_out(dataset, val_fraction, seed)
    if test is None or not len(test):
        raise DataError(f"{dataset.root}: no pictures are left to measure with: hold out more than {val_fraction:g}")
    return train, test


def _measure(
    shots: int | None, trained: list[tuple[Tensor, Tensor]], test: tuple[Tensor, Tensor], classes: int
) -> tuple[Shots, Ridge]:
    x_test, y_test = test
    heads = [fit(x, y, classes) for x, y in trained]
    pictures = len(trained[0][0])
    k = min(shots or MOST_NEIGHBOURS, MOST_NEIGHBOURS, pictures)
    ridge = [_accuracy(head.logits(x_test).argmax(dim=1), y_test) for head in heads]
    knn = [_accuracy(nearest(x, y, x_test, classes, k), y_test) for x, y in trained]
    l2 = tuple(head.l2 for head in heads)
    return Shots(shots, pictures, k, tuple(ridge), tuple(knn), l2, len(y_test)), heads[0]


def _accuracy(predicted: Tensor, true: Tensor) -> float:
    return float((predicted == true).double().mean())
