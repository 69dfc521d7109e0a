"""Finding the model in what training scripts save: nested in dictionaries, and with prefixes before every name."""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from vitreous.base.errors import WeightsError
from vitreous.weights.foreign import refuse_foreign

logger = logging.getLogger("vitreous")

EMA_WORDS = ("teacher", "target_encoder", "averaged_model", "swa_model")
MOST_NESTED = 6


@dataclass(frozen=True)
class Found:
    """A model in a file: its family, and the name of each tensor -> the keys that lead to it.

    Args:
        wrapper: what was taken off, for messages: `model_ema.module.`
        kind: of the weights; a running average over training (EMA) is told by its name.
    """

    family: str
    names: dict[str, tuple[str, ...]]
    wrapper: str
    kind: Literal["raw", "ema"]


def unwrap(
    content: Any, source: str, anchors: Mapping[str, str], choice: Literal["raw", "ema"] | None = None
) -> tuple[Found, dict[str, str]]:
    """Find the model's tensors.

    Without a choice the raw weights are taken, as `timm` and others do; of a DINO training
    state the teacher, which is what DINO publishes.

    Args:
        content: a dictionary of tensors, or of such, however nested.
        source: what messages call the file.
        anchors: family -> pattern of the one tensor's name that it is told by. What stands before it is a wrapper's
            prefix: `module.` of DistributedDataParallel, `_orig_mod.` of torch.compile, `model.` of Lightning, ...
        choice: `"raw"` or `"ema"`, where the file holds both.

    Returns:
        The model, and notes for the provenance.

    Raises:
        WeightsError: no ViT of a known family in it, none of the kind chosen, or several.
    """
    models = [found for path, tensors in _containers(content) for found in _models(path, tensors, anchors)]
    if not models:
        names = [".".join((*path, name)) for path, tensors in _containers(content) for name in tensors]
        _refuse(names, source)
    kinds = {found.kind for found in models}
    if choice is not None and choice not in kinds:
        raise WeightsError(f"{source} holds no {choice} weights: it holds {', '.join(_titles(models))}")
    dino = any("teacher" in found.wrapper for found in models) and any("student" in found.wrapper for found in models)
    kind = choice or ("ema" if dino or "raw" not in kinds else "raw")
    chosen = [found for found in models if found.kind == kind]
    if len(chosen) > 1:
        raise WeightsError(f"{source} holds several models ({', '.join(_titles(chosen))}): save the one that you mean")
    notes = {}
    if len(models) > 1 or kind == "ema":
        others = [title for found, title in zip(models, _titles(models), strict=True) if found is not chosen[0]]
        notes["weights"] = f"{kind}: {_titles(chosen)[0]}" + (f"; not taken: {', '.join(others)}" if others else "")
        logger.warning("%s: weights taken: %s", source, notes["weights"])
    return chosen[0], notes


def _containers(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Tensor]]]:
    """Every dictionary in the file that holds tensors."""
    if not isinstance(content, Mapping) or len(path) > MOST_NESTED:
        return
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor) and isinstance(name, str)}
    if tensors:
        yield path, tensors
    for name, value in content.items():
        if isinstance(name, str):
            yield from _containers(value, (*path, name))


def _models(path: tuple[str, ...], tensors: Mapping[str, Tensor], anchors: Mapping[str, str]) -> Iterator[Found]:
    """The models in one dictionary, each by its anchor."""
    prefixes = {
        match["prefix"]: family
        for name in tensors
        for family, anchor in anchors.items()
        if (match := re.fullmatch(rf"(?P<prefix>([\w-]+\.)*?){anchor}", name))
    }
    for prefix, family in prefixes.items():
        names: dict[str, tuple[str, ...]] = {}
        for name in tensors:
            owner = max((other for other in prefixes if name.startswith(other)), key=len, default=prefix)
            if owner == prefix:  # what belongs to no model is kept, for the check by name to say so
                short = name.removeprefix(prefix)
                names[f"{name} (again)" if short in names else short] = (*path, name)
        averaged = names.pop("n_averaged", None)  # torch's AveragedModel counts what it averages
        words = [word for step in path for word in step.split(".")] + prefix.split(".")
        ema = averaged or any(word in EMA_WORDS or re.search(r"(^|_)ema(_|\d*$)", word) for word in words)
        yield Found(family, names, ".".join((*path, prefix)), "ema" if ema else "raw")


def _titles(models: list[Found]) -> list[str]:
    return [found.wrapper.rstrip(".") or "the model" for found in models]


def _refuse(names: list[str], source: str) -> None:
    refuse_foreign(names, source)
    if not names:
        raise WeightsError(f"{source} holds no tensors by name: it is not a model's weights")
    some = f"{', '.join(sorted(names)[:8])}{', ...' if len(names) > 8 else ''}"
    raise WeightsError(
        f"{source} is no ViT of Google, timm, Hugging Face, torchvision, MMPretrain, DINO or MAE; it holds: {some}"
    )
