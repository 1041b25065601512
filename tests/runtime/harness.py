"""An engine in this process, on a real Postgres, with views populated by hand.

The population follows the builder's order: hold, publish, temporary slot with snapshot, load, state
runs, result table and progress in one transaction, adopt.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

from headrace.collections import plan
from headrace.collections.dataflow import Dataflow, load_columns
from headrace.config import Settings
from headrace.expressions.ir import Expr
from headrace.expressions.remote import RemoteEvaluator
from headrace.forwarder import policy
from headrace.kernels import copytext, text
from headrace.population import uses
from headrace.population.names import role
from headrace.postgres import connect, fingerprint, publication
from headrace.runtime import positions
from headrace.runtime.engine import Engine
from headrace.runtime.positions import Position
from headrace.sink import keys, table
from headrace.sql import results, watched
from headrace.state import layout
from headrace.state.memory import MemoryStore
from headrace.state.rocks import RocksDatabase
from headrace.types import WEIGHT, Field, parse_lsn
from tests.compared import differs
from tests.runs import write_run
from tests.waiting import PATIENCE_S, wait_until

ITEMS = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric);
INSERT INTO items SELECT i, 'n' || i, i * 1.50 FROM generate_series(1, 20) i;
"""


class Running:
    """A running engine; ``stop`` is clean, ``crash`` drops it without a final checkpoint."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = Engine(settings)
        self.book = self.engine.state
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.engine.run()
        except BaseException as error:  # noqa: BLE001  for the test to see
            self.error = error

    def hold(self, job: str) -> Position:
        """Let the engine retain the WAL that a population needs."""
        return self.book.holds.grant(job)

    def on(self, work: Callable[[], Any]) -> Any:
        asked = self.engine.submit(work)
        wait_until(lambda: asked.done() or self.error is not None, "it is done", every_s=0.002)
        if self.error is not None and not asked.done():
            raise self.error
        return asked.result()

    def stop(self) -> None:
        self.engine.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def starting(dsn: str, folder: Path, *, ready: bool = True) -> Iterator[Callable[..., Running]]:
    """Yield a function that starts an engine; stop the engines that still run at the end.

    With ``ready``, the function returns once the first stream has started.
    """
    started: list[Running] = []

    def run(dsn: str = dsn, **changes: Any) -> Running:
        running = Running(settings_for(dsn, folder, **changes))
        started.append(running)
        assert not ready or running.engine.running.wait(PATIENCE_S)
        return running

    yield run
    for running in started:
        if running.thread.is_alive():
            running.stop()


def copy_state(running: Running, to: Path) -> None:
    """Copy the state directory while no checkpoint is being written."""

    def copy() -> None:
        running.engine.durability.still()
        shutil.copytree(running.settings.state_dir, to, ignore=shutil.ignore_patterns("LOCK"))

    running.on(copy)


def lose_state_since(copy: Path, state: Path) -> None:
    """Replace a state directory by an earlier copy of it, except the epochs, which are synced."""
    meta: positions.Meta = {}
    files = RocksDatabase(state)
    positions.put_epoch(meta, positions.get_epoch(files))
    positions.put_begun(meta, positions.get_begun(files))
    files.close()
    shutil.rmtree(state)
    shutil.copytree(copy, state)
    files = RocksDatabase(state)
    files.put_meta(meta, sync=True)
    files.close()


def settings_for(dsn: str, folder: Path, **changes: Any) -> Settings:
    name = conninfo_to_dict(dsn)["dbname"]
    return Settings(
        source=dsn,
        data_dir=folder,
        slot_name=f"headrace_{name}",
        publication_name="headrace",
        **{"batch_interval_ms": 5, "sink_retry_ms": 100, "lock_timeout_ms": 300}
        | {"checkpoint_interval_ms": 20}
        | changes,
    )


def source_plan(
    conn: psycopg.Connection, name: str, *, filtered: Expr | None = None
) -> plan.PhysicalPlan:
    """Return a plan of all columns of a table (primary key ``id``), perhaps filtered or mapped."""
    rows = conn.execute(
        "SELECT attnum, attname, atttypid::int, atttypmod, attcollation::int"
        " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        " AND NOT attisdropped ORDER BY attnum",
        (name,),
    ).fetchall()
    oid = conn.execute("SELECT %s::regclass::oid::int", (name,)).fetchone()[0]
    columns = tuple(plan.SourceColumn(*row) for row in rows)
    schema = tuple(Field(c.name, c.oid, c.typmod, c.collation) for c in columns)
    key = tuple(c for c in columns if c.name == "id")
    source = plan.SourceSpec("s", oid, "public", name, columns, key, not key, schema=schema)
    nodes: list[plan.Node] = [source]
    if filtered is not None:
        nodes.append(plan.FilterSpec("f", "s", (filtered,), schema))
    nodes.append(plan.SinkSpec("sink", nodes[-1].id, schema))
    return plan.PhysicalPlan(tuple(nodes))


def create_view(
    running: Running,
    dsn: str,
    name: str,
    physical: plan.PhysicalPlan,
    query: str,
    *,
    between: Callable[[], None] = lambda: None,
    adopt: bool = True,
    more: Mapping[str, object] | None = None,
) -> int:
    """Populate and adopt a view; ``between`` runs after the snapshot, before the adoption.

    ``more``: other facts of the population, as ``fed_by``.
    """
    settings = running.settings
    running.engine.running.wait(PATIENCE_S)
    hold = running.hold(name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        view_id = conn.execute(
            "INSERT INTO headrace.views (schema_name, view_name, query, plan, status)"
            " VALUES ('public', %s, %s, %s, 'populating') RETURNING id",
            (name, query, json.dumps(plan.to_json(physical))),
        ).fetchone()[0]
        publication.add_tables(conn, settings, [s.table_oid for s in physical.sources], watched.fed)
    store = MemoryStore()
    lsn, result, facts_of_source = populate(dsn, physical, store, settings)
    between()
    folder = settings.staging_dir / str(view_id)
    folder.mkdir(parents=True)
    runs = ["0.sst"] if write_run(folder / "0.sst", store.dump(), pack=True) else []
    facts = {"view_id": view_id, "txid": hold.txid, "lsn": hold.lsn, "start_lsn": lsn} | dict(
        more or {}
    )
    (folder / "manifest.json").write_text(
        json.dumps({**facts, "runs": runs, "format": layout.FORMAT})
    )
    with psycopg.connect(connect.conninfo(dsn, name="test")) as conn:
        conn.execute("SET search_path = public")
        key = physical.sink.key
        oid = table.create(conn, "public", name, query, keyed=bool(key))
        if key:
            keys.add(conn, sql.Identifier("public", name), key)
        names = [f.name for f in physical.sink.schema]
        columns = [text.render(result.column(i), f.oid) for i, f in enumerate(physical.sink.schema)]
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(name), sql.SQL(", ").join(map(sql.Identifier, names))
        )
        with conn.cursor().copy(statement) as copy:
            copy.write(copytext.join(columns))
        conn.execute(
            "INSERT INTO headrace.progress (view_id, txid, lsn) VALUES (%s, %s, %s::pg_lsn)",
            (view_id, hold.txid, f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"),
        )
        conn.execute(
            "UPDATE headrace.views SET status = 'running', result_oid = %s,"
            " start_lsn = %s, watched = %s WHERE id = %s",
            (oid, f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}", Jsonb(facts_of_source), view_id),
        )
    if adopt:
        running.on(lambda: running.engine.lifecycle.adopt(view_id)).result(PATIENCE_S)
        running.on(lambda: running.engine.lifecycle.release(name))
    return view_id


def populate(
    dsn: str, physical: plan.PhysicalPlan, store: MemoryStore, settings: Settings
) -> tuple[int, pa.RecordBatch, dict[str, Any]]:
    """Return (consistent point, first result, facts), read in the snapshot of a temporary slot."""
    info = connect.conninfo(dsn, name="population", replication=True)
    flow = Dataflow(physical, store, RemoteEvaluator(dsn, {}, None), 0)
    with psycopg.connect(info, autocommit=True) as slot:
        slot.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        made = slot.execute(
            f"CREATE_REPLICATION_SLOT tmp_{slot.info.backend_pid} TEMPORARY LOGICAL"
            " pgoutput USE_SNAPSHOT"
        ).fetchone()
        lsn = parse_lsn(made[1])
        for source in physical.sources:
            columns = load_columns(source)
            names = sql.SQL(", ").join(sql.Identifier(c.name) for c in columns)
            query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(
                names, sql.Identifier(source.schema_name, source.table_name)
            )
            with slot.cursor().copy(query.as_string(slot)) as copy:
                data = b"".join(bytes(piece) for piece in copy)
            split = copytext.split(data, len(columns))
            typed = [text.parse(c, s.oid) for c, s in zip(split, columns, strict=True)]
            flow.load(source.table_oid, typed)
        name = slot.execute("SELECT pg_export_snapshot()").fetchone()[0]
        with psycopg.connect(dsn) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute(f"SET TRANSACTION SNAPSHOT '{name}'")
            used = uses.of(physical, role(reader, None).oid)
            facts = fingerprint.take(reader, used, settings.publication_name, results.revisions)
        slot.execute("ROLLBACK")
    result = flow.end(0)
    weights = result.column(WEIGHT).to_numpy()
    rows = result.take(pa.array(np.arange(len(weights)).repeat(weights)))
    return lsn, rows, facts


def no_checkpoints(running: Running) -> None:
    """Let no checkpoint begin by itself from now on."""
    running.book.checkpoints._limits = policy.CheckpointLimits(10**9, 1e9, 1e9)


def settle(
    running: Running,
    conn: psycopg.Connection,
    seconds: float = PATIENCE_S,
    names: Collection[str] = (),
) -> None:
    """Wait until the engine has processed everything committed before the call.

    Views that are blocked, lost or stopped are waited for only if they are named.
    """
    row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    target = parse_lsn(row[0])
    conn.execute("SELECT pg_logical_emit_message(false, 'test', 'x')")
    book = running.book

    def covered() -> bool:
        if running.error is not None:
            raise running.error
        return book.position.lsn >= target and all(
            not (v.live or v.target.table_name in names) or v.mark.txid >= book.position.txid
            for v in list(book.views.values())
        )

    def story() -> object:
        return book.position, target, book.error, book.story.lines()

    wait_until(covered, story, seconds, every_s=0.002)


def check(running: Running, conn: psycopg.Connection, **queries: str) -> None:
    """Check that each view (name=query) shows everything committed before the call."""
    settle(running, conn, names=queries)
    for name, query in queries.items():
        assert differs(conn, name, query) == [], name
