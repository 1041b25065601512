"""Updates the names of tables, columns, types and functions in a stored query.

``canonical`` is text that Postgres printed when the view was created, so it does not follow
renames.  The objects that it names are stored with it by OID and column number (``named``).
So every occurrence of a relation can be rewritten, with its old name as the alias:

    FROM public.orders JOIN …   →   FROM "public"."purchases" "orders" ("id", "amount") JOIN …

The OIDs of types, functions, operators and similar objects are stored too (``objects``).
Postgres prints relations only as ``schema.name`` after FROM, JOIN, ONLY, a comma or a parenthesis.
Their number is known from the parse tree; any other number is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.planner.analyse import labels, objects
from headrace.planner.analyse.objects import KEYWORD, NAME
from headrace.postgres import tokens
from headrace.postgres.connect import Connection
from headrace.sql import results

_Write = Callable[[str, Sequence[str]], str]
"""Returns SQL for an occurrence of a relation, given its alias and the alias's column names."""

_BEFORE: Final = frozenset({"from", "join", "only", ",", "("})
_DEPTH_MAX: Final = 100

_PRESENT: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, (
  SELECT array_agg(ARRAY[a.attnum::text, a.attname] ORDER BY a.attnum) FROM pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%s::oid[])"""
_USER_TYPES: Final = """
SELECT DISTINCT coalesce(nullif(t.typelem, 0), t.oid)::bigint FROM pg_type t
 WHERE (t.oid = ANY (%s::oid[]) OR t.typrelid = ANY (%s::oid[])) AND t.oid >= 16384"""
_VIEW: Final = """
SELECT pg_get_viewdef(c.oid, false), (
  SELECT array_agg(DISTINCT d.refobjid::bigint) FROM pg_depend d
    JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
   WHERE r.ev_class = c.oid AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> c.oid)
  FROM pg_class c WHERE c.oid = %s AND c.relkind = 'v'"""


@dataclass(frozen=True, slots=True)
class _Present:
    schema: str
    name: str
    kind: str
    columns: list[tuple[int, str]]


def names(
    conn: Connection,
    canonical: str,
    counts: dict[int, int],
    types: Iterable[int] = (),
    functions: Iterable[int] = (),
    others: Iterable[tuple[str, int]] = (),
    settings: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return the objects to store with a query as plain JSON; relations with their count."""
    rows = conn.execute(_USER_TYPES, (sorted(types), list(counts))).fetchall()
    kinds = [row[0] for row in rows]
    found = objects.record(conn, kinds, functions, others, settings or {})
    printed = {(e["schema"], e["name"]): e["oid"] for e in found if e["kind"] == "type"}
    found += labels.record(conn, canonical, printed)
    return found + [
        {
            "oid": oid,
            "schema": there.schema,
            "name": there.name,
            "columns": [list(column) for column in there.columns],
            "count": counts[oid],
        }
        for oid, there in sorted(_look(conn, list(counts)).items())
    ]


def present(
    conn: Connection,
    canonical: str,
    named: list[dict[str, Any]] | None,
    *,
    loosely: bool = False,
    by_name: bool = False,
) -> str:
    """Return ``canonical`` with the current names; dropped objects keep their old name.

    ``loosely`` as for ``objects.rewritten``.  ``by_name``: a column that has the name of a dropped
    one is read in its place.

    Raises:
        UnsupportedError: something was renamed, and the text cannot be followed.
    """
    if not named:
        return canonical
    canonical = objects.rewritten(conn, canonical, named, loosely=loosely)
    relations = [entry for entry in named if "columns" in entry]
    now = _look(conn, [entry["oid"] for entry in relations])
    new: dict[tuple[str, str], _Write] = {}
    counts: dict[tuple[str, str], int] = {}
    for entry in relations:
        found = now.get(entry["oid"])
        if found is not None and _differs(entry, found):
            key = (entry["schema"], entry["name"])
            new[key] = _writer(entry, found, by_name=by_name)
            counts[key] = entry["count"]
    return _rewrite(canonical, new, counts)


def inlined(
    conn: Connection, canonical: str, named: list[dict[str, Any]] | None, depth: int = 0
) -> str:
    """Return ``present`` with the tables of Headrace views replaced by the views' queries."""
    text = present(conn, canonical, named).rstrip().removesuffix(";")
    named = [entry for entry in named or () if "columns" in entry]
    if not named:
        return text
    if depth > _DEPTH_MAX:
        raise UnsupportedError("views are nested too deeply")
    now = _look(conn, [entry["oid"] for entry in named])
    new: dict[tuple[str, str], _Write] = {}
    counts: dict[tuple[str, str], int] = {}
    for entry in named:
        found = now.get(entry["oid"])
        inner = found and _definition(conn, entry["oid"], depth)
        if found is not None and inner:
            key = (found.schema, found.name)
            new[key] = _inliner(inner, found)
            counts[key] = entry["count"]
    return _rewrite(text, new, counts)


