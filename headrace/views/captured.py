"""A statement that changes rows of one table, as a query that returns the rows before and after.

The query runs the statement in the caller's session, in a REPEATABLE READ transaction that is
rolled back.  From Postgres 18 on RETURNING has the old rows.  Earlier versions return the new rows
of an UPDATE only; the same query then reads the rows that had their keys in its snapshot, in which
the statement's changes are not visible.  If each new key had a row before, these are just the rows
that were changed: a key of a row that was not changed cannot be in the table twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import UndefinedError, UnsupportedError, UserError
from headrace.postgres import tokens
from headrace.postgres.acting import act_as
from headrace.postgres.connect import Connection
from headrace.postgres.settings import OUTPUT, PINNED_SETTINGS
from headrace.postgres.tokens import Token, Unreadable

_KINDS: Final = frozenset(("insert", "update", "delete"))
_OTHERS: Final = frozenset(("merge", "select", "values", "table"))
_OLD_AND_NEW_SINCE: Final = 180_000
_PINNED: Final = (*OUTPUT, "quote_all_identifiers", "search_path")
_TARGET: Final = """
SELECT c.oid::bigint, c.relkind::text, n.nspname, c.relname, c.relhassubclass, c.relpersistence::text
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = pg_catalog.to_regclass(%s)"""
_LEAVES: Final = """
WITH RECURSIVE tree (oid) AS (
  SELECT t.oid FROM unnest(%s::oid[]) t (oid)
  UNION SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
   JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition)
SELECT c.oid::bigint FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid
 WHERE c.relkind <> 'p' ORDER BY 1"""
_COLUMNS: Final = """
SELECT a.attname FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = %s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
# The first unique index over columns without NULLs, the primary key if there is one.
_KEY: Final = """
SELECT array_agg(a.attname::text ORDER BY k.place),
       array_agg(format('%%I.%%s', n.nspname, o.oprname) ORDER BY k.place)
  FROM (SELECT i.indexrelid, i.indrelid, i.indkey::int2[] AS columns, i.indclass::oid[] AS classes,
               i.indnkeyatts
          FROM pg_catalog.pg_index i
         WHERE i.indrelid = %s::bigint::oid AND i.indisunique AND i.indisvalid
           AND i.indpred IS NULL AND i.indexprs IS NULL
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute x
                WHERE x.attrelid = i.indrelid AND NOT x.attnotnull
                  AND x.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
         ORDER BY i.indisprimary DESC, i.indisreplident DESC, i.indexrelid LIMIT 1) i
 CROSS JOIN LATERAL unnest(i.columns[0:i.indnkeyatts - 1], i.classes)
       WITH ORDINALITY k (number, class, place)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
  JOIN pg_catalog.pg_opclass c ON c.oid = k.class
  JOIN pg_catalog.pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3
       AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
  JOIN pg_catalog.pg_operator o ON o.oid = m.amopopr
  JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace"""
_EXAMPLE: Final = "Write one INSERT, UPDATE or DELETE of a table, without RETURNING."


@dataclass(frozen=True, slots=True)
class ChangingStatement:
    """The parts of a statement's text that matter."""

    kind: str
    """``insert``, ``update`` or ``delete``."""
    body: str
    """The text without a semicolon at the end."""
    target: str
    """The name of the table, as it is written."""
    known_as: str
    """The name by which RETURNING refers to its rows."""
    may_update: bool
    """Whether it can replace rows."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A statement as a query that returns its rows."""

    query: str
    """Returns for each changed row: OIDs of the tables that had it, and have it now; its columns
    before, and after (``table_columns`` of each)."""
    table: int
    """OID of the table that the statement names."""

    @property
    def settings(self) -> dict[str, str]:
        """Settings under which values have the same text as in the stream."""
        return {name: PINNED_SETTINGS[name] for name in _PINNED}


