"""Texts close to the limit of a call, from an ordinary role: the builder reads none of them itself.

Every command that takes a query is called with every shape of text. The builder's peak memory shows
that the text is read elsewhere. The order of events shows that other roles are served meanwhile:
the process that plans is stopped, and continued once they are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from headrace.population.planner_child import TITLE
from tests.conftest import ENGINES
from tests.security import roles, servers
from tests.waiting import wait_until

SCHEMA = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b');"
SMALL = "SELECT id, count(*) AS n FROM t GROUP BY id"
SHAPES = {
    "constants": f"SELECT id FROM t WHERE id IN ({', '.join(map(str, range(1, 130_000)))})",
    "conditions": "SELECT id FROM t WHERE " + " OR ".join(f"id = {i}" for i in range(63_000)),
    "nesting": "SELECT " + "(" * 440_000 + "id" + ")" * 440_000 + " AS x FROM t",
    "ctes": "WITH " + ", ".join(f"c{i} AS (SELECT {i} AS id FROM t)" for i in range(23_000))
    + " SELECT id FROM c1",
    "comment": "SELECT id /* " + "x " * 440_000 + "*/ FROM t",
    "literal": "SELECT id, '" + "y" * 900_000 + "' AS x FROM t",
    "parentheses": "SELECT " + "(" * 900 + "id FROM t --" + "-" * 900_000,
    "unbalanced": "SELECT " + "(" * 900_000 + "id FROM t",
}  # fmt: skip
OPTIONS = '{"dialect": "mysql"}'
COMMANDS = {
    "create_view": "CALL headrace.create_view('large', %s)",
    "replace": "CALL headrace.create_view('kept', %s, replace => true)",
    "alter_view": "CALL headrace.alter_view('kept', %s)",
    "check_view": "CALL headrace.check_view(%s, NULL)",
    "dialect": f"CALL headrace.check_view(%s, '{OPTIONS}')",
    "explain_view": "SELECT * FROM headrace.explain_view(%s, 'logical')",
    "ast": "SELECT * FROM headrace.explain_view(%s, 'ast')",
    "explain_placement": "SELECT * FROM headrace.explain_placement(%s)",
    "advise": "SELECT * FROM headrace.advise(%s)",
}
REFUSED = {"0A000", "42601", "54000", "54001"}
"""Too large, too deep, too slow, or wrong; never an internal error."""
ROUNDS = 5
PEAK_BYTES_MAX = 96 << 20
"""Growth of the builder's peak memory.  A text that it read itself takes a hundred times its size."""


@pytest.fixture(scope="module")
def running(databases, tmp_path_factory) -> Iterator[EmbeddedEngine]:
    more = {
        "HEADRACE_PLANNING_TIME_MS_MAX": "6000",
        # The commander reads such statements on its port, too.
        "HEADRACE_STATEMENT_BYTES_MAX": str(1 << 21),
    }
    with servers.running(databases, tmp_path_factory, SCHEMA, **more) as engine:
        yield engine


@pytest.fixture
def low(running, request) -> Iterator[psycopg.Connection]:
    """A session of an ordinary role on the port."""
    with _session(running, request, "low") as conn:
        yield conn


@pytest.fixture
def other(running, request) -> Iterator[psycopg.Connection]:
    """A session of another ordinary role."""
    with _session(running, request, "other") as conn:
        yield conn


@contextlib.contextmanager
def _session(running, request, name: str) -> Iterator[psycopg.Connection]:
    request.node.stash.setdefault(ENGINES, []).append(running)
    with (
        psycopg.connect(running.source, autocommit=True) as server,
        roles.role(server, name) as role,
    ):
        server.execute(f"GRANT SELECT ON t TO {role}")
        with roles.connect(running.dsn, role) as conn:
            yield conn
            for (view,) in server.execute(
                "SELECT view_name FROM headrace.views WHERE schema_name = %s", (role,)
            ).fetchall():
                conn.execute(f"CALL headrace.drop_view('{view}')")


def planners(engine: EmbeddedEngine) -> set[int]:
    """Return the process ids of the engine's planners.

    A planner may end soon, so only the engine's processes are read: the machine may have hundreds.
    """
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if os.getsid(int(process.name)) != engine.pid:
                    continue
                title = (process / "cmdline").read_bytes().rstrip(b"\0").decode()
                if title == TITLE:
                    found.add(int(process.name))
    return found


