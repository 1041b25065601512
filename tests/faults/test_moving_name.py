"""The host name of the connection string leads to another address later (a failover by DNS)."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from headrace.embedded.binaries import account
from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from tests.faults import copies
from tests.faults.copies import connect
from tests.faults.names import NAME, MovingName
from tests.waiting import PATIENCE_S, wait_until

CONTENTS = """
SELECT c.oid::regclass::text, pg_relation_size(c.oid), s.n_tup_upd + s.n_tup_del + s.n_tup_ins
  FROM pg_class c JOIN pg_stat_all_tables s ON s.relid = c.oid
 WHERE c.relkind = 'r' AND c.relnamespace <> 'pg_catalog'::regnamespace
   AND c.oid IS DISTINCT FROM to_regclass('headrace.meta') ORDER BY 1"""
"""Every table, with the number of rows written in it; the server notes its process in one."""
OLD, NEW = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def name(tmp_path: Path) -> MovingName:
    return MovingName(tmp_path)


@dataclasses.dataclass
class Place:
    """A server at an address; all servers have the same port."""

    server: EmbeddedPostgres
    address: str

    @property
    def dsn(self) -> str:
        return make_conninfo(self.server.dsn("app"), host=self.address)


def at(address: str, data_dir: Path | None, port: int = 0) -> EmbeddedPostgres:
    return EmbeddedPostgres(data_dir, 18, {"listen_addresses": address}, port=port, durable=False)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Place]:
    server = at(OLD, None)
    server.start()
    copies.new_database(server, "app")
    with connect(server.dsn("app")) as conn:
        conn.execute(copies.TABLES)
    yield Place(server, OLD)
    server.destroy()


@pytest.fixture
def engine(old: Place, name: MovingName, tmp_path: Path) -> Iterator[EmbeddedEngine]:
    dsn = f"host={NAME} port={old.server.port} user=postgres dbname=app connect_timeout=2"
    env = {"HEADRACE_SPARK_WARM": "false", "HEADRACE_VIEW_TIME_MS_MAX": "20000"}
    with EmbeddedEngine(dsn, tmp_path / "engine", env=env, python=str(name.python)) as made:
        copies.create_views(made)
        yield made


def test_the_server_moves_to_another_address(engine, old, name):
    """The same data on another machine: views go on, and clients are relayed there."""
    before = copies.ids(old.dsn)
    old.server.stop()
    moved = Place(at(NEW, old.server.data_dir, old.server.port), NEW)
    moved.server.start()
    try:
        name.lead_to(NEW)
        copies.exact(moved.dsn)
        assert copies.ids(moved.dsn) == before, "no view was filled anew"
        with connect(engine.dsn) as client:
            assert client.execute("SHOW listen_addresses").fetchone() == (NEW,)
            client.execute("CALL headrace.resync_view('sums')")
    finally:
        moved.server.stop()


@pytest.mark.parametrize("restored", [False, True], ids=["empty", "from_a_dump"])
def test_another_cluster_answers_to_the_name(engine, old, name, restored):
    """The server names it and ends, and writes nothing there; at the old server views go on."""
    before = copies.ids(old.dsn)
    process = engine._process
    with at(NEW, None, old.server.port) as server:
        other = Place(server, NEW)
        copies.new_database_at(other.dsn, "app")
        if restored:
            copies.restore(old.server, old.dsn, other.dsn)
        with connect(other.dsn) as conn:
            # A session reports the rows that it wrote in ``public`` when it ends, or later.
            wait_until(
                lambda: all(
                    n or not size or "." in name for name, size, n in conn.execute(CONTENTS)
                ),
                "all is counted",
            )
            contents = conn.execute(CONTENTS).fetchall()
        name.lead_to(NEW)
        with connect(old.dsn) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = 'app' AND pid <> pg_backend_pid()"
            )
        assert process.wait(PATIENCE_S) == 1
        with connect(other.dsn) as conn:
            assert conn.execute(CONTENTS).fetchall() == contents
            assert conn.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
    if restored:
        assert "another database answers" in engine.log
        assert "was restored from a dump" in engine.log
    assert "leads to another server now" in engine.log
    name.lead_to(OLD)
    engine.stop()
    engine.start()
    copies.exact(old.dsn)
    assert copies.ids(old.dsn) == before, "no view was filled anew"


def test_a_snapshot_of_the_server_answers_to_the_name(engine, old, name, tmp_path):
    """Its system identifier is the same; views are exact there, and the old server is left."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-moved-"))
    account().take(folder)
    files = copies.copy_files(old.server, folder / "snapshot").data_dir
    copies.write_unread(old.dsn, "headrace", 1)
    with at(NEW, files, old.server.port) as server:
        moved = Place(server, NEW)
        copies.go_on(moved.dsn)
        name.lead_to(NEW)
        old.server.stop()
        copies.exact(moved.dsn)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_name_of_several_servers_leads_clients_to_the_primary(old, name, tmp_path):
    """libpq chooses by ``target_session_attrs``, and the port relays to the same server."""
    port, folder = old.server.port, Path(f"{old.server.data_dir}-primary")
    old.server.stop()
    subprocess.run(["cp", "-a", old.server.data_dir, folder], check=True)
    (old.server.data_dir / "standby.signal").touch()
    old.server.start()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.enter_context(at(NEW, folder, port))
        for addresses in ((NEW, OLD), (OLD, NEW)):
            name.lead_to(*addresses)
            dsn = f"host={NAME} port={port} user=postgres dbname=app connect_timeout=2"
            dsn += " target_session_attrs=read-write"
            data = tmp_path / addresses[0]
            with EmbeddedEngine(dsn, data, python=str(name.python)) as made:
                for _ in range(3):
                    with connect(made.dsn) as client:
                        assert client.execute("SHOW listen_addresses").fetchone() == (NEW,)
