"""A commit group in one round trip: concurrent alterations, lost connections, and blame."""

# ruff: noqa: F811

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.errors import FencedError, RightEnded, SinkBlocked, SinkTableError, TransientError
from headrace.process import faults
from headrace.runtime import pipelined_commit, writing
from headrace.runtime.ownership import Owner
from headrace.sql import progress
from headrace.types import arrow_schema
from tests.proxy import Proxy
from tests.runtime.harness import settings_for
from tests.runtime.test_engine_writing import SCHEMA, View, conn, job, owner, sink  # noqa: F401
from tests.waiting import PATIENCE_S


@pytest.fixture
def careful(monkeypatch) -> list[int]:
    """Collect the txids that were written view by view."""
    seen: list[int] = []
    carefully = writing._Group._carefully

    def noted(self):
        seen.append(self._job.txid)
        return carefully(self)

    monkeypatch.setattr(writing._Group, "_carefully", noted)
    return seen


def write(sink, owner, txid: int, *parts, good: bool = True) -> dict:
    answer = sink.write(owner, job(txid, *parts))
    assert not (good and answer.failed)
    return answer.failed


def changed(view: View, **rows: int):
    """Return a part with rows by their weights: ``changed(v, a1=-1, a2=1)``."""
    values = [int(name.removeprefix("a")) for name in rows]
    diffs = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.int32()), pa.array(list(rows.values()), pa.int64())],
        schema=arrow_schema(SCHEMA),
    )
    return replace(view.part(), diffs=diffs)


def test_what_a_table_is_known_for_takes_one_round_trip(conn, owner, sink, careful):
    a, b, c = View(conn, 1), View(conn, 2), View(conn, 3, "g")
    write(sink, owner, 1, a.part(1, 2), b.part(1), c.part(1))
    assert careful == [1, 1]
    write(sink, owner, 2, changed(a, a1=-1, a3=2), changed(b, a1=-1), c.part(2))
    write(sink, owner, 3, changed(a, a3=-1), b.part(4), c.part())
    assert careful == [1, 1]
    assert (a.rows, b.rows, c.rows) == ([2, 3], [4], [1, 2])
    assert a.stored[1] == b.stored[1]
    assert (a.stored[0], b.stored[0], c.stored[0]) == (3, 3, 2)
    many = [1] * (pipelined_commit.ROWS_MAX + 1)
    write(sink, owner, 4, a.part(*many))
    assert careful == [1, 1, 4]
    assert len(a.rows) == 2 + len(many)


def test_what_is_large_is_written_view_by_view(conn, owner, sink, careful, monkeypatch):
    """All parts of a large batch are written so: the batch need not be in memory as a whole."""
    a, b = View(conn, 1), View(conn, 2)
    write(sink, owner, 1, a.part(1), b.part(1))
    parts = [a.part(*range(100)), b.part(*range(100))]
    monkeypatch.setattr(pipelined_commit, "BYTES_MAX", sum(part.diffs.nbytes for part in parts))
    write(sink, owner, 2, *parts)
    assert careful == [1]
    write(sink, owner, 3, a.part(*range(101)), b.part(*range(100)))
    assert careful == [1, 3]
    write(sink, owner, 4, changed(a, a100=-1))
    assert careful == [1, 3]
    assert (len(a.rows), len(b.rows)) == (201, 201)


