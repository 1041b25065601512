"""beyond_memory: a view whose states are several times as large as ``memory_bytes``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import psycopg

from bench import cpu
from bench.scenario import Bed, Figures, Options, Scenario, caught_up, scalar
from bench.shapes import Stream, streaming
from headrace.errors import BugError

_VIEW: Final = "joined"
_QUERY: Final = """SELECT o.id, o.amount, o.note, c.region
    FROM orders o JOIN customers c ON c.id = o.customer"""
_MEMORY_BYTES_PER_ROW: Final = 14
"""The states take about 75 bytes a row: five times as much."""
_MEMORY_BYTES_MIN: Final = 64 << 20
_CHANGED: Final = 100_000
_TRANSACTION_ROWS: Final = 1_000
_KINDS: Final = ("server", "builder", "worker", "tasks")


class BeyondMemory(Scenario):
    """Create the view, change its tables, kill the server, change them again, verify the view."""

    name: ClassVar[str] = "beyond_memory"
    about: ClassVar[str] = (
        "seconds of create_view, of changes until visible, of a restart and of verify_view, for a"
        " view whose states are five times as large as memory_bytes; peak MB by process"
    )
    rows_default: ClassVar[int] = 30_000_000

    def run(self, options: Options) -> Iterator[Figures]:
        """Measure ``options.rows`` orders."""
        rows = options.rows or self.rows_default
        memory_bytes = max(rows * _MEMORY_BYTES_PER_ROW, _MEMORY_BYTES_MIN)
        limits = {
            "HEADRACE_MEMORY_BYTES": str(memory_bytes),
            "HEADRACE_POPULATION_MEMORY_BYTES": str(memory_bytes),
        }
        with streaming(options, rows, **limits) as (on, stream):
            stream.conn.execute("VACUUM ANALYZE")

            def measured(what: str, step: Callable[[], object]) -> Figures:
                begin = time.monotonic()
                with cpu.sampled([on.engine.pid], _kind) as used:
                    step()
                return {
                    "step": what,
                    "rows": rows,
                    "memory_mb": memory_bytes >> 20,
                    "seconds": round(time.monotonic() - begin, 2),
                    "cpu_s": round(sum(used.cpu_s.values()), 1),
                    "state_mb": _size(on.engine.data_dir / "state") >> 20,
                    **{f"{kind}_mb": used.peak_bytes.get(kind, 0) >> 20 for kind in _KINDS},
                }

            yield measured("create", lambda: on.create_view(_VIEW, _QUERY))
            made = _number(on)
            yield measured("change", lambda: _change(stream))
            on.engine.kill9()
            on.engine.start()
            yield measured("change after a kill", lambda: _change(stream))
            if _number(on) != made:
                raise BugError(f"{_VIEW} did not follow the changes, it was filled anew")
            yield measured("verify", lambda: _verify(on))


def _change(stream: Stream) -> None:
    stream.change(min(_CHANGED, stream.rows // 4), _TRANSACTION_ROWS)
    caught_up(stream.conn, _VIEW)


def _number(on: Bed) -> int:
    """Return the view's id, which is another one after each time that it is filled."""
    return int(scalar(on.source, "SELECT id FROM headrace.views WHERE view_name = %s", _VIEW))


def _verify(on: Bed) -> None:
    """Compare the view with its query.

    Raises:
        AssertionError: they differ.
    """
    with psycopg.connect(on.engine.dsn, autocommit=True) as conn:
        found: list[Any] = conn.execute(
            "SELECT * FROM headrace.verify_view(%s)", (_VIEW,)
        ).fetchall()
    assert not found, f"{len(found)} rows differ"


def _kind(line: str) -> str:
    """Return the kind of a process, from its title; ``tasks``: of a population."""
    for kind in ("builder", "worker"):
        if line.strip() == f"headrace: {kind}":
            return kind
    return "tasks" if "spark" in line or "task" in line else "server"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
