"""create_view: names, privileges, the order of its steps; a failure leaves nothing."""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg import sql

from headrace.errors import HeadraceError, QueryCancelled, TransientError, UndefinedError
from headrace.population import staging
from headrace.population.names import parse
from headrace.sql.verbs import DropView
from headrace.views import drop
from tests.waiting import PATIENCE_S, wait_until

QUERY = "SELECT region, count(*) AS n FROM customers GROUP BY region"


@pytest.fixture
def role(bench):
    """Create a role that may read the shop and nothing else."""
    name = f"role_{bench.conn.info.dbname}"
    bench.conn.execute(f"CREATE ROLE {name} LOGIN")
    bench.conn.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}")
    yield name
    bench.conn.execute(f"DROP OWNED BY {name}")
    bench.conn.execute(f"DROP ROLE {name}")


def refused(bench, name: str, **given) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        bench.create(name, given.pop("query", QUERY), **given)
    bench.nothing_left()
    return caught.value


def test_view_appears_with_rows_progress_and_catalog(bench):
    done = bench.create("v", QUERY)
    assert bench.rows("TABLE v") == bench.rows(QUERY)
    assert done["rows"] == 6
    assert bench.worker.methods == ["hold", "hold", "adopt", "release"]
    row = bench.conn.execute(
        "SELECT v.status, v.owner, v.result_oid = 'v'::regclass, p.txid, p.epoch,"
        " p.lsn = v.start_lsn FROM headrace.views v JOIN headrace.progress p ON p.view_id = v.id"
    ).fetchone()
    assert row == ("running", "postgres", True, 7, 0, True)
    assert bench.published() == {"customers"}
    assert list(bench.settings.staging_dir.iterdir()) == []
    phases = [m["phase"] for m in bench.messages]
    order = ["planning", "publication", "snapshot", "reading", "writing", "adopting"]
    assert [p for p in dict.fromkeys(phases) if p in order] == order


def test_large_result_gets_its_index_afterwards(bench):
    bench.conn.execute(
        "INSERT INTO customers SELECT i, 'r', '' FROM generate_series(1000, 13000) i"
    )
    query = "SELECT id + 0 AS id, region FROM customers"
    bench.create("v", query)
    assert bench.rows("TABLE v") == bench.rows(query)
    names = bench.conn.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'v'").fetchall()
    oid = bench.conn.execute("SELECT 'v'::regclass::oid").fetchone()[0]
    assert names == [(f"headrace_row_hash_{oid}",)]


@pytest.mark.parametrize(
    "name", ["Quoted View", 'we"ird', "a.b", "select", "ünï", "x" * 63, "; DROP TABLE orders; --"]
)
def test_quoted_names(bench, name):
    quoted = sql.Identifier(name).as_string(bench.conn)
    bench.create(f"public.{quoted}", QUERY)
    assert bench.rows(f"TABLE public.{quoted}") == bench.rows(QUERY)
    assert bench.rows("SELECT count(*) FROM orders") == [("(500)",)]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "42602"), (" ", "42602"), ("a.b.c", "42602"), ("a b", "42602"), ('"', "42602"),
        ('""', "42602"), ("x\0y", "42602"), ("x" * 64, "42622"), ("ü" * 32, "42622"),
        ("1a", "42602"), ("pg_catalog.v", "42501"), ("headrace.v", "42501"),
        ("information_schema.v", "42501"), ("pg_temp.v", "42501"),
    ],
)  # fmt: skip
def test_invalid_names(bench, name, code):
    assert refused(bench, name).code == code


@pytest.mark.parametrize("name", ["orders", "v_taken", "idx_taken", "seq_taken"])
def test_taken_names(bench, name):
    bench.conn.execute(
        "CREATE VIEW v_taken AS SELECT 1; CREATE INDEX idx_taken ON orders (customer);"
        "CREATE SEQUENCE seq_taken"
    )
    error = refused(bench, name)
    assert error.code == "42P07"
    assert error.message == f'relation "{name}" already exists'


def test_name_of_a_type(bench):
    bench.conn.execute("CREATE TYPE mood AS ENUM ('a')")
    assert refused(bench, "mood").code == "42710"


def test_name_of_a_view_whose_table_is_gone(bench):
    bench.create("v", QUERY)
    bench.conn.execute("DROP TABLE v")
    with pytest.raises(HeadraceError) as caught:
        bench.create("v", QUERY)
    assert caught.value.code == "42P07"
    assert "drop_view" in caught.value.hint