SPY = (
    "CREATE SEQUENCE public.ran; CREATE FUNCTION public.spy() RETURNS trigger LANGUAGE plpgsql"
    " AS $$BEGIN PERFORM nextval('public.ran'); RETURN NEW; END$$;"
    "CREATE FUNCTION public.spies() RETURNS boolean LANGUAGE plpgsql"
    " AS $$BEGIN PERFORM nextval('public.ran'); RETURN true; END$$;"
)
"""A sequence shows the statements that have run, also where they were rolled back."""
ON = "public.v1 FOR EACH ROW EXECUTE FUNCTION public.spy()"
PLANTED = {
    "before row": f"CREATE TRIGGER x BEFORE INSERT OR UPDATE OR DELETE ON {ON}",
    "after row": f"CREATE TRIGGER x AFTER INSERT OR DELETE ON {ON}",
    "deferred": "CREATE CONSTRAINT TRIGGER x AFTER INSERT ON public.v1 DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION public.spy()",
    "statement": "CREATE TRIGGER x BEFORE INSERT ON public.v1 EXECUTE FUNCTION public.spy()",
    "always": f"CREATE TRIGGER x BEFORE INSERT ON {ON}; ALTER TABLE v1 ENABLE ALWAYS TRIGGER x",
    "rule": "CREATE RULE x AS ON INSERT TO public.v1 DO ALSO SELECT public.spies()",
    "policy": "CREATE POLICY x ON public.v1 USING (public.spies()) WITH CHECK (public.spies());"
    "ALTER TABLE public.v1 ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
    "check": "ALTER TABLE public.v1 ADD CHECK (public.spies()) NOT VALID",
    "default": "ALTER TABLE public.v1 ADD b boolean DEFAULT public.spies()",
    "replaced": "ALTER TABLE public.v1 RENAME TO was; CREATE TABLE public.v1 (a int);"
    f"CREATE TRIGGER x BEFORE INSERT ON {ON}",
    "view": "ALTER TABLE public.v1 RENAME TO was; CREATE VIEW public.v1 AS"
    " SELECT 1 AS a WHERE public.spies(); CREATE TRIGGER x INSTEAD OF INSERT OR DELETE ON " + ON,
    "dropped": "DROP TABLE public.v1; CREATE TABLE public.v1 (a int CHECK (public.spies()))",
    "partitioned": "DROP TABLE public.v1; CREATE TABLE public.v1 (a int) PARTITION BY LIST (a);"
    "CREATE TABLE public.p PARTITION OF public.v1 DEFAULT;"
    f"CREATE TRIGGER x BEFORE INSERT ON {ON}",
    "domain": "CREATE DOMAIN public.sly AS int CHECK (public.spies());"
    "ALTER TABLE public.v1 ALTER a TYPE public.sly",
    "part": "CREATE FUNCTION public.spied(int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
    " AS $$BEGIN PERFORM nextval('public.ran'); RETURN $1; END$$; CREATE TABLE public.whole (a int)"
    " PARTITION BY LIST (public.spied(a)); CREATE TABLE public.part PARTITION OF public.whole"
    " FOR VALUES IN (-1); ALTER TABLE public.whole ATTACH PARTITION public.v1 DEFAULT",
    "moved": "CREATE SCHEMA other; ALTER TABLE public.v1 SET SCHEMA other;"
    f"CREATE TABLE public.v1 (a int); CREATE TRIGGER x BEFORE INSERT ON {ON}",
}


@pytest.mark.parametrize("how", PLANTED)
@pytest.mark.parametrize("first", [1, 2], ids=["alone", "behind another"])
def test_code_that_was_planted_between_two_writes_does_not_run(
    conn, owner, sink, careful, how, first
):
    views = [View(conn, n) for n in range(first, 0, -1)]
    a = views[-1]
    write(sink, owner, 1, *(v.part(1, 2) for v in views))
    write(sink, owner, 2, *(v.part(3) for v in views))
    assert careful == [1]
    conn.execute(SPY)
    conn.execute(PLANTED[how])
    conn.execute("ALTER SEQUENCE public.ran RESTART")
    failed = write(sink, owner, 3, *(changed(v, a1=-1, a4=1) for v in views), good=False)
    assert set(failed) == {1}
    assert isinstance(failed[1], SinkTableError)
    assert careful == [1, 3]
    assert conn.execute("SELECT is_called FROM public.ran").fetchone() == (False,), "nothing ran"
    assert a.stored[0] == 2
    assert all(v.rows == [2, 3, 4] for v in views[:-1]), "the others go on"


def test_what_is_harmless_costs_one_look(conn, owner, sink, careful):
    a = View(conn, 1)
    write(sink, owner, 1, a.part(1))
    conn.execute("ALTER TABLE v1 ALTER a SET DEFAULT 7")
    for txid in (2, 3):
        write(sink, owner, txid, a.part(txid))
    assert careful == [1, 2]
    assert a.rows == [1, 2, 3]


