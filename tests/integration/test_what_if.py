"""``what_if``: the effects of a statement on views, although it changes nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.amounts import seeds
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE wi_customers (id int PRIMARY KEY, name text, country text);
CREATE TABLE wi_orders (
  id int PRIMARY KEY, customer int, amount numeric(12, 2), note text, paid bool, due date,
  span interval, ratio float8, at timestamptz, tags text[], raw bytea, code char(4), address inet);
CREATE TABLE wi_whole (id int PRIMARY KEY, g int, v text);
ALTER TABLE wi_whole REPLICA IDENTITY FULL;
CREATE TABLE wi_keyless (g int, v text);
ALTER TABLE wi_keyless REPLICA IDENTITY FULL;
CREATE TABLE wi_parts (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE wi_parts_1 PARTITION OF wi_parts FOR VALUES FROM (0) TO (10);
CREATE TABLE wi_parts_2 (v text, day int NOT NULL, id int NOT NULL);
ALTER TABLE wi_parts ATTACH PARTITION wi_parts_2 FOR VALUES FROM (10) TO (20);
INSERT INTO wi_customers SELECT i, 'c' || i, CASE i % 3 WHEN 0 THEN 'NO' WHEN 1 THEN 'SE' END
  FROM generate_series(0, 9) i;
INSERT INTO wi_orders SELECT i, i % 10, i * 1.50, 'n' || i % 4, i % 3 = 0, date '2026-01-01' + i,
  make_interval(days => i, secs => i * 1.5), i / 7.0, timestamptz '2026-01-01 00:00Z' + i * interval '1 hour',
  ARRAY['a' || i, NULL, 'x"\\,'], decode(lpad(to_hex(i), 4, '0'), 'hex'), 'ab', ('10.0.0.' || i)::inet
  FROM generate_series(1, 60) i;
INSERT INTO wi_whole SELECT i, i % 5, 'v' || i FROM generate_series(1, 30) i;
INSERT INTO wi_keyless SELECT i % 5, 'v' || i % 7 FROM generate_series(1, 30) i;
INSERT INTO wi_parts SELECT i, i % 20, 'p' || i FROM generate_series(1, 40) i;
"""
VIEWS = {
    "wi_sums": "SELECT c.country, count(*) AS n, sum(o.amount) AS total FROM wi_orders o"
    " JOIN wi_customers c ON c.id = o.customer GROUP BY c.country",
    "wi_open": "SELECT * FROM wi_orders WHERE paid IS NOT TRUE",
    "wi_ranks": "SELECT customer, id, rank() OVER (PARTITION BY customer ORDER BY amount DESC) AS r"
    " FROM wi_orders",
    "wi_groups": "SELECT w.g, count(k.v) AS n, max(w.v) AS m FROM wi_whole w"
    " LEFT JOIN wi_keyless k ON k.g = w.g GROUP BY w.g",
    "wi_distinct": "SELECT DISTINCT v FROM wi_keyless",
    "wi_days": "SELECT day, count(*) AS n, min(v) AS v FROM wi_parts GROUP BY day",
    "wi_top": "SELECT id, amount FROM wi_orders ORDER BY amount DESC, id LIMIT 5",
    "wi_late": "SELECT id, current_date - due AS days FROM wi_orders WHERE due < current_date",
}
Change = tuple[str, str, str]


def answer(conn: psycopg.Connection, statement: str, most: int = 10_000) -> list[dict[str, Any]]:
    row = conn.execute("CALL headrace.what_if(%s, %s)", (statement, most)).fetchone()
    assert row is not None
    found: list[dict[str, Any]] = row[0]
    return found


def shown(contents: Any) -> str:
    return msgspec.json.encode(contents, order="sorted").decode()


def tried(conn: psycopg.Connection, statement: str) -> Counter[Change]:
    """Return the effects as rows that vanish and appear."""
    out: Counter[Change] = Counter()
    for effect in answer(conn, statement):
        assert effect["note"] is None, effect
        for sign, side in (("-", "before"), ("+", "after")):
            assert (effect[side] is None) == (
                effect["change"] == ("added" if side == "before" else "removed")
            )
            if effect[side] is not None:
                out[effect["view"], sign, shown(effect[side])] += effect["times"]
    return out


