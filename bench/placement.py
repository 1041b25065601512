"""placement: bytes over a fog's links with each strategy, compared with the exact solver."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import psycopg

from bench import nexmark_data, tpch_data
from bench.engine import Described, Unit
from bench.recording import Recorder, rows_in
from bench.scenario import Bed, Figures, Options, Scenario, bed
from headrace.collections.plan import PhysicalPlan
from headrace.collections.subplans import subplan
from headrace.errors import UserError
from headrace.expressions.remote import RemoteEvaluator
from headrace.planner.placement import (
    Costs,
    Pins,
    Placement,
    Shards,
    Strategy,
    Topology,
    TopologyLink,
    TopologyNode,
    try_to_place,
)
from headrace.planner.plan import plan
from headrace.planner.request import PlanRequest
from headrace.postgres import connect

_EDGES: Final = ("edge1", "edge2", "edge3", "edge4")
_FOG: Final = Topology(
    (
        TopologyNode("cloud", 100),
        *(TopologyNode(name, 8) for name in ("fog1", "fog2")),
        *(TopologyNode(name, 6) for name in _EDGES),
    ),
    tuple(
        TopologyLink(low, high)
        for low, highs in {
            "fog1": ["cloud"],
            "fog2": ["cloud"],
            "edge1": ["fog1"],
            "edge2": ["fog1", "fog2"],
            "edge3": ["fog1", "fog2"],
            "edge4": ["fog2"],
        }.items()
        for high in highs
    ),
)
_EVERYWHERE: Final = {"lineitem", "orders", "auction", "bid"}
"""Tables of which each edge has a part; other tables are on one edge each ..."""
_CENTRAL: Final = {"nation", "region", "side_input"}
"""... or on the sink's node."""
_BATCH_ROWS: Final = 100
_ORDERS: Final = 1_500


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The fill of tables, and their changes."""

    fill: list[bytes]
    changes: list[bytes]


class PlacementQuality(Scenario):
    """Every query of NEXMark and TPC-H, placed by each strategy."""

    name: ClassVar[str] = "placement"
    about: ClassVar[str] = (
        "bytes per changed row that sources send, and that cross links (of two levels, with four"
        " edges) as each strategy places the query; x: beside the exact solver"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure ``--rows`` orders of TPC-H and bids of NEXMark."""
        lines = []
        rows = options.rows or _ORDERS
        for record, asked in (
            (_nexmark, nexmark_data.queries()),
            (_tpch, tpch_data.queries()),
        ):
            wanted = {n: q for n, q in asked.items() if not options.only or n in options.only}
            if wanted:
                with bed(options) as on:
                    lines += list(_placed(on, record(on, rows), wanted))
        return lines


def _nexmark(on: Bed, rows: int) -> _Recorded:
    with psycopg.connect(on.source, autocommit=True) as conn:
        recorder = Recorder(conn)
        conn.execute(tpch_data.DRAWS.encode())
        conn.execute(nexmark_data.TABLES)
        people = rows // 18

        def grow(low: int, high: int) -> None:
            for text, each in (
                (nexmark_data.PEOPLE, 1),
                (nexmark_data.AUCTIONS, 3),
                (nexmark_data.BIDS, 18),
            ):
                conn.execute(text.format(low=low * each + 1, high=high * each).encode())

        grow(0, people)
        fill = recorder.take()
        for number in range(people, people + people // 5):
            grow(number, number + 1)
        return _Recorded(fill, recorder.take())


def _tpch(on: Bed, rows: int) -> _Recorded:
    with psycopg.connect(on.source, autocommit=True) as conn:
        recorder = Recorder(conn)
        data = tpch_data.Tpch(conn, rows / 1_500_000)
        data.load()
        fill = recorder.take()
        for order in range(rows // 5):
            data.amend(order)
        assert sum(data.refresh(0, 0.02)), "something has changed"
        return _Recorded(fill, recorder.take())


def _placed(on: Bed, tape: _Recorded, queries: Mapping[str, str]) -> Iterator[Figures]:
    changed = rows_in(tape.changes)
    with closing(connect.session(on.source, name="bench")) as conn:
        described = Described(conn)
        for name, query in queries.items():
            request = PlanRequest(query, settings={"search_path": "public"})
            physical = plan(conn, request).physical
            rates = {n: sent / changed for n, sent in _sent(on, described, physical, tape).items()}
            yield _line(name, physical, Costs(rates))


def _sent(
    on: Bed, described: Described, physical: PhysicalPlan, tape: _Recorded
) -> dict[str, float]:
    """Return the bytes of the diffs of each operator while the tables change."""
    found: dict[str, float] = {}
    with closing(RemoteEvaluator(on.source, {})) as remote:
        for node in physical.nodes[:-1]:
            part = subplan(physical, node.id)
            with (
                tempfile.TemporaryDirectory(prefix="headrace-bench-") as home,
                closing(Unit(Path(home) / "state", part, described, remote)) as unit,
            ):
                unit.process(tape.fill, 1 << 30)
                found[node.id] = unit.process(tape.changes, _BATCH_ROWS).bytes
    return found


def _pins(physical: PhysicalPlan) -> Pins:
    pins: dict[str, str | Shards] = {physical.sink.id: "cloud"}
    for number, source in enumerate(physical.sources):
        if source.table_name in _EVERYWHERE:
            pins[source.id] = Shards(_EDGES, unique_keys=True)
        elif source.table_name in _CENTRAL:
            pins[source.id] = "cloud"
        else:
            pins[source.id] = _EDGES[number % len(_EDGES)]
    return pins


def _line(name: str, physical: PhysicalPlan, costs: Costs) -> Figures:
    pins = _pins(physical)
    found = {s: _try(physical, s, costs, pins) for s in Strategy}
    some = next(p for p in found.values() if p is not None)
    line: Figures = {
        "query": name,
        "operators": len(some.operators.by_name),
        "sources": round(some.operators.received, 1),
    }
    moved = {s: None if p is None else sum(p.crossing.values()) for s, p in found.items()}
    least = moved[Strategy.EXACT]
    for strategy, crossed in moved.items():
        line[strategy] = "-" if crossed is None else round(crossed, 1)
    for strategy, crossed in moved.items():
        if strategy is not Strategy.EXACT:
            known = crossed is not None and least
            line[f"{strategy}_x"] = round(crossed / least, 2) if known else "-"
    return line


def _try(physical: PhysicalPlan, strategy: Strategy, costs: Costs, pins: Pins) -> Placement | None:
    try:
        found = try_to_place(physical, _FOG, strategy, costs, pins, seed=1)
    except UserError as error:
        if error.code != "54001":
            raise
        return None
    return found if isinstance(found, Placement) else None
