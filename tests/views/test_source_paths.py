"""add_source: the sockets of the source's process must fit into the data directory's path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.config import Settings
from headrace.errors import UserError
from headrace.process import rpc
from headrace.sql.verbs import AddSource
from headrace.views import sources


def test_a_path_that_fits_the_engine_only_is_refused(tmp_path):
    """Otherwise the process would end at each start, and its rows would never come."""
    fits = rpc.SOCKET_BYTES_MAX - len("/run/builder.sock")
    data_dir = tmp_path / ("x" * (fits - len(str(tmp_path)) - 1))
    settings = Settings(source="host=nowhere.invalid", data_dir=data_dir)
    rpc.check(settings.worker_socket, settings.builder_socket)
    context, request = SimpleNamespace(settings=settings), AddSource("eu", "host=nowhere.invalid")
    with pytest.raises(UserError, match="too long") as raised:
        sources.add_source(cast("Any", context), cast("Any", None), request)
    assert raised.value.code == "22023"