def read(text: str, *, standard_strings: bool) -> ChangingStatement:
    """Return the parts of ``text``.

    Raises:
        UserError: 42601, it cannot be read, or is not one statement.
        UnsupportedError: 0A000, it is not one of those that can be tried.
    """
    try:
        found = [*tokens.scan(text, standard_strings=standard_strings)]
    except Unreadable:
        raise UserError("the statement cannot be read", hint=_EXAMPLE, sqlstate="42601") from None
    while found and _text(text, found[-1]) == ";":
        found.pop()
    if not found:
        raise UserError("the statement is empty", hint=_EXAMPLE, sqlstate="42601")
    top = _top(text, found)
    at = _verb(text, top)
    kind = _word(text, top[at]) if at < len(top) else ""
    if kind not in _KINDS:
        shown = kind.upper() or "this statement"
        raise UnsupportedError(f"what_if does not support {shown}", hint=_EXAMPLE)
    words = [_word(text, token) for token in top]
    if "returning" in words[at:]:
        raise UnsupportedError("what_if does not support RETURNING", hint=_EXAMPLE)
    following = at + 1 + (kind != "update")
    following += following < len(words) and words[following] == "only"
    end = _end_of_name(text, top, following)
    if end == following:
        raise UnsupportedError("what_if does not support this form of the table", hint=_EXAMPLE)
    target = text[top[following].start : top[end - 1].end]
    starred = end < len(top) and _text(text, top[end]) == "*"
    known_as = _alias(text, top, end + starred, kind) or _text(text, top[end - 1])
    conflicts = ["do", "update"] in [words[i : i + 2] for i in range(at, len(words))]
    body = text[found[0].start : found[-1].end]
    may_update = kind == "update" or (kind == "insert" and conflicts)
    return ChangingStatement(kind, body, target, known_as, may_update)


def _top(text: str, found: Sequence[Token]) -> list[Token]:
    """Return the tokens outside of parentheses."""
    depth, out = 0, []
    for token in found:
        shown = _text(text, token) if token.kind == "symbol" else ""
        if shown == ";":
            raise UserError("cannot try more than one statement", hint=_EXAMPLE, sqlstate="42601")
        depth -= shown == ")"
        if depth < 0:
            raise UserError('syntax error at or near ")"', sqlstate="42601")
        if depth == 0:
            out.append(token)
        depth += shown == "("
    if depth:
        raise UserError("syntax error at end of input", sqlstate="42601")
    return out


def _verb(text: str, top: Sequence[Token]) -> int:
    """Return the place of the word that says what the statement does, after its WITH."""
    if _word(text, top[0]) != "with":
        return 0
    for place in range(2, len(top)):
        before = _word(text, top[place - 1])
        named = before in ("with", "recursive") or _text(text, top[place - 1]) == ","
        if _word(text, top[place]) in _KINDS | _OTHERS and not named:
            return place
    return len(top)


def _end_of_name(text: str, top: Sequence[Token], at: int) -> int:
    """Return the place after the name that begins at ``at``."""
    end = at
    while end < len(top) and top[end].kind in ("word", "quoted"):
        end += 1
        if end >= len(top) or _text(text, top[end]) != ".":
            break
        end += 1
    return end


def _alias(text: str, top: Sequence[Token], at: int, kind: str) -> str | None:
    if at >= len(top):
        return None
    if _word(text, top[at]) == "as" and at + 1 < len(top):
        return _text(text, top[at + 1])
    after = {"update": ("set",), "delete": ("using", "where")}.get(kind)
    names = top[at].kind in ("word", "quoted")
    if after is None or not names or _word(text, top[at]) in after:
        return None
    return _text(text, top[at])


def _text(text: str, token: Token) -> str:
    return text[token.start : token.end]


def _word(text: str, token: Token) -> str:
    return tokens.name(_text(text, token)) if token.kind == "word" else ""


# --- the query


