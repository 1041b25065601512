"""Time and CPU of a peer's work, reported to the parent; runs in the peer's environment.

REQUIRES: nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

spent = {"seconds": 0.0, "cpu_s": 0.0}


@contextmanager
def measured() -> Iterator[None]:
    """Add the time inside the block to ``spent``."""
    cpu, begin = _cpu_s(), time.monotonic()
    yield
    spent["seconds"] += time.monotonic() - begin
    spent["cpu_s"] += _cpu_s() - cpu


def tell(rows: object, total: object) -> None:
    """Print the last line: the time spent, and the answer's number of rows and sum."""
    sys.stdout.write("\n" + json.dumps({**spent, "answer": [int(str(rows)), float(str(total))]}))
    sys.stdout.write("\n")
    sys.stdout.flush()


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its living descendants, such as a JVM."""
    total, parents = time.process_time(), {}
    ticks = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = (
            int(fields[1]),
            (int(fields[11]) + int(fields[12])) / ticks,
        )
    for pid, (_, cpu_s) in parents.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above][0]
        if above == os.getpid() and pid != above:
            total += cpu_s
    return total
