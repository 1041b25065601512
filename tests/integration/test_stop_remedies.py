"""For each alteration that stops a view, the remedy in its message works.

The reasons are taken from the source code: one without a case here fails the last test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from headrace.postgres import definitions, fingerprint
from tests.compared import differs
from tests.integration.test_mends import told
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine


@dataclass(frozen=True)
class Case:
    """``{t}`` stands for the table of the case."""

    why: str
    """A part of the view's message."""
    alter: str
    first: str = ""
    """Statements that the hint asks for before the call."""
    query: str = "SELECT id, a FROM {t}"
    after: str = ""
    """The query that the view must equal then, if it is not ``query``."""
    before: str = ""
    """Statements that run before the view is created."""
    under: str = ""
    """The query of ``low_{t}``, a view of Headrace that ``query`` reads."""


TABLE = "CREATE TABLE {t} (id int PRIMARY KEY, a int, b int, g text)"
FILL = "INSERT INTO {t} SELECT i, i, 10 * i, 'g' || i FROM generate_series(1, 4) i"
PARTED = (
    "DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, a int) PARTITION BY RANGE (id);"
    " CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10);"
    " CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (10) TO (20);"
    " INSERT INTO {t} VALUES (1, 1), (11, 2)"
)
FUNCTION = (
    "CREATE OR REPLACE FUNCTION f_{t}(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x * %d'"
)
OF_FUNCTION = "SELECT id, f_{t}(a) AS a FROM {t}"
VIEW = "CREATE OR REPLACE VIEW w_{t} AS SELECT id, a + %d AS a FROM {t}"
OF_VIEW = "SELECT id, a FROM w_{t}"
RETYPED = "DROP TABLE {t}; CREATE TYPE e_{t} AS ENUM ('x', 'y'); " + TABLE.replace(
    "g text", "g e_{t}"
)
CASES = {
    # A column of the query is gone, and another one has its name.
    "again": Case('column "a"', "ALTER TABLE {t} DROP a; ALTER TABLE {t} ADD a int DEFAULT 3"),
    "at_once": Case('column "a"', "ALTER TABLE {t} DROP a, ADD a int DEFAULT 3"),
    "replaced": Case('column "a"', "ALTER TABLE {t} DROP a; ALTER TABLE {t} RENAME b TO a"),
    "swapped": Case(
        'column "a"',
        "ALTER TABLE {t} ADD new bigint; UPDATE {t} SET new = a * 2; ALTER TABLE {t} DROP a;"
        " ALTER TABLE {t} RENAME new TO a",
        query="SELECT g, sum(x.a) AS s FROM {t} x JOIN (SELECT id AS i, a AS z FROM {t}) y"
        " ON y.i = x.id AND y.z = x.a GROUP BY g",
    ),
    "moved": Case(
        'column "a"',
        "ALTER TABLE {t} DROP a; ALTER TABLE {t} RENAME TO n_{t}; ALTER TABLE n_{t} ADD a text",
        after="SELECT id, a FROM n_{t}",
    ),
    "whole": Case(
        'column "a"',
        "ALTER TABLE {t} DROP a",
        query="SELECT id, row_to_json(x)::text AS r FROM {t} x",
    ),
    "gone": Case('column "a"', "ALTER TABLE {t} DROP a", "ALTER TABLE {t} ADD a int DEFAULT 5"),
    "keyed": Case(
        'column "id"',
        "ALTER TABLE {t} DROP id; ALTER TABLE {t} ADD PRIMARY KEY (a)",
        "ALTER TABLE {t} ADD id int",
        query="SELECT a FROM {t}",
    ),
    "table": Case("was dropped", "DROP TABLE {t}", f"{TABLE}; {FILL}"),
    "typed": Case("has another type now", "ALTER TABLE {t} ALTER a TYPE text"),
    "wider": Case("has a wider type now", "ALTER TABLE {t} ALTER a TYPE bigint"),
    "collated": Case(
        "has another collation now",
        'ALTER TABLE {t} ALTER g TYPE text COLLATE "C"',
        query="SELECT id, g FROM {t}",
    ),
    "rewritten": Case("was rewritten", "ALTER TABLE {t} ALTER a TYPE int USING a * 7"),
    "generated": Case(
        "is generated in another way now",
        "ALTER TABLE {t} ALTER s DROP EXPRESSION",
        query="SELECT id, s FROM {t}",
        before="ALTER TABLE {t} ADD s int GENERATED ALWAYS AS (a + 1) STORED",
    ),
    "identity": Case("has another replica identity now", "ALTER TABLE {t} REPLICA IDENTITY FULL"),
    "key": Case(
        "has another key now",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id, a)",
    ),
    "keyless": Case(
        "lost its replica identity",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
        "ALTER TABLE {t} REPLICA IDENTITY FULL",
    ),
    "more": Case(
        "has more partitions or children",
        "CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (20) TO (30);"
        " INSERT INTO {t} VALUES (21, 3)",
        before=PARTED,
    ),
    "fewer": Case(
        "has fewer partitions or children", "ALTER TABLE {t} DETACH PARTITION {t}_2", before=PARTED
    ),
    "others": Case(
        "has other partitions or children",
        "BEGIN; ALTER TABLE {t} DETACH PARTITION {t}_2;"
        " CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (20) TO (30);"
        " INSERT INTO {t} VALUES (21, 3); COMMIT",
        before=PARTED,
    ),
    "unpublished": Case(
        "was taken out of the publication", "ALTER PUBLICATION headrace DROP TABLE {t}"
    ),
    "republished": Case(
        "was out of the publication for a while",
        "BEGIN; ALTER PUBLICATION headrace DROP TABLE {t};"
        " ALTER PUBLICATION headrace ADD TABLE {t}; COMMIT",
    ),
    "filtered": Case(
        "has a row filter or column list",
        "BEGIN; ALTER PUBLICATION headrace DROP TABLE {t};"
        " ALTER PUBLICATION headrace ADD TABLE {t} WHERE (id > 2); COMMIT",
    ),
    "view": Case("was replaced", VIEW % 2, query=OF_VIEW, before=VIEW % 1),
    "no_view": Case("was dropped", "DROP VIEW w_{t}", VIEW % 3, query=OF_VIEW, before=VIEW % 1),
    "invoker": Case(
        "is now read with the rights of another role",
        "ALTER VIEW w_{t} SET (security_invoker = on)",
        query=OF_VIEW,
        before=VIEW % 1,
    ),
    "function": Case("was replaced", FUNCTION % 3, query=OF_FUNCTION, before=FUNCTION % 2),
    "no_function": Case(
        "was dropped", "DROP FUNCTION f_{t}", FUNCTION % 4, query=OF_FUNCTION, before=FUNCTION % 2
    ),
    "label": Case(
        "was renamed",
        "ALTER TYPE e_{t} RENAME VALUE 'x' TO 'z'",
        query="SELECT id, g FROM {t}",
        before=RETYPED,
    ),
    "constant": Case(
        "was renamed",
        "ALTER TYPE e_{t} RENAME VALUE 'x' TO 'z'",
        query="SELECT id, g FROM {t} WHERE g IN ('x', 'y')",
        after="SELECT id, g FROM {t} WHERE g IN ('z', 'y')",
        before=RETYPED,
    ),
    # The text that Postgres printed is still valid, but now means the other label.
    "exchanged": Case(
        "was renamed",
        "BEGIN; ALTER TYPE e_{t} RENAME VALUE 'x' TO 'z'; ALTER TYPE e_{t} RENAME VALUE 'y' TO 'x';"
        " ALTER TYPE e_{t} RENAME VALUE 'z' TO 'y'; COMMIT",
        query="SELECT id, g FROM {t} WHERE g = 'x'",
        after="SELECT id, g FROM {t} WHERE g = 'y'",
        before=RETYPED,
    ),
    "attributes": Case(
        "the attributes of type",
        "ALTER TYPE r_{t} ADD ATTRIBUTE y int",
        query="SELECT id, coalesce(NULL, '(4)'::r_{t})::text AS r FROM {t}",
        after="SELECT id, '(4,)' AS r FROM {t}",
        before="CREATE TYPE r_{t} AS (x int)",
    ),
    "result": Case(
        "was altered",
        "CALL headrace.alter_view('low_{t}', 'SELECT id, a + 1 AS a FROM {t}')",
        query="SELECT id, a FROM low_{t}",
        under="SELECT id, a FROM {t}",
    ),
}
ELSEWHERE = {
    "was dropped and created again": "tests/integration/test_mends.py: the publication is everybody's",
    "the publication was dropped": "likewise",
    "the publication no longer publishes every change": "likewise",
    "the publication was altered": "likewise",
    "is of another kind now": "Postgres gives no OID of a table to anything else",
    "is unlogged now": "Postgres refuses it of a published table",
    "has partitions or inheritance children now": "facts of 0.1.0",
    "is no longer generated": "said as: is generated in another way now",
    "a function of a name that is called": "tests/integration/test_changed_back.py",
    "a SELECT without FROM": "an assertion",
    ", part of its key, may be NULL now": "Postgres refuses it of a key",
    "created again": "tests/integration/test_mends.py: test_a_dropped_table_of_a_view_that_others_read",
    "an earlier version did not record": "facts of 0.1.0",
    "was renamed to": "names of built-in parts of types, tests/runtime/test_watch.py",
    "was altered, and may have been another for a while": "tests/integration/test_changed_back.py",
}
"""Reasons that are no case, and why; some are cases of another test."""
CALL = re.compile(r"CALL headrace\.resync_view\('(?:[^']|'')+'\)")