def test_rows_that_somebody_took_away(conn, owner, sink, careful):
    a, b = View(conn, 1), View(conn, 2)
    write(sink, owner, 1, a.part(1, 2), b.part(1))
    conn.execute("DELETE FROM v1 WHERE a = 1")
    failed = write(sink, owner, 2, changed(a, a1=-1, a5=1), b.part(2), good=False)
    assert "changed by another program" in failed[1].message
    assert (a.rows, b.rows) == ([2], [1, 2])
    assert careful == [1, 2]
    # The failed view is removed, and the others use the pipelined commit again.
    write(sink, owner, 3, changed(a, a2=-1), b.part(3))
    assert careful == [1, 2]
    assert (a.rows, b.rows) == ([2], [1, 2, 3])


@pytest.mark.parametrize("how", ["rows", "rights", "savepoint", "transaction"])
def test_a_rollback_makes_no_other_transaction_careful(conn, owner, sink, careful, how):
    """On a rollback psycopg has the server deallocate all prepared statements, also the sink's."""
    a, b = View(conn, 1), View(conn, 2)
    for _ in range(10):
        owner.look()
    write(sink, owner, 1, a.part(1, 2), b.part(1))
    write(sink, owner, 2, a.part(3), b.part(2))
    if how in ("rows", "rights"):
        part = changed(a, a7=-1) if how == "rows" else a.part(5)
        rights = (("owner", 1, 0, (), 0),) if how == "rights" else ()
        failed = write(sink, owner, 3, replace(part, rights=rights), b.part(3), good=False)
        assert set(failed) == {1}
        seen = [1, 3]
    else:
        undone = ["SAVEPOINT s", "ROLLBACK TO s"] if how == "savepoint" else []
        for statement in ("BEGIN", *undone, "ROLLBACK" if how == "transaction" else "COMMIT"):
            owner.sink.execute(statement)
        write(sink, owner, 3, b.part(3))
        seen = [1]
    for txid in (4, 5):
        write(sink, owner, txid, b.part(txid))
    assert careful == seen
    assert b.rows == [1, 2, 3, 4, 5]


def test_one_failure_after_the_other_is_got_over(conn, owner, sink, careful):
    """Prepared statements have one owner: none misses a statement that another deallocated."""
    a, b = View(conn, 1), View(conn, 2)
    write(sink, owner, 1, a.part(1), b.part(1))
    for txid in range(2, 30, 2):
        conn.execute(f"ALTER TABLE v1 ALTER a SET DEFAULT {txid}")  # harmless, but unknown
        write(sink, owner, txid, changed(a, **{f"a{txid - 1}": -1, f"a{txid}": 1}), b.part(txid))
        for _ in range(7 if txid > 6 else 0):
            owner.look()
        last = changed(a, **{f"a{txid}": -1, f"a{txid + 1}": 1})
        write(sink, owner, txid + 1, last, b.part(txid + 1))
        if txid > 6:
            owner.look()
    assert careful == [1, *range(2, 30, 2)]
    assert (a.rows, b.rows) == ([29], [*range(1, 30)])


def test_a_locked_table_is_waited_for_once(conn, owner, sink, careful, database):
    a, b = View(conn, 1), View(conn, 2)
    write(sink, owner, 1, a.part(1), b.part(1))
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE v1 IN SHARE MODE")
        failed = write(sink, owner, 2, a.part(2), b.part(2), good=False)
        assert isinstance(failed[1], SinkBlocked)
        assert str(blocker.info.backend_pid) in (failed[1].detail or "")
        write(sink, owner, 3, a.part(3), b.part(3))
    assert careful == [1, 2]
    assert (a.rows, b.rows) == ([1], [1, 2, 3])