def test_name_taken_while_it_is_populated(bench):
    job = bench.job()
    job._report = lambda m: (
        bench.conn.execute("CREATE TABLE IF NOT EXISTS v (a int)")
        if m["phase"] == "reading"
        else None
    )
    with pytest.raises(HeadraceError) as caught:
        bench.create("v", QUERY, job=job)
    assert caught.value.code == "42P07"
    bench.nothing_left()
    assert bench.rows("TABLE v") == []


def test_unqualified_name_goes_to_the_first_schema_of_the_path(bench):
    bench.conn.execute("CREATE SCHEMA second")
    bench.create("v", QUERY, settings={"search_path": "missing, second, public"})
    assert bench.rows("TABLE second.v") == bench.rows(QUERY)
    assert refused_code(bench, "w", {"search_path": "missing"}) == "3F000"


def refused_code(bench, name, settings) -> str:
    with pytest.raises(HeadraceError) as caught:
        bench.create(name, QUERY, settings=settings)
    return caught.value.code


def test_caller_needs_create_on_the_schema(bench, role):
    error = refused(bench, "public.v", caller=role)
    assert error.code == "42501"
    bench.conn.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
    bench.create("public.v", QUERY, caller=role)
    rights = bench.conn.execute(
        "SELECT has_table_privilege(%s, 'v', 'SELECT WITH GRANT OPTION'),"
        " has_table_privilege(%s, 'v', 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER'),"
        " pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'v'::regclass",
        (role, role),
    ).fetchone()
    assert rights == (True, False, "postgres")


@pytest.mark.parametrize(
    ("prepare", "query", "total"),
    [
        ("", "SELECT id FROM grown", None),
        ("DELETE FROM grown WHERE id > 1", "SELECT id FROM grown", None),
        # The table's statistics are older than its rows.
        ("TRUNCATE grown; ANALYZE grown; INSERT INTO grown SELECT generate_series(1, 560)",
         "SELECT id FROM grown", None),
        ("DELETE FROM grown WHERE id > 1; ANALYZE grown;"
         " INSERT INTO grown SELECT generate_series(2, 560)", "SELECT id FROM grown", 2),
        # The statistics give no count of the rows that pass.
        ("ANALYZE grown", "SELECT id FROM grown WHERE id < 3", None),
        ("ANALYZE grown", "SELECT a.id FROM grown a JOIN grown b USING (id)", 560),
    ],
)  # fmt: skip
def test_progress_tells_what_is_known(bench, prepare, query, total):
    """Without a count there is no total, part or remaining time; at the end all are known."""
    bench.conn.execute("CREATE TABLE grown (id int PRIMARY KEY)")
    bench.conn.execute("INSERT INTO grown SELECT generate_series(1, 560)")
    bench.conn.execute("ALTER TABLE grown SET (autovacuum_enabled = off)")
    for statement in prepare.split(";") if prepare else ():
        bench.conn.execute(statement)
    bench.messages.clear()
    done = bench.create("v", query)
    assert (done["rows"],) == bench.conn.execute("SELECT count(*) FROM v").fetchone()
    reading = [m for m in bench.messages if m["phase"] == "reading"]
    rows = bench.conn.execute(
        query.replace("a.id FROM grown a JOIN grown b USING (id)", "id FROM grown")
    ).rowcount
    first, last = reading[0], reading[-1]
    assert first.get("total") == total
    assert last.pop("view_id") > 0
    assert last == {"phase": "reading", "rows": rows, "total": rows, "percent": 100}
    assert not any("eta_s" in m for m in bench.messages), "it takes no time"


def test_missing_schema_is_made_for_those_who_may(bench, role):
    assert refused(bench, "fresh.v", caller=role).code == "3F000"
    bench.conn.execute(f"GRANT CREATE ON DATABASE {bench.conn.info.dbname} TO {role}")
    done = bench.create("fresh.v", QUERY, caller=role)
    assert done["notice"] == 'schema "fresh" was created'
    owner = bench.conn.execute(
        "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'fresh'"
    ).fetchone()
    assert owner == (role,)
    drop_view(bench, "fresh.v", role)


def drop_view(bench, name, caller=None):
    request = DropView(name, caller=caller, settings={"search_path": "public"})
    return drop.drop_view(bench.context, bench.job(), request)


def schemas(bench) -> set[str]:
    rows = bench.conn.execute("SELECT nspname FROM pg_namespace").fetchall()
    return {name for (name,) in rows}