def really(
    source: psycopg.Connection, statement: str, views: Sequence[str] | Mapping[str, str]
) -> Counter[Change]:
    """Return what Postgres says that the statement changes in the views' queries."""
    queries = views if isinstance(views, Mapping) else {view: VIEWS[view] for view in views}
    out: Counter[Change] = Counter()
    with source.transaction(force_rollback=True):
        source.execute("SET LOCAL timezone = 'UTC'")
        for sign in ("-", "+"):
            for view, query in queries.items():
                rows = f"SELECT to_jsonb(r.*) FROM ({query}) r"
                for (contents,) in source.execute(rows).fetchall():
                    out[f"public.{view}", sign, shown(contents)] += 1
            if sign == "-":
                source.execute(statement)
    for view, _, contents in [*out]:
        same = min(out[view, "-", contents], out[view, "+", contents])
        out[view, "-", contents] -= same
        out[view, "+", contents] -= same
    return +out


def refused(conn: psycopg.Connection, statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as found:
        answer(conn, statement)
    return found.value


STATEMENTS = (
    "UPDATE wi_orders SET amount = amount + 1 WHERE id = 7",
    "update public.wi_orders as q set note = E'é''\"\\\\,\\n', paid = null where q.id in (7, 8) -- end",
    "DELETE FROM ONLY wi_orders USING wi_customers c WHERE c.id = customer AND c.country = 'NO'",
    "INSERT INTO wi_orders (id, customer, amount) VALUES (100, 3, 5), (101, NULL, 1e9);",
    "INSERT INTO wi_orders (id, amount) SELECT id, 7 FROM wi_orders WHERE id < 5"
    " ON CONFLICT (id) DO UPDATE SET amount = excluded.amount * 100, paid = NOT wi_orders.paid",
    "INSERT INTO wi_orders (id) VALUES (5) ON CONFLICT DO NOTHING",
    "WITH much AS (SELECT id FROM wi_orders ORDER BY amount DESC LIMIT 3)"
    " UPDATE wi_orders o SET amount = 0 FROM much WHERE much.id = o.id",
    "UPDATE wi_customers SET country = 'DK' WHERE country IS NULL",
    "UPDATE wi_orders SET due = '2099-01-01', span = '1 mon 2 days', ratio = 'NaN', raw = '\\x00ff',"
    " at = 'infinity', tags = '{}', code = '', note = ''",
    "UPDATE wi_whole SET g = g + 1 WHERE id < 9",
    "DELETE FROM wi_whole",
    "DELETE FROM wi_keyless WHERE v = 'v3'",
    "INSERT INTO wi_keyless VALUES (1, 'v1'), (1, 'v1'), (NULL, NULL)",
    "UPDATE wi_parts SET v = upper(v)",
    "UPDATE wi_parts_2 SET v = 'x' WHERE id = 10",
    "INSERT INTO wi_parts VALUES (500, 5, 'a'), (500, 15, 'b')",
    "DELETE FROM wi_parts WHERE day > 8",
    "UPDATE wi_orders SET amount = amount WHERE false",
)


ASSIGNED = (
    *(
        "amount = amount * 2",
        "amount = NULL",
        "customer = (customer + 1) % 10",
        "note = note || 'x'",
    ),
    *("paid = NOT paid", "due = due - 500", "ratio = -ratio", "code = 'z'", "tags = tags || tags"),
)
FILTERS = (
    *("true", "id % 3 = 0", "customer IN (1, 2)", "amount > 40", "paid", "note LIKE '%2'"),
    "id IN (SELECT id FROM wi_whole WHERE g = 2)",
)


def generated(seed: int) -> str:
    """Return a random statement."""
    rng = random.Random(seed)
    filters = " AND ".join(rng.sample(FILTERS, rng.randint(1, 2)))
    match rng.randrange(4):
        case 0:
            return f"DELETE FROM wi_orders WHERE {filters}"
        case 1:
            columns = "customer, amount, note, paid, due"
            return (
                f"INSERT INTO wi_orders (id, {columns}) SELECT id + {rng.choice((3, 100))}, {columns}"
                f" FROM wi_orders WHERE {filters}"
                f" ON CONFLICT (id) DO UPDATE SET {rng.choice(ASSIGNED[3:]).split(' = ')[0]} = NULL"
            )
        case _:
            assigned = ", ".join(rng.sample(ASSIGNED[1:], rng.randint(1, 4)))
            return f"UPDATE wi_orders SET {assigned} WHERE {filters}"


def test_it_is_what_postgres_says(source, commander):
    before = source.execute("SELECT count(*), sum(amount) FROM wi_orders").fetchall()
    for statement in STATEMENTS:
        expected = really(source, statement, [*VIEWS])
        assert tried(source, statement) == expected, statement
    assert source.execute("SELECT count(*), sum(amount) FROM wi_orders").fetchall() == before


def test_on_the_port_and_as_rows(commander, source):
    statement = "DELETE FROM wi_orders WHERE id = 10"
    assert tried(commander, statement) == really(source, statement, [*VIEWS])
    with pytest.raises(psycopg.Error) as error, psycopg.connect(commander.info.dsn) as fresh:
        fresh.execute("SELECT * FROM headrace.what_if_rows()")
    assert error.value.sqlstate == "55000"
    found = answer(commander, statement)
    last = commander.execute("SELECT * FROM headrace.what_if_rows()").fetchall()
    rows = commander.execute(
        "SELECT * FROM headrace.what_if_rows(%s)", (msgspec.json.encode(found).decode(),)
    ).fetchall()
    assert [row[0] for row in rows] == [effect["view"] for effect in found]
    assert {row[2] for row in rows} == {1}
    assert last == rows


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_generated_statements(seed, source, commander):
    for number in range(6):
        statement = generated(100 * seed + number)
        assert tried(source, statement) == really(source, statement, [*VIEWS]), statement


@pytest.fixture
def reader(engine, source) -> Iterator[psycopg.Connection]:
    """Open a direct connection as a role that may do nothing yet."""
    name = "wi_reader"
    source.execute(f"DROP ROLE IF EXISTS {name}")
    source.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
    with psycopg.connect(
        make_conninfo(engine.source, user=name, password="x"), autocommit=True
    ) as conn:
        yield conn
    source.execute(f"DROP OWNED BY {name}")
    source.execute(f"DROP ROLE {name}")


def test_a_role_sees_the_views_that_it_may_read(reader, source, commander):
    statement = "UPDATE wi_customers SET country = 'DK' WHERE id = 2"
    assert refused(reader, statement).sqlstate == "42501"  # Postgres' own
    source.execute("GRANT SELECT, UPDATE ON wi_customers TO wi_reader")
    assert answer(reader, statement) == []
    source.execute("GRANT SELECT ON wi_sums TO wi_reader")
    assert tried(reader, statement) == really(source, statement, ["wi_sums"])
    # Its rows are a claim: a role that is restricted could claim rows that it may not write.
    source.execute("REVOKE UPDATE ON wi_customers FROM wi_reader")
    source.execute("GRANT UPDATE (country) ON wi_customers TO wi_reader")
    assert refused(reader, statement).sqlstate == "0A000"
    source.execute("GRANT UPDATE ON wi_customers TO wi_reader")
    source.execute(
        "ALTER TABLE wi_customers ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY few ON wi_customers TO wi_reader USING (id < 5)"
    )
    assert "row security" in str(refused(reader, statement).diag.message_detail)
    source.execute("ALTER TABLE wi_customers DISABLE ROW LEVEL SECURITY")


def test_rows_that_were_made_up_are_not_answered(reader, source, commander):
    """The steps of the procedure are calls that any role can make by itself."""

    def step(name: str, arguments: dict[str, Any]) -> Any:
        row = reader.execute(
            "CALL headrace.carry_out(%s, %s, NULL, NULL, NULL)",
            (name, msgspec.json.encode(arguments).decode()),
        ).fetchone()
        assert row is not None
        return row[1] and row[1]["C"]

    source.execute("GRANT SELECT ON wi_sums TO wi_reader")
    oid = source.execute("SELECT 'wi_customers'::regclass::oid::bigint").fetchone()[0]
    with reader.transaction(force_rollback=True):
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        held = reader.execute("SELECT headrace.what_if_hold(%s)", (oid,)).fetchone()[0]
    facts = {"table": oid, "before": {}, "counts": {str(oid): [1, 0, 0]}, "locked": []}
    facts = msgspec.json.encode(facts | {"tracked": True}).decode()
    assert step("what_if_rows", {"call": held, "rows": f",{oid},,,,77,x,NO"}) is None
    assert step("what_if", {"call": held, "facts": facts}) == "0A000"
    # Of another role there is nothing to take.
    for name, more in (("what_if_rows", {"rows": ""}), ("what_if", {"facts": facts})):
        assert step(name, {"call": held, **more}) == "42704"
    for rows, sqlstate in ((",1,,,,,,", "55006"), ('"', "55006"), ("x", "55006")):
        with reader.transaction(force_rollback=True):
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            held = reader.execute("SELECT headrace.what_if_hold(%s)", (oid,)).fetchone()[0]
        assert step("what_if_rows", {"call": held, "rows": rows}) is None
        assert step("what_if", {"call": held, "facts": facts}) == sqlstate


OTHER_ROWS = {
    "trigger": """
CREATE FUNCTION wi_follow() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN UPDATE wi_whole SET g = g + 1 WHERE id = 3; RETURN NULL; END';
CREATE TRIGGER follow AFTER UPDATE ON wi_customers FOR EACH ROW EXECUTE FUNCTION wi_follow();""",
    "deferred": """
CREATE FUNCTION wi_follow() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN DELETE FROM wi_keyless WHERE v = ''v1''; RETURN NULL; END';
CREATE CONSTRAINT TRIGGER follow AFTER UPDATE ON wi_customers DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION wi_follow();""",
    "truncate": """
CREATE FUNCTION wi_follow() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN TRUNCATE wi_keyless; RETURN NULL; END';
CREATE TRIGGER follow AFTER UPDATE ON wi_customers EXECUTE FUNCTION wi_follow();""",
    "again": """
CREATE FUNCTION wi_follow() RETURNS trigger LANGUAGE plpgsql AS $f$
BEGIN
  IF pg_trigger_depth() = 1 THEN UPDATE wi_customers SET name = 'x' WHERE id = NEW.id; END IF;
  RETURN NULL;
END $f$;
CREATE TRIGGER follow AFTER UPDATE ON wi_customers FOR EACH ROW EXECUTE FUNCTION wi_follow();""",
}


@pytest.mark.parametrize("kind", OTHER_ROWS)
def test_changes_that_are_not_returned_are_refused(kind, source, commander):
    source.execute(OTHER_ROWS[kind])
    error = refused(source, "UPDATE wi_customers SET country = 'DK' WHERE id = 2")
    assert error.sqlstate == "0A000"
    table = "wi_customers" if kind == "again" else "wi_keyless" if kind != "trigger" else "wi_whole"
    assert f"public.{table}" in str(error.diag.message_primary)


def test_a_trigger_that_fills_a_column_and_one_for_other_tables(source, commander):
    source.execute("""
        CREATE TABLE wi_log (at timestamptz);
        CREATE FUNCTION wi_fill() RETURNS trigger LANGUAGE plpgsql AS
          'BEGIN NEW.country := ''FI''; INSERT INTO wi_log VALUES (now()); RETURN NEW; END';
        CREATE TRIGGER fill BEFORE UPDATE ON wi_customers FOR EACH ROW EXECUTE FUNCTION wi_fill();
        """)
    statement = "UPDATE wi_customers SET name = 'x' WHERE id < 4"
    assert tried(source, statement) == really(source, statement, [*VIEWS])
    assert source.execute("SELECT count(*) FROM wi_log").fetchall() == [(0,)]


def test_a_cascade_is_refused(source, commander):
    source.execute(
        "ALTER TABLE wi_orders ADD FOREIGN KEY (customer) REFERENCES wi_customers ON DELETE CASCADE"
    )
    error = refused(source, "DELETE FROM wi_customers WHERE id = 3")
    assert "public.wi_orders" in str(error.diag.message_primary)
    source.execute("INSERT INTO wi_customers VALUES (50, 'new', 'NO')")
    assert tried(source, "DELETE FROM wi_customers WHERE id = 50") == {}


REFUSED = (
    ("", "42601"),
    (";", "42601"),
    ("UPDATE wi_orders SET amount = 'x'", "22P02"),
    ("UPDATE wi_orders SET amount = 1; DELETE FROM wi_orders", "42601"),
    ("UPDATE wi_orders SET amount = 1) , x AS (DELETE FROM wi_orders", "42601"),
    ("UPDATE wi_orders SET amount = 1 RETURNING id", "0A000"),
    ("TRUNCATE wi_orders", "0A000"),
    ("SELECT 1", "0A000"),
    ("MERGE INTO wi_orders USING wi_whole ON false WHEN MATCHED THEN DELETE", "0A000"),
    ("COPY wi_orders FROM STDIN", "0A000"),
    ("DROP TABLE wi_orders", "0A000"),
    ("UPDATE wi_missing SET a = 1", "42P01"),
    ("UPDATE pg_class SET relname = 'x'", "0A000"),
    ("DELETE FROM headrace.commands", "0A000"),
    ("UPDATE wi_orders SET amount = 'unclosed", "42601"),
    ("INSERT INTO wi_orders (id) VALUES (1)", "23505"),
    ("WITH x AS (DELETE FROM wi_whole RETURNING g) DELETE FROM wi_keyless USING x", "0A000"),
    ("DELETE FROM wi_orders WHERE 1 / (id - id) = 1", "22012"),
)


def test_statements_that_are_refused(source, commander):
    for statement, sqlstate in REFUSED:
        error = refused(source, statement)
        assert error.sqlstate == sqlstate, statement
        assert len((error.diag.context or "").splitlines()) <= 2, error.diag.context
        # The session is as before.
        assert source.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert source.execute("SELECT count(*) FROM wi_orders").fetchall() == [(60,)]
    answer(source, "UPDATE wi_orders SET id = id WHERE pg_advisory_unlock_all() IS NULL")


def test_views_that_are_not_up_to_date(source, commander):
    commander.execute("CALL headrace.pause_view('wi_sums')")
    (effect,) = [
        e
        for e in answer(source, "DELETE FROM wi_orders WHERE id = 3")
        if e["view"] == "public.wi_sums"
    ]
    assert effect["note"] == "the view is not up to date; its cursor is paused"
    commander.execute("CALL headrace.resume_view('wi_sums')")
    commander.execute("CALL headrace.wait_for('wi_sums')")
    statement = "DELETE FROM wi_orders WHERE id = 3"
    wait_until(lambda: all(e["note"] is None for e in answer(source, statement)), "it leads again")
    assert tried(source, statement) == really(source, statement, [*VIEWS])


def test_views_over_views_and_a_moving_window(source, commander):
    """A fed view has only a part of the plan; time alone changes nothing in an answer."""
    over = {
        "wi_over": "SELECT country, total FROM wi_sums WHERE n > 3",
        "wi_fed": "SELECT n, count(*) AS c FROM wi_sums GROUP BY n",
        "wi_window": "SELECT id, note FROM wi_orders WHERE at > now() - interval '5 years'",
    }
    commander.execute("CALL headrace.create_connection_point('wi_point', 'wi_sums')")
    for name, query in over.items():
        options = '{"from": "wi_point"}' if name == "wi_fed" else "{}"
        commander.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, options))
    for statement in (
        "DELETE FROM wi_orders WHERE customer IN (1, 3)",
        "UPDATE wi_orders SET at = '2019-01-01', amount = -amount WHERE id % 4 = 0",
        "UPDATE wi_customers SET country = 'NO'",
    ):
        inlined = f"FROM ({VIEWS['wi_sums']}) s"
        queries = VIEWS | {n: q.replace("FROM wi_sums", inlined) for n, q in over.items()}
        assert tried(source, statement) == really(source, statement, queries), statement


