"""moving: lateness of a view that moves from one worker to another and back, under writers."""

from __future__ import annotations

import threading
import time
from typing import ClassVar, Final

import psycopg

from bench.freshness import scripts, writing
from bench.scenario import Bed, Figures, Options, Scenario, bed
from headrace.embedded import shop

_RATE: Final = 200.0
_MOVES: Final = 6
_BETWEEN_S: Final = 1.0
_VIEW: Final = shop.VIEWS[0]


class Moving(Scenario):
    """A join-and-aggregate view moves back and forth while it is read."""

    name: ClassVar[str] = "moving"
    about: ClassVar[str] = (
        "ms from commit to visible of a view at a rate of transactions, still and while it moves"
        " with its states; gap_ms: the latest; back: reads that showed less than one before"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure without moves, then for as long with moves a second apart."""
        orders = options.rows or 90_000
        with bed(options, HEADRACE_SPARK_WARM="false") as on, scripts(orders) as words:
            shop.load(on.source, orders)
            on.engine.start()
            on.create_view(_VIEW.name, _VIEW.query, '{"population": "local", "sharing": false}')
            with psycopg.connect(on.engine.dsn, autocommit=True) as conn:
                conn.execute("CALL headrace.add_worker('w1')")
            rate = options.rate or _RATE
            still, sent = self._line(on, words, rate, 0, 0, options.seconds)
            moves = _MOVES if not options.seconds else 2
            moving, _ = self._line(on, words, rate, moves, sent)
            on.check(_VIEW.name, _VIEW.query)
        return [still, moving]

    def _line(
        self, on: Bed, words: list[str], rate: float, moves: int, sent: int, still_s: float = 0.0
    ) -> tuple[Figures, int]:
        probe = shop.Probe(dsn=on.source, view=_VIEW, pause_s=0.02, sent=sent)
        reader = _Reader(on.source)
        took: list[float] = []
        seconds = still_s or (moves or _MOVES) * (_BETWEEN_S + 0.5)
        with (
            writing(on, words, rate, seconds),
            psycopg.connect(on.engine.dsn, autocommit=True) as conn,
        ):
            probe.start()
            reader.start()
            for move in range(moves):
                time.sleep(_BETWEEN_S)
                begin = time.monotonic()
                to = "main" if move % 2 else "w1"
                conn.execute("CALL headrace.set_placement(%s, %s)", (_VIEW.name, to))
                took.append(time.monotonic() - begin)
            time.sleep(_BETWEEN_S if moves else seconds)
            probe.stop()
            reader.ended.set()
            reader.join()
        latencies = probe.latencies_ms
        line: Figures = {
            "rate": rate,
            "moves": moves,
            "p50_ms": round(shop.percentile(latencies, 50), 1),
            "p99_ms": round(shop.percentile(latencies, 99), 1),
            "gap_ms": round(max(latencies), 1),
            "move_ms": round(max(took, default=0.0) * 1e3),
            "reads": reader.reads,
            "back": reader.back,
        }
        return line, probe.sent


class _Reader(threading.Thread):
    """Reads a value that never decreases."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self.reads = self.back = 0
        self.ended = threading.Event()

    def run(self) -> None:
        """Read the view until ``ended`` is set."""
        most = 0
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self.ended.wait(0.002):
                row = conn.execute(_VIEW.probe).fetchone()
                seen = int(row[0] or 0) if row else 0
                self.reads += 1
                self.back += seen < most
                most = max(most, seen)
