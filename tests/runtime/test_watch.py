"""DDL that the stream does not show: views stop with a reason, or rightly go on (E11, E12, H9)."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.errors import ContinuityLost, DefiniteFailure, HeadraceError, StructureChanged
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.spark import Spark
from headrace.postgres import fingerprint
from headrace.postgres.fingerprint import Present
from headrace.postgres.uses import Uses
from headrace.sql import results
from headrace.sql.verbs import CreateView
from headrace.sql.view_spec import ViewSpec
from headrace.views.create import create_view as populate_view
from tests.compared import differs
from tests.runtime.harness import Running, create_view, settle, source_plan
from tests.waiting import PATIENCE_S, wait_until

STOPS = {
    "rewritten": ("ALTER TABLE {t} ALTER v TYPE int USING v * 1000", "was rewritten"),
    "retyped": ("ALTER TABLE {t} ALTER v TYPE smallint", "another type"),
    "narrowed": ("ALTER TABLE {t} ALTER w TYPE varchar(5)", "another type"),
    "longer": ("ALTER TABLE {t} ALTER v TYPE bigint", "a wider type"),
    "widened": ("ALTER TABLE {t} ALTER w TYPE varchar(20)", "a wider type"),
    "moved": (
        "ALTER TABLE {t} RENAME w TO x; ALTER TABLE {t} RENAME v TO w;"
        "ALTER TABLE {t} DROP x; ALTER TABLE {t} ADD v int",
        'column "w" of table',
    ),
    "cut": ("ALTER TABLE {t} DROP v", "was dropped"),
    "readded": ("ALTER TABLE {t} DROP v; ALTER TABLE {t} ADD v int", "was dropped"),
    "dropped": ("DROP TABLE {t}", "was dropped"),
    "swapped": ("DROP TABLE {t}; CREATE TABLE {t} (LIKE keep)", "was dropped"),
    "unpublished": ("ALTER PUBLICATION headrace DROP TABLE {t}", "out of the publication"),
    "republished": (
        "ALTER PUBLICATION headrace DROP TABLE {t};ALTER PUBLICATION headrace ADD TABLE {t}",
        "for a while",
    ),
    "filtered": (
        "ALTER PUBLICATION headrace DROP TABLE {t};"
        "ALTER PUBLICATION headrace ADD TABLE {t} WHERE (id > 3)",
        "row filter",
    ),
    "full": ("ALTER TABLE {t} REPLICA IDENTITY FULL", "replica identity"),
    "nothing": ("ALTER TABLE {t} REPLICA IDENTITY NOTHING", "replica identity"),
    "keyless": ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "lost its replica identity"),
    "rekeyed": (
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id, v)",
        "another key",
    ),
    "parent": ("CREATE TABLE {t}_child () INHERITS ({t})", "inheritance children"),
}
FOLLOWED = {
    "rewritten", "longer", "widened", "full", "nothing", "keyless", "rekeyed", "parent",
    "relabelled", "reshaped",
}  # fmt: skip
"""Alterations that a resync repairs by itself, as it does those of ``LOST``."""
LOST = {"unpublished", "republished", "filtered"}
KINDS = dict.fromkeys(FOLLOWED, StructureChanged) | dict.fromkeys(LOST, ContinuityLost)
TYPES = {
    "relabelled": ("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", 'label "ok"'),
    "reshaped": ("ALTER TYPE pair ADD ATTRIBUTE c int", "attributes of type"),
}
HARMLESS = [
    "ANALYZE {t}",
    "ALTER TABLE {t} ALTER v SET STATISTICS 50",
    "VACUUM FULL {t}",
    "CLUSTER {t} USING {t}_pkey",
    "ALTER TABLE {t} ADD extra double precision DEFAULT random()",
    "ALTER TABLE {t} ALTER extra TYPE text USING 'x' || extra",
    "ALTER TABLE {t} DROP extra",
    "CREATE INDEX ON {t} (v)",
    "REINDEX TABLE CONCURRENTLY {t}",
    "ALTER TABLE {t} ALTER w SET DEFAULT 'x'",
    "TRUNCATE {t}",
    "ALTER TYPE mood ADD VALUE 'new' BEFORE 'ok'",
    "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",  # the owner is exempt from it
    "ALTER TABLE {t} RENAME TO other_name",
    "CREATE SCHEMA elsewhere",
    "ALTER TABLE other_name SET SCHEMA elsewhere",
    "ALTER SCHEMA elsewhere RENAME TO somewhere",
    "CREATE TABLE whole (LIKE somewhere.other_name) PARTITION BY RANGE (id)",
    "ALTER TABLE whole ATTACH PARTITION somewhere.other_name DEFAULT",
    "ALTER TABLE whole DETACH PARTITION somewhere.other_name",
]


READY = False


def table(name: str, extra: str = "") -> str:
    """Return the statements that create and fill the table."""
    return (
        f"CREATE TABLE {name} (id int PRIMARY KEY, v int NOT NULL, w varchar(10) {extra});"
        f"INSERT INTO {name} SELECT i, i, i FROM generate_series(1, 9) i;"
    )


TABLES = f"""
CREATE TYPE mood AS ENUM ('ok', 'bad');
CREATE TYPE pair AS (a int, b text);
{table("keep")}
"""


def make_table(conn: psycopg.Connection, name: str, extra: str = "") -> None:
    conn.execute(table(name, extra))


def contents(conn: psycopg.Connection, view: str) -> list[tuple]:
    return conn.execute(f'SELECT v::text FROM "{view}" v ORDER BY 1').fetchall()


def status(conn: psycopg.Connection, name: str) -> tuple:
    return conn.execute(
        "SELECT status, headrace.view_message(id), sqlstate FROM headrace.views WHERE view_name = %s",
        (name,),
    ).fetchone()


def stopped(conn: psycopg.Connection, name: str, *codes: str) -> str:
    """Wait until the view has stopped with one of the codes, and return its message."""
    wait_until(lambda: status(conn, name)[0] != "running", f"{name} does not stop")
    state, message, code = status(conn, name)
    assert state == "error", (name, message)
    assert code in (codes or ("55000", "55H01", "55H02")), (name, message)
    assert "CALL headrace.resync_view(" in message
    return message


def polled(running: Running) -> None:
    """Wait for a poll of the catalog that began after the call."""
    running.on(lambda: setattr(running.engine.watch, "due", 0.0))
    running.on(running.engine.look_at_catalog)


def test_looks_cost_little_where_nothing_has_changed(source, start, database, monkeypatch):
    """No read of the catalog while the source is idle; else one, without a comparison per view."""
    running = start(catalog_poll_ms=600_000)
    for name in ("a", "b", "c"):
        plan = source_plan(source, "keep")
        create_view(running, database, name, plan, "TABLE keep")
    polled(running)
    reads: list[object] = []
    compared: list[object] = []
    read, difference = Present.read.__func__, fingerprint.difference

    def counted(*asked):
        reads.append(asked)
        return read(*asked)

    def noted(*facts, **how):
        compared.append(facts)
        return difference(*facts, **how)

    monkeypatch.setattr(Present, "read", classmethod(counted))
    monkeypatch.setattr(fingerprint, "difference", noted)

    def idle() -> bool:
        """Return whether the server ran no transaction during one poll."""
        before = fingerprint.snapshot(source)
        polled(running)
        del reads[:]
        polled(running)
        return fingerprint.snapshot(source) == before

    wait_until(idle, "nothing happens for a moment")
    assert (reads, compared) == ([], [])
    source.execute("CREATE TABLE of_no_view (id int)")
    polled(running)
    assert len(reads) == 1
    assert compared == []
    create_view(running, database, "d", source_plan(source, "keep"), "TABLE keep")
    del compared[:]
    polled(running)
    assert len(compared) <= 1
    del compared[:]
    source.execute("ALTER TABLE keep ADD COLUMN of_no_use int")
    polled(running)
    assert len(compared) == 4
    source.execute("ALTER TABLE keep DROP COLUMN of_no_use")


def test_each_silent_alteration_stops_its_view_only(source, start, database):
    running = start(catalog_poll_ms=50)
    for name in STOPS:
        make_table(source, f"t_{name}")
    for name, kind in (("relabelled", "mood[]"), ("reshaped", "pair")):
        make_table(source, f"t_{name}", f", m {kind}")
    before = {}
    for name in [*STOPS, *TYPES]:
        plan, query = source_plan(source, f"t_{name}"), f"SELECT * FROM t_{name}"
        create_view(running, database, name, plan, query)
        before[name] = contents(source, name)
    create_view(running, database, "k", source_plan(source, "keep"), "TABLE keep")
    for name, (ddl, why) in (STOPS | TYPES).items():
        with source.transaction():
            source.execute(ddl.format(t=f"t_{name}"))
        message = stopped(source, name, KINDS.get(name, DefiniteFailure).sqlstate)
        assert why in message, (name, message)
    others = source.execute("SELECT count(*) FROM headrace.views WHERE status = 'running'")
    assert others.fetchone() == (1,)
    source.execute("INSERT INTO keep VALUES (100, 1, 'x')")
    settle(running, source)
    assert differs(source, "k", "SELECT * FROM keep") == []
    for name in STOPS:
        assert contents(source, name) == before[name], "the last contents are kept"


def test_harmless_alterations_stop_nothing(source, start, database):
    running = start(catalog_poll_ms=600_000)
    make_table(source, "t", ", m mood")
    plan = source_plan(source, "t")
    create_view(running, database, "v", plan, "SELECT id, v, w, m FROM t")
    table = "t"
    for number, ddl in enumerate(HARMLESS):
        source.execute(ddl.format(t=table))
        if "RENAME TO" in ddl or "SET SCHEMA" in ddl:
            table = source.execute(f"SELECT {plan.sources[0].table_oid}::regclass").fetchone()[0]
        polled(running)
        source.execute(
            f"INSERT INTO {table} (id, v, w, m) VALUES (%s, 1, 'y', 'bad')", (1000 + number,)
        )
        source.execute(f"UPDATE {table} SET v = v + 1 WHERE id %% 2 = %s", (number % 2,))
        settle(running, source)
        assert status(source, "v") == ("running", None, None), ddl
        assert differs(source, "v", f"SELECT id, v, w, m FROM {table}") == [], ddl
    named = source.execute("SELECT schema_name, table_name FROM headrace.view_tables")
    assert named.fetchall() in ([], [("somewhere", "other_name")])


def test_rows_after_an_alteration_are_not_taken_in(source, start, database):
    running = start(catalog_poll_ms=600_000)
    make_table(source, "t")
    create_view(running, database, "v", source_plan(source, "t"), "SELECT * FROM t")
    create_view(running, database, "k", source_plan(source, "keep"), "SELECT * FROM keep")
    source.execute("UPDATE t SET v = 5 WHERE id = 1")
    settle(running, source)
    before = source.execute("SELECT * FROM v ORDER BY 1").fetchall()
    with source.transaction():
        source.execute("UPDATE t SET v = 6 WHERE id = 2")
        source.execute("ALTER TABLE t ALTER v TYPE int USING v * 1000")
        source.execute("UPDATE t SET v = 7 WHERE id = 3")
        source.execute("INSERT INTO keep VALUES (50, 1, 'x')")
    assert "was rewritten" in stopped(source, "v")
    settle(running, source)
    assert source.execute("SELECT * FROM v ORDER BY 1").fetchall() == before
    assert differs(source, "k", "SELECT * FROM keep") == []


def test_facts_of_a_former_server_do_not_vouch_for_a_description(source, start, database):
    """They may show XIDs that the server has yet to assign, as after a failover."""
    running = start(catalog_poll_ms=600_000)
    make_table(source, "t")
    create_view(running, database, "v", source_plan(source, "t"), "SELECT * FROM t")
    source.execute("UPDATE t SET v = 5 WHERE id = 1")
    settle(running, source)
    polled(running)
    watch = running.engine.watch

    def forge() -> int:
        for facts in watch._now.values():
            facts["seen"] = f"{10**9}:{10**9}:"
        return len(watch._now)

    assert running.on(forge)
    before = source.execute("SELECT * FROM v ORDER BY 1").fetchall()
    source.execute("ALTER TABLE t ALTER v TYPE int USING v * 1000")
    source.execute("INSERT INTO t VALUES (60, 1, 'x')")
    assert "was rewritten" in stopped(source, "v")
    assert source.execute("SELECT * FROM v ORDER BY 1").fetchall() == before


def test_alteration_while_the_engine_is_down(source, start, database):
    running = start(catalog_poll_ms=600_000)
    make_table(source, "t")
    create_view(running, database, "v", source_plan(source, "t"), "SELECT * FROM t")
    create_view(running, database, "k", source_plan(source, "keep"), "SELECT * FROM keep")
    running.stop()
    source.execute("ALTER TABLE t ALTER v TYPE int USING v * 1000")
    source.execute("VACUUM FULL keep")
    source.execute("INSERT INTO keep VALUES (50, 1, 'x')")
    running = start(catalog_poll_ms=600_000)
    assert "was rewritten" in stopped(source, "v")
    settle(running, source)
    assert differs(source, "k", "SELECT * FROM keep") == []


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("DROP PUBLICATION headrace", "dropped"),
        ("DROP PUBLICATION headrace; CREATE PUBLICATION headrace FOR TABLE keep", "dropped"),
        ("ALTER PUBLICATION headrace SET (publish = 'insert')", "every change"),
        ("ALTER PUBLICATION headrace SET (publish_via_partition_root)", "every change"),
    ],
)
def test_publication_changed(source, start, database, ddl, why):
    running = start(catalog_poll_ms=50)
    create_view(running, database, "v", source_plan(source, "keep"), "SELECT * FROM keep")
    with source.transaction():
        source.execute(ddl)
        source.execute("UPDATE keep SET v = 50 WHERE id = 5")
    message = stopped(source, "v")
    # The stream may be the first to detect that there is no publication.
    assert why in message or "publication" in message, message
    if "ALTER" in ddl:
        source.execute(
            "ALTER PUBLICATION headrace"
            " SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = false)"
        )
    wait_until(lambda: running.book.stream is not None, "the stream does not come back")
    create_view(running, database, "w", source_plan(source, "keep"), "SELECT * FROM keep")
    source.execute("UPDATE keep SET v = 60 WHERE id = 6")
    settle(running, source)
    assert status(source, "w") == ("running", None, None)
    assert differs(source, "w", "SELECT * FROM keep") == []


def test_facts_of_a_version_that_kept_no_rights(source):
    """The owner's rights are unknown: such a view is populated again."""
    owner = names.role(source, None).oid
    uses = Uses(frozenset(), frozenset(), frozenset(), owner)
    taken = fingerprint.take(source, uses, "none", results.revisions)
    for before in (taken, {k: v for k, v in taken.items() if k != "rights"}):
        (now,) = fingerprint.read(source, [before], "none", results.revisions)
        error = fingerprint.difference(before, now)
        if "rights" in before:
            assert error is None
        else:
            assert isinstance(error, StructureChanged)


