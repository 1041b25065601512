"""``docs/statements.md`` names every place that sends a statement, and nothing else.

Places are functions, found in the source. The table says as which role each one runs, and whose
code it can run.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.sql import calls

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "headrace"
PAGE = ROOT / "docs" / "statements.md"

SENDING = frozenset(
    {
        *("execute", "executemany", "copy", "stream", "exec_", "exec_params"),
        *("exec_prepared", "prepare", "send_query", "send_query_params"),
        *("send_prepare", "extended_query", "fetch", "made_view", "output_texts"),
        *("exchange", "one_statement"),
    }
)
"""Functions that send a statement, on a connection or through a function of our own."""
BY_LIBPQ = ("prepare", "exec_", "exec_params", "exec_prepared", "send_prepare")
OPENING = ("psycopg.connect", "psycopg.AsyncConnection.connect")
PINNED = "conninfo"
ROUTINE = re.compile(
    r"^\s*CREATE (?:OR REPLACE )?"
    r"(?:FUNCTION|PROCEDURE|AGGREGATE|TRIGGER|EVENT TRIGGER|POLICY|RULE|VIEW|OPERATOR)"
    r" (?:headrace\.)?(\w+)",
    re.MULTILINE,
)
BLOCK = re.compile(r"^\s*(DO) \$", re.MULTILINE)
STATEMENT = re.compile(r"\b(SELECT|CREATE|PREPARE|INSERT|DELETE|EXPLAIN) ")
BODY = re.compile(
    r"CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) headrace\.(\w+)(.*?)AS \$\$\n(.*?)^\$\$",
    re.DOTALL | re.MULTILINE,
)
NO_CODE = re.compile(r"--[^\n]*|E?'(?:[^']|'')*'|OPERATOR\(pg_catalog\.[^)]*\)")
BARE_CALL = re.compile(r"(?<![\w.])([a-z_]{2,})\s*\(")
OPERATOR = re.compile(r"[-+*/<>=~!@#%^&|?]+")
KEYWORDS = frozenset({"exists", "array", "row", "in", "any", "and", "or", "coalesce"})
"""Words that may stand before a parenthesis and are not checked as functions."""
FILE = re.compile(r"`([\w/]+\.(?:py|sql))`")
NAME = re.compile(r"`([\w.<>]+)`")

Place = tuple[str, str]
"""(file below the package, name)"""


def sources() -> Iterator[Path]:
    """Yield the modules that run in the server, without ``embedded``."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] != "embedded":
            yield path


