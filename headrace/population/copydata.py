"""Reads COPY data in large pieces, through the same libpq that psycopg uses.

psycopg returns one row per call.  libpq is found through psycopg's extension module, which links
it.  Without that module (psycopg in pure Python) rows are read one by one.
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
"""Result of ``PQgetCopyData`` after an error."""


def read(pgconn: PGconn, size: int, rows: int) -> tuple[bytes, int]:
    """Read up to about ``size`` bytes or ``rows`` messages; return them and libpq's last result.

    The result is above 0 if there may be more, -1 at the end, ``FAILED`` after an error.

    REQUIRES: ``pgconn`` sends COPY data.
    """
    library = _library()
    if library is not None:
        connection: int | None = getattr(pgconn, "pgconn_ptr")  # noqa: B009  not in psycopg's hints
        if connection is None:
            return b"", FAILED
        return copyout.read(*library, connection, size, rows)
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
    """Return the addresses of ``PQgetCopyData`` and ``PQfreemem`` in psycopg's libpq, or None."""
    path = getattr(sys.modules[psycopg.pq.PGconn.__module__], "__file__", None)
    if path is None or path.endswith(".py"):
        return None
    # Looking up a symbol in a library also searches the libraries that it links.
    found = ctypes.CDLL(path)
    names = ("PQgetCopyData", "PQfreemem")
    get, free = (ctypes.cast(getattr(found, name), ctypes.c_void_p).value for name in names)
    return None if get is None or free is None else (get, free)