def _definition(conn: Connection, oid: int, depth: int) -> str | None:
    """Return the query of a Headrace view's table, or of a user's view that reads one."""
    found = results.read(conn, oid)
    if found is not None and found.canonical is not None:
        return inlined(conn, found.canonical, found.named, depth + 1)
    view = conn.execute(_VIEW, (oid,)).fetchone()
    if view is None:
        return None
    reads = view[1] or []
    inner = {other: text for other in reads if (text := _definition(conn, other, depth + 1))}
    if not inner:
        return None
    now = _look(conn, list(inner))
    keys = {other: (found.schema, found.name) for other, found in now.items()}
    text = str(view[0]).rstrip().removesuffix(";")
    new = {keys[o]: _inliner(inner[o], now[o]) for o in now}
    return _rewrite(text, new, None)


def _look(conn: Connection, oids: list[int]) -> dict[int, _Present]:
    rows = conn.execute(_PRESENT, (oids,)).fetchall()
    return {
        row[0]: _Present(row[1], row[2], row[3], [(int(n), name) for n, name in row[4] or ()])
        for row in rows
    }


def _differs(entry: dict[str, Any], found: _Present) -> bool:
    had = [(int(number), str(name)) for number, name in entry["columns"]]
    same = (entry["schema"], entry["name"]) == (found.schema, found.name)
    return not same or found.columns[: len(had)] != had


def _writer(entry: dict[str, Any], found: _Present, *, by_name: bool) -> _Write:
    """Return the function that writes an occurrence under its alias and column names."""
    had = [(int(number), str(name)) for number, name in entry["columns"]]
    new = sql.Identifier(found.schema, found.name).as_string()
    there = {number for number, _ in found.columns}
    gone = {name: number for number, name in had if number not in there}
    instead = {n: gone[name] for n, name in found.columns if name in gone} if by_name else {}
    """Number of a column → number of the dropped column whose name it has."""

    def write(alias: str, listed: Sequence[str]) -> str:
        called = dict(had) | {n: name for (n, _), name in zip(had, listed, strict=False)}
        columns = ", ".join(
            _quote(called.get(instead.get(number, number), f"headrace_{number}"))
            for number, _ in found.columns
        )
        return f"{new} {_quote(alias)} ({columns})"

    return write


def _inliner(text: str, found: _Present) -> _Write:
    def write(alias: str, listed: Sequence[str]) -> str:
        names = [*listed, *(name for _, name in found.columns[len(listed) :])]
        return f"({text}) {_quote(alias)} ({', '.join(map(_quote, names))})"

    return write


def _rewrite(
    text: str, new: dict[tuple[str, str], _Write], counts: dict[tuple[str, str], int] | None
) -> str:
    if not new:
        return text
    parts = tokens.split(text)
    found = dict.fromkeys(new, 0)
    for place, end, key, alias, listed in _occurrences(parts[1::2]):
        if key not in new:
            continue
        found[key] += 1
        length = 2 * (end - place) + 1
        written = new[key](alias or key[1], listed)
        first = 2 * place + 1
        parts[first : first + length] = [written] + [""] * (length - 1)
    if counts is not None and found != counts:
        names = ", ".join(".".join(k) for k in found if found[k] != counts.get(k))
        raise UnsupportedError(
            f"the query names {names}, which was renamed, in a way that cannot be followed",
            hint=objects.ALTER,
        )
    return "".join(parts)


def _occurrences(
    words: list[str],
) -> Iterator[tuple[int, int, tuple[str, str], str | None, tuple[str, ...]]]:
    """Yield relations: first and last index in ``words``, (schema, name), alias, its columns."""
    for place in range(1, len(words) - 2):
        if words[place + 1] != "." or words[place - 1].lower() not in _BEFORE:
            continue
        if not (NAME.match(words[place]) and NAME.match(words[place + 2])):
            continue
        after = [*words[place + 3 : place + 5], "", ""]
        if after[0] in (".", "("):
            continue
        alias, end = None, place + 2
        listed: tuple[str, ...] = ()
        if NAME.match(after[0]) and not KEYWORD.fullmatch(after[0]):
            alias, end = tokens.name(after[0]), place + 3
            if after[1] == "(":
                end = words.index(")", end)
                inside = words[place + 5 : end]
                listed = tuple(tokens.name(word) for word in inside if word != ",")
        yield (
            place,
            end,
            (tokens.name(words[place]), tokens.name(words[place + 2])),
            alias,
            listed,
        )


def _quote(name: str) -> str:
    return sql.Identifier(name).as_string()
