"""add_source: the sockets of the source's process must fit into the data directory's path."""

from __future__ import annotations

import psycopg
import pytest

from headrace.config import Settings
from headrace.errors import DuplicateError, UserError
from headrace.process import rpc
from headrace.sql.install import install
from headrace.sql.origins import SourceRow
from headrace.views import sources


def test_a_path_that_fits_the_engine_only_is_refused(database, tmp_path):
    """Otherwise the process would end at each start, and its rows would never come."""
    fits = rpc.SOCKET_BYTES_MAX - len("/run/builder.sock")
    data_dir = tmp_path / ("x" * (fits - len(str(tmp_path)) - 1))
    settings = Settings(source=database, data_dir=data_dir)
    rpc.check(settings.worker_socket, settings.builder_socket)
    socket = settings.of_carrier("eu").worker_socket
    row = SourceRow("eu", database, "slot", "1", 1, "", "0/1", "starting", None)
    with psycopg.connect(database, autocommit=True) as conn:
        install(conn)
        with pytest.raises(UserError, match="too long") as raised:
            sources._enter(conn, row, [], socket)
        assert raised.value.code == "22023"
        found = "SELECT to_regnamespace('eu'), (SELECT count(*) FROM headrace.origins)"
        assert conn.execute(found).fetchall() == [(None, 0)]
        conn.execute("CREATE SCHEMA eu")
        with pytest.raises(DuplicateError, match='schema "eu" already exists'):
            sources._enter(conn, row, [], socket)
