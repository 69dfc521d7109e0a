"""Refusing, with the number of bytes, what would not fit into memory."""

import os
import sys
from pathlib import Path

import torch

from vitreous.base.errors import TooLarge


def available(device: torch.device) -> int | None:
    """Bytes that are free; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if sys.platform == "darwin" or not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require(needed: int, device: torch.device, what: str, way_out: str, max_bytes: int | None = None) -> None:
    """Go on only when `needed` bytes are free, or at most `max_bytes`.

    Raises:
        TooLarge: with what is needed, what there is, and the way out.
    """
    there = available(device) if max_bytes is None else max_bytes
    if there is not None and needed > there:
        raise TooLarge(f"{what} needs {needed:,} bytes and there are {there:,}: {way_out}")