def test_a_schema_that_was_made_goes_with_its_last_view(bench):
    for schema in ("fresh", "Old"):
        if schema == "Old":
            bench.conn.execute('CREATE SCHEMA "Old"')
        for name in ("v", "w"):
            done = bench.create(f'"{schema}".{name}', QUERY)
            made = (schema, name) == ("fresh", "v")
            assert ("notice" in done) == made
    assert "notice" not in drop_view(bench, "fresh.v")
    assert drop_view(bench, "fresh.w")["notice"] == 'schema "fresh" was dropped'
    for name in ("v", "w"):
        assert "notice" not in drop_view(bench, f'"Old".{name}')
    assert {"fresh", "Old"} & schemas(bench) == {"Old"}
    assert bench.conn.execute("TABLE headrace.made_schemas").fetchall() == []


@pytest.mark.parametrize(
    "taken",
    [
        "CREATE TABLE fresh.mine ()",
        "CREATE FUNCTION fresh.mine() RETURNS int LANGUAGE sql RETURN 1",
        "ALTER SCHEMA fresh OWNER TO {role}",
        "DROP SCHEMA fresh CASCADE; CREATE SCHEMA fresh",
    ],
)
def test_a_schema_that_somebody_has_taken_to_stays(bench, role, taken):
    bench.create("fresh.v", QUERY)
    for statement in taken.format(role=role).split(";"):
        bench.conn.execute(statement)
    assert "notice" not in drop_view(bench, "fresh.v")
    assert "fresh" in schemas(bench)
    bench.conn.execute("DROP SCHEMA fresh CASCADE")
    assert bench.create("fresh.v", QUERY)["notice"] == 'schema "fresh" was created'
    assert "notice" in drop_view(bench, "fresh.v")


def test_a_schema_is_not_left_by_a_failure(bench):
    assert (
        refused(bench, "fresh.v", query="SELECT 1 / (id - 3) AS q FROM customers").code == "22012"
    )
    assert bench.conn.execute("SELECT to_regnamespace('fresh')").fetchone() == (None,)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT nope FROM customers", "42703"),
        ("SELECT id FRM customers", "42601"),
        ("SELECT id, random() FROM customers", "0A000"),
        ("SELECT id, 1 / (id - 3) FROM customers", "22012"),
        ("SELECT * FROM nowhere", "42P01"),
    ],
)
def test_bad_queries_leave_nothing(bench, query, code):
    assert refused(bench, "v", query=query).code == code


def test_code_of_users_needs_a_role_for_it_also_without_rows(bench):
    bench.conn.execute("CREATE TABLE empty (id int PRIMARY KEY)")
    bench.conn.execute(
        "CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 * 2"
    )
    error = refused(bench, "v", query="SELECT twice(id) AS x FROM empty")
    assert error.code == "0A000"
    assert "headrace_eval" in (error.hint or "")


@pytest.mark.parametrize(
    "options",
    [
        {"populatoin": "spark"}, {"population": "fast"}, {"threshold_rows": "many"},
        {"threshold_rows": -1}, {"max_recursion_iterations": 0},
        {"max_recursion_rows": "many"}, {"max_recursion_iterations": True}, {"threshold_rows": True}, {"block": "no"},
    ],
)  # fmt: skip
def test_bad_options(bench, options):
    assert refused(bench, "v", options=options).code == "22023"


def test_no_tables_at_all(bench):
    bench.create("v", "SELECT 1 AS one, 'x'::text AS x UNION ALL VALUES (2, NULL)")
    assert bench.rows("TABLE v") == [("(1,x)",), ("(2,)",)]


@pytest.mark.parametrize("phase", ["planning", "publication", "snapshot", "reading", "writing"])
def test_cancel_leaves_nothing_at_any_step(bench, phase):
    job = bench.job()
    seen = []

    def report(message):
        seen.append(message["phase"])
        if message["phase"] == phase:
            job.cancel()

    job._report = report
    with pytest.raises(QueryCancelled):
        bench.create("v", QUERY, job=job)
    assert phase in seen
    bench.nothing_left()
    assert bench.conn.execute("SELECT to_regclass('v')").fetchone() == (None,)
    bench.create("v", QUERY)
    assert bench.rows("TABLE v") == bench.rows(QUERY)


def test_cancel_after_the_commit_comes_too_late(bench):
    job = bench.job()
    bench.worker.on_call = lambda method: job.cancel() if method == "adopt" else None
    bench.create("v", QUERY, job=job)
    assert bench.rows("TABLE v") == bench.rows(QUERY)


def test_worker_that_restarts_for_a_moment(bench):
    bench.worker.down = 3
    bench.create("v", QUERY)
    assert bench.rows("TABLE v") == bench.rows(QUERY)


