"""Run scenarios and print a table, or JSON: ``make bench ARGS='cdc --json'``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence

import structlog

from bench.altering import Altering
from bench.beyond_memory import BeyondMemory
from bench.cdc import Cdc
from bench.checkpoint import Checkpoint
from bench.costs import Costs
from bench.creations import Creations
from bench.drain import Drain
from bench.engine import Engine
from bench.executors import Executors
from bench.expressions import Expressions
from bench.freshness import Freshness
from bench.growth import Growth
from bench.intake_log import Log
from bench.isolation import Isolation
from bench.lanes import Lanes
from bench.large import Large
from bench.links import Links
from bench.many import Many
from bench.memory import Memory
from bench.moving import Moving
from bench.oltp_tax import OltpTax
from bench.pairs import Pairs
from bench.placement import PlacementQuality
from bench.population import Population
from bench.queues import Queues
from bench.relay import Relay
from bench.restart import Restart
from bench.scenario import Figures, Options, Scenario
from bench.sink import Sink
from bench.small import Small
from bench.spark import Spark
from bench.standby_tax import StandbyTax
from bench.state import State
from bench.state_options import StateOptions
from bench.tpch import TpchQueries
from bench.workers import Workers

_WIDTH_MIN = 9
SCENARIOS: dict[str, type[Scenario]] = {
    s.name: s
    for s in (
        Altering,
        BeyondMemory,
        Cdc,
        Checkpoint,
        Costs,
        Creations,
        Drain,
        Engine,
        Executors,
        Expressions,
        Freshness,
        Growth,
        Isolation,
        Lanes,
        Large,
        Links,
        Log,
        Many,
        Memory,
        Moving,
        OltpTax,
        Pairs,
        PlacementQuality,
        Population,
        Queues,
        Relay,
        Restart,
        Sink,
        Small,
        Spark,
        StandbyTax,
        State,
        StateOptions,
        TpchQueries,
        Workers,
    )
}


def shown(lines: Iterable[Figures]) -> Iterator[str]:
    """Yield ``lines`` as columns under their names, each as soon as it is measured.

    A column is as wide as its name and its first value; a wider later value shifts its row.
    """
    widths: dict[str, int] = {}
    for line in lines:
        cells = {name: str(value) for name, value in line.items()}
        if not widths:
            widths = {name: max(len(name), len(cell), _WIDTH_MIN) for name, cell in cells.items()}
            yield "  ".join(name.rjust(width) for name, width in widths.items())
        yield "  ".join(cells[name].rjust(width) for name, width in widths.items())


def machine() -> dict[str, object]:
    """Describe the machine of the figures."""
    return {"cpus": os.cpu_count(), "python": platform.python_version()}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("bench", description=__doc__)
    about = "; ".join(f"{s.name}: {s.about}" for s in SCENARIOS.values()).replace("%", "%%")
    parser.add_argument("scenario", nargs="*", help=f"all when none is named ({about})")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--rows", type=int, default=0, help="size of the largest table")
    parser.add_argument("--seconds", type=float, default=0.0, help="of what runs for a time")
    parser.add_argument("--rate", type=float, default=0.0, help="transactions/s of freshness")
    parser.add_argument("--views", type=int, default=0, help="of small, memory and many, at most")
    parser.add_argument("--pg", type=int, choices=(16, 18), default=16)
    parser.add_argument("--only", default="", help="views by name, with commas")
    parsed = parser.parse_args(argv)
    if unknown := set(parsed.scenario) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}")
    return parsed


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for."""
    asked = arguments(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    only = tuple(filter(None, asked.only.split(",")))
    options = Options(asked.rows, asked.seconds, asked.rate, asked.pg, only, asked.views)
    results: dict[str, list[Figures]] = {}
    for name in asked.scenario or SCENARIOS:
        lines = SCENARIOS[name]().run(options)
        if asked.json:
            results[name] = list(lines)
            continue
        print(f"\n{name}: {SCENARIOS[name].about}\n", flush=True)
        for line in shown(lines):
            print(line, flush=True)
    if asked.json:
        print(json.dumps({"machine": machine(), "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
