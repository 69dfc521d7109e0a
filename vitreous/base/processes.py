"""One program on several processes: who am I, what is my share, and how do the parts come together.

`torchrun` starts the processes and tells each its place by the environment; without it there is
one, and everything here does nothing. Lightning Fabric chooses the devices and connects them:
NCCL between GPUs, gloo between CPUs.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from vitreous.base.errors import ConfigError

T = TypeVar("T")
Strategy = Literal["ddp", "fsdp"]


def connect(strategy: Strategy = "ddp", precision: Any = "32-true", device: str | None = None) -> Any:
    """The Fabric of this run: one device, or with `torchrun` all of them, connected.

    Args:
        strategy: over several processes: `"ddp"`, where each holds the whole model, or `"fsdp"`,
            where each holds its share of the weights and of the optimiser's memory.
        precision: the numbers that are computed with, as Fabric names them.
        device: where a single process computes, as `"cpu"` or `"cuda:1"`; None for the fastest there is.

    Raises:
        ConfigError: a device that is not here, or one for several processes.
    """
    from lightning_fabric import Fabric

    world = _world()
    if device is not None and world > 1:
        raise ConfigError(f"{world} processes share the devices among themselves: leave out the device {device!r}")
    if device is not None:
        where = _checked(device)
        chosen = 1 if where.type == "cpu" or where.index is None else [where.index]
        return Fabric(accelerator=where.type, devices=chosen, precision=precision)
    if world == 1:
        return Fabric(devices=1, precision=precision)
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    how = _fully_sharded(world) if strategy == "fsdp" else "ddp"
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces every process
    fabric = Fabric(devices=here, num_nodes=world // here, strategy=how, precision=precision)
    fabric.launch()
    return fabric


def device(asked: str | None = None) -> torch.device:
    """Where this process computes; connects it to the others of `torchrun`.

    Alone, it asks torch: importing Fabric takes longer than predicting one picture.

    Args:
        asked: a device by its name, as `"cpu"` or `"cuda:1"`; None for the fastest there is.

    Raises:
        ConfigError: a device that is not here.
    """
    if asked is not None:
        return _checked(asked)
    if _world() > 1:
        return torch.device(connect().device)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _checked(asked: str) -> torch.device:
    """The device by its name, seen to work."""
    here = "cpu"
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        here += f", {kind} (0 to {torch.accelerator.device_count() - 1})"
    try:
        found = torch.device(asked)
        if found.type == "meta":
            raise RuntimeError("meta holds no values")
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"no device {asked!r} on this machine: here are {here}") from error
    return found


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def rank() -> int:
    """The number of this process, from 0."""
    return torch.distributed.get_rank() if _connected() else 0


def count() -> int:
    """How many processes there are."""
    return torch.distributed.get_world_size() if _connected() else 1


def is_first() -> bool:
    """Whether this is the process that writes files and prints."""
    return rank() == 0


def share(n: int) -> range:
    """Which of n things are this process's: consecutive ones, each of the n in one share alone."""
    return range(n * rank() // count(), n * (rank() + 1) // count())


def gather(value: T) -> list[T]:
    """The values of all processes in their order, on each of them."""
    if count() == 1:
        return [value]
    values: list[Any] = [None] * count()
    torch.distributed.all_gather_object(values, value)
    return values


def total(values: Sequence[float], device: torch.device) -> list[float]:
    """The sum over all processes of each value, in float64."""
    if count() == 1:
        return list(values)
    sums = torch.tensor(values, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(sums)
    return sums.tolist()


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor put together on every process; any other as it is."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What this process holds of each tensor: writing to it writes to the tensor."""
    return [t.to_local() if _is_sharded(t) else t for t in tensors]  # type: ignore[attr-defined]


@torch.no_grad()
def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy whole values into a tensor, of which each process may hold a share."""
    if _is_sharded(tensor):
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
        values = distribute_tensor(values.to(tensor.device), mesh, placements)
    tensor.copy_(values)


def _connected() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_sharded(tensor: Tensor) -> bool:
    return _connected() and type(tensor.data).__name__ == "DTensor"


def _fully_sharded(world: int) -> Any:
    """FSDP2, block by block: each is put together just when it is computed."""
    from lightning_fabric.strategies import ModelParallelStrategy

    def shard(model: nn.Module, mesh: Any) -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        for part in (*getattr(model, "blocks", ()), model):
            fully_shard(part, mesh=mesh["data_parallel"])
        return model

    return ModelParallelStrategy(shard, data_parallel_size=world, tensor_parallel_size=1)
