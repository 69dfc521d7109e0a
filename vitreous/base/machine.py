"""What this machine offers to this process; known without torch."""

import os


def cores() -> int:
    """How many CPU cores this process may use: fewer than the machine has where it is bound to some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