def builder(engine: EmbeddedEngine) -> int:
    found = engine.child("headrace.views.builder")
    assert found is not None
    return found


def memory(process: int, field: str) -> int:
    """Return bytes of memory: ``VmRSS``, or ``VmHWM`` for the peak."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(field)]
    return int(line.split()[1]) << 10


def grown(process: int, work: Callable[[], None]) -> int:
    """Return the bytes by which the peak memory of a process exceeds its memory before."""
    Path(f"/proc/{process}/clear_refs").write_text("5")
    before = memory(process, "VmRSS")
    work()
    return memory(process, "VmHWM") - before


def answer(conn: psycopg.Connection, command: str, query: str) -> str:
    """Return the SQLSTATE of a command, named or written: 00000 if it succeeds."""
    try:
        with psycopg.ClientCursor(conn) as cursor:
            cursor.execute(COMMANDS.get(command, command), (query,))
    except psycopg.Error as error:
        return error.sqlstate or f"no answer: {error}"
    if command == "create_view":
        conn.execute("CALL headrace.drop_view('large')")
    return "00000"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_large_texts_of_any_command_cost_the_builder_no_memory(running, low, command):
    low.execute("CALL headrace.create_view('kept', 'SELECT id FROM t')")
    answers = {}

    def all_shapes() -> None:
        answers.update({shape: answer(low, command, text) for shape, text in SHAPES.items()})

    assert grown(builder(running), all_shapes) < PEAK_BYTES_MAX
    assert set(answers.values()) <= REFUSED | {"00000"}, answers
    assert answers["unbalanced"] in REFUSED
    assert answer(low, command, SMALL) == "00000"


@pytest.mark.parametrize(
    "shape", [pytest.param("constants", marks=pytest.mark.slow), "comment", "parentheses"]
)
def test_many_large_texts_cost_the_builder_no_memory(running, low, shape):
    def often() -> None:
        for _ in range(ROUNDS):
            assert answer(low, "check_view", SHAPES[shape]) in REFUSED | {"00000"}

    assert grown(builder(running), often) < PEAK_BYTES_MAX


class Call:
    """A command in a thread, which is stopped as soon as a process plans its query."""

    def __init__(
        self, engine: EmbeddedEngine, conn: psycopg.Connection, command: str, query: str
    ) -> None:
        self.state: str | None = None
        self._conn = conn
        before = planners(engine)
        self._thread = threading.Thread(target=self._run, args=(command, query))
        self._thread.start()
        [self.process] = wait_until(lambda: planners(engine) - before, "a process plans")
        os.kill(self.process, signal.SIGSTOP)

    def _run(self, command: str, query: str) -> None:
        self.state = answer(self._conn, command, query)

    def cancel(self) -> None:
        self._conn.cancel()

    def resume(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGCONT)

    def end(self) -> str | None:
        """Wait until the command ends, and return its SQLSTATE."""
        self._thread.join()
        return self.state


@pytest.fixture
def idle(running) -> None:
    """Wait until no process is left that could serve the next call."""
    stop_planners(running)


def stop_planners(running: EmbeddedEngine) -> None:
    for process in planners(running):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_until(lambda: not planners(running), "they end")


PLANNED = [
    pytest.param(command, marks=[pytest.mark.slow] * (command not in ("create_view", "check_view")))
    for command in COMMANDS
    if command not in ("ast", "dialect")
]
"""The others first have sqlglot read the text, in a process of its own."""


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("command", PLANNED)
def test_other_roles_are_served_while_a_large_text_is_read(running, low, other, command):
    low.execute("CALL headrace.create_view('kept', 'SELECT id FROM t')")
    call = Call(running, low, command, SHAPES["comment"])
    try:
        # A population would wait for an xid of the stopped process, as for those of any program.
        for text in (SMALL, f"{SMALL} --{'x' * 50_000}"):
            other.execute(COMMANDS["check_view"], (text,))
            other.execute(COMMANDS["explain_view"], (text,))
        assert call.state is None, "it has not ended yet"
    finally:
        call.resume()
    assert call.end() in REFUSED | {"00000"}


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("command", PLANNED)
def test_a_cancel_ends_a_command_whose_text_is_read(running, low, command):
    low.execute("CALL headrace.create_view('kept', 'SELECT id FROM t')")
    call = Call(running, low, command, SHAPES["comment"])
    try:
        call.cancel()
        assert call.end() == "57014"
    finally:
        call.resume()
    wait_until(lambda: call.process not in planners(running), "the process ends")
    assert answer(low, command, SMALL) == "00000"


VALUES = ", ".join(map(str, range(1, 4_000)))
MANY_VALUES = ", ".join(map(str, range(1, 8_000)))
"""The tree that Postgres stores of them is large."""
POSTGRES = f"CREATE VIEW v AS SELECT id FROM t WHERE id IN ({MANY_VALUES})"
HEADRACE = f"CALL headrace.create_view('v', 'SELECT id FROM t WHERE id IN ({VALUES})')"
RESYNC = "CALL headrace.resync_view(%s)"


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("statement", "command", "text"),
    [
        (POSTGRES, COMMANDS["check_view"], "SELECT * FROM v"),
        pytest.param(HEADRACE, COMMANDS["check_view"], "SELECT * FROM v", marks=pytest.mark.slow),
        pytest.param(HEADRACE, COMMANDS["ast"], "v", marks=pytest.mark.slow),
        pytest.param(HEADRACE, COMMANDS["advise"], "v", marks=pytest.mark.slow),
        (HEADRACE, RESYNC, "v"),
    ],
    ids=["of a view of Postgres", "of a view of Headrace", "ast", "advise", "resync"],
)
def test_a_short_text_that_reads_a_large_view_is_planned_in_a_process(
    running, low, statement, command, text
):
    low.execute(statement)
    stop_planners(running)
    call = Call(running, low, command, text)
    call.resume()
    assert call.end() == "00000"
    if statement is POSTGRES:
        low.execute("DROP VIEW v")


def test_a_view_of_any_size_costs_the_builder_no_memory(running, low):
    """Postgres has no limit of its own; the builder reads no part of such a tree in vain."""
    values = ", ".join(map(str, range(400_000)))
    low.execute(f"CREATE VIEW v AS SELECT id FROM t WHERE id IN ({values})")

    def read() -> None:
        assert answer(low, "check_view", "SELECT * FROM v") in REFUSED

    assert grown(builder(running), read) < PEAK_BYTES_MAX
    low.execute("DROP VIEW v")


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("planning", [True, False], ids=["planning", "idle"])
def test_a_process_ends_with_the_builder(running, low, planning):
    query = SHAPES["comment"]
    if planning:
        call = Call(running, low, "check_view", query)
        process = call.process
    else:
        assert answer(low, "check_view", query) == "00000"
        [process] = planners(running)
    os.kill(builder(running), signal.SIGKILL)
    if planning:
        call.resume()
        assert call.end() not in REFUSED | {"00000"}
    wait_until(lambda: process not in planners(running), "it ends, too")
    wait_until(lambda: answer(low, "check_view", SMALL) == "00000", "another builder works")


WRONG = {
    "syntax": "SELECT id FRM t WHERE",
    "parentheses": "SELECT (((id FROM t",
    "umlaut": "SELECT 'äöü' AS ß, x FROM t",
    "column": "SELECT id, kk FROM t",
    "function": "SELECT id, random() AS r FROM t",
    "table": "SELECT id FROM nowhere",
}


@pytest.mark.parametrize("query", WRONG.values(), ids=WRONG)
def test_errors_in_large_texts_are_those_of_small_ones(low, query):
    """With SQLSTATE, message, detail, hint and position; those of Postgres, where it refuses."""

    def error(text: str, call: str = "CALL headrace.check_view({}, NULL)") -> dict[str, object]:
        with pytest.raises(psycopg.Error) as raised, psycopg.ClientCursor(low) as cursor:
            cursor.execute(psycopg.sql.SQL(call).format(psycopg.sql.Literal(text)))
        diag = raised.value.diag
        return {
            name: getattr(diag, name)
            for name in ("sqlstate", "message_primary", "message_detail", "message_hint",
                         "statement_position", "internal_position")
        }  # fmt: skip

    small = error(query)
    assert error(f"{query} --{'x' * 50_000}") == small
    if small["sqlstate"] == "0A000":
        low.execute(f"PREPARE mine AS {query}")  # Postgres accepts it
        return
    with pytest.raises(psycopg.Error) as raised:
        low.execute(f"PREPARE mine AS {query}")
    told = raised.value.diag
    assert (told.sqlstate, told.message_primary) == (small["sqlstate"], small["message_primary"])
