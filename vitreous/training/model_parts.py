"""Which part of a model a parameter belongs to: to leave that part as it is, or to let it learn more slowly."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from vitreous.base.errors import ConfigError, did_you_mean

BACKBONE = "backbone"  # everything but the head
HEAD = ("head", "pre_logits", "fc", "classifier", "heads")  # ours, and what other models call theirs
EMBEDDING = ("stem", "patch_embedding", "cls_token", "position_embedding")


@contextmanager
def frozen(model: nn.Module, parts: Sequence[str]) -> Iterator[None]:
    """Leave some parts out of training while the block runs.

    Args:
        model: whose parameters then ask for no gradient.
        parts: `"backbone"`, or the beginnings of parameters' names up to a dot: `"blocks"`, `"blocks.0"`, `"norm"`.

    Raises:
        ConfigError: a part that the model does not have, or nothing left to train.
    """
    parameters = dict(model.named_parameters())
    for part in parts:
        if part != BACKBONE and not any(_within(name, part) for name in parameters):
            known = list(dict.fromkeys(name.split(".")[0] for name in parameters))
            raise ConfigError(
                f"freeze: the model has no part {part!r}{did_you_mean(part, known)}: "
                f"it has {BACKBONE}, {', '.join(known)}, and parts of these such as blocks.0"
            )
    left_out = [
        parameter
        for name, parameter in parameters.items()
        if parameter.requires_grad
        and any(not _within(name, *HEAD) if part == BACKBONE else _within(name, part) for part in parts)
    ]
    if len(left_out) == len(parameters):
        raise ConfigError(f"freeze = {list(parts)} leaves nothing to train")
    for parameter in left_out:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in left_out:
            parameter.requires_grad_(True)


def rate_scale(name: str, num_blocks: int, layer_decay: float) -> float:
    """The share of the learning rate for a parameter: layer_decay^(L + 1 - depth).

    Depth is 0 for the embedding (patches, CLS, positions), i + 1 for block i, and L + 1 for the
    rest: the last norm and the head. Source: Bao et al. 2022 (BEiT), after Clark et al. 2020.
    """
    block = re.match(r"blocks\.(\d+)\.", name)
    depth = int(block[1]) + 1 if block else 0 if _within(name, *EMBEDDING) else num_blocks + 1
    return layer_decay ** (num_blocks + 1 - depth)


def count_blocks(model: nn.Module, wanted_for: str) -> int:
    """L.

    Raises:
        ConfigError: a model without `blocks`, naming the setting that needs them.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        raise ConfigError(f"{wanted_for} needs a model with blocks, and {type(model).__name__} has none")
    return len(blocks)


def _within(name: str, *parts: str) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
