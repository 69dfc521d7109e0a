"""Frozen features: what the head of a model reads of every picture, computed once and kept.

A cache file belongs to one model with one preprocessing, and holds the features of pictures by
the digest of their bytes: a picture that has moved, or lies in another data set, is known again,
and one that has changed is not taken for its former self.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.base.progress import progress as progress_bar
from vitreous.classifier import Classifier, fingerprint
from vitreous.data.dataset import Split
from vitreous.evaluation.outputs import stream
from vitreous.model import VisionTransformer
from vitreous.skeleton import empty_model
from vitreous.weights.safefile import read_safetensors, write_safetensors

HEAD = ("head.weight", "head.bias", "pre_logits.weight", "pre_logits.bias")


def backbone(model: VisionTransformer, pooling: str | None = None) -> VisionTransformer:
    """The same model, sharing its weights, without a head: (B, C, H, W) -> y (B, D), equation 4.

    A pre-logits layer is left out with the head, as in fine-tuning (section 3.2).

    Args:
        model: stays as it is.
        pooling: `"cls"` for the CLS token, `"mean"` for the mean over the patches, both after the
            final LayerNorm; None for whichever the model's own head reads.

    Raises:
        ConfigError: the CLS token of a model without one, or another name.
    """
    config = model.config.replace(num_classes=0, representation_size=None)
    if pooling not in (None, "cls", "mean"):
        raise ConfigError(f"features must be cls or mean, got {pooling!r}")
    if pooling == "cls":
        if not config.prefix_tokens:
            raise ConfigError("this model has no CLS token: take the mean over its patches")
        config = config.replace(classifier="token", gap_class_token=False, norm_after_pooling=False)
    elif pooling == "mean" and config.classifier == "token":
        config = config.replace(classifier="gap", gap_class_token=True)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in HEAD}
    skeleton = empty_model(config)
    skeleton.load_state_dict(tensors, assign=True)
    return skeleton.eval()


def extract(
    clf: Classifier,
    split: Split,
    pooling: str | None = None,
    *,
    cache: str | Path | None = None,
    batch_size: int = 32,
    num_workers: int | None = None,
    progress: bool = True,
) -> Tensor:
    """Features of all pictures, in the order of the split.

    Args:
        clf: the model, and how pictures are prepared for it.
        split: the pictures; their classes are not looked at.
        pooling: as for `backbone`.
        cache: a folder to look for features in, and to keep new ones; None for none.
        batch_size: pictures computed at once.
        num_workers: processes that decode.

    Returns:
        (n, D) float32 on the CPU.

    Raises:
        ImageError: a picture that cannot be read, by name.
    """
    model = backbone(clf.model, pooling)
    known: dict[bytes, Tensor] = {}
    path = None if cache is None else Path(cache) / f"{fingerprint(model, clf.preprocess)}.safetensors"
    if path is not None and path.exists():
        known = _read(path)
    digests = [_digest(split.open(i)) for i in range(len(split))]
    first = {digest: i for i, digest in reversed(list(enumerate(digests)))}  # where each different picture comes first
    missing = sorted(i for digest, i in first.items() if digest not in known)
    headless = Classifier(model, clf.preprocess)
    how: dict[str, Any] = dict(batch_size=batch_size, num_workers=num_workers)
    try:
        with progress_bar("features", len(missing), show=progress and bool(missing)) as advance:
            for part in stream(headless, split, missing, **how):
                known |= {digests[row]: value for row, value in zip(part.rows, part.logits, strict=True)}  # (D,) each
                advance(len(part.rows))
    finally:
        if path is not None and missing and known:  # what an interrupted run has computed is kept as well
            _write(path, known)
    return torch.stack([known[digest] for digest in digests])


def _digest(picture: Path | bytes) -> bytes:
    content = picture.read_bytes() if isinstance(picture, Path) else picture
    return hashlib.blake2b(content, digest_size=16).digest()


def _read(path: Path) -> dict[bytes, Tensor]:
    _, tensors = read_safetensors(path)
    return {row.tobytes(): value for row, value in zip(tensors["digests"].numpy(), tensors["features"], strict=True)}


def _write(path: Path, known: dict[bytes, Tensor]) -> None:
    digests = torch.from_numpy(np.frombuffer(b"".join(known), np.uint8).reshape(len(known), -1).copy())  # (n, 16)
    write_safetensors(path, {"digests": digests, "features": torch.stack(list(known.values()))}, {"format": "pt"})
