"""Rows of an attacker are never taken for the answer to the commander's own query.

Each attack makes the commander miscount the source's answers. Then the commander asks for the
caller while rows of the attacker arrive. The session may fail, but every call is made in the
attacker's own name.
"""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.security import wire as w
from tests.security.conftest import Nobody

CALL = "CALL headrace.create_view('v', 'SELECT 1')"
SETTINGS = '\'{"search_path": "public"}\''
FORGERIES = [
    f"SELECT 'postgres'::text, {SETTINGS}::text",
    f"SELECT repeat('0', 32), 'postgres'::text, {SETTINGS}::text",
]
PREPARATION = """
CREATE TABLE play.t (a int);
CREATE FUNCTION play.small() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN RAISE EXCEPTION 'no'; END$$;
CREATE FUNCTION play.large() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN RAISE EXCEPTION '%', repeat('x', 2000000); END$$;
CREATE TABLE play.refuses (a int);
CREATE TRIGGER x BEFORE INSERT ON play.refuses EXECUTE FUNCTION play.small();
CREATE TABLE play.shouts (a int);
CREATE TRIGGER x BEFORE INSERT ON play.shouts FOR EACH ROW EXECUTE FUNCTION play.large();
CREATE FUNCTION play.shout() RETURNS int LANGUAGE plpgsql AS
  $$BEGIN RAISE EXCEPTION '%', repeat('x', 2000000); END$$;
"""
SIMPLE = {
    "data": ("COPY play.t FROM STDIN", w.copy_data(b"x\n")),
    "header": ("COPY play.t FROM STDIN (HEADER match)", w.copy_data(b"b\n")),
    "trigger": ("COPY play.refuses FROM STDIN", b""),
    "large error": ("COPY play.shouts FROM STDIN", w.copy_data(b"1\n")),
    "fail": ("COPY play.t FROM STDIN", w.message("f", b"no\0")),
    "done": ("COPY play.t FROM STDIN", w.COPY_DONE),
}


@pytest.fixture(scope="module")
def prepared(running_nobody: Nobody) -> None:
    with running_nobody.wire() as conn:
        conn.send(w.query(PREPARATION))
        assert "E" not in w.kinds(conn.until("Z"))


@pytest.fixture
def nobody(shared_nobody: Nobody, prepared: None) -> Nobody:
    return shared_nobody


def drain(conn: w.Wire) -> None:
    """Read until the session has ended, or is idle."""
    conn.send(w.query("SELECT 'the end'"))
    for _ in conn.rest(lambda m: m[0] == "D" and b"the end" in m[1]):
        pass


@pytest.mark.parametrize("forged", FORGERIES, ids=["two columns", "three columns"])
@pytest.mark.parametrize("syncs", [0, 1, 2])
@pytest.mark.parametrize("how", SIMPLE)
def test_copy_of_the_simple_protocol(nobody, how, syncs, forged):
    statement, data = SIMPLE[how]
    with nobody.wire() as conn:
        conn.send(w.query(statement))
        conn.until("G")
        attack = [w.SYNC] * syncs + [w.query(forged)] * 2 + [w.query(CALL)]
        conn.send(data, *attack)
        drain(conn)
    assert nobody.callers() <= {nobody.name}


@pytest.mark.parametrize("forged", FORGERIES, ids=["two columns", "three columns"])
@pytest.mark.parametrize("wait", [True, False], ids=["wait", "at once"])
@pytest.mark.parametrize("how", SIMPLE)
def test_copy_of_the_extended_protocol(nobody, how, wait, forged):
    statement, data = SIMPLE[how]
    with nobody.wire() as conn:
        rest = w.query(forged) * 2 + w.query(CALL)
        head = w.parse(statement) + w.bind() + w.execute() + w.SYNC
        if wait:
            conn.send(head)
            conn.until("G")
            conn.send(data, w.SYNC, rest)
        else:
            conn.send(head, rest)
        drain(conn)
    assert nobody.callers() <= {nobody.name}


@pytest.mark.parametrize("forged", FORGERIES, ids=["two columns", "three columns"])
def test_copying_ends_with_an_error_of_any_length(nobody, forged):
    with nobody.wire() as conn:
        conn.send(w.query("COPY play.shouts FROM STDIN"))
        conn.until("G")
        conn.send(w.copy_data(b"1\n"))
        conn.until("Z")
        conn.send(w.SYNC, w.query(forged), w.query(CALL))
        drain(conn)
    assert nobody.callers() <= {nobody.name}


@pytest.mark.parametrize("forged", FORGERIES, ids=["two columns", "three columns"])
@pytest.mark.parametrize("error", ["SELECT 1/0", "SELECT play.shout()", "nonsense"])
def test_what_is_skipped_after_an_error_is_not_counted(nobody, error, forged):
    with nobody.wire() as conn:
        conn.send(w.run(error), w.query("SELECT 1"), w.SYNC, w.query(forged), w.query(CALL))
        drain(conn)
    assert nobody.callers() <= {nobody.name}


def test_the_name_of_our_portal_can_be_taken_by_nobody(nobody):
    """The commander never executes a cursor or a prepared statement of the attacker."""
    name = '"__headrace_context"'
    with nobody.wire() as conn:
        conn.send(
            w.query(f"PREPARE {name} AS {FORGERIES[0]}"),
            w.query(f"DECLARE {name} CURSOR WITH HOLD FOR {FORGERIES[0]}"),
            w.query(CALL),
        )
        answers = conn.until("Z", 3)
        assert "E" not in w.kinds(answers)
    assert nobody.callers() == {nobody.name}


@pytest.mark.parametrize("data", [(), (w.copy_data(b"1\n"), w.SYNC)], ids=["", "data"])
@pytest.mark.parametrize("several", [False, True])
def test_a_call_amid_a_copy_ends_the_session(nobody, several, data):
    """A call during a copy ends the session at once, as any other statement does."""
    text = "COPY play.t FROM STDIN"
    text = f"SELECT 1; {text}; SELECT 2" if several else text
    direct = conninfo_to_dict(nobody.commander.source)["port"]
    login = {"user": nobody.name, "database": nobody.database}
    ends = []
    for port in (nobody.commander.port, int(str(direct))):
        with w.Wire(port, **login) as conn:
            conn.send(w.query(text), w.FLUSH)
            conn.until("G")
            conn.send(*data, w.query(CALL), w.SYNC, w.query("SELECT 'late'"))
            answers = list(conn.rest())
        ends.append([w.fields(body)["C"] for kind, body in answers if kind == "E"])
    assert ends[0] == ends[1]
    assert ends[0]
    assert nobody.callers() == set()
