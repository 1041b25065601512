"""Partitions and children of the tables that a view reads: whether their set alone has changed.

Facts are those of ``fingerprint``.  A view reads a new member too if it already reads a member
with the same columns (by name) and the same key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace.postgres import fingerprint
from headrace.postgres.reliances import Facts

Connection = psycopg.Connection[Any]

_LOOK: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, pg_catalog.jsonb_object_agg(
         a.attname, pg_catalog.jsonb_build_array(a.attnum, a.attstorage, c.reltoastrelid <> 0))
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.oid = ANY (%s::oid[]) GROUP BY 1, 2, 3, 4"""


@dataclass(frozen=True, slots=True)
class Change:
    """Members that one view's tables have gained and lost."""

    came: frozenset[int]
    went: frozenset[int]


@dataclass(frozen=True, slots=True)
class MemberTable:
    """A member in the catalog."""

    oid: int
    schema: str
    name: str
    kind: str
    columns: dict[str, tuple[int, str, bool]]
    """By name: number, storage mode, and whether the table has a TOAST table."""


def change(
    before: Facts, now: Facts, *, quiet: bool = False, withdrawn: Collection[int] = ()
) -> Change | None:
    """Return how the members differ; None if they do not, or if other facts differ too.

    ``quiet`` and ``withdrawn`` are as in ``fingerprint.difference``.
    """
    came: set[int] = set()
    went: set[int] = set()
    still: set[int] = set()
    for oid, facts in before.get("relations", {}).items():
        found = now["relations"].get(oid)
        if found is None:
            return None
        had, have = set(facts["members"] or ()), set(found["members"] or ())
        came |= have - had
        went |= had - have
        still |= have
    named = {int(oid) for oid in before.get("relations", {})}
    read = {int(oid) for oid in before["tables"]}
    if not (came or went) or came & read or went & (still | named):
        return None
    found = Change(frozenset(came), frozenset(went))
    wrong = fingerprint.difference(
        apply_change(before, now, found), now, quiet=quiet, withdrawn=withdrawn
    )
    return found if wrong is None else None


def apply_change(before: Facts, now: Facts, change: Change) -> Facts:
    """Return the facts ``before`` with the members that ``change`` adds and removes."""
    relations = {}
    for oid, facts in before["relations"].items():
        members = facts["members"]
        if members is not None:
            have = set(now["relations"][oid]["members"])
            members = sorted((set(members) - change.went) | (have & change.came))
        relations[oid] = {**facts, "members": members}
    tables = {oid: t for oid, t in before["tables"].items() if int(oid) not in change.went}
    return before | {"relations": relations, "tables": tables}


def look(conn: Connection, oids: Iterable[int]) -> dict[int, MemberTable]:
    """Return the tables among ``oids`` that exist."""
    rows = conn.execute(_LOOK, (sorted(oids),)).fetchall()
    return {
        oid: MemberTable(oid, schema, name, kind, {k: tuple(v) for k, v in columns.items()})
        for oid, schema, name, kind, columns in rows
    }


def alike(
    facts: Facts, now: Facts, member: MemberTable, tables: Mapping[int, MemberTable]
) -> Iterator[tuple[int, dict[int, int]]]:
    """Yield members that may match ``member``: OID, and a map of their column numbers to its own.

    ``facts`` are those that the view relies on; ``now`` has the present members.  ``same`` compares
    the keys once the facts of ``member`` are known.
    """
    mine = _relations(now, member.oid)
    # In a fixed order: views that share a subplan must choose the same member.
    for oid, known in sorted(facts["tables"].items(), key=lambda item: int(item[0])):
        table = tables.get(int(oid))
        if table is None or _relations(now, int(oid)) != mine:
            continue
        names = {number: name for name, (number, *_) in table.columns.items()}
        wanted = [names.get(int(number), "") for number in known["columns"] or ()]
        if all(
            name in member.columns and member.columns[name][1:] == table.columns[name][1:]
            for name in wanted
        ):
            yield (
                int(oid),
                {table.columns[name][0]: member.columns[name][0] for name in wanted},
            )


def same(like: Facts, found: Facts, numbers: Mapping[int, int]) -> bool:
    """Return whether the facts of two tables are equal, apart from their names."""
    kinds = ("kind", "persistence", "identity")
    if any(like[kind] != found[kind] for kind in kinds) or not found.get("identified", True):
        return False
    key = sorted(numbers.get(number, 0) for number in like["key"] or ())
    if key != sorted(found["key"] or ()):
        return False
    published = found["published"]
    if published is None or not published["whole"]:
        return False
    columns = found["columns"] or {}
    for number, column in (like["columns"] or {}).items():
        mine = columns.get(str(numbers[int(number)]))
        if mine is None or _shape(column) != _shape(mine):
            return False
    computed = any(column["generated"] for column in columns.values())
    # The expression of a generated column refers to other columns by number.
    return not computed or all(a == b for a, b in numbers.items())


def _shape(column: Facts) -> list[Any]:
    kinds = ("type", "typmod", "collation", "generated", "expression", "not_null")
    return [column.get(kind) for kind in kinds]


def _relations(now: Facts, oid: int) -> set[str]:
    """Return the query's tables that have the table ``oid`` as a member."""
    return {
        relation for relation, facts in now["relations"].items() if oid in (facts["members"] or ())
    }
