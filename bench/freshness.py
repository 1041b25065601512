"""freshness: milliseconds from a commit until the view shows it, under writers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

import psycopg

from bench import cpu, pgbench
from bench.scenario import Bed, Figures, Options, Scenario, bed, caught_up
from headrace.embedded import shop

_RATES: Final = (0.0, 20.0, 200.0, 1_000.0)
_LATE_MS: Final = 1_000
_LATE_RATE: Final = 200.0
_CLIENTS: Final = 4
_SETTLE_S: Final = 1.0
"""Seconds after which the writers have reached their rate."""
_OPEN: Final = shop.ShopView(
    "open_orders", "SELECT id, customer_id, amount FROM orders WHERE status = 'open'", ""
)
_VIEWS: Final = (*shop.VIEWS, _OPEN)
_SCRIPTS: Final = {
    13: """\\set customer random(1, {customers})
\\set product random(2, {products})
INSERT INTO orders (customer_id, product_id, quantity, amount, status)
    SELECT :customer, p.id, q, p.price * q, 'open' FROM products p, generate_series(1, 3) q
    WHERE p.id = :product - 1 + q;
""",
    4: """\\set first random(1, {orders})
\\set kind random(1, 3)
UPDATE orders SET status = (ARRAY['paid', 'sent', 'cancelled'])[:kind]
    WHERE id BETWEEN :first AND :first + 4;
""",
    2: """\\set first random(1, {orders})
DELETE FROM orders WHERE id BETWEEN :first AND :first + 1;
""",
    1: """\\set customer random(1, {customers})
\\set country random(1, 5)
UPDATE customers SET country = (ARRAY['France', 'Japan', 'Peru', 'Kenya', 'Norway'])[:country]
    WHERE id = :customer;
""",
}
"""Statements of the writers, by weight."""


class Freshness(Scenario):
    """Probe a join-and-aggregate view, one of three, while writers work on its tables."""

    name: ClassVar[str] = "freshness"
    about: ClassVar[str] = (
        "ms from commit to visible, 3 views, at steady rates of transactions;"
        " latency_ms: how late the views may be"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure idle, 20, 200 and 1 000 transactions/s, or ``options.rate`` alone.

        A second set of lines is for views that may be late.
        """
        rates = (options.rate,) if options.rate else _RATES
        lines = self._lines(options, rates, 0)
        return lines + self._lines(options, (options.rate or _LATE_RATE,), _LATE_MS)

    def _lines(self, options: Options, rates: tuple[float, ...], latency_ms: int) -> list[Figures]:
        given = json.dumps({"population": "local", "latency_ms": latency_ms})
        orders = options.rows or 90_000
        seconds = options.seconds or 20.0
        lines: list[Figures] = []
        with bed(options, HEADRACE_SPARK_WARM="false") as on, scripts(orders) as words:
            shop.load(on.source, orders)
            on.engine.start()
            for view in _VIEWS:
                on.create_view(view.name, view.query, given)
            sent = 0
            for rate in rates:
                probe = shop.Probe(dsn=on.source, pause_s=0.05, sent=sent)
                measured = _measure(on, words, probe, rate, seconds)
                sent = probe.sent
                with psycopg.connect(on.source, autocommit=True) as conn:
                    behind_s = caught_up(conn, *(view.name for view in _VIEWS))
                for view in _VIEWS:
                    on.check(view.name, view.query)
                line = {"rate": rate, "latency_ms": latency_ms, **measured}
                lines.append({**line, "behind_ms": round(behind_s * 1e3)})
        return lines


def _measure(on: Bed, words: list[str], probe: shop.Probe, rate: float, seconds: float) -> Figures:
    with writing(on, words, rate, seconds) as told:
        probe.start()
        cpu_s, begin = cpu.of_process(on.worker), time.monotonic()
        time.sleep(seconds)
        # The samples until then count even if the view falls further and further behind.
        with contextlib.suppress(TimeoutError):
            probe.stop()
        took_s, cpu_s = time.monotonic() - begin, cpu.of_process(on.worker) - cpu_s
    latencies = probe.latencies_ms
    return {
        "transactions_per_s": round(pgbench.rate(told[0])) if told else 0,
        "probes": len(latencies),
        "p50_ms": round(shop.percentile(latencies, 50), 1),
        "p90_ms": round(shop.percentile(latencies, 90), 1),
        "p99_ms": round(shop.percentile(latencies, 99), 1),
        "max_ms": round(max(latencies, default=0.0), 1),
        "worker_cpu_part": round(cpu_s / took_s, 2),
    }


@contextmanager
def scripts(orders: int) -> Iterator[list[str]]:
    """Yield the arguments with which pgbench writes."""
    known = {"orders": orders, "customers": shop.CUSTOMERS, "products": shop.PRODUCTS - 3}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
        words = []
        for weight, text in _SCRIPTS.items():
            path = Path(home) / f"{weight}.sql"
            path.write_text(text.format(**known))
            words.append(f"--file={path}@{weight}")
        yield words


@contextmanager
def writing(on: Bed, scripts: list[str], rate: float, seconds: float) -> Iterator[list[str]]:
    """Write inside the block at ``rate``; the yielded list holds pgbench's output afterwards.

    pgbench catches up on late transactions.
    """
    told: list[str] = []
    if not rate:
        yield told
        return
    words = ("--no-vacuum", *scripts, "--client", str(_CLIENTS), "--rate", str(rate))
    lasting = ("--time", str(round(seconds + 2 * _SETTLE_S)), "--random-seed", "1")
    with subprocess.Popen(
        pgbench.command(on, on.source, *words, *lasting),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        text=True,
    ) as writers:
        try:
            time.sleep(_SETTLE_S)
            yield told
            out, err = writers.communicate()
            assert writers.returncode == 0, err
            told.append(out)
        finally:
            writers.kill()