def test_rights_that_have_ended(conn, owner, sink, careful):
    a, b = View(conn, 1), View(conn, 2)
    role = f"reader_{conn.info.dbname}"
    conn.execute(f"CREATE ROLE {role}; CREATE TABLE t (a int); GRANT SELECT ON t TO {role}")
    try:
        oid, table = conn.execute(f"SELECT '{role}'::regrole::oid::int, 't'::regclass::oid::int")\
            .fetchone()  # fmt: skip
        rights = (("select", oid, table, (), 0),)
        write(sink, owner, 1, replace(a.part(1), rights=rights), b.part(1))
        write(sink, owner, 2, replace(a.part(2), rights=rights), b.part(2))
        assert careful == [1]
        conn.execute(f"REVOKE SELECT ON t FROM {role}")
        parts = replace(a.part(3), rights=rights), b.part(3)
        failed = write(sink, owner, 3, *parts, good=False)
        assert isinstance(failed[1], RightEnded)
        assert (a.rows, b.rows) == ([1, 2], [1, 2, 3])
    finally:
        conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_another_owner_fences_a_quick_write(conn, owner, sink):
    a, b = View(conn, 1), View(conn, 2)
    write(sink, owner, 1, a.part(1), b.part(1))
    progress.take_over(conn, [2])
    with pytest.raises(FencedError):
        sink.write(owner, job(2, a.part(2), b.part(2)))
    assert (a.rows, b.rows) == ([1], [1])


def test_a_view_that_is_gone(conn, owner, sink):
    a, b = View(conn, 1), View(conn, 2)
    write(sink, owner, 1, a.part(1), b.part(1))
    progress.end(conn, 2)
    answer = sink.write(owner, job(2, a.part(2), b.part(2)))
    assert answer.gone == {2}
    assert set(answer.progress) == {1}
    assert (a.rows, b.rows) == ([1, 2], [1])


@pytest.fixture
def trap():
    yield faults.arm
    faults.arm("")


@pytest.mark.parametrize("how", ["sent", "answered", "terminated", "cut"])
def test_a_pipeline_that_dies_in_the_middle(
    conn, owner, sink, careful, trap, database, tmp_path, monkeypatch, how
):
    """Nothing of it stays; afterwards the same work is done once."""
    views = [View(conn, n) for n in (1, 2)]
    write(sink, owner, 1, *(v.part(1) for v in views))
    parts = [changed(v, a1=-1, a2=1) for v in views]
    if how in ("sent", "answered"):
        trap("cp12b:raise:1" if how == "sent" else "cp13:raise:1")
        with pytest.raises(TransientError):
            sink.write(owner, job(2, *parts))
    else:

        def hurt(name: str) -> None:
            if name != faults.PIPELINE_SENT or owner.sink.closed:
                return
            if how == "cut":
                owner.interrupt()
            else:
                conn.execute("SELECT pg_terminate_backend(%s, 60000)", (owner.pid,))

        # A locked row stops the server in the middle.
        with psycopg.connect(database) as blocker, monkeypatch.context() as patched:
            blocker.execute("SELECT FROM v2 FOR UPDATE")
            patched.setattr(faults, "point", hurt)
            with pytest.raises(psycopg.OperationalError):
                sink.write(owner, job(2, *parts))
    owner.close()
    second = Owner(settings_for(database, tmp_path, lock_timeout_ms=300))
    try:
        sink.start(second)
        for view, owned in progress.take_over(second.conn, [1, 2]).items():
            views[view - 1].progress = owned
        assert [v.rows for v in views] == [[1], [1]]
        assert [v.stored[0] for v in views] == [1, 1]
        write(sink, second, 2, *(changed(v, a1=-1, a2=1) for v in views))
        write(sink, second, 3, *(v.part(3) for v in views))
        assert [v.rows for v in views] == [[2, 3], [2, 3]]
    finally:
        second.close()


