"""How many processes may compute views, and the memory that each of them gets."""

from __future__ import annotations

import os
from typing import Final

from headrace.config import AUTO, MEMORY_BYTES_MIN, Settings

_EACH_BYTES: Final = 256 << 20
"""Bytes of the memory budget that each process gets at least with ``executors = auto``."""


def processes_max(settings: Settings) -> int:
    """Return how many processes may compute views, the main one included."""
    if settings.executors != AUTO:
        return int(settings.executors)
    # Containers and taskset restrict the cores of a process.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(min(cores, settings.memory_bytes // _EACH_BYTES), 1)


def of_executor(settings: Settings, name: str) -> Settings:
    """Return the settings of an executor: those of a worker, with its share of the memory."""
    count = processes_max(settings)
    return settings.of_worker(name).replace(
        memory_bytes=max(settings.memory_bytes // count, MEMORY_BYTES_MIN),
        state_memory_bytes=settings.memory.states // count,
        batch_memory_bytes=settings.memory.batches // count,
    )


def states_beside(settings: Settings, executors: int) -> int:
    """Return the bytes of the main process's states while ``executors`` run beside it."""
    count = processes_max(settings)
    return settings.memory.states * max(count - executors, 1) // count
