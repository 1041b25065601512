"""Updates the names of types, functions, operators and similar objects in a stored query.

Postgres prints them with their schemas.  The context of a name shows its kind: types follow ``::``
or the name of a column that they define, functions precede ``(``, operators are in ``OPERATOR()``,
collations follow ``COLLATE``, and constants of type regconfig or regdictionary are literals.
The OIDs of the named objects are stored with the text (``kept``), so that the current names can be
written into it (``rewritten``).

Some operators are never printed: those of ``USING``, ``NULLIF``, ``IS DISTINCT FROM`` and ``CASE
x WHEN``. They are found through a search path of their current schemas (``path``), and the objects
that are bound then must be the stored ones (``lost``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.planner.analyse import labels
from headrace.postgres import tokens
from headrace.postgres.connect import Connection
from headrace.postgres.settings import FUNCTION_PATH

NAME: Final = re.compile(r"[^\W\d]|\"")
KEYWORD: Final = re.compile(r"[A-Z]+")

ALTER: Final = "Run CALL headrace.alter_view(name, query) with the new names."

Key = tuple[str, int]
Name = tuple[str, str]

_OBJECTS: Final = """
SELECT 'type', t.oid::bigint, n.nspname, t.typname FROM pg_catalog.pg_type t
  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = ANY (%(type)s::oid[])
UNION ALL
SELECT 'function', f.oid::bigint, n.nspname, f.proname FROM pg_catalog.pg_proc f
  JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace WHERE f.oid = ANY (%(function)s::oid[])
UNION ALL
SELECT 'operator', o.oid::bigint, n.nspname, o.oprname FROM pg_catalog.pg_operator o
  JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace WHERE o.oid = ANY (%(operator)s::oid[])
UNION ALL
SELECT 'collation', c.oid::bigint, n.nspname, c.collname FROM pg_catalog.pg_collation c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = ANY (%(collation)s::oid[])
UNION ALL
SELECT 'config', g.oid::bigint, '', g.oid::regconfig::text FROM pg_catalog.pg_ts_config g
 WHERE g.oid = ANY (%(config)s::oid[])
UNION ALL
SELECT 'dictionary', d.oid::bigint, '', d.oid::regdictionary::text FROM pg_catalog.pg_ts_dict d
 WHERE d.oid = ANY (%(dictionary)s::oid[])
UNION ALL
SELECT 'schema', n.oid::bigint, '', n.nspname FROM pg_catalog.pg_namespace n
 WHERE n.oid = ANY (%(schema)s::oid[])
 ORDER BY 1, 2"""
_CATALOGS: Final = {
    "pg_operator": "operator",
    "pg_collation": "collation",
    "pg_ts_config": "config",
    "pg_ts_dict": "dictionary",
}
_LITERALS: Final = {"regconfig": "config", "regdictionary": "dictionary"}
_PATH: Final = """
SELECT n.oid::bigint FROM pg_catalog.pg_namespace n
 WHERE pg_catalog.quote_ident(n.nspname) = ANY (pg_catalog.string_to_array(%s, ', '))
   AND NOT pg_catalog.starts_with(n.nspname, 'pg_')"""


def record(
    conn: Connection,
    types: Iterable[int],
    functions: Iterable[int],
    others: Iterable[tuple[str, int]],
    settings: dict[str, str],
) -> list[dict[str, Any]]:
    """Return kind, OID, schema and name of the objects to store with a text, as plain JSON.

    The schemas of the functions' search path are included.
    """
    oids: dict[str, list[int]] = {"type": [*types], "function": [*functions]}
    for catalog, oid in others:
        if catalog in _CATALOGS:
            oids.setdefault(_CATALOGS[catalog], []).append(oid)
    if FUNCTION_PATH in settings:
        rows = conn.execute(_PATH, (settings[FUNCTION_PATH],)).fetchall()
        oids["schema"] = [row[0] for row in rows]
    return [
        {"kind": kind, "oid": oid, "schema": schema, "name": name}
        for (kind, oid), (schema, name) in _look(conn, oids).items()
        if schema != "pg_catalog"
    ]


def rewritten(
    conn: Connection, text: str, named: Sequence[dict[str, Any]], *, loosely: bool = False
) -> str:
    """Return ``text`` with the current names of its objects; dropped objects keep the old name.

    ``loosely``: objects that shared a name and are now in several schemas are written without a
    schema; the argument types then select among those that ``path`` finds.

    Raises:
        UnsupportedError: objects that shared a name now have different names.
    """
    had = _had(named)
    types = {name: oid for (kind, oid), name in had.items() if kind == "type"}
    text = labels.rewritten(conn, text, named, types)
    now = _now(conn, had)
    called: dict[tuple[str, str, str], set[Name]] = {}
    for key, old in had.items():
        called.setdefault((key[0], *old), set()).add(now.get(key, old))
    new: dict[tuple[str, ...], str] = {}
    for (kind, *old_name), found in called.items():
        if found == {tuple(old_name)} or kind == "schema":
            continue
        names = {name for _, name in found}
        if len(found) > 1 and not (loosely and len(names) == 1):
            raise UnsupportedError(
                f"the query names more than one {kind} {'.'.join(old_name)},"
                " and one was renamed or moved",
                hint=ALTER,
            )
        schema = found.pop()[0] if len(found) == 1 else None
        new[kind, *old_name] = _written(kind, schema, names.pop())
    return _replaced(text, new) if new else text


def path(conn: Connection, settings: dict[str, str], named: Sequence[dict[str, Any]]) -> str:
    """Return the search path to read the query with: the current schemas of its objects."""
    now = _now(conn, _had(named))
    there = {
        sql.Identifier(schema).as_string()
        for (kind, _), (schema, _) in sorted(now.items())
        if kind in ("operator", "function")
    }
    before = followed(conn, settings, named).get(FUNCTION_PATH, "").split(", ")
    first = [s for s in before if s and s != "pg_temp"]
    return ", ".join([*first, *sorted(there - set(first)), "pg_temp"])


def followed(
    conn: Connection, settings: dict[str, str], named: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """Return ``settings`` with the current schema names in the functions' search path."""
    if FUNCTION_PATH not in settings:
        return settings
    had = {key: old for key, old in _had(named).items() if key[0] == "schema"}
    now = _now(conn, had)
    new = {
        _ident(conn, old[1]): _ident(conn, now[key][1]) for key, old in had.items() if key in now
    }
    parts = settings[FUNCTION_PATH].split(", ")
    return settings | {FUNCTION_PATH: ", ".join(new.get(part, part) for part in parts)}


