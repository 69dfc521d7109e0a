"""What is measured of logits and true classes; each a function of (n, K) and (n,), in blocks that fit any memory."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

MOST_CLASSES_OF_A_CONFUSION = 2000
BLOCK = 2**24  # logits looked at at once


def cross_entropy(logits: Tensor, labels: Tensor) -> float:
    """Mean of -log p(true class), nats: (n, K), (n,) -> a number."""
    parts = (F.cross_entropy(logits[b], labels[b], reduction="sum").item() for b in _blocks(logits))
    return sum(parts) / len(labels)


def guesses(logits: Tensor, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """The k most probable classes, best first, and their probabilities (softmax): (n, K) -> (n, k) and (n, k)."""
    k = min(k, logits.shape[1])
    tops = [logits[b].softmax(dim=-1).topk(k, dim=-1) for b in _blocks(logits)]
    return torch.cat([top.indices for top in tops]).numpy(), torch.cat([top.values for top in tops]).numpy()


def confusion(predicted: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray | None:
    """(K, K) counts, true class by predicted class; None for more than 2,000 classes."""
    if classes > MOST_CLASSES_OF_A_CONFUSION:
        return None
    from torchmetrics.functional.classification import multiclass_confusion_matrix  # slow to import

    return multiclass_confusion_matrix(torch.from_numpy(predicted), torch.from_numpy(true), classes).numpy()


def _blocks(logits: Tensor) -> Iterator[slice]:
    step = max(BLOCK // max(logits.shape[1], 1), 1)
    for start in range(0, len(logits), step):
        yield slice(start, start + step)