def test_a_pipeline_without_an_answer_ends_when_the_connection_is_given_up(
    conn, sink, database, tmp_path, monkeypatch
):
    parts = conninfo_to_dict(database)
    proxy = Proxy(parts["host"], int(parts["port"]))
    dsn = make_conninfo(database, host="127.0.0.1", port=proxy.port)
    views = [View(conn, n) for n in (1, 2)]
    first = Owner(settings_for(dsn, tmp_path))
    write(sink, first, 1, *(v.part(1) for v in views))
    sent = threading.Event()

    def stall(name: str) -> None:
        if name == faults.PIPELINE_SENT:
            sent.set()

    with ThreadPoolExecutor(1) as pool, contextlib.closing(proxy), monkeypatch.context() as patched:
        patched.setattr(faults, "point", stall)
        proxy.stall()
        written = pool.submit(sink.write, first, job(2, *(changed(v, a2=1) for v in views)))
        assert sent.wait(PATIENCE_S)
        assert not written.done()
        first.interrupt()
        with pytest.raises(psycopg.OperationalError):
            written.result(PATIENCE_S)
    assert first.sink.closed
    first.close()
    second = Owner(settings_for(database, tmp_path), first.pid)
    try:
        progress.take_over(second.conn, [1, 2])
        assert [(v.rows, v.stored[0]) for v in views] == [([1], 1), ([1], 1)]
    finally:
        second.close()


def test_what_always_fails_is_not_tried_each_time(conn, owner, sink, careful, monkeypatch):
    a = View(conn, 1)
    write(sink, owner, 1, a.part(1))
    tried = []

    def bad(self, _owner, work, *_):
        tried.append(work.txid)
        return False

    monkeypatch.setattr(pipelined_commit.PipelinedCommit, "_sent", bad)
    for txid in range(2, 40):
        write(sink, owner, txid, a.part(txid))
    assert len(a.rows) == 39
    assert 3 <= len(tried) <= 6


def kept(view: View, **rows: int):
    """Return a part as ``changed`` does, of a view with a history."""
    return replace(changed(view, **rows), kept=True)


def keep(conn, view: View) -> None:
    conn.execute(
        "INSERT INTO headrace.histories (view_id, result_oid, keep, first_txid)"
        " VALUES (%s, %s, '1 day', 0)",
        (view.id, view.target.oid),
    )


def told(conn, view: View) -> list[tuple]:
    return conn.execute(
        "SELECT c.txid, c.weights, c.data FROM headrace.history c JOIN headrace.histories h"
        " ON h.id = c.history_id WHERE h.view_id = %s ORDER BY c.txid, c.part",
        (view.id,),
    ).fetchall()


def test_changes_are_kept_by_either_way(conn, owner, sink, careful):
    a, b, c = View(conn, 1), View(conn, 2), View(conn, 3)
    keep(conn, a)
    keep(conn, b)
    write(sink, owner, 1, kept(a, a1=1, a2=2), kept(b, a1=1), changed(c, a1=1))
    assert careful == [1]
    write(sink, owner, 2, kept(a, a1=-1, a3=1), kept(b, a1=-1), changed(c, a2=1))
    assert careful == [1]
    assert told(conn, a) == [(1, [1, 2], ["(1)", "(2)"]), (2, [-1, 1], ["(1)", "(3)"])]
    assert told(conn, b) == [(1, [1], ["(1)"]), (2, [-1], ["(1)"])]
    assert told(conn, c) == []
    # The writes of a failing view are rolled back with its changes; other views' writes stay.
    conn.execute("DELETE FROM v1 WHERE a = 3")
    failed = write(sink, owner, 3, kept(a, a3=-1, a9=1), kept(b, a5=1), good=False)
    assert set(failed) == {1}
    assert (len(told(conn, a)), told(conn, b)[2:]) == (2, [(3, [1], ["(5)"])])
    # A history that was removed without Headrace's knowledge.
    conn.execute("DELETE FROM headrace.histories")
    write(sink, owner, 4, kept(b, a6=1))
    assert b.rows == [5, 6]
    assert conn.execute("SELECT count(*) FROM headrace.history").fetchone() == (0,)


def test_a_txid_that_comes_again_is_not_kept_again(conn, owner, sink):
    a = View(conn, 1)
    keep(conn, a)
    write(sink, owner, 1, kept(a, a1=1))
    sink.start(owner)  # as after a lost connection: the written txid is unknown
    a.progress = progress.take_over(owner.conn, [1])[1]
    write(sink, owner, 1, kept(a, a1=1))
    write(sink, owner, 2, kept(a, a2=1))
    assert told(conn, a) == [(1, [1], ["(1)"]), (2, [1], ["(2)"])]
