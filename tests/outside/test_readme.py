"""The README's session, as psql shows it."""

import re
import subprocess
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from headrace.embedded import binaries
from tests.waiting import wait_until

README = Path(__file__).resolve().parents[2] / "README.md"
TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, country text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int NOT NULL, amount numeric(10, 2) NOT NULL,
                     status text NOT NULL);
INSERT INTO customers VALUES (1, 'Peru'), (2, 'Kenya');
INSERT INTO orders VALUES (1, 1, 10.50, 'open'), (2, 1, 20.00, 'open'), (3, 2, 7.25, 'open');
"""
PROMPT = "shop=> "


def session() -> list[tuple[str, str]]:
    """Return the (statement, psql's answer) pairs of the README, in order."""
    block = README.read_text().split("    $ psql ")[1].split("\n\n", 1)[1].split("\n\n`revenue`")[0]
    lines = [line.removeprefix("    ") for line in block.split("\n")]
    out = []
    for said in "\n".join(lines).split(PROMPT)[1:]:
        end = re.search(r";( *--.*)?$", said, re.MULTILINE)
        assert end, said
        out.append((said[: end.start() + 1], said[end.end() :]))
    return out


def plain(shown: str) -> list[str]:
    """Return the lines without trailing blanks, and without numbers that differ between runs."""
    lines = [line.rstrip() for line in shown.strip("\n").split("\n")]
    lines = [re.sub(r"in \d+\.\d s$", "in … s", line) for line in lines]
    return [re.sub(r"(running \|) +\d+$", r"\1 …", line) for line in lines if line]


@pytest.fixture
def psql(engine):
    found = str(binaries.install_dir(16, binaries.account()) / "bin" / "psql")
    parts = conninfo_to_dict(engine.dsn)

    def run(statement: str) -> str:
        done = subprocess.run(
            [
                *(found, "-X", "-h", str(parts["host"]), "-p", str(parts["port"])),
                *("-U", str(parts["user"]), "-d", str(parts["dbname"]), "-c", statement),
            ],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.stdout

    return run


def lag_is_known(conn: psycopg.Connection) -> bool:
    return conn.execute("SELECT lag_ms FROM headrace.list_views()").fetchone() != (None,)


def test_the_session_is_as_it_says(engine, psql):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        conn.execute(TABLES)
    found = session()
    assert len(found) == 5
    for statement, shown in found:
        answer = plain(psql(statement))
        for line in plain(shown):
            assert line in answer, (statement, answer)
        if statement.startswith("INSERT"):
            psql("CALL headrace.wait_for('revenue')")
            with psycopg.connect(engine.source, autocommit=True) as conn:
                wait_until(partial(lag_is_known, conn), "the worker has said how far it is")