def test_a_view_that_the_statement_would_stop(source, commander, reader):
    commander.execute(
        "CALL headrace.create_view('wi_quotients', 'SELECT id, 1 / (amount - 3) AS q FROM wi_orders"
        " WHERE amount <> 3')"
    )
    commander.execute(
        "CALL headrace.create_view('wi_inverse', 'SELECT id, 1 / amount AS q FROM wi_orders')"
    )
    statement = "UPDATE wi_orders SET amount = 0 WHERE id = 9"
    found = {e["view"]: e for e in answer(source, statement)}
    assert found["public.wi_inverse"]["note"] == "the view would stop: division by zero"
    assert found["public.wi_quotients"]["change"] == "changed"
    source.execute("GRANT SELECT, UPDATE ON wi_orders TO wi_reader")
    source.execute("GRANT SELECT ON wi_inverse TO wi_reader")
    (effect,) = answer(reader, statement)
    assert effect["note"] == "the view would stop"
    running = "SELECT status FROM headrace.list_views() WHERE name = 'public.wi_inverse'"
    assert source.execute(running).fetchall() == [("running",)]


def test_row_security_of_a_view(source, commander, reader):
    source.execute(
        "GRANT SELECT, UPDATE ON wi_orders TO wi_reader; GRANT SELECT ON wi_open TO wi_reader;"
        "ALTER TABLE wi_open ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY few ON wi_open TO wi_reader USING (id < 5)"
    )
    (effect,) = answer(reader, "UPDATE wi_orders SET note = 'x' WHERE id IN (1, 7)")
    assert "row security hides rows" in effect["note"]


