"""Follow a page: send its SQL in order, and compare the answers with those on the page.

``stand_ins`` replaces names of other machines or databases on the page. Command lines are checked
(``shells.py``), or run by the caller's ``run``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.types.string import TextLoader

from tests.outside import pages
from tests.outside.pages import Block, Typed
from tests.waiting import wait_until

BEFORE = {"how": "start", "tools": "integrations"}
"""Pages that use the tables of another page: those of its first example."""
MEASURED = ((r"\d+ % of time", "# % of time"), (r"cpu \d+(\.\d)? ms", "cpu # ms"))
BYTES = (r"~?\d+(\.\d+)? (B|kB|MB)\b", "# bytes")
SYNTAX = "DO $follow$ BEGIN RETURN; {}; END $follow$"
"""Postgres parses the whole block, also the part after RETURN."""


class Follower:
    """A user at the port of an engine, with a page."""

    def __init__(
        self,
        conn: psycopg.Connection,
        source: str,
        stand_ins: Mapping[str, str] | None = None,
        run: Callable[[Typed, str], None] | None = None,
    ) -> None:
        """Set up. ``source`` is the database itself, as a superuser; ``run`` executes lines typed
        at ``$``, and also gets the last answer.
        """
        self.sent = 0
        self._conn, self._source = conn, source
        self._stand_ins = dict(stand_ins or {})
        self._run = run
        self._answer: list[str] = []
        self._error: psycopg.Error | None = None

    def follow(self, page: Path) -> int:
        """Do what a page says, block by block; return the number of statements sent."""
        all_of_it = pages.blocks(page)
        if page.stem in BEFORE:
            first = next(
                b for b in pages.blocks(pages.page_of(BEFORE[page.stem])) if b.kind == "sql"
            )
            self._sql(first)
        for block in all_of_it:
            self.take(block)
        self.end()
        return self.sent

    def end(self) -> None:
        """Finish: an error that no block of the page shows is a failure."""
        assert self._error is None, self._error

    def take(self, block: Block) -> None:
        """Do what one block says."""
        match block.kind:
            case "sql":
                self._sql(block)
            case "error":
                self._failed(block)
            case "shown":
                assert_shown(block, self._answer)
            case "ini":
                self._configured(block)
            case "console" | "sh":
                for typed in pages.session(block.body):
                    self._typed(block, typed)

    def _sql(self, block: Block) -> None:
        assert self._error is None, f"before {block}: {self._error}"
        told = pages.statements(block.body)
        for number, statement in enumerate(told, 1):
            assert self._error is None, f"{block}: {self._error}"
            try:
                self._answer = self._send(self._conn, statement)
            except psycopg.Error as error:
                if number < len(told):
                    raise AssertionError(f"{block}: {statement}: {error}") from error
                self._error = error

    def _failed(self, block: Block) -> None:
        """Compare the block with the last statement's error, or that of the prose above."""
        error, self._error = self._error or self._fails(block), None
        assert_error(block, error)

    def _fails(self, block: Block) -> psycopg.Error:
        spans = re.findall(r"`((?:CALL|SELECT)\b[^`]+)`", block.before)
        assert spans, f"nothing fails before {block}"
        try:
            self._send(self._conn, spans[-1])
        except psycopg.Error as error:
            return error
        raise AssertionError(f"{block}: {spans[-1]} does not fail")

    def _configured(self, block: Block) -> None:
        """Check that the lines of postgresql.conf are settings of Postgres."""
        names = re.findall(r"^(\w+) = (?:'[^']*'|\w+)(?: *#.*)?$", block.body, re.MULTILINE)
        assert len(names) == len(block.body.split("\n")), block
        known = "SELECT name FROM pg_settings WHERE name = ANY (%s)"
        assert {n for (n,) in self._conn.execute(known, (names,))} == set(names), block

    def _typed(self, block: Block, typed: Typed) -> None:
        if typed.is_shell:
            if self._run is not None:
                self._run(typed, self._answer[-1] if self._answer else "")
            return
        name, mark = typed.prompt[:-2], typed.prompt[-1]
        assert not typed.answer, f"{block}: compare what is answered"
        if mark == ">":
            dsn = make_conninfo(self._conn.info.dsn, dbname=name, password=self._conn.info.password)
            with psycopg.connect(dsn, autocommit=True) as conn:
                assert self._send(conn, typed.words), typed.words
            return
        # A statement that changes the server for all databases is only parsed by Postgres.
        with psycopg.connect(self._source) as conn:
            for statement in pages.statements(typed.words):
                conn.execute(SYNTAX.format(statement).encode())
                self.sent += 1

    def _send(self, conn: psycopg.Connection, statement: str) -> list[str]:
        for said, meant in self._stand_ins.items():
            statement = statement.replace(said, meant)
        cursor = conn.cursor()
        cursor.adapters.register_loader("jsonb", TextLoader)  # as psql shows it
        cursor.execute(statement.strip().removesuffix(";").encode())
        self.sent += 1
        if cursor.description is None:
            return []
        head = [column.name for column in cursor.description]
        rows = [["" if v is None else str(v) for v in row] for row in cursor.fetchall()]
        return [" | ".join(row) for row in (head, *rows)]


