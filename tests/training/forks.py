"""Processes that start in milliseconds: forked from one that has imported everything and computed nothing.

(A process that has computed a gradient cannot be forked: autograd's threads are not in the child.)
"""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch

from tests.conftest import ROOT

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "jinja2",
        "lightning_fabric.strategies",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "torchmetrics.functional.classification",
        "torchvision.transforms.v2",
        "vitreous.evaluation.figures",
        "vitreous.training.run",
    ]
)
PATIENCE = 300  # seconds, on a machine however busy


def start(function: Callable[..., None], *arguments: Any, **environment: str) -> Any:
    """A process that runs a function, in one thread."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    process = CONTEXT.Process(target=_run, args=(function, arguments, environment), daemon=True)
    process.start()
    return process


def _run(function: Callable[..., None], arguments: tuple[Any, ...], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*arguments)


def finish(*processes: Any) -> list[int | None]:
    """Wait for processes; their exit codes. One that fails takes the others with it, as with `torchrun`."""
    try:
        for process in processes:
            process.join(PATIENCE)
            if process.exitcode != 0:
                break
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    return [process.exitcode for process in processes]


def on_processes(count: int, function: Callable[..., None], *arguments: Any) -> None:
    """Run a function on some processes, told of each other as `torchrun` tells them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    started = [start(function, *arguments, **together, RANK=str(i), LOCAL_RANK=str(i)) for i in range(count)]
    assert finish(*started) == [0] * count