def test_functions_are_followed_through_their_bodies(source):
    source.execute(
        "CREATE FUNCTION deep(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x + 1';"
        "CREATE FUNCTION atomic(x int) RETURNS int IMMUTABLE RETURN deep(x);"
        "CREATE FUNCTION top(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
        " AS 'BEGIN RETURN atomic(x); END';"
        "CREATE FUNCTION unrelated(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x'"
    )
    oid = source.execute("SELECT 'top'::regproc::oid::bigint").fetchone()[0]
    owner = names.role(source, None).oid
    uses = Uses(frozenset(), frozenset(), frozenset({oid}), owner)
    before = fingerprint.take(source, uses, "none", results.revisions)

    def why(*, quiet=False):
        (now,) = fingerprint.read(source, [before], "none", results.revisions)
        return fingerprint.difference(before, now, quiet=quiet)

    source.execute(
        "CREATE OR REPLACE FUNCTION unrelated(x int) RETURNS int IMMUTABLE"
        " LANGUAGE sql AS 'SELECT 7'"
    )
    assert why() is None
    source.execute("ALTER FUNCTION top COST 5")
    assert why(quiet=True) is None
    assert "may have been another" in why().message
    source.execute(
        "CREATE OR REPLACE FUNCTION deep(x int) RETURNS int IMMUTABLE"
        " LANGUAGE sql AS 'SELECT x + 2'"
    )
    assert "deep(integer) was replaced" in why(quiet=True).message


