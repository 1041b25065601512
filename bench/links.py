"""links: savings and cost of compressed rows between workers, and the bandwidth where it pays."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import ClassVar

import pyarrow as pa

from bench.scenario import Figures, Options, Scenario
from headrace.network.messages import COMPRESSED_BELOW, TableRows, packed, to_worker

_WORDS = ("carefully", "final", "quick", "deposits", "ironic", "accounts", "sleep", "furiously")
_TRIES = 5
_LINES = (1_000_000, COMPRESSED_BELOW, 2 * COMPRESSED_BELOW, 1_000_000_000)
"""Bytes per second."""


def _orders(rng: random.Random, rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n:1": pa.array(range(rows), pa.int64()),
            "n:2": pa.array([rng.randrange(10_000) for _ in range(rows)], pa.int32()),
            "n:3": pa.array([f"{rng.random() * 1e4:.2f}" for _ in range(rows)]),
            "n:4": pa.array([" ".join(rng.choices(_WORDS, k=5)) for _ in range(rows)]),
            "__weight": pa.array(rng.choices((1, -1), k=rows), pa.int64()),
        }
    )


def _numbers(rng: random.Random, rows: int) -> pa.RecordBatch:
    columns = {
        f"n:{n}": pa.array([rng.randrange(1 << 40) for _ in range(rows)], pa.int64())
        for n in range(1, 5)
    }
    return pa.record_batch({**columns, "__weight": pa.array([1] * rows, pa.int64())})


def _noise(rng: random.Random, rows: int) -> pa.RecordBatch:
    """Return rows that cannot be compressed."""
    return pa.record_batch({"n:1": pa.array([rng.randbytes(100) for _ in range(rows)])})


_KINDS: dict[str, Callable[[random.Random, int], pa.RecordBatch]] = {
    "orders": _orders,
    "numbers": _numbers,
    "noise": _noise,
}


def _least_s(work: Callable[[], object], times: int) -> float:
    """Return the seconds of one call, in the best of some tries."""
    tried = []
    for _ in range(_TRIES):
        begin = time.perf_counter()
        for _ in range(times):
            work()
        tried.append((time.perf_counter() - begin) / times)
    return min(tried)


class Links(Scenario):
    """Messages of one batch, plain and compressed, and the time of both on lines of a bandwidth."""

    name: ClassVar[str] = "links"
    about: ClassVar[str] = (
        "rows between workers, as they are and compressed: bytes, us, ms over lines"
    )
    rows_default: ClassVar[int] = 20_000

    def run(self, options: Options) -> list[Figures]:
        """Measure each kind of rows and size of a batch."""
        most = options.rows or self.rows_default
        return [
            self._line(kind, make(random.Random(rows), rows))  # noqa: S311  not for secrets
            for kind, make in _KINDS.items()
            for rows in sorted({5, 50, most // 40, most})
            if rows
        ]

    def _line(self, kind: str, batch: pa.RecordBatch) -> Figures:
        times = max(1, 2000 // batch.num_rows)
        found: Figures = {"rows": kind, "count": batch.num_rows}
        took, sizes = [], []
        for small in (False, True):
            message = packed(TableRows(1), batch, compressed=small)
            pack_s = _least_s(lambda s=small: packed(TableRows(1), batch, compressed=s), times)
            unpack_s = _least_s(lambda m=message: to_worker(m), times)
            sizes.append(message.size)
            took.append(pack_s + unpack_s)
        found |= {"bytes": sizes[0], "packed_bytes": sizes[1]}
        found |= {"ratio": round(sizes[0] / sizes[1], 2)}
        found |= {"us": round(took[0] * 1e6), "packed_us": round(took[1] * 1e6)}
        for rate in _LINES:
            plain, small = (1e3 * (s + n / rate) for s, n in zip(took, sizes, strict=True))
            found[f"ms_at_{rate // 1_000_000}MB_s"] = f"{plain:.2f} / {small:.2f}"
        return found