def test_most(source, commander):
    statement = "UPDATE wi_orders SET amount = amount + 1"
    for most in (0, 3, 10_000):
        found = [e for e in answer(source, statement, most) if e["view"] == "public.wi_open"]
        assert len(found) == min(most + 1, 40)
        assert sum(e["times"] for e in found) == 40
        assert (found[-1]["note"] == "more rows of the view") == (most < 40)
    for most in (-1, 10_001):
        with pytest.raises(psycopg.Error) as error:
            answer(source, statement, most)
        assert error.value.sqlstate == "22023"


def test_a_key_that_changes(source, commander):
    """Before Postgres 18, RETURNING has no old rows: only exchanged keys are found."""
    source.execute("ALTER TABLE wi_whole DROP CONSTRAINT wi_whole_pkey")
    source.execute("ALTER TABLE wi_whole ADD PRIMARY KEY (id) DEFERRABLE")
    exchange = "UPDATE wi_whole SET id = 31 - id"
    assert tried(source, exchange) == really(source, exchange, [*VIEWS])
    for statement in (
        "UPDATE wi_whole SET id = id + 1",
        "UPDATE wi_whole SET id = -id WHERE id < 3",
        "UPDATE wi_keyless SET g = 3 WHERE g = 2",
        "UPDATE wi_parts SET day = 19 - day",
    ):
        if source.info.server_version >= 180_000:
            assert tried(source, statement) == really(source, statement, [*VIEWS])
        else:
            assert refused(source, statement).sqlstate == "0A000"