class _Direct:
    """The builder's worker: an engine of this process."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def call(self, method, params, job=None, *, cancellable=True):
        running, lifecycle = self._running, self._running.engine.lifecycle
        if method == "hold":
            hold = running.book.holds.grant(params["job"])
            return {"txid": hold.txid, "lsn": hold.lsn}
        if method == "adopt":
            running.on(lambda: lifecycle.adopt(params["view_id"])).result(PATIENCE_S)
        if method == "release":
            running.on(lambda: lifecycle.release(params["job"]))
        return {}


# Not "writing": the transaction has locked the table then, and the statement would wait.
PHASES = ("publication", "snapshot", "reading", "adopting")


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE keep ALTER v TYPE int USING v + 1000",
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
        "TRUNCATE keep",
        "VACUUM FULL keep",
    ],
)
def test_alteration_during_population(source, start, database, ddl):
    """After each step the view is exact, or it was refused, or it stopped."""
    source.execute("ALTER TABLE keep ADD m mood")
    running = start(catalog_poll_ms=50)
    running.engine.running.wait(PATIENCE_S)
    settings = running.settings
    context = JobContext(settings, _Direct(running), Spark(settings))
    ends = set()
    for phase in PHASES:
        source.execute("INSERT INTO keep SELECT i, i, i, 'ok' FROM generate_series(20, 29) i"
                       " ON CONFLICT (id) DO UPDATE SET m = 'ok'")  # fmt: skip
        other = psycopg.connect(make_conninfo(database), autocommit=True)

        def report(message, phase=phase, other=other):
            if message["phase"] == phase and not other.closed:
                other.execute(ddl)
                other.close()

        name = f"v_{phase}"
        request = CreateView(
            name,
            "SELECT id, v, w, m, m = 'ok' AS fine FROM keep",
            ViewSpec.of({"population": "local"}),
            settings={"search_path": "public"},
        )
        try:
            populate_view(context, Job(report), request)
        except HeadraceError:
            refused = True
        else:
            refused = False
        if status(source, name) is None:
            ends.add("refused")
            found = source.execute("SELECT to_regclass(%s)", (name,)).fetchone()
            assert refused
            assert found == (None,), "nothing is left"
        else:
            assert other.closed, "the statement has run"
            polled(running)
            source.execute("UPDATE keep SET v = v + 1")
            settle(running, source)
            if status(source, name)[0] == "running":
                ends.add("exact")
                query = "SELECT id, v, w, m, m = 'ok' AS fine FROM keep"
                assert differs(source, name, query) == [], phase
            else:
                ends.add("stopped")
                stopped(source, name)
        other.close()
        if "RENAME VALUE" in ddl:
            source.execute("ALTER TYPE mood RENAME VALUE 'fine' TO 'ok'")
    if "VACUUM" in ddl or "TRUNCATE" in ddl:
        assert ends == {"exact"}
    else:
        assert ends >= {"stopped"}


def test_renaming_during_population(source, start, database):
    """Two columns exchange their names while they are read: the view has the requested ones."""
    source.execute("CREATE TABLE n (id int PRIMARY KEY, a int, b int)")
    source.execute("INSERT INTO n SELECT i, i, -i FROM generate_series(1, 9) i")
    running = start(catalog_poll_ms=50)
    running.engine.running.wait(PATIENCE_S)
    settings = running.settings
    context = JobContext(settings, _Direct(running), Spark(settings))
    first, second = "a", "b"
    for phase in PHASES:
        other = psycopg.connect(make_conninfo(database), autocommit=True)

        def report(message, phase=phase, other=other):
            if message["phase"] == phase and not other.closed:
                for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
                    other.execute(f"ALTER TABLE n RENAME {old} TO {new}")
                other.execute("INSERT INTO n (id, a) SELECT max(id) + 1, 7 FROM n")
                other.close()

        request = CreateView(
            f"v_{phase}",
            f"SELECT id, {first} AS x, {second} AS y FROM n",
            ViewSpec.of({"population": "local"}),
            settings={"search_path": "public"},
        )
        populate_view(context, Job(report), request)
        assert other.closed, "the names were exchanged"
        first, second = second, first
        source.execute("UPDATE n SET a = a + 1 WHERE id % 2 = 0")
        settle(running, source)
        assert status(source, f"v_{phase}") == ("running", None, None)
        assert differs(source, f"v_{phase}", f"SELECT id, {first}, {second} FROM n") == [], phase
