"""COPY data in large pieces equals psycopg's data, row by row."""

import psycopg
import pytest

from headrace.population import copydata

ROWS = "COPY (SELECT i, repeat('x', i % 70) FROM generate_series(1, 3000) i) TO STDOUT"
FAILS = "COPY (SELECT 1 / (2000 - i) FROM generate_series(1, 3000) i) TO STDOUT"


@pytest.fixture(params=["library", "psycopg"])
def way(request, monkeypatch):
    """Use either of the two ways."""
    if request.param == "psycopg":
        monkeypatch.setattr(copydata, "_library", lambda: None)
    else:
        assert copydata._library() is not None, "else this tests nothing"


def pieces(conn, statement: bytes, size: int, rows: int) -> tuple[list[bytes], int, list[bytes]]:
    """Return the pieces, libpq's last result, and the errors of the statement."""
    conn.pgconn.exec_(statement)
    out, errors, said = [], [], 1
    while said > 0:
        data, said = copydata.read(conn.pgconn, size, rows)
        out.append(data)
    while (result := conn.pgconn.get_result()) is not None:
        errors.append(result.error_message)
    return out, said, [error for error in errors if error]


@pytest.mark.parametrize(("size", "rows"), [(1, 5000), (1000, 5000), (1 << 22, 7), (1 << 22, 5000)])
def test_pieces_are_whole_rows_of_the_size_asked_for(database, way, size, rows):
    with psycopg.connect(database, autocommit=True) as conn:
        with conn.cursor().copy(ROWS) as copy:
            wanted = [bytes(data) for data in copy]
        found, said, errors = pieces(conn, ROWS.encode(), size, rows)
        assert (said, errors) == (-1, [])
        assert b"".join(found) == b"".join(wanted)
        assert all(not piece or piece.endswith(b"\n") for piece in found)
        longest = max(len(one) for one in wanted)
        assert max(len(piece) for piece in found) < size + longest
        assert max(piece.count(b"\n") for piece in found) <= rows


def test_an_error_in_the_middle_is_no_end(database, way):
    with psycopg.connect(database, autocommit=True) as conn:
        _, _, (error,) = pieces(conn, FAILS.encode(), 1000, 5000)
        assert b"division by zero" in error
