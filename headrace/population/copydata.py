"""COPY data of a connection in large pieces, through the very libpq that psycopg uses.

psycopg gives a row by a call.  Its library is found by what psycopg is: an extension that links
libpq.  Where there is none (psycopg in pure Python) the rows are asked for one by one.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import TYPE_CHECKING, Final

import psycopg.pq

from headrace.kernels import copyout

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

FAILED: Final = -2
"""What ``PQgetCopyData`` says of an error."""


def read(pgconn: PGconn, size: int, rows: int) -> tuple[bytes, int]:
    """Messages until there are ``size`` bytes or ``rows`` of them, and what libpq said last.

    Above 0: there may be more; -1: that was all; ``FAILED``: an error.

    REQUIRES: ``pgconn`` sends COPY data.
    """
    library = _library()
    if library is not None:
        connection: int | None = getattr(pgconn, "pgconn_ptr")  # noqa: B009  not in psycopg's hints
        if connection is None:
            return b"", FAILED
        data, said = copyout.read(*library, connection, size, rows)
        return data, said
    lines: list[bytes] = []
    length, total = 1, 0
    while total < size and len(lines) < rows:
        length, data = pgconn.get_copy_data(0)
        if length <= 0:
            break
        lines.append(bytes(data))
        total += length
    return b"".join(lines), length


@functools.cache
def _library() -> tuple[int, int] | None:
    """Addresses of ``PQgetCopyData`` and ``PQfreemem`` in psycopg's libpq."""
    path = getattr(sys.modules[psycopg.pq.PGconn.__module__], "__file__", None)
    if path is None or path.endswith(".py"):
        return None
    # Symbols of a library are those of what it links, too.
    found = ctypes.CDLL(path)
    names = ("PQgetCopyData", "PQfreemem")
    get, free = (ctypes.cast(getattr(found, name), ctypes.c_void_p).value for name in names)
    return None if get is None or free is None else (get, free)
