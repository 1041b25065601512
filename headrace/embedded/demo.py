"""``headrace demo``: a shop on an embedded Postgres, with two views and a screen that shows them.

Nothing is installed, and nothing remains.  Two writers change a shop of a million orders, and a
probe measures freshness.  Keys write a burst, kill the worker, compare the views with their
queries, or violate an assertion.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import math
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, LiteralString

import msgspec
import psycopg

from headrace import clock
from headrace.embedded import demo_screen, shop, terminal
from headrace.embedded.demo_actions import DemoActions
from headrace.embedded.demo_screen import Shown
from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import HeadraceError
from headrace.process.java import java_home
from headrace.sql.status import UNFINISHED

WRITERS: Final = 2
_DESCRIPTION: Final = (
    "Try Headrace on an embedded Postgres: a shop with a million orders, two writers, two views, an"
    " assertion, and a screen that shows how fresh they are. Nothing is installed, and nothing"
    " remains."
)
_VIEWS: Final = tuple(reversed(shop.VIEWS))
"""The engine populates the first within seconds, Spark the other one if it is installed."""
_SPARK_ORDERS_MIN: Final = 100_000
"""Minimum for Spark; with fewer orders its start would take most of the time."""
_RECENT_S: Final = 10.0
_HISTORY_S: Final = 60
_PROGRESS: Final = re.compile(r'^\w+( up)? "[^"]*"(: )?')
"""The beginning of a notice of create_view, which repeats what the display shows."""
_TABLES: Final[Sequence[tuple[str, LiteralString, Sequence[str]]]] = (
    (
        "sales_by_country",
        "SELECT country, sum(orders), sum(revenue) FROM sales_by_country"
        " GROUP BY country ORDER BY 3 DESC LIMIT 8",
        ("country", "orders", "revenue"),
    ),
    (
        "best_customers",
        "SELECT 'Customer ' || customer_id, orders, spent FROM best_customers"
        " WHERE customer_id > 0 ORDER BY spent DESC, customer_id LIMIT 8",
        ("best customer", "orders", "spent"),
    ),
)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of ``headrace demo``."""

    once: bool = False
    orders: int = 1_000_000
    seconds: float = 0.0
    """Seconds to write; 0: 20 with ``once``, else until Ctrl-C."""
    rate: float = 200.0
    """Transactions/s of all writers together."""
    version: int = 16


_DEFAULTS: Final = DemoOptions()