def test_worker_that_stays_down_at_the_end_adopts_later(bench, monkeypatch):
    monkeypatch.setattr("headrace.population.handover._WORKER_WAIT_S", 0.3)

    def on_call(method: str) -> None:
        if method == "adopt":
            bench.worker.down = 1_000_000

    bench.worker.on_call = on_call
    done = bench.create("v", QUERY)
    assert bench.rows("TABLE v") == bench.rows(QUERY)
    assert staging.sealed(bench.settings.staging_dir) == [done["view_id"]]


def test_a_view_that_is_gone_before_it_is_adopted_leaves_no_files(bench):
    """Another session has populated it again meanwhile, under another id."""

    def on_call(method: str) -> None:
        if method == "adopt":
            raise UndefinedError("the view was dropped", sqlstate="42P01")

    bench.worker.on_call = on_call
    with pytest.raises(UndefinedError):
        bench.create("v", QUERY)
    assert list(bench.settings.staging_dir.iterdir()) == []


def test_worker_that_is_down_at_the_start(bench, monkeypatch):
    monkeypatch.setattr("headrace.population.handover._WORKER_WAIT_S", 0.3)
    bench.worker.down = 1_000_000
    with pytest.raises(TransientError):
        bench.create("v", QUERY)
    bench.nothing_left()


def test_stream_that_went_on_without_the_hold(bench):
    """A worker died with its LSN pin, and the next one confirmed too much: start again."""
    conn = bench.conn
    slot = bench.settings.slot_name
    conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    job = bench.job()
    done = []

    def report(message):
        if message["phase"] == "writing" and not done:
            conn.execute("INSERT INTO customers VALUES (888, 'r1', '')")
            done.append(
                conn.execute(
                    "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,)
                )
            )

    job._report = report
    bench.create("v", QUERY, job=job)
    assert bench.rows("TABLE v") == bench.rows(QUERY)
    assert bench.worker.methods == ["hold", "hold", "hold", "adopt", "release"]


@pytest.mark.parametrize("committed", [True, False])
def test_lost_answer_of_the_commit(bench, monkeypatch, committed):
    """The catalog has the outcome."""
    commit = psycopg.Connection.commit

    def lose(conn: psycopg.Connection) -> None:
        row = conn.execute("SELECT current_setting('application_name')").fetchone()
        if row == ("headrace publish",):
            if committed:
                commit(conn)
            conn.pgconn.finish()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        commit(conn)

    monkeypatch.setattr(psycopg.Connection, "commit", lose)
    if committed:
        bench.create("v", QUERY)
        assert bench.rows("TABLE v") == bench.rows(QUERY)
        assert bench.worker.methods[-2:] == ["adopt", "release"]
    else:
        with pytest.raises(TransientError):
            bench.create("v", QUERY)
        bench.nothing_left()


def test_publication_keeps_tables_of_other_views(bench):
    bench.create("a", "SELECT id FROM customers")
    with pytest.raises(HeadraceError):
        bench.create(
            "b", "SELECT o.id, 1 / (o.id - 5) AS q FROM orders o JOIN customers c ON o.id = c.id"
        )
    assert bench.published() == {"customers"}


def test_application_is_not_blocked(bench, in_thread):
    """P7: an open reader with a lock delays Headrace, never the application."""
    writes = 0
    stop = threading.Event()

    def write() -> None:
        nonlocal writes
        with psycopg.connect(bench.dsn, autocommit=True) as app:
            app.execute("SET lock_timeout = '5s'")  # the application never waits for a lock
            while not stop.is_set():
                app.execute("UPDATE customers SET note = note WHERE id = 1")
                writes += 1

    def blocked() -> bool:
        return bench.conn.execute(
            "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
            " AND relation = 'customers'::regclass"
        ).fetchone()[0]

    application = in_thread(write)
    try:
        with psycopg.connect(bench.dsn) as other:
            other.execute("LOCK TABLE customers IN SHARE UPDATE EXCLUSIVE MODE")
            creation = in_thread(lambda: bench.create("v", QUERY))
            wait_until(blocked, "we wait for the lock")
            before = writes
            wait_until(lambda: writes > before + 20, "the application goes on")
        creation.join(PATIENCE_S)
    finally:
        stop.set()
    application.join(PATIENCE_S)
    assert bench.rows("TABLE v") == bench.rows(QUERY)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("v", (None, "v")), ("V", (None, "v")), ('"V"', (None, "V")), ("s.v", ("s", "v")),
        ('"a.b"."c d"', ("a.b", "c d")), (' s . "v" ', ("s", "v")),
    ],
)  # fmt: skip
def test_parse(bench, text, want):
    assert parse(bench.conn, text) == want