def missing(
    conn: Connection, named: Sequence[dict[str, Any]], bound: Collection[dict[str, Any]]
) -> tuple[list[str], bool]:
    """Return operators and moved objects missing from ``bound``, and whether one was moved.

    *Moved* means renamed or moved to another schema.
    """
    had = {k: old for k, old in _had(named).items() if k[0] in ("operator", "function")}
    now = _now(conn, had)
    moved = {key for key, new in now.items() if new != had[key]}
    there = {(entry["kind"], entry["oid"]) for entry in bound if "kind" in entry}
    wanted = moved | {key for key in now if key[0] == "operator"}
    missing = sorted(wanted - there)
    return [f"{key[0]} {'.'.join(had[key])}" for key in missing], bool(moved.intersection(missing))


def _had(named: Sequence[dict[str, Any]]) -> dict[Key, Name]:
    return {
        (entry["kind"], entry["oid"]): (entry["schema"], entry["name"])
        for entry in named
        if "kind" in entry
    }


def _now(conn: Connection, had: Iterable[Key]) -> dict[Key, Name]:
    oids: dict[str, list[int]] = {}
    for kind, oid in had:
        oids.setdefault(kind, []).append(oid)
    return _look(conn, oids)


def _look(conn: Connection, oids: dict[str, list[int]]) -> dict[Key, Name]:
    """Return schema and name by kind and OID."""
    if not any(oids.values()):
        return {}
    kinds = ("type", "function", "schema", *_CATALOGS.values())
    asked = {kind: sorted(oids.get(kind, ())) for kind in kinds}
    rows = conn.execute(_OBJECTS, asked).fetchall()
    return {(kind, oid): (schema, name) for kind, oid, schema, name in rows}


def _written(kind: str, schema: str | None, name: str) -> str:
    if kind == "operator":
        if schema is None:
            return name
        return f"OPERATOR({sql.Identifier(schema).as_string()}.{name})"
    if kind in _LITERALS.values():
        return sql.Literal(name).as_string().strip()
    return sql.Identifier(*([schema] if schema else []), name).as_string()


def _ident(conn: Connection, name: str) -> str:
    row: Any = conn.execute("SELECT pg_catalog.quote_ident(%s)", (name,)).fetchone()
    return str(row[0])


def _replaced(text: str, new: dict[tuple[str, ...], str]) -> str:
    parts = tokens.split(text)
    words = ["", *parts[1::2], *[""] * 4]
    for at in range(1, len(parts) // 2 + 1):
        found = _object(words[at - 1], words, at, words[at])
        if found is None:
            continue
        key, length = found
        written = new.get(key)
        if written is not None:
            last = 2 * (at + length) - 2
            parts[2 * at - 1 : last] = [written] + [""] * (last - 2 * at)
    return "".join(parts)


def _object(
    before: str, words: list[str], at: int, first: str
) -> tuple[tuple[str, ...], int] | None:
    """Return the key of the object that ``words[at:]`` names, and the number of its words."""
    if first == "OPERATOR" and words[at + 1] == "(" and words[at + 3] == ".":
        end = words.index(")", at)
        symbol = "".join(words[at + 4 : end])
        return ("operator", tokens.name(words[at + 2]), symbol), end - at + 1
    if first.startswith("'") and words[at + 1] == "::":
        kind = _LITERALS.get(words[at + 2])
        value = tokens.value(first, tokens.Token("plain", 0, len(first)))
        return ((kind, "", value), 1) if kind else None
    schema, dot, called, after = words[at : at + 4]
    if dot != "." or not (NAME.match(schema) and NAME.match(called)):
        return None
    kind = None
    if before == "COLLATE":
        kind = "collation"
    elif before == "::" or _defines(before):
        kind = "type"
    elif after == "(":
        kind = "function"
    return ((kind, tokens.name(schema), tokens.name(called)), 3) if kind else None


def _defines(word: str) -> bool:
    """Return whether ``word`` is a column's name, which its type follows."""
    return bool(NAME.match(word)) and not KEYWORD.fullmatch(word)
