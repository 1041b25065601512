"""``headrace demo``: everything on one machine, nothing to install, nothing left behind.

An embedded Postgres with a shop of a million orders, an engine on it, two views made through
the engine's port, two writers, a probe of freshness, and a display of what happens.  With
``--once`` it runs for 20 seconds without a terminal, then proves every view equal to its
query and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec
import psycopg

from headrace import clock
from headrace.embedded import shop
from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import HeadraceError
from headrace.process.java import java_home

WRITERS: Final = 2
_CLEAR: Final = "\x1b[2J\x1b[H"
_BOLD: Final = "\x1b[1m"
_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What ``headrace demo`` was asked for."""

    once: bool = False
    orders: int = 1_000_000
    seconds: float = 0.0
    """Seconds to write; 0 is 20 with ``once``, else until Ctrl-C."""
    rate: float = 200.0
    """Transactions/s of all writers."""
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
        self.writers = [
            shop.Writer(
                dsn=self.source, number=number, rate=options.rate / WRITERS, orders=options.orders
            )
            for number in range(WRITERS)
        ]
        self.probe = shop.Probe(dsn=self.source)

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

    def create_views(self) -> None:
        """Create the views through the engine's port, telling its progress."""
        with psycopg.connect(self.engine.dsn, autocommit=True) as conn:
            conn.add_notice_handler(lambda d: say(f"  {d.message_primary}"))
            for view in shop.VIEWS:
                say(f"creating view {view.name}")
                begin = clock.monotonic()
                conn.execute("CALL headrace.create_view(%s, %s)", (view.name, view.query))
                self.population_s[view.name] = round(clock.monotonic() - begin, 2)
                say(f"  ready after {self.population_s[view.name]:.1f} s")

    def start_writing(self) -> None:
        """Start the writers and the probe."""
        for worker in (*self.writers, self.probe):
            worker.start()

    def stop_writing(self) -> None:
        """Stop them; an error in one of them is raised."""
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
    """A demo with its data loaded and its engine ready; everything ends with the block."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
        say("starting Postgres")
        server = stack.enter_context(EmbeddedPostgres(None, options.version))
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("CREATE DATABASE shop")
        say(f"loading {options.orders:,} orders")
        shop.load(server.dsn("shop"), options.orders)
        say("starting Headrace")
        engine = EmbeddedEngine(server.dsn("shop"), home / "engine", env={"JAVA_HOME": java_home()})
        # Kept on failure: the reason is in it.
        stack.callback(lambda: say_log(engine) if failed() else None)
        stack.enter_context(engine)
        yield Demo(options, server, engine)


def failed() -> bool:
    """Whether an error, and not the user, ends the demo."""
    return isinstance(sys.exception(), Exception)


def say_log(engine: EmbeddedEngine) -> None:
    """Show the end of the engine's log."""
    say("--- the end of the engine's log ---")
    say(engine.log[-4000:])


