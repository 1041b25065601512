"""Databases whose encoding is not UTF8 are refused before anything is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.config import Settings
from headrace.errors import PrerequisiteError
from headrace.postgres import encoding
from headrace.server import doctor, main, provisioning


@pytest.fixture(params=["LATIN1", "SQL_ASCII", "EUC_JP"])
def database(postgres, request) -> Iterator[tuple[str, str]]:
    """Return a database's connection string, and its encoding."""
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS of_encoding")
        conn.execute(
            f"CREATE DATABASE of_encoding ENCODING '{request.param}' LOCALE 'C' TEMPLATE template0"
        )
    yield make_conninfo(postgres, dbname="of_encoding"), request.param
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute("DROP DATABASE of_encoding WITH (FORCE)")


def test_other_encodings_are_refused(database, tmp_path: Path):
    dsn, name = database
    settings = Settings(source=dsn, data_dir=tmp_path / "d")
    says = f'the database has encoding "{name}", but must have "UTF8"'
    with pytest.raises(PrerequisiteError) as refused:
        main.prepare(settings)
    assert refused.value.message == says
    assert "ENCODING 'UTF8'" in str(refused.value.hint)
    with pytest.raises(PrerequisiteError, match="encoding"):
        provisioning.script(settings, dsn)
    problems = [f.problem for f in doctor.look(settings) if f.problem is not None]
    assert says in [p.message for p in problems]
    with psycopg.connect(dsn, client_encoding="UTF8") as conn:
        assert conn.execute("SELECT to_regnamespace('headrace')").fetchone() == (None,)


def test_a_source_may_have_any_encoding_that_is_known(database):
    dsn, name = database
    with psycopg.connect(dsn, client_encoding="UTF8") as conn:
        if name != "SQL_ASCII":
            encoding.check_source(conn)
            return
        with pytest.raises(PrerequisiteError, match="SQL_ASCII"):
            encoding.check_source(conn)


def test_utf8_lacks_nothing(postgres):
    with psycopg.connect(postgres) as conn:
        assert encoding.problems(conn) == []
        encoding.check_source(conn)
