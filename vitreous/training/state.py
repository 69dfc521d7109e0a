"""The exact state of a run: all that the rest of it depends on, in one atomic file.

Data order, crops and dropout are functions of (seed, step), so the state is the step, the
weights and the optimiser's memory. A `.safetensors` file, so nothing in it can run.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vitreous.errors import WeightsError
from vitreous.weights.native import write_safetensors


def save_state(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, run: dict[str, Any]) -> None:
    """Write the state after `step` steps; `run` is what a resumed run must agree with (recipe, classes, data)."""
    tensors: dict[str, Tensor] = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    for index, memory in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{key}": value for key, value in memory.items()}
    write_safetensors(path, tensors, {"step": str(step), "run": json.dumps(run)})


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, run: dict[str, Any]) -> int:
    """Put model and optimiser back to a saved state; returns the number of steps done.

    Raises:
        WeightsError: a broken file, or one of a run with another recipe, other classes or other data.
    """
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a whole state file ({error}): start the run anew without --resume") from None
    before = json.loads(meta["run"])
    if changed := [key for key in run if before.get(key) != json.loads(json.dumps(run[key]))]:
        raise WeightsError(
            f"{path} belongs to another run ({_differences(before, run, changed)}): "
            "resume with the same settings, or choose another --out"
        )
    model.load_state_dict({n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")})
    memory: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/")
            memory.setdefault(int(index), {})[key] = tensor
    _restore(optimizer, memory)
    return int(meta["step"])


def _restore(optimizer: torch.optim.Optimizer, memory: dict[int, dict[str, Tensor]]) -> None:
    # Not optimizer.load_state_dict, which would cast a bfloat16 momentum to the parameters' dtype.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in memory.items():
        parameter = parameters[index]
        optimizer.state[parameter] = {k: v if k == "step" else v.to(parameter.device) for k, v in values.items()}


def _differences(before: dict[str, Any], now: dict[str, Any], changed: list[str]) -> str:
    found = []
    for key in changed:
        old, new = before.get(key), json.loads(json.dumps(now[key]))
        if isinstance(old, dict) and isinstance(new, dict):
            found += [f"{k} {old.get(k)!r} -> {new[k]!r}" for k in new if old.get(k) != new[k]]
        else:
            found.append(f"{key} {old!r} -> {new!r}")
    return ", ".join(found)