@functools.cache
def walk(path: Path) -> tuple[tuple[str, ast.AST], ...]:
    """Return every node of a module, with the function or method that contains it."""

    def below(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            yield ".".join(scope) or "<module>", child
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            inner = (*scope, child.name) if named and not _complete(scope) else scope
            yield from below(child, inner)

    return tuple(below(ast.parse(path.read_text(encoding="utf-8")), ()))


def _complete(scope: tuple[str, ...]) -> bool:
    """Return whether the scope is a function or a method; nested functions belong to it."""
    return len(scope) > 1 or (bool(scope) and scope[0].lstrip("_")[:1].islower())


def name_of(call: ast.Call) -> str:
    """Return the last part of the name of the called function."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def is_sending(call: ast.Call) -> bool:
    """Return whether a call sends a statement."""
    name = name_of(call)
    if name in BY_LIBPQ:
        return ast.unparse(call.func).endswith(f"pgconn.{name}")
    # Without arguments, these names are other functions: copies of lists.
    return name in SENDING and bool(call.args or call.keywords)


def is_text(node: ast.AST) -> bool:
    """Return whether the node puts text other than values and names into a statement."""
    match node:
        case ast.JoinedStr(values=values):
            fixed = "".join(str(v.value) for v in values if isinstance(v, ast.Constant))
            return STATEMENT.search(fixed) is not None and len(values) > 1
        case ast.Call(func=ast.Attribute(attr="SQL"), args=[first, *_]):
            return not isinstance(first, ast.Constant)
    return False


def places(sought: Callable[[ast.AST], bool]) -> set[Place]:
    """Return every place with a node that is ``sought``."""
    return {
        (str(path.relative_to(PACKAGE)), scope)
        for path in sources()
        for scope, node in walk(path)
        if sought(node)
    }


def sending() -> set[Place]:
    """Return every place that sends a statement."""
    return places(lambda node: isinstance(node, ast.Call) and is_sending(node))


def scripts() -> Iterator[tuple[str, str]]:
    """Yield (file, text) of all SQL that is installed: the SQL files and the generated text."""
    for path in sorted((PACKAGE / "sql").glob("*.sql")):
        yield str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")
    for text in [calls.captured(), *calls.texts()]:
        yield "sql/calls.py", text


def routines() -> set[Place]:
    """Return every routine, trigger, policy and block of the SQL files."""
    return {
        (file, found)
        for file, text in scripts()
        for pattern in (ROUTINE, BLOCK)
        for found in pattern.findall(text)
    }


def unpinned() -> set[Place]:
    """Return every place that opens a connection without pinned settings."""
    out = set()
    for path in sources():
        pinned: set[str] = set()
        for scope, node in walk(path):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as made):
                    if ast.unparse(made.func) == PINNED:
                        pinned.add(f"{scope} {name}")
                case ast.Call(args=args) if (
                    name_of(node) == "connect" and ast.unparse(node.func) in OPENING
                ):
                    first = ast.unparse(args[0]) if args else ""
                    known = first.startswith((f"{PINNED}(", "conninfo("))
                    if not known and f"{scope} {first}" not in pinned:
                        out.add((str(path.relative_to(PACKAGE)), scope))
    return out


def texts() -> set[Place]:
    """Return every place that puts more than values and names into a statement."""
    return places(is_text)


def rows(section: str) -> list[list[str]]:
    """Return the cells of the table in a section of the page."""
    text = PAGE.read_text(encoding="utf-8")
    body = text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[c.strip() for c in line.strip("|").split(" | ")] for line in lines[2:]]


def told(section: str) -> list[Place]:
    """Return the places that a table names, with repetitions."""
    out = []
    for where, *_ in rows(section):
        for part in where.split(" · "):
            [file] = FILE.findall(part)
            out += [(file, name) for name in NAME.findall(part) if name != file]
    return out


SECTIONS = [
    pytest.param("Python", sending, id="python"),
    pytest.param("SQL", routines, id="sql"),
    pytest.param("Connections", unpinned, id="connections"),
    pytest.param("Texts", texts, id="texts"),
]


@pytest.mark.parametrize(("section", "find"), SECTIONS)
def test_each_place_stands_in_one_row(section, find):
    named, there = told(section), find()
    assert len(there) > 1, "nothing is found any more"
    assert sorted(there - set(named)) == [], f"say in {PAGE.name}, {section}"
    assert sorted(set(named) - there) == [], "they are not there any more"
    assert len(named) == len(set(named)), "a place stands in two rows"


@pytest.mark.parametrize(("section", "find"), SECTIONS)
def test_each_row_says_everything(section, find):
    for cells in rows(section):
        assert len(cells) == len(rows(section)[0])
        assert all(cells), cells


def test_a_procedure_that_runs_as_somebody_else_pins_its_path():
    """Any other procedure runs with its caller's path, and every name in it is qualified."""
    for file, text in scripts():
        assert text.count("SECURITY DEFINER") == text.count(
            "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"
        ), file


def test_a_routine_on_the_path_of_its_caller_looks_for_nothing_there():
    """Functions and operators are qualified; CASE x WHEN y would look up an operator, too."""
    seen = 0
    for _, text in scripts():
        for name, head, body in BODY.findall(text):
            if "SET search_path" in head:
                continue
            seen += 1
            code = NO_CODE.sub(" ", body.replace(":=", ";"))
            assert sorted(set(BARE_CALL.findall(code)) - KEYWORDS) == [], name
            # The ``=`` in USING is an assignment, no operator.
            plain = re.sub(r"RAISE EXCEPTION USING.*?;|<<\w+>>", "", code, flags=re.DOTALL)
            assert OPERATOR.findall(plain.replace("::", " ")) == [], name
            assert not re.search(r"\bCASE\b(?!\s*WHEN\b)", plain), name
            looped = re.sub(r"\bIN (EXECUTE|ARRAY)\b", "", plain)
            assert not re.search(r"\b(LIKE|BETWEEN|NOT IN|IN) ", looped), name
    assert seen > 10


def test_what_is_found(tmp_path):
    """The finder finds statements in all the usual shapes."""
    path = tmp_path / "module.py"
    path.write_text(
        """
class A:
    async def ask(self):
        def inner():
            self._conn.execute("SELECT 1")
        await cursor.copy("COPY t TO STDOUT")
        self.list.copy()
def libpq(conn):
    conn.pgconn.exec_params(b"SELECT 1", None)
    manager.prepare(1)
def text(name):
    return f"SELECT {name}", sql.SQL(name), sql.SQL("x"), f"no {name}"
""",
        encoding="utf-8",
    )
    nodes = walk(path)
    calls = [n for n in nodes if isinstance(n[1], ast.Call) and is_sending(n[1])]
    assert [scope for scope, _ in calls] == ["A.ask", "A.ask", "libpq"]
    assert [scope for scope, n in nodes if is_text(n)] == ["text", "text"]
