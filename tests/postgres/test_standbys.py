"""Which standbys count, and how far they are."""

from __future__ import annotations

from headrace.postgres import standbys, timeline
from tests.failover.pair import pair as pair
from tests.waiting import wait_until


def test_a_standby_counts_while_it_is_connected_and_a_moment_longer(pair):
    with pair.connect() as conn:
        wait_until(lambda: standbys.progress(conn).standbys, "it is connected")
        assert set(standbys.progress(conn).standbys) == {"to_standby"}
        conn.execute("SELECT pg_create_physical_replication_slot('archive', true)")
        assert "archive" in standbys.progress(conn).standbys, "it was just made"
        pair.standby.stop()
        wait_until(
            lambda: (
                conn.execute(
                    "SELECT active FROM pg_replication_slots WHERE slot_name = 'to_standby'"
                ).fetchone()
                == (False,)
            ),
            "it is gone",
        )
        conn.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
        found = standbys.progress(conn)
        assert found.behind(found.written) == {"to_standby", "archive"}
        conn.execute("ALTER SYSTEM SET synchronized_standby_slots = 'to_standby'")
        conn.execute("SELECT pg_reload_conf()")
        wait_until(lambda: set(standbys.progress(conn).standbys) == {"to_standby"}, "it is named")
        conn.execute("ALTER SYSTEM RESET synchronized_standby_slots")
        conn.execute("SELECT pg_reload_conf()")
        conn.execute("SELECT pg_drop_replication_slot('archive')")
        pair.standby.start()
        wait_until(lambda: not standbys.progress(conn).behind(found.written), "it has all")


def test_a_history_file():
    """Source: Postgres manual, "Timelines"."""
    text = "1\t0/3000158\tno recovery target specified\n# a comment\n\n2\t1/A0\tbefore 2026-01-01\n"
    assert timeline.parse_history(text) == {1: 0x3000158, 2: 0x1_0000_00A0}
