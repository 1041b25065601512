"""drop_view, create_index and drop_index."""

from __future__ import annotations

import psycopg
import pytest

from headrace.errors import (
    HeadraceError,
    PrivilegeError,
    UndefinedError,
    UnsupportedError,
    UserError,
)
from headrace.sql import views
from headrace.sql.verbs import CreateIndex, DropIndex, DropView
from headrace.views import drop, indexes
from headrace.views.drop import _drop_table

QUERY = "SELECT id, region FROM customers"
PATH = {"search_path": "public"}


def drop_view(bench, name, if_exists=False, caller=None):
    request = DropView(name, if_exists, caller=caller, settings=PATH)
    return drop.drop_view(bench.context, bench.job(), request)


def fail(*_):
    raise psycopg.OperationalError("the connection is gone")


def create_index(bench, view, definition, caller=None):
    request = CreateIndex(view, definition, caller=caller, settings=PATH)
    return indexes.create_index(bench.context, bench.job(), request)["name"]


def drop_index(bench, name, caller=None):
    request = DropIndex(name, caller=caller, settings=PATH)
    return indexes.drop_index(bench.context, bench.job(), request)


@pytest.fixture
def stranger(bench):
    name = f"stranger_{bench.conn.info.dbname}"
    bench.conn.execute(f"CREATE ROLE {name}")
    yield name
    bench.conn.execute(f"DROP ROLE {name}")


def test_drop_leaves_nothing(bench):
    done = bench.create("v", QUERY)
    bench.create("w", "SELECT count(*) FROM orders")
    drop_view(bench, "v")
    assert bench.conn.execute("SELECT to_regclass('v')").fetchone() == (None,)
    assert bench.published() == {"orders"}
    assert bench.worker.calls[-1] == ("drop", {"view_id": done["view_id"]})
    drop_view(bench, "public.w")
    assert bench.published() == set()
    assert bench.conn.execute("SELECT id FROM headrace.views").fetchall() == []


def test_unknown_view(bench):
    with pytest.raises(UndefinedError) as caught:
        drop_view(bench, "nope")
    assert caught.value.code == "42P01"
    assert "skipping" in drop_view(bench, "nope", if_exists=True)["message"]
    with pytest.raises(UndefinedError):
        drop_view(bench, "customers")
    assert bench.rows("SELECT count(*) FROM customers") == [("(50)",)]


def test_dependents_lose_nothing(bench):
    bench.create("v", QUERY)
    bench.conn.execute("CREATE VIEW onto AS SELECT * FROM v")
    with pytest.raises(HeadraceError) as caught:
        drop_view(bench, "v")
    assert caught.value.code == "2BP01"
    assert caught.value.detail == "view public.onto depends on table public.v"
    assert "CASCADE" not in caught.value.hint
    assert "drop" not in bench.worker.methods
    assert bench.rows("TABLE v") == bench.rows(QUERY)
    assert bench.published() == {"customers"}


def test_a_child_table_stays_and_stands_on_its_own(bench):
    bench.create("v", QUERY)
    bench.conn.execute('CREATE TABLE "Child" (more int) INHERITS (v)')
    bench.conn.execute('CREATE TABLE grandchild () INHERITS ("Child")')
    bench.conn.execute('INSERT INTO "Child" SELECT v.*, 7 FROM v')
    before = bench.rows('TABLE "Child"')
    done = drop_view(bench, "v")
    assert 'table "public"."Child" no longer inherits' in done["notice"]
    assert bench.conn.execute("SELECT to_regclass('v')").fetchone() == (None,)
    assert bench.rows('TABLE "Child"') == before
    assert bench.rows("SELECT count(*) FROM grandchild") == [("(0)",)]


