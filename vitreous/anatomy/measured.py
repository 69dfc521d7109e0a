"""Time and memory of a model on this machine's CPU, measured in a process of its own.

A fresh process, because only there the memory that a pass needs is not hidden among what ran before. Its
memory is the operating system's count of resident pages, so that it includes whatever the libraries
allocate for themselves, and not only tensors.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from vitreous.base.errors import ConfigError, VitreousError
from vitreous.config import ViTConfig

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What `measure` found.

    Args:
        seconds: median of the repetitions after the first.
        fastest: of them.
        slowest: of them.
        peak_bytes: by how much resident memory grew at most during the first pass, over that with the model
            and the images in it; None where the system does not tell (all but Linux).
        repeats: passes timed.
        threads: that torch computed with.
        batch_size: images of a pass.
        training: a training step (forward, loss, backward) instead of a forward pass.
    """

    seconds: float
    fastest: float
    slowest: float
    peak_bytes: int | None
    repeats: int
    threads: int
    batch_size: int
    training: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def measure(config: ViTConfig, batch_size: int = 1, *, training: bool = False, repeats: int = 5) -> Measured:
    """Run a model of this configuration, with random weights, in a process of its own.

    Args:
        config: the model, in float32.
        batch_size: B images.
        training: measure forward, cross-entropy and backward instead of forward without gradients.
        repeats: passes to time, after a first one that counts for the memory alone.

    Raises:
        ConfigError: for fewer than one repetition.
        VitreousError: the process failed, for lack of memory most likely.
    """
    if repeats < 1:
        raise ConfigError(f"repeats must be >= 1, got {repeats}")
    asked = {"config": config.to_dict(), "batch_size": batch_size, "training": training, "repeats": repeats}
    command = [sys.executable, "-m", "vitreous.anatomy.measured"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}: out of memory?"]
        raise VitreousError(f"measuring a batch of {batch_size} failed ({why[0]}): try a smaller batch")
    return Measured(**json.loads(done.stdout))


def _run(config: ViTConfig, batch_size: int, training: bool, repeats: int) -> Measured:
    """In the child: first what every process needs once, then the model."""
    import torch

    _passes(ViTConfig(image_size=(32, 32), hidden_size=64, num_layers=1, num_heads=1, mlp_dim=64), 1, training, 1)
    seconds, peak = _passes(config, batch_size, training, 1 + repeats)
    timed = seconds[1:]
    return Measured(
        seconds=median(timed),
        fastest=min(timed),
        slowest=max(timed),
        peak_bytes=peak,
        repeats=repeats,
        threads=torch.get_num_threads(),
        batch_size=batch_size,
        training=training,
    )


def _passes(config: ViTConfig, batch_size: int, training: bool, count: int) -> tuple[list[float], int | None]:
    """Seconds of every pass, and the growth of resident memory during the first."""
    import torch
    import torch.nn.functional as F

    from vitreous.model import VisionTransformer

    with torch.device("meta"):
        model = VisionTransformer(config)
    model = model.to_empty(device="cpu").train(training)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)  # every page written: one never touched is not resident
    images = torch.randn(batch_size, config.in_channels, *config.image_size)  # (B, C, H, W)
    classes = torch.zeros(batch_size, dtype=torch.int64)
    seconds, peak = [], None
    before = _resident()
    for i in range(count):
        start = time.perf_counter()
        with torch.set_grad_enabled(training):
            outputs = model(images)
            if training:
                F.cross_entropy(outputs, classes).backward()
        seconds.append(time.perf_counter() - start)
        if i == 0 and before is not None:
            peak = max(_status("VmHWM") - before, 0)
        model.zero_grad()
        del outputs
    return seconds, peak


def _resident() -> int | None:
    """Bytes of resident memory now, from where its high-water mark starts anew; None where the system is not Linux."""
    try:
        RESET.write_text("5")  # proc_pid_clear_refs(5): VmHWM becomes VmRSS
    except OSError:  # there is no /proc, or it cannot be written, as in some containers
        return None
    return _status("VmRSS")


def _status(key: str) -> int:
    """`VmHWM:  1234 kB` of /proc/self/status in bytes."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """The child process: the question as JSON on stdin, the answer on stdout."""
    asked = json.load(sys.stdin)
    config = ViTConfig.from_dict(asked.pop("config"))
    print(json.dumps(_run(config, **asked).to_dict()))


if __name__ == "__main__":
    main()