def evened(line: str, measured: bool) -> str:
    """Return a line without the parts that differ between answers: blanks and measured values."""
    line = re.sub(r"\s*\|\s*", " | ", line.strip())
    for pattern, plain in (*MEASURED, BYTES) if measured else ():
        line = re.sub(pattern, plain, line)
    return re.sub(r"\s+", " ", line)


def assert_shown(block: Block, answer: list[str]) -> None:
    """Check that the answer has the block's lines in their order; ``…`` stands for any lines."""
    assert answer, f"nothing was answered before {block}"
    measured = any("of time" in line for line in answer)
    there = iter([evened(line, measured) for text in answer for line in text.split("\n")])
    for line in block.body.split("\n"):
        wanted = evened(line, measured)
        if not wanted or wanted == "…" or not wanted.strip("-+"):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("…")))
        assert any(pattern.fullmatch(found) for found in there), f"{block}: {line}\n{answer}"


def assert_error(block: Block, error: psycopg.Error) -> None:
    """Check that a block shows an error as psql does, or the beginning of it."""
    diag = error.diag
    parts = {
        "ERROR": diag.message_primary,
        "DETAIL": diag.message_detail,
        "HINT": diag.message_hint,
    }
    told = "\n".join(f"{name}: {text}" for name, text in parts.items() if text)
    lines = [re.sub(r"\s+", " ", line.strip()) for line in told.split("\n")]
    said = [re.sub(r"\s+", " ", line.strip()) for line in block.body.split("\n") if line.strip()]
    assert [line for line in said if line not in lines] == [], f"{block}: {told}"
    codes = re.findall(r"\b(?=[A-Z]*\d)[0-9A-Z]{5}\b", block.before)
    assert not codes or error.sqlstate in codes, f"{block}: it is {error.sqlstate}"


@contextlib.contextmanager
def emptied(dsn: str) -> Iterator[psycopg.Connection]:
    """Yield a connection to the engine's port; drop everything that a page created at the end."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        there = roles(conn)
        try:
            yield conn
        finally:
            _empty(conn, roles(conn) - there)


def roles(conn: psycopg.Connection) -> set[str]:
    """Return the roles of pages that exist; no other role is ever dropped."""
    named = {
        name
        for page in pages.documents()
        for name in re.findall(r"CREATE ROLE (\w+)", page.read_text())
    }
    found = conn.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY (%s)", (list(named),))
    return {name for (name,) in found}


def _empty(conn: psycopg.Connection, made: set[str]) -> None:
    # Views and functions of the user that depend on our tables.
    for (statement,) in conn.execute(HANGS).fetchall():
        conn.execute(statement.encode())
    for (name,) in conn.execute("SELECT name FROM headrace.connection_points()").fetchall():
        conn.execute("CALL headrace.drop_connection_point(%s)", (name,))
    names = [n for (n,) in conn.execute("SELECT name FROM headrace.list_views()").fetchall()]
    while names:
        left = [name for name in names if not _dropped(conn, name)]
        assert len(left) < len(names)
        names = left
    # Plain views over tables of other databases, and other dependent objects.
    conn.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    for kind, name in (("source", "sources"), ("worker", "workers")):
        rows = conn.execute(f"SELECT * FROM headrace.{name}()".encode()).fetchall()
        for row in rows:
            if row[0] != "main":
                conn.execute(f"CALL headrace.{DROP[kind]}(%s)".encode(), (row[0],))
    for role in made:
        conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


HANGS = """
SELECT format('DROP VIEW IF EXISTS %s CASCADE', oid::regclass) FROM pg_class
 WHERE relkind = 'v' AND relnamespace = 'public'::regnamespace
UNION ALL
SELECT format('DROP FUNCTION IF EXISTS %s CASCADE', oid::regprocedure) FROM pg_proc
 WHERE pronamespace = 'public'::regnamespace
"""
DROP = {"source": "drop_source", "worker": "remove_worker"}


def _dropped(conn: psycopg.Connection, name: str) -> bool:
    try:
        conn.execute("CALL headrace.drop_view(%s)", (name,))
    except psycopg.errors.DependentObjectsStillExist:
        return False
    except psycopg.errors.ObjectInUse:  # it is being populated again
        wait_until(lambda: _idle(conn, name), f"{name} is filled")
        conn.execute("CALL headrace.drop_view(%s)", (name,))
    return True


def _idle(conn: psycopg.Connection, name: str) -> bool:
    query = "SELECT status FROM headrace.list_views() WHERE name = %s"
    return conn.execute(query, (name,)).fetchone() != ("populating",)
