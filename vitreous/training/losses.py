"""What training makes small."""

import torch.nn.functional as F
from torch import Tensor


def total_loss(logits: Tensor, targets: Tensor, kind: str = "softmax", label_smoothing: float = 0.0) -> Tensor:
    """The loss summed over a batch, in nats.

    softmax: -sum_k y_k log softmax(z)_k;  sigmoid: -sum_k [y_k log s(z_k) + (1 - y_k) log s(-z_k)], s the sigmoid,
    with y = (1 - smoothing) target + smoothing / K.

    Args:
        logits: (B, K).
        targets: (B,) classes, or (B, K) how much of each class.
        kind: `"softmax"` or `"sigmoid"`.
        label_smoothing: share of the target spread over all classes.

    Source: big_vision `utils.softmax_xent` and `utils.sigmoid_xent`, which sums over the classes too.
    """
    if kind == "softmax":
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)
    classes = logits.shape[-1]
    if targets.ndim == 1:
        targets = F.one_hot(targets, classes)
    smooth = targets.to(logits.dtype) * (1 - label_smoothing) + label_smoothing / classes
    return F.binary_cross_entropy_with_logits(logits, smooth, reduction="sum")


def count_correct(logits: Tensor, targets: Tensor) -> float:
    """How many pictures have their class, of mixed ones the larger share's, first among the logits."""
    true = targets if targets.ndim == 1 else targets.argmax(dim=-1)
    return (logits.argmax(dim=-1) == true).sum().item()