def test_nothing_waits_and_each_answer_is_of_one_moment(source, commander, engine):
    """Writers change the same rows meanwhile: before and after differ by the statement only."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(engine.source, autocommit=True) as conn:
            while not ended.is_set():
                try:
                    conn.execute(
                        "UPDATE wi_orders SET amount = %s, customer = %s WHERE id = %s",
                        (rng.randint(0, 900), rng.randint(0, 9), rng.randint(1, 60)),
                    )
                except psycopg.Error as error:
                    failures.append(error)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    try:
        for round_ in range(8):
            one = round_ + 1
            found = answer(source, f"UPDATE wi_orders SET amount = amount + 1000 WHERE id = {one}")
            assert any(e["view"] == "public.wi_top" for e in found)  # it is now the first of all
            sums = [e for e in found if e["view"] == "public.wi_sums"]
            before = {e["before"]["country"]: e["before"] for e in sums if e["before"]}
            after = {e["after"]["country"]: e["after"] for e in sums if e["after"]}
            assert before.keys() == after.keys()
            for country, row in before.items():
                assert after[country]["n"] == row["n"]
                assert after[country]["total"] - row["total"] == 1000
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    assert failures == []


def test_views_on_another_worker(source, commander):
    commander.execute("CALL headrace.add_worker('w1')")
    commander.execute("CALL headrace.set_placement('wi_sums', 'w1')")
    commander.execute("CALL headrace.wait_for('wi_sums')")
    statement = "UPDATE wi_orders SET amount = amount + 1 WHERE id < 9"
    wait_until(lambda: all(e["note"] is None for e in answer(source, statement)), "it leads there")
    source.execute("UPDATE wi_orders SET amount = amount + 5 WHERE id < 4")
    assert tried(source, statement) == really(source, statement, [*VIEWS])


def test_no_role_takes_all_places(source, commander, reader, engine):
    source.execute("GRANT SELECT, UPDATE ON wi_customers TO wi_reader")
    oid = source.execute("SELECT 'wi_customers'::regclass::oid::bigint").fetchone()[0]

    def hold(conn: psycopg.Connection) -> str | None:
        """Hold states; return the SQLSTATE if that is refused."""
        with conn.transaction(force_rollback=True):
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            held = conn.execute("SELECT headrace.what_if_hold(%s)", (oid,)).fetchone()[0]
        carried = "CALL headrace.carry_out('what_if_hold', NULL, %s, NULL, NULL)"
        failed = conn.execute(carried, (held,)).fetchone()[1]
        return failed and failed["C"]

    folder = engine.data_dir / "forks"
    for _ in range(6):  # one session holds one
        assert hold(reader) is None
    assert len([*folder.glob("*")]) == 1
    dsn = make_conninfo(engine.source, user="wi_reader", password="x")
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for _ in range(4)]
        for other in others[:3]:
            assert hold(other) is None
        assert hold(others[3]) == "53400"
    # The others have gone, and the engine's role is no such role.
    statement = "DELETE FROM wi_orders WHERE id = 3"
    assert tried(source, statement) == really(source, statement, [*VIEWS])
    assert len([*folder.glob("*")]) == 1


def test_a_caller_that_goes_away(source, commander, engine):
    """A statement that waits for a lock is cancelled: nothing is held."""
    with psycopg.connect(engine.source) as other, psycopg.connect(engine.source) as caller:
        other.execute("UPDATE wi_orders SET amount = 1 WHERE id = 3")
        caller.autocommit = True
        pid = caller.info.backend_pid
        calls = threading.Thread(
            target=lambda: refused(caller, "UPDATE wi_orders SET amount = 2 WHERE id = 3")
        )
        calls.start()
        waiting = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: source.execute(waiting, (pid,)).fetchone() == ("Lock",), "it waits")
        caller.cancel_safe()
        calls.join()
        assert caller.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    statement = "DELETE FROM wi_orders WHERE id = 3"
    assert tried(source, statement) == really(source, statement, [*VIEWS])
    assert not [*(engine.data_dir / "forks").glob("*")]


@pytest.mark.parametrize("child", ["headrace.views.builder", "headrace.runtime.worker"])
def test_a_killed_process(child, source, commander, engine):
    statement = "DELETE FROM wi_orders WHERE id < 30"
    expected = really(source, statement, [*VIEWS])
    calls = threading.Thread(target=lambda: _quietly(engine.source, statement))
    calls.start()
    os.kill(engine.child(child), signal.SIGKILL)
    calls.join()
    wait_until(lambda: _quietly(engine.source, statement) is not None, "it answers again")
    wait_until(lambda: tried(source, statement) == expected, "with all views")
    folder = engine.data_dir / "forks"
    wait_until(lambda: not [*folder.glob("*/*")], "nothing is left")


def _quietly(dsn: str, statement: str) -> list[dict[str, Any]] | None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        try:
            return answer(conn, statement)
        except psycopg.Error:
            return None