def run(source: psycopg.Connection, statements: str, name: str) -> None:
    for statement in filter(None, statements.format(t=f"t_{name}").split("; ")):
        source.execute(statement)


def create(commander: psycopg.Connection, name: str, query: str) -> None:
    options = '{"on_change": "stop", "on_damage": "stop"}'
    commander.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, options))


def test_the_named_remedy_helps(commander, source):
    for name, case in CASES.items():
        run(source, f"{TABLE}; {FILL}; {case.before}", name)
        if case.under:
            create(commander, f"low_t_{name}", case.under.format(t=f"t_{name}"))
        create(commander, f"v_{name}", case.query.format(t=f"t_{name}"))
    messages = {}
    for under in (False, True):  # a call repairs the publication, which undoes alterations of it
        altered = {name: case for name, case in CASES.items() if bool(case.under) is under}
        for name, case in altered.items():
            run(commander if under else source, case.alter, name)
        for name in altered:
            _, messages[name] = wait_until(
                lambda name=name: (
                    (said := told(source, f"v_{name}"))[0] == "error" and said[1] and said
                ),
                f"{name} stops",
            )
    for name, case in CASES.items():
        message = messages[name]
        assert case.why in message, (name, message)
        run(source, case.first, name)
        call = CALL.search(message)
        assert call is not None, (name, message)
        assert case.first or ", then CALL" not in message, message
        commander.execute(call[0])
        status, message = told(source, f"v_{name}")
        assert (status, message) == ("running", None), name
        query = (case.after or case.query).format(t=f"t_{name}")
        if case.under:
            commander.execute(f"CALL headrace.wait_for('low_t_{name}')")
        assert not differs(source, f"v_{name}", query), name
    for name, case in CASES.items():
        query = (case.after or case.query).format(t=f"t_{name}")
        table = "n_t_moved" if name == "moved" else f"t_{name}"
        source.execute(f"DELETE FROM {table} WHERE ctid = (SELECT max(ctid) FROM {table})")
        commander.execute(f"CALL headrace.wait_for('v_{name}')")
        assert not differs(source, f"v_{name}", query), name