def test_a_child_table_that_is_not_ours_to_let_go_is_named(bench, stranger):
    """Not as a superuser: the engine's role owns only the view's table."""
    bench.create("v", QUERY)
    bench.conn.execute("CREATE TABLE child () INHERITS (v)")
    view = views.find(bench.conn, "v", ["public"])
    assert view is not None
    bench.conn.execute(f"ALTER TABLE v OWNER TO {stranger}")
    bench.conn.execute(f"SET ROLE {stranger}")
    with pytest.raises(UserError) as caught:
        _drop_table(bench.conn, view)
    bench.conn.execute("RESET ROLE")
    assert caught.value.code == "2BP01"
    assert "public" in caught.value.detail
    bench.conn.execute(caught.value.hint)
    bench.conn.execute("ALTER TABLE v OWNER TO CURRENT_USER")
    drop_view(bench, "v")
    assert bench.rows("SELECT count(*) FROM child") == [("(0)",)]


def test_only_the_owner_drops(bench, stranger):
    bench.create("v", QUERY)
    with pytest.raises(PrivilegeError):
        drop_view(bench, "v", caller=stranger)
    bench.conn.execute("UPDATE headrace.views SET owner = %s", (stranger,))
    drop_view(bench, "v", caller=stranger)


def test_table_that_is_gone_already(bench):
    bench.create("v", QUERY)
    bench.conn.execute("DROP TABLE v")
    drop_view(bench, "v")
    bench.create("v", QUERY)


def test_worker_that_is_down(bench, monkeypatch):
    bench.create("v", QUERY)
    monkeypatch.setattr("headrace.views.drop._WORKER_WAIT_S", 0.3)
    bench.worker.down = 1000
    drop_view(bench, "v")  # it finds no view in the catalog when it comes back
    assert "drop" not in bench.worker.methods
    bench.worker.down = 0
    bench.create("v", QUERY)
    bench.worker.down = 1
    drop_view(bench, "v")
    assert bench.worker.methods[-1] == "drop"


def test_worker_forgets_only_what_is_dropped(bench, monkeypatch):
    """A dropped state cannot be restored: a drop that fails late must not have told the worker."""
    bench.create("v", QUERY)
    monkeypatch.setattr("headrace.views.drop.views.delete", fail)
    with pytest.raises(HeadraceError):
        drop_view(bench, "v")
    assert "drop" not in bench.worker.methods
    assert bench.rows("TABLE v") == bench.rows(QUERY)


@pytest.mark.parametrize(
    ("definition", "want"),
    [
        ("(id)", "btree (id)"),
        ("USING btree (region, id DESC)", "btree (region, id DESC)"),
        ("using hash (region)", "hash (region)"),
        ("(lower(region)) WHERE id > 3", "btree (lower(region)) WHERE (id > 3)"),
        ('(region COLLATE "C" text_pattern_ops) INCLUDE (id)', "INCLUDE (id)"),
        ("((id * 1.5)) -- a comment", "* 1.5"),
    ],
)
def test_create_index(bench, definition, want):
    bench.create("v", QUERY)
    name = create_index(bench, "v", definition)
    made = bench.conn.execute(
        "SELECT indexdef FROM pg_indexes WHERE tablename = 'v' AND indexname = %s", (name,)
    ).fetchone()
    assert want in made[0]
    drop_index(bench, name)
    left = bench.conn.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'v'").fetchall()
    assert len(left) == 1


REFUSED = (
    ("", "42601"), ("id", "42601"), ("(id", "42601"), ("(nope)", "42703"),
    ("(id); DROP TABLE orders", "42601"), ("(id)) ; DROP TABLE orders; --", "42601"),
    ("ON orders (id)", "42601"), ("(public.evil(id))", "0A000"), ("(evil(id))", "42883"),
    ("((id OPERATOR(public.+) 1))", "0A000"), ('("public" . "evil"(id))', "0A000"),
    ("(random())", "42P17"), ("(id) TABLESPACE nowhere", "42704"), ("('", "42601"),
    ("((m::int4))", "0A000"), ("(id)\0", "42601"), ("(" + "id," * 5000 + "id)", "42601"),
)  # fmt: skip