def say(text: str) -> None:
    """Tell the user; not on standard output, which ``--once`` keeps for its JSON."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def show(demo: Demo, began: float) -> None:
    """Refresh the display every second until the time is over or Ctrl-C comes."""
    until = began + demo.options.seconds if demo.options.seconds else float("inf")
    seen = (began, 0, 0, 0)
    with psycopg.connect(demo.source, autocommit=True) as conn:
        while clock.monotonic() < until:
            clock.sleep(min(1.0, max(0.0, until - clock.monotonic())))
            now = (clock.monotonic(), demo.transactions, demo.rows, len(demo.probe.latencies_ms))
            sys.stdout.write(screen(demo, conn, seen, now))
            sys.stdout.flush()
            seen = now


def screen(
    demo: Demo,
    conn: psycopg.Connection[Any],
    before: tuple[float, int, int, int],
    now: tuple[float, int, int, int],
) -> str:
    """The text of the display; ``before`` and ``now`` are (s, transactions, rows, probes)."""
    span_s = max(now[0] - before[0], 0.001)
    recent = demo.probe.latencies_ms[before[3] : now[3]]
    lines = [
        f"{_BOLD}Headrace demo{_PLAIN}   {demo.options.orders:,} orders, Ctrl-C ends it",
        "",
        f"  written    {(now[1] - before[1]) / span_s:8,.0f} transactions/s"
        f" {(now[2] - before[2]) / span_s:8,.0f} rows/s   {now[2]:,} rows in all",
        f"  freshness  {shop.percentile(recent, 50):8,.0f} ms p50"
        f" {shop.percentile(recent, 99):8,.0f} ms p99   from commit to visible",
        "",
    ]
    for name, status, message in conn.execute(
        "SELECT name, status, message FROM headrace.list_views() ORDER BY name"
    ):
        lines.append(f"  {_BOLD}{name:<30}{_PLAIN} {status}  {message or ''}")
    lines += ["", f"  {_DIM}{'country':<12}{'orders':>10}{'revenue':>18}{_PLAIN}"]
    for country, orders, revenue in conn.execute(
        "SELECT country, sum(orders), sum(revenue) FROM sales_by_country"
        " GROUP BY country ORDER BY 3 DESC LIMIT 8"
    ):
        lines.append(f"  {country:<12}{orders:>10,}{revenue:>18,.2f}")
    lines += ["", f"  Try it:  {_BOLD}{demo.psql}{_PLAIN}", ""]
    return _CLEAR + "\n".join(lines)


def result(demo: Demo, views: list[dict[str, Any]], wrote_s: float) -> dict[str, Any]:
    """What ``--once`` prints."""
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
    """Run without a terminal, prove the views, print one JSON line; 0 when all is equal."""
    with running(options) as demo:
        demo.create_views()
        say("writing")
        demo.start_writing()
        began = clock.monotonic()
        clock.sleep(options.seconds or 20.0)
        demo.stop_writing()
        wrote_s = clock.monotonic() - began
        say("comparing each view with its query")
        answer = result(demo, demo.verify(), wrote_s)
    _answer(answer)
    return 0 if answer["ok"] else 1


def _answer(told: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")


def run_live(options: DemoOptions) -> int:
    """Run with a display until Ctrl-C or the time is over."""
    with running(options) as demo:
        demo.create_views()
        demo.start_writing()
        began = clock.monotonic()
        with contextlib.suppress(KeyboardInterrupt):
            show(demo, began)
        say("\nstopping")
        demo.stop_writing()
    return 0


def run(options: DemoOptions) -> int:
    """Run the demo; returns the exit status."""
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
    """A polite kill ends the demo as Ctrl-C does."""
    raise KeyboardInterrupt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``headrace demo`` to ``parser``."""
    parser.add_argument(
        "--once", action="store_true", help="20 s without a terminal, prove, print JSON"
    )
    parser.add_argument("--orders", type=int, default=_DEFAULTS.orders, metavar="N")
    parser.add_argument("--seconds", type=float, default=_DEFAULTS.seconds, metavar="S")
    parser.add_argument(
        "--rate", type=float, default=_DEFAULTS.rate, metavar="N", help="transactions/s"
    )
    parser.add_argument(
        "--pg", type=int, choices=(16, 18), default=_DEFAULTS.version, dest="version"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """``headrace demo`` with the arguments ``argv``."""
    parser = argparse.ArgumentParser("headrace demo", description=__doc__)
    add_arguments(parser)
    return run(from_arguments(parser.parse_args(argv)))


def from_arguments(arguments: argparse.Namespace) -> DemoOptions:
    """Options of parsed ``arguments``."""
    return DemoOptions(
        once=arguments.once,
        orders=max(1, arguments.orders),
        seconds=max(0.0, arguments.seconds),
        rate=max(1.0, arguments.rate),
        version=arguments.version,
    )


if __name__ == "__main__":
    sys.exit(main())
