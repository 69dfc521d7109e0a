"""From pictures to named guesses: what a classifier, a compiled one and an exported file have in common."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitreous.base.errors import ImageError
from vitreous.base.machine import cores
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Preprocess

T = TypeVar("T")
R = TypeVar("R")
BATCH = 16  # pictures computed at once, where nothing is said


@dataclass(frozen=True)
class Prediction:
    """One guess: the class name, its index among the logits, and its probability (softmax)."""

    label: str
    index: int
    probability: float


class Predictor(ABC):
    """Whatever says what is in pictures: preprocessing and class names around something that computes logits.

    Args:
        preprocess: what is done to every picture.
        labels: class names in the order of the logits, or None where nobody knows them.
        provenance: where the weights come from, as plain JSON values.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        labels: tuple[str, ...] | None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        self.preprocess = preprocess
        self.labels = labels
        self.provenance = provenance or {}

    @property
    @abstractmethod
    def config(self) -> ViTConfig:
        """The architecture."""

    @abstractmethod
    def compute(self, images: Tensor) -> Tensor:
        """Prepared pictures (B, C, H, W) float32 -> logits (B, K) float32."""

    @abstractmethod
    def check_head(self) -> None:
        """Refuse where the logits mean nothing yet."""

    def label(self, index: int) -> str:
        """The name of a class, or its number where the names are not known."""
        return self.labels[index] if self.labels is not None else f"class {index}"

    def prepare(self, images: Any) -> Tensor:
        """Pictures of any kind, one or a sequence -> (B, C, H, W) as the model takes them."""
        return torch.stack([self.preprocess.load(image) for image in as_list(images)])

    @property
    def load(self) -> Callable[[Any], Tensor]:
        """What makes (C, H, W) of one picture of any kind, for `compute_all`; small enough to send to workers."""
        return self.preprocess.load

    def compute_all(self, images: list[Tensor]) -> Tensor:
        """Several (C, H, W) -> logits (B, K): those of one size together, so that none is padded."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, image in enumerate(images):
            groups.setdefault(tuple(image.shape), []).append(place)
        logits = torch.cat([self.compute(torch.stack([images[i] for i in group])) for group in groups.values()])
        order = torch.tensor([i for group in groups.values() for i in group], device=logits.device)  # (B,)
        return logits[order.argsort()]

    def logits(self, images: Any) -> Tensor:
        """(B, K) float32 logits of pictures: paths, bytes, PIL images, arrays or tensors, one or a sequence."""
        return self.compute_all([self.load(image) for image in as_list(images)])

    def predict(self, images: Any, top_k: int = 5, batch_size: int = BATCH) -> list[list[Prediction]]:
        """The `top_k` most probable classes of every picture, best first.

        Args:
            images: one picture or a sequence: paths, bytes, PIL images, arrays or tensors.
            top_k: how many guesses a picture; fewer where there are fewer classes.
            batch_size: pictures computed at once.

        Raises:
            ImageError: a picture that cannot be read, by name.
            WeightsError: a model with no head, or with one that was never trained.
        """
        results = []
        for guesses in self.predict_each(as_list(images), top_k, batch_size):
            if isinstance(guesses, ImageError):
                raise guesses
            results.append(guesses)
        return results

    def predict_each(
        self, images: Iterable[Any], top_k: int = 5, batch_size: int = BATCH, workers: int | None = None
    ) -> Iterator[list[Prediction] | ImageError]:
        """`predict`, picture by picture: for more of them than fit in memory, and for such as may be broken.

        While a batch is computed, threads decode the next one. No more than two batches are held,
        however many pictures there are. Nothing is padded: pictures of different sizes are brought
        to one by the preprocessing, or are computed size by size where a file takes them as they are.

        Args:
            images: any iterable of pictures, also a generator; drawn from as needed.
            top_k: as in `predict`.
            batch_size: as in `predict`.
            workers: threads that decode; None for `default_workers`, 0 for none.

        Yields:
            For each picture in order its guesses, or the `ImageError` that says why there are none.

        Raises:
            WeightsError: as `predict`.
        """
        self.check_head()
        prepared = ahead(
            images,
            partial(_or_error, self.load),
            workers=default_workers() if workers is None else workers,
            depth=2 * batch_size,
        )
        for batch in _batched(prepared, batch_size):
            whole = [x for x in batch if isinstance(x, Tensor)]
            guesses = iter(self._guesses(whole, top_k) if whole else ())
            for x in batch:
                yield next(guesses) if isinstance(x, Tensor) else x

    def _guesses(self, images: list[Tensor], top_k: int) -> list[list[Prediction]]:
        probabilities = self.compute_all(images).softmax(dim=-1)  # (B, K)
        values, indices = probabilities.topk(min(top_k, probabilities.shape[1]), dim=-1)  # (B, k)
        return [
            [Prediction(self.label(i), i, p) for i, p in zip(classes, row, strict=True)]
            for row, classes in zip(values.tolist(), indices.tolist(), strict=True)
        ]


def ahead(items: Iterable[T], work: Callable[[T], R], *, workers: int, depth: int) -> Iterator[R]:
    """`map(work, items)`, in order, done by threads up to `depth` items before they are asked for.

    A single item is not worth a thread. Items are drawn as results are taken, so that an endless
    source is no trouble; what is not yet begun when the iterator is closed is never begun.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if workers == 0 or len(first) < 2:
        yield from map(work, first)
        yield from map(work, source)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decoding")
    try:
        pending: deque[Future[R]] = deque(pool.submit(work, item) for item in first)
        for item in source:
            pending.append(pool.submit(work, item))
            if len(pending) >= depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def default_workers() -> int:
    """Threads that decode while a batch is computed: half of the cores, from 1 to 8."""
    return min(max(cores() // 2, 1), 8)


def as_list(images: Any) -> list[Any]:
    """One picture or several -> a list; a batch (B, C, H, W) or (B, H, W, C) is several."""
    if isinstance(images, (Tensor, np.ndarray)):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, (str, bytes, Path)) or not isinstance(images, Iterable):
        return [images]
    return list(images)


def _or_error(load: Callable[[Any], Tensor], image: Any) -> Tensor | ImageError:
    try:
        return load(image)
    except ImageError as error:
        return error


def _batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