def test_refused_definitions(bench):
    """E16: no code of a user ever runs with the engine's privileges."""
    conn = bench.conn
    conn.execute(
        "CREATE TABLE ran (what text);"
        "CREATE FUNCTION evil(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " $$BEGIN INSERT INTO ran VALUES ('fn'); RETURN $1; END$$;"
        "CREATE TYPE mood AS ENUM ('sad', 'ok');"
        "CREATE FUNCTION evil_cast(mood) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " $$BEGIN RAISE EXCEPTION 'ran with the rights of %', current_user; END$$;"
        "CREATE CAST (mood AS int) WITH FUNCTION evil_cast(mood);"
        "CREATE TABLE moods (id int PRIMARY KEY, m mood);"
        "INSERT INTO moods VALUES (1, 'ok')"
    )
    bench.create("v", "SELECT id, m FROM moods")
    for definition, code in REFUSED:
        with pytest.raises(HeadraceError) as caught:
            create_index(bench, "v", definition)
        assert caught.value.code == code, (definition[:40], caught.value)
        assert "rights" not in caught.value.message
        assert conn.execute("SELECT count(*) FROM ran").fetchone() == (0,)
        assert conn.execute("SELECT count(*) FROM orders").fetchone() == (500,)
        found = conn.execute("SELECT 1 FROM pg_indexes WHERE tablename = 'v'").fetchall()
        assert len(found) == 1, definition[:40]


def test_enum_columns_can_be_indexed(bench):
    bench.conn.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE moods (id int PRIMARY KEY, m mood)"
    )
    bench.create("v", "SELECT id, m FROM moods")
    create_index(bench, "v", "(m, id) WHERE m = 'ok'")


def test_index_rights(bench, stranger):
    bench.create("v", QUERY)
    name = create_index(bench, "v", "(id)")
    with pytest.raises(PrivilegeError):
        create_index(bench, "v", "(id)", caller=stranger)
    with pytest.raises(PrivilegeError):
        drop_index(bench, name, caller=stranger)
    with pytest.raises(UndefinedError):
        drop_index(bench, "orders_pkey")
    with pytest.raises(PrivilegeError, match="needed"):
        drop_index(bench, "v_pkey")
    bench.create("w", "SELECT count(*) AS n FROM orders")
    oid = bench.conn.execute("SELECT 'w'::regclass::oid").fetchone()[0]
    with pytest.raises(PrivilegeError, match="needed"):
        drop_index(bench, f"headrace_row_hash_{oid}")


def test_an_index_that_somebody_refers_to(bench):
    """Postgres reports the dependent object: the engine itself does not need the index."""
    bench.create("v", QUERY)
    bench.conn.execute(
        "CREATE UNIQUE INDEX region_id ON v (id, region);"
        "CREATE TABLE mine (id int, region text, FOREIGN KEY (id, region) REFERENCES v (id, region))"
    )
    with pytest.raises(HeadraceError) as caught:
        drop_index(bench, "region_id")
    assert caught.value.code == "2BP01"
    assert caught.value.detail == (
        "constraint mine_id_region_fkey on table public.mine depends on index public.region_id"
    )
    with pytest.raises(PrivilegeError, match="needed"):
        drop_index(bench, "v_pkey")
    bench.conn.execute("DROP TABLE mine")
    drop_index(bench, "region_id")


def test_qualified_index_name(bench):
    bench.create("v", QUERY)
    name = create_index(bench, "public.v", "(id)")
    drop_index(bench, f'public."{name}"')


def test_locked_table_is_reported(bench):
    bench.create("v", QUERY)
    with psycopg.connect(bench.dsn) as other:
        other.execute("LOCK TABLE v IN ACCESS EXCLUSIVE MODE")
        bench.change(lock_timeout_ms=100)
        with pytest.raises(HeadraceError) as caught:
            create_index(bench, "v", "(id)")
        assert caught.value.code == "55P03"


def test_check_definition_alone():
    indexes.check_definition("(a, b) WHERE c > .5 AND d < -1.5")
    for text in ("(a.b)", '(a."b")', "(a .b)", "(f. g(x))"):
        with pytest.raises(UnsupportedError):
            indexes.check_definition(text)