def capture(
    conn: Connection, statement: ChangingStatement, caller: str | None, settings: dict[str, str]
) -> Capture:
    """Return how to run ``statement``, whose names are those of the caller.

    Raises:
        UndefinedError: 42P01, there is no such table.
        UnsupportedError: 0A000, not all rows that it changes could be seen.
    """
    with conn.transaction(force_rollback=True):
        act_as(conn, caller, settings)
        row: Any = conn.execute(_TARGET, (statement.target,)).fetchone()
    if row is None:
        raise UndefinedError(f"relation {statement.target} does not exist", sqlstate="42P01")
    oid, relkind, schema, name, parent, persistence = row
    ours = schema in ("headrace", "information_schema") or schema.startswith("pg_")
    if relkind not in ("r", "p") or persistence != "p" or ours:
        raise UnsupportedError(
            f"{statement.target} is no table whose changes views follow",
            detail="Views read ordinary and partitioned tables, except temporary, unlogged and system"
            " tables.",
        )
    if relkind == "r" and parent:
        raise UnsupportedError(
            f"table {statement.target} has child tables",
            detail="The statement may change their rows, whose other columns it does not return.",
            hint="Try it with the name of a child table.",
        )
    columns = table_columns(conn, oid)
    whole = f"{tokens.identifier(schema)}.{tokens.identifier(name)}"
    newer = conn.info.server_version >= _OLD_AND_NEW_SINCE
    key: Any = None
    if statement.may_update and not newer:
        key = conn.execute(_KEY, (oid,)).fetchone()
        if key is None or not key[0]:
            raise UnsupportedError(
                f"the old rows of table {statement.target} cannot be found",
                detail="Before Postgres 18 an UPDATE does not return them.",
                hint="Give the table a primary key.",
            )
    return Capture(_query(statement, whole, columns, key, newer=newer), oid)


def table_columns(conn: Connection, table: int) -> list[str]:
    """Return the names of a table's columns, in order."""
    return [str(name) for (name,) in conn.execute(_COLUMNS, (table,)).fetchall()]


def leaves(conn: Connection, tables: Sequence[int]) -> list[int]:
    """Return the OIDs of tables that hold the rows of ``tables``: their partitions, if any."""
    return [int(oid) for (oid,) in conn.execute(_LEAVES, (list(tables),)).fetchall()]


def _query(
    statement: ChangingStatement, whole: str, columns: Sequence[str], key: Any, *, newer: bool
) -> str:
    old, new = statement.known_as, statement.known_as
    has_old, has_new = newer or statement.kind == "delete", newer or statement.kind != "delete"
    words = "RETURNING"
    if newer:
        old, new = "headrace_old", "headrace_new"
        words = f"RETURNING WITH (OLD AS {old}, NEW AS {new})"
    returned = [
        f"{_column(old, 'tableoid', there=has_old)}::pg_catalog.int8 AS ot",
        f"{_column(new, 'tableoid', there=has_new)}::pg_catalog.int8 AS nt",
        *(f"{_column(old, c, there=has_old)} AS o{i}" for i, c in enumerate(columns)),
        *(f"{_column(new, c, there=has_new)} AS n{i}" for i, c in enumerate(columns)),
    ]
    selected, rows = "c.*", "headrace_changed c"
    if key is not None:
        places = {column: place for place, column in enumerate(columns)}
        same = " AND ".join(
            f"b.{tokens.identifier(column)} OPERATOR({operator}) c.n{places[column]}"
            for column, operator in zip(*key, strict=True)
        )
        rows += f" LEFT JOIN {whole} b ON {same}"
        selected = ", ".join(
            (
                "b.tableoid::pg_catalog.int8 AS ot, c.nt",
                *(f"{_column('b', c, there=True)} AS o{i}" for i, c in enumerate(columns)),
                *(f"c.n{i}" for i in range(len(columns))),
            )
        )
    # A comment at the end of the statement ends with its line.
    return f"""WITH headrace_changed AS ({statement.body}
{words} {", ".join(returned)})
SELECT {selected} FROM {rows}"""  # noqa: S608  it is the caller's own statement


def _column(row: str, name: str, *, there: bool) -> str:
    return f"{row}.{tokens.identifier(name)}" if there else "NULL"
