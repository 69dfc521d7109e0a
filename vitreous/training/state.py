"""The exact state of a run: all that the rest of it depends on, in one file that is whole or not there.

Data order, crops and dropout are functions of (seed, position), so the state is the step, the
weights, their running average and the optimiser's memory. A `.safetensors` file, so nothing in it
can run. The one before it is kept: should the newest be damaged, the run goes on from there.
"""

import json
import logging
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from vitreous.base.errors import VitreousError, WeightsError
from vitreous.base.files import atomic_path
from vitreous.base.processes import fill, is_first, whole
from vitreous.training.ema import Average
from vitreous.training.recipe import Recipe
from vitreous.weights.safefile import read_safetensors, write_part

logger = logging.getLogger("vitreous")
STATE, PREVIOUS = "state.safetensors", "state.previous.safetensors"
Run = dict[str, Any]


def save_state(
    out: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None, run: Run
) -> None:
    """Write the state after `step` steps, and keep the one before; every process takes part, the first one writes.

    Args:
        out: the run's folder.
        step: how many are done.
        model, optimizer, average: what is saved.
        run: what a resumed run must agree with: recipe, classes, data.

    Raises:
        VitreousError: when it cannot be written, as on a full disk; the last state stays as it is.
    """
    tensors = {name: whole(tensor.detach()).cpu().contiguous() for name, tensor in _named(model, optimizer, average)}
    if not is_first():
        return
    meta = {"step": str(step), "run": json.dumps(run), "checksum": _checksum(tensors)}
    path, previous = out / STATE, out / PREVIOUS
    try:
        with atomic_path(path) as part:
            write_part(part, tensors, meta)
            _flush(part)
            if path.exists():  # from here until the new one has its place, the one before is the last good one
                path.replace(previous)
        _flush(out)
    except (OSError, SafetensorError) as error:
        last = next((p for p in (path, previous) if p.exists()), None)
        kept = f"the last one is whole, in {last}" if last else "there is none before it"
        raise VitreousError(
            f"{path}: the state after step {step} cannot be written ({error}); {kept}. "
            "Make room there and go on with --resume"
        ) from None


def load_state(out: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None, run: Run) -> int:
    """Put everything back to the last good state; returns the number of steps done.

    Raises:
        WeightsError: no whole file, or one of a run with another recipe, other classes or other data.
    """
    meta, tensors, path = _last_good(out)
    before = json.loads(meta["run"])
    if isinstance(before.get("recipe"), dict):
        before["recipe"] = Recipe.from_dict(before["recipe"]).to_dict()  # with the defaults of keys it is too old for
    before, now = json.loads(json.dumps(before)), json.loads(json.dumps(run))
    if changed := [key for key in now if before.get(key) != now[key]]:
        raise WeightsError(
            f"{path} belongs to another run ({_differences(before, now, changed)}): "
            "resume with the same settings, or choose another --out"
        )
    _restore(optimizer, tensors)
    for name, tensor in _named(model, optimizer, average):
        if name not in tensors:
            raise WeightsError(f"{path} has no {name}: it belongs to another model")
        fill(tensor, tensors[name])
    return int(meta["step"])


def has_state(out: Path) -> bool:
    """Whether a run can be resumed from this folder."""
    return (out / STATE).exists() or (out / PREVIOUS).exists()


def clear_leftovers(out: Path) -> None:
    """Remove the half files of writes that were killed."""
    for part in out.glob(".*.part"):
        part.unlink(missing_ok=True)


def _named(model: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None) -> list[tuple[str, Tensor]]:
    """Every tensor of the state by its name in the file."""
    named = [(f"model/{name}", tensor) for name, tensor in model.state_dict().items()]
    if average is not None:
        named += [(f"ema/{name}", tensor) for name, tensor in average.tensors.items()]
    for index, parameter in enumerate(_parameters(optimizer)):
        memory = optimizer.state.get(parameter, {})
        named += [(f"optimizer/{index}/{key}", value) for key, value in memory.items()]
    return named


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _restore(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Make room for the optimiser's memory as the file has it.

    Not `optimizer.load_state_dict`, which would cast a bfloat16 momentum to the parameters' dtype.
    """
    parameters = _parameters(optimizer)
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            index, _, key = rest.partition("/")
            parameter = parameters[int(index)]
            like = tensor.shape == parameter.shape
            room = torch.zeros_like(parameter, dtype=tensor.dtype) if like else torch.zeros_like(tensor)
            optimizer.state[parameter][key] = room


def _last_good(out: Path) -> tuple[dict[str, str], dict[str, Tensor], Path]:
    damage: list[str] = []
    for path in (out / STATE, out / PREVIOUS):
        if not path.exists():
            continue
        try:
            meta, tensors = read_safetensors(path)
            if meta.get("checksum") != _checksum(tensors):
                raise WeightsError(f"{path} is damaged: its checksum is wrong")
        except (WeightsError, OSError) as error:
            damage.append(str(error))
            continue
        for words in damage:
            logger.warning("%s; going on from the state before it, after step %s", words, meta["step"])
        return meta, tensors, path
    raise WeightsError(f"{'; '.join(damage)}: start the run anew without --resume, in another folder")


def _checksum(tensors: dict[str, Tensor]) -> str:
    """CRC-32 over all numbers: a power cut may leave a file of the right length with holes in it."""
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _differences(before: Run, now: Run, changed: list[str]) -> str:
    found = []
    for key in changed:
        old, new = before.get(key), now[key]
        if isinstance(old, dict) and isinstance(new, dict):
            found += [f"{k} {old.get(k)!r} -> {new[k]!r}" for k in new if old.get(k) != new[k]]
        else:
            found.append(f"{key} {old!r} -> {new!r}")
    return ", ".join(found)
