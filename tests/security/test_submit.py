"""Commands of direct connections: no role can send one in the name of another.

Code of one user may run inside a session of another (an index function under ANALYZE or autovacuum,
a view's function). It may send commands, but only as its owner.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.security.roles import connect, role
from tests.waiting import wait_until

FORGE = """
CREATE FUNCTION forge(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$
DECLARE
    statement text;
BEGIN
    FOREACH statement IN ARRAY ARRAY[
        $s$SELECT headrace.submit('drop_view', '{"name": "public.precious"}', 'postgres', '{}')$s$,
        $s$SELECT headrace.submit('drop_view', '{"name": "public.precious"}', '{}')$s$,
        $s$SELECT headrace.submit('drop_view', '{"name": "public.precious"}', '{}')
             FROM (SELECT set_config('role', 'postgres', false)) s$s$,
        $s$INSERT INTO headrace.commands (procedure, arguments, settings)
           VALUES ('drop_view', '{"name": "public.precious"}', '{}')$s$,
        $s$INSERT INTO headrace.commands (procedure, arguments, settings, caller)
           VALUES ('drop_view', '{"name": "public.precious"}', '{}', 'postgres')$s$,
        $s$INSERT INTO headrace.commands (procedure, arguments, settings, caller)
           VALUES ('drop_view', '{"name": "public.precious"}', '{}', 10)$s$
    ] LOOP
        BEGIN
            EXECUTE statement;
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
    RETURN n;
END $f$;
"""
UNFINISHED = "SELECT count(*) FROM headrace.commands WHERE status IN ('pending', 'running')"
SENT = "SELECT count(*) FROM headrace.commands WHERE procedure = 'drop_view'"


@pytest.fixture
def server(server):
    server.execute("CREATE TABLE t (id int PRIMARY KEY)")
    server.execute("INSERT INTO t VALUES (1)")
    server.execute("CALL headrace.create_view('precious', 'SELECT id FROM t')")
    server.execute("DELETE FROM headrace.commands")
    return server


@pytest.fixture
def low(server):
    with role(server, "low") as name, connect(server.info.dsn, name) as conn:
        yield conn


def is_there(server: psycopg.Connection) -> bool:
    wait_until(lambda: server.execute(UNFINISHED).fetchone() == (0,), "all are done")
    found = server.execute("SELECT count(*) FROM headrace.views WHERE view_name = 'precious'")
    return found.fetchone() == (1,)


def senders(server: psycopg.Connection) -> set[str]:
    rows = server.execute(
        "SELECT pg_get_userbyid(caller) FROM headrace.commands WHERE procedure = 'drop_view'"
    ).fetchall()
    return {name for (name,) in rows}


@pytest.mark.parametrize(
    "task", ["ANALYZE {t}", "REINDEX TABLE {t}", "VACUUM (ANALYZE) {t}", "REFRESH {m}"]
)
def test_upkeep_by_a_superuser_sends_nothing_in_his_name(server, low, task):
    low.execute(FORGE)
    low.execute("CREATE TABLE bait (n int); INSERT INTO bait VALUES (1), (2)")
    low.execute("CREATE MATERIALIZED VIEW lure AS SELECT forge(n) FROM bait")
    low.execute("CREATE INDEX ON bait (forge(n))")
    server.execute("DELETE FROM headrace.commands WHERE status IN ('done', 'failed')")
    schema = low.info.user
    task = task.replace("REFRESH", "REFRESH MATERIALIZED VIEW")
    server.execute(task.format(t=f"{schema}.bait", m=f"{schema}.lure"))
    assert server.execute(SENT).fetchone()[0] > 0, "the forger got this far"
    assert is_there(server)
    assert senders(server) == {schema}


@pytest.mark.slow  # autovacuum runs once a minute; the quick tests use ANALYZE
def test_autovacuum_sends_nothing_in_the_name_of_a_superuser(server, low):
    low.execute(FORGE)
    low.execute(
        "CREATE TABLE bait (n int) WITH (autovacuum_analyze_threshold = 1,"
        " autovacuum_analyze_scale_factor = 0)"
    )
    low.execute("CREATE INDEX ON bait (forge(n))")
    before = server.execute("SHOW autovacuum_naptime").fetchone()[0]
    server.execute("ALTER SYSTEM SET autovacuum_naptime = 1")
    server.execute("SELECT pg_reload_conf()")
    try:
        low.execute("INSERT INTO bait SELECT generate_series(1, 100)")
        server.execute("DELETE FROM headrace.commands WHERE status IN ('done', 'failed')")

        def visited() -> bool:
            found = server.execute(
                "SELECT autoanalyze_count > 0 FROM pg_stat_all_tables WHERE relname = 'bait'"
            ).fetchone()
            return bool(found and found[0])

        wait_until(visited, "autovacuum has been there")
    finally:
        server.execute(f"ALTER SYSTEM SET autovacuum_naptime = '{before}'")
        server.execute("SELECT pg_reload_conf()")
    assert is_there(server)
    assert senders(server) <= {low.info.user}


def test_who_may_insert_anything_sends_in_his_own_name(server, low):
    name = low.info.user
    server.execute(f"GRANT pg_write_all_data, pg_read_all_data TO {name}")
    server.execute(f"ALTER ROLE {name} BYPASSRLS")
    low.execute(FORGE)
    low.execute("SELECT forge(1)")
    assert is_there(server)
    assert senders(server) == {name}


def test_a_subscription_brings_no_commands(server, low):
    """Calls made in the publisher's database are not executed here."""
    server.execute("SET session_replication_role = replica")
    server.execute(
        "INSERT INTO headrace.commands (procedure, arguments, settings, caller)"
        """ VALUES ('drop_view', '{"name": "public.precious"}', '{}', 10)"""
    )
    assert server.execute(SENT).fetchone() == (0,)


def test_a_role_without_rights_has_no_way_around(server, low):
    low.execute(FORGE)
    low.execute("SELECT forge(1)")
    for statement in (
        "UPDATE headrace.commands SET status = 'done'",
        "DELETE FROM headrace.commands",
        "TRUNCATE headrace.commands",
        "BEGIN; LOCK headrace.commands IN ROW EXCLUSIVE MODE; COMMIT",
        "CREATE TRIGGER t BEFORE INSERT ON headrace.commands"
        " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "ALTER TABLE headrace.commands DISABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON headrace.commands USING (true)",
        "INSERT INTO headrace.commands (procedure, arguments, settings, status)"
        " VALUES ('drop_view', '{\"name\": \"public.precious\"}', '{}', 'running')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            low.execute(statement)
        low.rollback()
    # Objects with the same names cannot catch the insert either.
    low.execute("CREATE TEMPORARY TABLE commands (LIKE headrace.commands)")
    low.execute("CREATE TEMPORARY TABLE views (n int)")
    low.execute("CREATE DOMAIN pg_temp.text AS int")
    low.execute("CREATE DOMAIN pg_temp.jsonb AS int")
    low.execute("SET search_path = pg_temp, pg_catalog")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner"):
        low.execute("CALL headrace.drop_view('public.precious')")
    assert is_there(server)
    assert senders(server) == {low.info.user}


def test_commands_are_seen_by_who_sent_them_only(server, low):
    low.execute("CREATE TABLE mine (id int PRIMARY KEY)")
    low.execute("CALL headrace.create_view('seen', 'SELECT id FROM mine')")
    own = low.execute("SELECT id, procedure, arguments FROM headrace.commands")
    [(number, name, arguments)] = own.fetchall()
    assert (name, arguments) == ("create_view", {}), "arguments are erased when it is done"
    server.execute("CALL headrace.check_view('SELECT 1 AS one')")
    seen = low.execute("SELECT id FROM headrace.commands").fetchall()
    assert seen == [(number,)]
    with role(server, "other") as other, connect(server.info.dsn, other) as conn:
        assert conn.execute("SELECT * FROM headrace.commands").fetchall() == []
        ask = "SELECT done, failed ->> 'C' FROM headrace.check_command(%s, NULL)"
        assert conn.execute(ask, (number,)).fetchone() == (True, "42704")
        found = conn.execute("SELECT headrace.command_result(%s)", (number,))
        assert found.fetchone() == (None,)
        # A function that sees rows before the policy filters them would leak.
        conn.execute(
            "CREATE FUNCTION leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001"
            " AS $f$ BEGIN RAISE NOTICE 'leaked %', $1; RETURN true; END $f$"
        )
        notices: list[str] = []
        conn.add_notice_handler(lambda d: notices.append(str(d.message_primary)))
        conn.execute("SELECT * FROM headrace.commands WHERE leak(arguments::text)")
        assert notices == []
        conn.execute("SET row_security = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT * FROM headrace.commands")


def test_a_command_is_carried_out_for_the_current_role(server, low):
    name = low.info.user
    with role(server, "group") as group:
        server.execute(f"GRANT {group} TO {name}")
        server.execute(f"CREATE TABLE {group}.base (id int PRIMARY KEY)")
        server.execute(f"ALTER TABLE {group}.base OWNER TO {group}")
        low.execute(f"SET ROLE {group}")
        low.execute(f"CALL headrace.create_view('{group}.v', 'SELECT id FROM {group}.base')")
        low.execute("RESET ROLE")
        found = server.execute("SELECT owner FROM headrace.views WHERE view_name = 'v'")
        assert found.fetchone() == (group,)
        server.execute(f"CALL headrace.drop_view('{group}.v')")


def test_what_a_role_left_behind_is_not_done_for_the_next_of_its_name(server):
    """Commands wait while there is no engine; their callers are identified by OID."""
    name = f"{server.info.dbname}_gone"
    server.execute(f"CREATE ROLE {name} LOGIN")
    server.execute(f"SET ROLE {name}")
    server.execute(
        "INSERT INTO headrace.commands (procedure, arguments, settings)"
        """ VALUES ('check_view', '{"query": "SELECT 1 AS one"}', '{}')"""
    )
    server.execute("RESET ROLE")
    server.execute(f"DROP ROLE {name}; CREATE ROLE {name} LOGIN")
    try:
        # The state at the return of the engine.
        server.execute("UPDATE headrace.commands SET status = 'pending'")
        server.execute("NOTIFY headrace_commands")
        wait_until(lambda: server.execute(UNFINISHED).fetchone() == (0,), "it is done with")
        found = server.execute("SELECT status, error ->> 'M' FROM headrace.commands")
        [(status, message)] = found.fetchall()
        assert (status, message) == ("failed", "the calling role no longer exists")
    finally:
        server.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize(
    ("procedure", "arguments", "settings", "code"),
    [
        ("create_view", '{"name": 5, "query": ["x"]}', "{}", "22023"),
        ("create_view", '{"name": "v", "query": "SELECT 1", "job": "x"}', "{}", "22023"),
        ("create_view", "[]", "{}", "22023"),
        ("wait_for", '{"name": "precious", "lsn": 1.5}', "{}", "22023"),
        ("fail_batch", '{"txid": "x"}', "{}", "22023"),
        ("check_view", '{"query": "SELECT 1 AS one"}', '{"search_path": 5}', "22023"),
        ("check_view", '{"query": "SELECT 1 AS one"}', "[]", "22023"),
        ("nonsense", "{}", "{}", "42883"),
        ("__init__", "{}", "{}", "42883"),
    ],
)
def test_rows_of_any_shape_are_refused_in_words(server, low, procedure, arguments, settings, code):
    sent = low.execute(
        "SELECT headrace.submit(%s, %s::jsonb, %s::jsonb)", (procedure, arguments, settings)
    ).fetchone()
    answer = "SELECT failed FROM headrace.check_command(%s, NULL)"
    failed = wait_until(lambda: low.execute(answer, sent).fetchone()[0], "it is refused")
    assert failed["C"] == code
    assert "internal error" not in failed["M"]


def test_a_command_has_a_size(server, low):
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        low.execute(
            "SELECT headrace.submit('check_view', jsonb_build_object('query',"
            " repeat('x', 20000000)), '{}')"
        )
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        low.execute(
            "INSERT INTO headrace.commands (procedure, arguments, settings)"
            " SELECT 'x', '{}', jsonb_object_agg(n, n) FROM generate_series(1, 99999) n"
        )


def test_notifications_of_anyone_only_wake(server, low):
    for payload in ("", "1", "-1", "x" * 7000):
        low.execute("SELECT pg_notify('headrace_commands', %s)", (payload,))
    low.execute("CALL headrace.check_view('SELECT 1 AS one')")


def test_both_ways_in_still_work(shared_engine, server, low):
    with connect(shared_engine.dsn, low.info.user) as relayed:
        relayed.execute("CREATE TABLE base (id int PRIMARY KEY)")
        relayed.execute("CALL headrace.create_view('one', 'SELECT id FROM base')")
        low.execute("CALL headrace.create_view('two', 'SELECT id FROM base')")
        relayed.execute("CALL headrace.drop_view('two')")
        low.execute("CALL headrace.drop_view('one')")
