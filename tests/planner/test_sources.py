"""Privileges on the tables and columns of a query, where Postgres would check them."""

from __future__ import annotations

import psycopg
import pytest

from headrace.errors import PrerequisiteError, PrivilegeError, UnsupportedError
from headrace.planner import PlanRequest, plan


@pytest.fixture
def roles(conn):
    with conn.transaction(force_rollback=True):
        conn.execute("CREATE ROLE d_owner; CREATE ROLE d_reader")
        conn.execute("CREATE TABLE vault (id int PRIMARY KEY, secret text)")
        conn.execute("CREATE VIEW door AS SELECT id FROM vault")
        conn.execute("CREATE VIEW hall AS SELECT id FROM door")
        conn.execute("ALTER VIEW door OWNER TO d_owner")
        conn.execute("ALTER VIEW hall OWNER TO d_owner")
        yield


def verdict(conn: psycopg.Connection, query: str, caller: str = "d_reader") -> str:
    """Return Headrace's verdict on ``query``; Postgres' must be the same."""
    said = "allowed"
    try:
        planned = plan(conn, PlanRequest(query, caller))
        assert planned.relations
    except (PrivilegeError, UnsupportedError) as error:
        said = error.message
    theirs = "allowed"
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(f"SET LOCAL ROLE {caller}")
            conn.execute(query)
    except psycopg.errors.InsufficientPrivilege as error:
        theirs = str(error).splitlines()[0]
    if said.startswith("row security"):
        return said
    assert said == theirs
    return said


def test_a_view_is_read_as_its_owner(conn, roles):
    assert verdict(conn, "SELECT id FROM hall") == "permission denied for view hall"
    conn.execute("GRANT SELECT ON hall TO d_reader")
    assert verdict(conn, "SELECT id FROM hall") == "permission denied for table vault"
    conn.execute("GRANT SELECT (id) ON vault TO d_owner")
    assert verdict(conn, "SELECT id FROM hall") == "allowed"
    assert verdict(conn, "SELECT id FROM door") == "permission denied for view door"
    assert verdict(conn, "SELECT id FROM vault") == "permission denied for table vault"


def test_a_security_invoker_view_is_read_as_the_caller(conn, roles):
    if conn.info.server_version < 150000:
        pytest.skip("security_invoker came with Postgres 15")
    conn.execute("GRANT SELECT ON door, hall TO d_reader; GRANT SELECT ON vault TO d_owner")
    conn.execute("ALTER VIEW door SET (security_invoker = on)")
    assert verdict(conn, "SELECT id FROM hall") == "permission denied for table vault"
    conn.execute("GRANT SELECT ON vault TO d_reader")
    conn.execute("REVOKE SELECT ON vault FROM d_owner")
    assert verdict(conn, "SELECT id FROM hall") == "allowed"


def test_row_security_counts_for_the_owner_of_the_view(conn, roles):
    conn.execute("GRANT SELECT ON door TO d_reader; GRANT SELECT ON vault TO d_owner")
    conn.execute("ALTER TABLE vault ENABLE ROW LEVEL SECURITY")
    assert verdict(conn, "SELECT id FROM door").startswith("row security of table")
    conn.execute("ALTER TABLE vault OWNER TO d_owner")
    assert verdict(conn, "SELECT id FROM door") == "allowed"


def test_rights_on_a_partitioned_table_are_those_on_its_root(conn, roles):
    conn.execute("GRANT SELECT ON events TO d_reader")
    assert verdict(conn, "SELECT count(*) FROM events") == "allowed"
    assert "events_old" in verdict(conn, "SELECT count(*) FROM events_old")


def test_what_a_view_was_made_of_is_told(conn):
    planned = plan(conn, PlanRequest("SELECT i FROM wider"))
    names = {
        row[0]
        for row in conn.execute(
            "SELECT relname FROM pg_class WHERE oid = ANY (%s)", (sorted(planned.views),)
        )
    }
    assert names == {"wide", "wider"}
    assert 'View "public"."wider"' in planned.explain["sources"]


def test_a_refusal_inside_a_view_has_no_position_in_the_query(conn):
    with conn.transaction(force_rollback=True):
        conn.execute("CREATE VIEW lucky AS SELECT id, random() AS r FROM t")
        with pytest.raises(UnsupportedError) as caught:
            plan(conn, PlanRequest("SELECT id, 'a random text' AS r FROM lucky WHERE r < 1"))
        assert "random" in caught.value.message


def test_generated_columns_and_full_identity(conn):
    """Since version 18 Postgres refuses updates of such a table once it is published."""
    with conn.transaction(force_rollback=True):
        conn.execute("ALTER TABLE gen REPLICA IDENTITY FULL")
        if conn.info.server_version < 180000:
            plan(conn, PlanRequest("SELECT y FROM gen"))
            return
        with pytest.raises(PrerequisiteError, match="generated columns"):
            plan(conn, PlanRequest("SELECT x FROM gen"))