def test_where_no_column_has_the_name_another_query_helps(commander, source):
    run(source, f"{TABLE}; {FILL}", "lost")
    create(commander, "v_lost", "SELECT id, a FROM t_lost")
    source.execute("ALTER TABLE t_lost DROP a")
    wait_until(lambda: told(source, "v_lost")[0] == "error", "it stops")
    assert "alter_view" in told(source, "v_lost")[1]
    with pytest.raises(psycopg.errors.UndefinedColumn) as refused:
        commander.execute("CALL headrace.resync_view('v_lost')")
    call = re.search(r"CALL headrace\.alter_view\((.*), query\)", refused.value.diag.message_hint)
    assert call is not None
    commander.execute(f"CALL headrace.alter_view({call[1]}, 'SELECT id, b AS a FROM t_lost')")
    assert told(source, "v_lost") == ("running", None)
    assert not differs(source, "v_lost", "SELECT id, b AS a FROM t_lost")


def reasons(module: object) -> Iterator[str]:
    """Yield the texts of a module that describe a change of an object."""
    tree = ast.parse(Path(str(module.__file__)).read_text())  # type: ignore[attr-defined]
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        said = ast.get_docstring(function, clean=False)
        for node in ast.walk(function):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.strip()
                if node.value != said and re.match(
                    r"(the publication |an earlier |created again|, part of|view .* was)?"
                    r".*\b(was|were|is|has|lost|created again|may be|did not)\b",
                    text,
                ):
                    yield text


def test_each_reason_has_a_case():
    whys = [case.why for case in CASES.values()]
    unknown = {
        text
        for module in (fingerprint, definitions)
        for text in reasons(module)
        if not any(why in text or text in why for why in (*whys, *ELSEWHERE))
    }
    assert unknown == set()