class Demo:
    """A running demo: server, engine, views, writers and probe."""

    def __init__(
        self, options: DemoOptions, server: EmbeddedPostgres, engine: EmbeddedEngine
    ) -> None:
        self.options = options
        self.server = server
        self.engine = engine
        self.source = server.dsn("shop")
        self.population_s: dict[str, float] = {}
        self.progress: dict[str, str] = {}
        """The last notice for each view during its creation."""
        self.problem: Exception | None = None
        """The error of a view that could not be created."""
        self.writers = [
            shop.Writer(
                dsn=self.source, number=number, rate=options.rate / WRITERS, orders=options.orders
            )
            for number in range(WRITERS)
        ]
        self.probe = shop.Probe(dsn=self.source, view=_VIEWS[0])

    @property
    def transactions(self) -> int:
        """Transactions written so far."""
        return sum(w.transactions for w in self.writers)

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return sum(w.rows for w in self.writers)

    @property
    def psql(self) -> str:
        """Command line that connects through the engine."""
        program = "psql" if shutil.which("psql") else str(self.server.bin_dir / "psql")
        return f"{program} -h 127.0.0.1 -p {self.engine.port} -U postgres shop"

    def create_view(self, view: shop.ShopView, tell: Callable[[str], None]) -> None:
        """Create a view through the engine's port; pass its notices to ``tell``."""
        with psycopg.connect(self.engine.dsn, autocommit=True) as conn:
            conn.add_notice_handler(lambda d: tell(d.message_primary or ""))
            begin = clock.monotonic()
            large = self.options.orders >= _SPARK_ORDERS_MIN
            how = "spark" if large and _has_spark() and view is not _VIEWS[0] else "local"
            conn.execute(
                "CALL headrace.create_view(%s, %s, %s)",
                (view.name, view.query, f'{{"population": "{how}"}}'),
            )
            self.population_s[view.name] = round(clock.monotonic() - begin, 2)
            where = "on Spark" if how == "spark" else "in the engine"
            tell(f"filled {where} in {self.population_s[view.name]:.1f} s")

    def create_assertion(self) -> None:
        """Create the assertion through the engine's port."""
        say(f"creating assertion {shop.ASSERTION}")
        with psycopg.connect(self.engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.create_assertion(%s, %s)", (shop.ASSERTION, shop.ASSERTED))

    def create_views(self) -> None:
        """Create the views one after the other, and print their notices."""
        for view in _VIEWS:
            say(f"creating view {view.name}")
            self.create_view(view, lambda text: say(f"  {text}"))

    def create_others(self) -> None:
        """Create the other views while the display runs; keep an error in ``problem``."""
        for view in _VIEWS[1:]:
            try:
                self.create_view(view, functools.partial(self.progress.__setitem__, view.name))
            except psycopg.Error as error:
                self.problem = error
                self.progress[view.name] = str(error).strip().splitlines()[0]

    def check_assertion(self) -> str:
        """Return whether the assertion holds now."""
        with psycopg.connect(self.engine.dsn, autocommit=True) as conn:
            try:
                conn.execute("CALL headrace.check_assertion(%s)", (shop.ASSERTION,))
            except psycopg.errors.CheckViolation:
                return "violated"
        return "holds"

    def start_writing(self) -> None:
        """Start the writers and the probe."""
        for worker in (*self.writers, self.probe):
            worker.start()

    def stop_writing(self) -> None:
        """Stop the writers and the probe, and raise the first error of one of them."""
        for worker in (*self.writers, self.probe):
            worker.stop()

    def verify(self) -> list[dict[str, Any]]:
        """Wait until the views are complete and compare each with its query."""
        shop.wait_caught_up(self.source, self.probe)
        out = []
        for view in shop.VIEWS:
            rows, differing = shop.differing_rows(self.source, view)
            out.append(
                {
                    "name": view.name,
                    "rows": rows,
                    "equal": differing == 0,
                    "differing_rows": differing,
                    "population_s": self.population_s.get(view.name),
                }
            )
        return out


@contextlib.contextmanager
def running(options: DemoOptions) -> Iterator[Demo]:
    """Run a demo, with loaded data and a ready engine, until the end of the block."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
        say("starting Postgres")
        server = stack.enter_context(EmbeddedPostgres(None, options.version))
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("CREATE DATABASE shop")
        say(f"loading {options.orders:,} orders, and starting Headrace")
        pool = stack.enter_context(ThreadPoolExecutor(1))
        loading = pool.submit(shop.load, server.dsn("shop"), options.orders)
        engine = EmbeddedEngine(
            server.dsn("shop"),
            home / "engine",
            env={"JAVA_HOME": java_home()} if _has_spark() else {},
            args=("--http", "127.0.0.1:0"),
        )
        # On an error the log is shown, since it has the reason.
        stack.callback(lambda: say_log(engine) if failed() else None)
        stack.enter_context(engine)
        loading.result()
        yield Demo(options, server, engine)


def _has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def failed() -> bool:
    """Return whether an error, and not the user, ends the demo."""
    return isinstance(sys.exception(), Exception)


def say_log(engine: EmbeddedEngine) -> None:
    """Print the end of the engine's log."""
    say("--- the end of the engine's log ---")
    say(engine.log[-4000:])


def say(text: str) -> None:
    """Print to standard error; ``--once`` reserves standard output for its JSON."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Show:
    """Collects the numbers for the display, of now and of the last seconds."""

    def __init__(self, demo: Demo, deeds: DemoActions) -> None:
        self._demo = demo
        self._deeds = deeds
        self._before = (clock.monotonic(), demo.transactions, demo.rows)
        self._ticks = _processor_ticks()
        self._history: deque[float | None] = deque(maxlen=_HISTORY_S)
        console = demo.engine.console
        self._links = [("sql", demo.psql), *([("web", console)] if console else [])]

    def look(self, conn: psycopg.Connection[Any]) -> Shown:
        """Collect the current numbers; ``conn`` reads the source."""
        demo = self._demo
        now = (clock.monotonic(), demo.transactions, demo.rows)
        span_s = max(now[0] - self._before[0], 0.001)
        last = demo.probe.since(self._before[0])
        self._history.append(statistics.median(last) if last else None)
        recent = demo.probe.since(now[0] - _RECENT_S)
        ticks = _processor_ticks()
        used, of = (b - a for a, b in zip(self._ticks, ticks, strict=True))
        moment = Shown(
            orders=demo.options.orders,
            transactions_per_s=(now[1] - self._before[1]) / span_s,
            rows_per_s=(now[2] - self._before[2]) / span_s,
            rows=now[2],
            p50_ms=shop.percentile(recent, 50) if recent else math.nan,
            p99_ms=shop.percentile(recent, 99) if recent else math.nan,
            history_ms=list(self._history),
            views=self._views(conn),
            **_table(conn),
            busy=used / max(of, 1),
            processors=os.cpu_count() or 1,
            said=self._deeds.said,
            links=self._links,
        )
        self._before, self._ticks = now, ticks
        return moment

    def _views(self, conn: psycopg.Connection[Any]) -> list[tuple[str, str, str]]:
        listed = {
            name: (status, said, rows)
            for name, status, said, rows in conn.execute(
                "SELECT name, status, coalesce(message, held_by), rows FROM headrace.list_views()"
            )
        }
        out = []
        for view in _VIEWS:
            status, said, rows = listed.get(f"public.{view.name}", ("", "", None))
            made = _PROGRESS.sub("", self._demo.progress.get(view.name, ""))
            if not status or status in UNFINISHED:
                said = made
            elif rows is not None:
                # Until create_view returns, its last notice is about the population's progress.
                how = f", {made}" if made.startswith("filled") else ""
                said = said or f"{rows:,} rows{how}"
            out.append((view.name, status, said))
        return [*out, *_assertion(conn)]


def _assertion(conn: psycopg.Connection[Any]) -> list[tuple[str, str, str]]:
    """Return the line of the assertion."""
    rows = conn.execute(
        "SELECT a.state, a.rows, a.reason, to_char(a.since, 'HH24:MI:SS')"
        "  FROM headrace.assertions() a"
    ).fetchall()
    return [
        (
            shop.ASSERTION,
            state,
            reason or (f"by {count:,} rows " if count else "") + f"since {since}",
        )
        for state, count, reason, since in rows
    ]


def _table(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return rows of the first view of ``_TABLES`` that exists."""
    for view, query, heading in _TABLES:
        there = conn.execute("SELECT to_regclass(%s) IS NOT NULL", (view,)).fetchone()
        if there == (True,):
            rows = conn.execute(query).fetchall()
            shown = [(str(name), f"{count:,}", f"{money:,.2f}") for name, count, money in rows]
            return {"heading": heading, "table": shown}
    return {"heading": (), "table": ()}


def _processor_ticks() -> tuple[int, int]:
    """Return (used, total) ticks of all processors since boot."""
    numbers = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, sum(numbers)


def show(demo: Demo, deeds: DemoActions, began: float) -> None:
    """Refresh the display every second and after a key, until the time is over, q or Ctrl-C."""
    until = began + demo.options.seconds if demo.options.seconds else math.inf
    shown = Show(demo, deeds)
    connecting = psycopg.connect(demo.source, autocommit=True)
    with connecting as conn, terminal.keys() as keys, demo_screen.opened() as draw:
        while (turn := clock.monotonic()) < until:
            moment = shown.look(conn)
            draw(moment)
            while (left_s := min(until, turn + 1.0) - clock.monotonic()) > 0:
                for key in keys.wait(left_s).lower():
                    if key == "q":
                        return
                    deeds.press(key)
                    draw(replace(moment, said=deeds.said))


def result(demo: Demo, views: list[dict[str, Any]], wrote_s: float) -> dict[str, Any]:
    """Return the result that ``--once`` prints."""
    latencies = demo.probe.latencies_ms
    return {
        "ok": all(v["equal"] for v in views) and bool(latencies),
        "views": views,
        "orders": demo.options.orders,
        "seconds": round(wrote_s, 1),
        "transactions_per_s": round(demo.transactions / wrote_s, 1),
        "rows_per_s": round(demo.rows / wrote_s, 1),
        "p50_ms": round(shop.percentile(latencies, 50), 1),
        "p99_ms": round(shop.percentile(latencies, 99), 1),
        "probes": len(latencies),
    }


def run_once(options: DemoOptions) -> int:
    """Run without a terminal, verify the views, print one line of JSON; 0: all are equal."""
    with running(options) as demo:
        demo.create_views()
        demo.create_assertion()
        say("writing")
        demo.start_writing()
        began = clock.monotonic()
        clock.sleep(options.seconds or 20.0)
        demo.stop_writing()
        wrote_s = clock.monotonic() - began
        say("comparing each view with its query")
        answer = result(demo, demo.verify(), wrote_s) | {"assertion": demo.check_assertion()}
    _answer(answer)
    return 0 if answer["ok"] else 1


def _answer(told: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")


def run_live(options: DemoOptions) -> int:
    """Run with a display until q, Ctrl-C, or the time is over; the display starts with one view."""
    with running(options) as demo:
        first = _VIEWS[0]
        say(f"creating view {first.name}")
        demo.create_view(first, functools.partial(demo.progress.__setitem__, first.name))
        demo.create_assertion()
        demo.start_writing()
        others = threading.Thread(target=demo.create_others, daemon=True)
        others.start()
        deeds = DemoActions(demo.engine, demo.source)
        with contextlib.suppress(KeyboardInterrupt):
            show(demo, deeds, clock.monotonic())
        say("stopping")
        demo.stop_writing()
    return 0


def run(options: DemoOptions) -> int:
    """Run the demo; return the exit status."""
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return run_once(options) if options.once else run_live(options)
    except KeyboardInterrupt:
        return 130
    except (HeadraceError, psycopg.Error, TimeoutError) as error:
        say(f"headrace demo: {error}")
        if isinstance(error, HeadraceError):
            say("\n".join(filter(None, (error.detail, error.hint))))
        if options.once:
            _answer({"ok": False, "error": str(error)})
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM as Ctrl-C."""
    raise KeyboardInterrupt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``headrace demo`` to ``parser``."""
    parser.add_argument(
        "--once",
        action="store_true",
        help="run for 20 s without a screen, compare each view with its query, print JSON",
    )
    parser.add_argument(
        "--orders", type=int, default=_DEFAULTS.orders, metavar="N", help="orders in the shop"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=_DEFAULTS.seconds,
        metavar="S",
        help="seconds to write (default: 20 with --once, otherwise until Ctrl-C)",
    )
    parser.add_argument(
        "--rate", type=float, default=_DEFAULTS.rate, metavar="N", help="transactions per second"
    )
    parser.add_argument(
        "--pg",
        type=int,
        choices=(16, 18),
        default=_DEFAULTS.version,
        dest="version",
        help="version of Postgres",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``headrace demo`` with the arguments ``argv``."""
    parser = argparse.ArgumentParser("headrace demo", description=_DESCRIPTION)
    add_arguments(parser)
    return run(from_arguments(parser.parse_args(argv)))


def from_arguments(arguments: argparse.Namespace) -> DemoOptions:
    """Return the options of parsed ``arguments``."""
    return DemoOptions(
        once=arguments.once,
        orders=max(1, arguments.orders),
        seconds=max(0.0, arguments.seconds),
        rate=max(1.0, arguments.rate),
        version=arguments.version,
    )


if __name__ == "__main__":
    sys.exit(main())
