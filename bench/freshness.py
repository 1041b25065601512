"""freshness: milliseconds from a commit until the view shows it, under writers."""

from __future__ import annotations

import time
from typing import ClassVar

from bench import cpu
from bench.scenario import Figures, Options, Scenario, bed
from headrace.embedded import shop


class Freshness(Scenario):
    """Probe a join-and-aggregate view while two writers work on its tables."""

    name: ClassVar[str] = "freshness"
    about: ClassVar[str] = "ms from commit to visible, at a steady rate of transactions"

    def run(self, options: Options) -> list[Figures]:
        """Write at ``options.rate`` transactions/s and probe all the while."""
        orders = options.rows or 90_000
        with bed(options, HEADRACE_SPARK_WARM="false") as on:
            shop.load(on.source, orders)
            on.engine.start()
            for view in shop.VIEWS:
                on.create_view(view.name, view.query, '{"population": "local"}')
            writers = [
                shop.Writer(dsn=on.source, number=n, rate=options.rate / 2, orders=orders)
                for n in range(2)
            ]
            probe = shop.Probe(dsn=on.source, pause_s=0.05)
            for thread in (*writers, probe):
                thread.start()
            worker = on.engine.child("headrace.runtime.worker")
            assert worker is not None, "the engine runs"
            cpu_s = cpu.of_process(worker)
            begin = time.monotonic()
            time.sleep(options.seconds or 20.0)
            for thread in (*writers, probe):
                thread.stop()
            took_s = time.monotonic() - begin
            cpu_s = cpu.of_process(worker) - cpu_s
            shop.wait_caught_up(on.source, probe)
            differing = sum(shop.differing_rows(on.source, v)[1] for v in shop.VIEWS)
        latencies = probe.latencies_ms
        return [
            {
                "orders": orders,
                "transactions_per_s": round(sum(w.transactions for w in writers) / took_s),
                "rows_per_s": round(sum(w.rows for w in writers) / took_s),
                "probes": len(latencies),
                "p50_ms": round(shop.percentile(latencies, 50), 1),
                "p90_ms": round(shop.percentile(latencies, 90), 1),
                "p99_ms": round(shop.percentile(latencies, 99), 1),
                "max_ms": round(max(latencies, default=0.0), 1),
                "worker_cpu_part": round(cpu_s / took_s, 2),
                "differing_rows": differing,
            }
        ]
