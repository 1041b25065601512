"""Result tables: their creation, index for deletes, grants, and fingerprint.

* Invariant 3: the table holds exactly the query's columns.
* The table belongs to the engine's role; its creator may read it and grant that to others (E16).
* A column has the base type of a domain, and the table is not a partition.  Checks of domains and
  partitions would run with our rights; the source has already checked the values of a domain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import (
    RESYNC,
    Repair,
    ResultTableChanged,
    SinkTableError,
    TransientError,
    UnsupportedError,
)
from headrace.types import Field, Oid, Schema

Connection = psycopg.Connection[Any]

UNDO: Final = "Undo that, or drop the view and create it again."
"""Hint of an altered result table."""
_NAME_BYTES_MAX: Final = 63
_ROOM: Final = " WITH (fillfactor = 90)"
"""Option of a table whose rows are updated.  The first updates of a page then need no new index
entries (8 % of 100 000 random updates of 100 000 rows did need some), for 4 % more space."""
_KEYLESS: Final = "has lost its key"
_POLICY: Final = "headrace_"
"""How the names of policies begin."""
EVERY_ROW: Final = "headrace_rows"
"""Name of a policy that only earlier versions made: it let every row through."""


@dataclass(frozen=True, slots=True)
class ResultTable:
    """The result table of a view."""

    view_id: int
    schema_name: str
    table_name: str
    oid: int
    schema: Schema
    """The view's columns, in table order."""
    key: tuple[str, ...] = ()
    """Columns of its primary key; empty: it has none."""
    planned_key: bool = False
    """Whether the key follows from the query, so that no user has asked for it."""
    conditions: tuple[str, ...] = ()
    """Its row security (``policies``): SQL conditions that are true of the rows a role sees."""

    @property
    def identifier(self) -> sql.Identifier:
        """Qualified name for statements."""
        return sql.Identifier(self.schema_name, self.table_name)

    @property
    def shown(self) -> str:
        """Qualified name for messages."""
        return f'"{self.schema_name}"."{self.table_name}"'


def create(
    conn: Connection,
    schema_name: str,
    table_name: str,
    query: sql.Composable | str,
    *,
    columns: Sequence[str] = (),
    keyed: bool = False,
    fields: Sequence[Field] = (),
) -> Oid:
    """Create an empty result table with the names and types of ``query``; return its OID.

    The table is created in the caller's transaction, under the caller's settings (search_path).
    The query is analysed with our rights: use ``shape``, not a user's text.
    ``columns`` renames the columns.
    ``keyed``: it will get a key (keys.py), which finds its rows and is its replica identity.
    ``fields``: required columns (``prove_types``).

    Raises:
        UnsupportedError: the query has no columns.
        TransientError: its columns are not ``fields``.
    """
    name = sql.Identifier(schema_name, table_name)
    text = query if isinstance(query, sql.Composable) else sql.SQL(query)
    renamed: sql.Composable = sql.SQL("")
    if columns:
        renamed = sql.SQL(" ({})").format(sql.SQL(", ").join(sql.Identifier(c) for c in columns))
    room = sql.SQL(_ROOM) if keyed else sql.SQL("")
    made = sql.SQL("CREATE TABLE {}{}{} AS {} WITH NO DATA").format(name, renamed, room, text)
    conn.execute(made)
    row = conn.execute(
        "SELECT %s::pg_catalog.regclass::pg_catalog.oid", (name.as_string(conn),)
    ).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    oid = Oid(int(row[0]))
    if not attributes(conn, oid):
        raise UnsupportedError("a view without columns is not supported")
    if fields:
        prove_types(conn, oid, fields)
    if not keyed:
        create_hash_index(conn, schema_name, table_name)
        # Without an identity, updates and deletes fail once a user publishes the table.
        conn.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name))
    return oid


def let_read(conn: Connection, schema_name: str, table_name: str, reader: str) -> None:
    """Grant a role SELECT on a result table, with GRANT OPTION."""
    conn.execute(
        sql.SQL("GRANT SELECT ON TABLE {} TO {} WITH GRANT OPTION").format(
            sql.Identifier(schema_name, table_name), sql.Identifier(reader)
        )
    )


def shape(conn: Connection, fields: Sequence[Field]) -> sql.Composed:
    """Return a query with the types and collations of ``fields``, for ``create``; runs no code."""
    values = [
        sql.SQL("NULL::{} AS {}").format(kind, sql.Identifier(f"a{place}"))
        for place, kind in enumerate(spelled(conn, fields), 1)
    ]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(values))


def spelled(conn: Connection, fields: Sequence[Field]) -> list[sql.Composed]:
    """Return the types of ``fields`` in SQL, each with its collation if not the default."""
    rows = conn.execute(
        "SELECT pg_catalog.format_type(f.oid, f.typmod),"
        " CASE WHEN f.coll NOT IN (0, t.typcollation) THEN"
        "   pg_catalog.format('%%I.%%I', n.nspname, c.collname) END"
        " FROM unnest(%s::bigint[]::pg_catalog.oid[], %s::int[],"
        "   %s::bigint[]::pg_catalog.oid[])"
        "   WITH ORDINALITY AS f (oid, typmod, coll, place)"
        " JOIN pg_catalog.pg_type t ON t.oid = f.oid"
        " LEFT JOIN pg_catalog.pg_collation c ON c.oid = f.coll"
        " LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace"
        " ORDER BY f.place",
        ([f.oid for f in fields], [f.typmod for f in fields], [f.collation for f in fields]),
    ).fetchall()
    return [
        sql.SQL("{}{}").format(sql.SQL(kind), sql.SQL(f" COLLATE {collation}" if collation else ""))
        for kind, collation in rows
    ]


def prove_types(conn: Connection, oid: int, fields: Sequence[Field], *, only: bool = False) -> None:
    """Raise unless the columns of the table ``oid``, made by ``shape``, have ``fields``' types.

    ``only``: check these columns only, not that there are no others.

    The columns were created by type name, which may since belong to another type.  This can be a
    domain with a user's check, which would run with our rights at the first row.
    REQUIRES: no row was written into the table.

    Raises:
        TransientError: the columns have other types.
    """
    row = conn.execute(
        "SELECT array_agg(atttypid::bigint ORDER BY attnum) FROM pg_catalog.pg_attribute"
        " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
        " AND (attname = ANY (%s) OR %s)",
        (oid, [field.name for field in fields], not only),
    ).fetchone()
    assert row is not None, "an aggregate gives one row"
    if (row[0] or []) != [field.oid for field in fields]:
        raise TransientError(
            "a type that the query uses was renamed or replaced meanwhile", sqlstate="40001"
        )


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result table, from the catalog."""

    name: str
    type_name: str
    """With typmod, as format_type spells it."""
    array_name: str | None
    """Name of the array type for passing the values as a literal; None: there is none."""
    base_oid: int
    """Type OID, domains resolved."""
    base_name: str
    """``type_name`` with domains resolved."""
    base_mod: int
    """Typmod, domains resolved."""
    collation: int
    blurred: bool = False
    """Whether its collation is nondeterministic, so that different texts may be equal."""
    hashable: bool = False

    @property
    def of_domain(self) -> bool:
        """Whether its type is a domain."""
        return self.type_name != self.base_name


def attributes(conn: Connection, oid: int) -> list[ResultColumn]:
    """Return the columns in table order; their ``hashable`` is false (see ``hashable``)."""
    return _attributes(conn, [oid]).get(oid, [])


def _attributes(conn: Connection, oids: Sequence[int]) -> dict[int, list[ResultColumn]]:
    """Return the columns of several tables, by OID of the table; one statement for all."""
    rows = conn.execute(
        "WITH RECURSIVE a AS ("
        " SELECT attrelid, attnum, attname, atttypid AS typ, atttypmod AS mod, atttypid, atttypmod,"
        "   attcollation"
        "   FROM pg_catalog.pg_attribute"
        "  WHERE attrelid = ANY (%s::bigint[]::pg_catalog.oid[]) AND attnum > 0"
        "    AND NOT attisdropped"
        " UNION ALL"
        " SELECT a.attrelid, a.attnum, a.attname, t.typbasetype, t.typtypmod, a.atttypid,"
        "   a.atttypmod, a.attcollation"
        "   FROM a JOIN pg_catalog.pg_type t ON t.oid = a.typ AND t.typtype = 'd')"
        " SELECT a.attrelid, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),"
        # An array's elements cannot be arrays, unnest spreads composites over columns, and
        # a box's delimiter is not a comma.
        "        CASE WHEN t.typcategory <> 'A' AND t.typtype <> 'c' AND t.typarray <> 0 AND t.typdelim = ','"
        "             THEN pg_catalog.format_type(t.typarray, -1) END, t.oid,"
        "        pg_catalog.format_type(t.oid, a.mod), a.mod, a.attcollation,"
        "        NOT coalesce(l.collisdeterministic, true)"
        "   FROM a JOIN pg_catalog.pg_type t ON t.oid = a.typ AND t.typtype <> 'd'"
        "   LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation"
        "  ORDER BY a.attrelid, a.attnum",
        (list(oids),),
    ).fetchall()
    found: dict[int, list[ResultColumn]] = {}
    for oid, name, kind, array, base, base_name, mod, collation, blurred in rows:
        column = ResultColumn(
            name, kind, array, int(base), base_name, int(mod), int(collation), blurred
        )
        found.setdefault(int(oid), []).append(column)
    return found


def hashable(conn: Connection, name: sql.Identifier, found: Sequence[ResultColumn]) -> list[bool]:
    """Return, per column of the table ``name``, whether hash_record_extended can hash its type.

    REQUIRES: ``name`` is locked, so that it also names the table's row type.  The columns' types
    are not named, because such a name may by now belong to another type.
    """
    known: dict[str, bool] = {}
    out = []
    for attribute in found:
        kind = attribute.type_name
        if kind not in known:
            try:
                with conn.transaction():
                    conn.execute(
                        sql.SQL(
                            "SELECT pg_catalog.hash_record_extended(ROW((NULL::{}).{}), 0)"
                        ).format(name, sql.Identifier(attribute.name))
                    )
                known[kind] = True
            except psycopg.errors.UndefinedFunction:
                known[kind] = False
        out.append(known[kind])
    return out


def row_hash(qualifier: str | None, columns: Sequence[ResultColumn]) -> sql.Composed:
    """Return the indexed expression over ``columns``, of ``qualifier`` or of the one table.

    Texts with a nondeterministic collation are hashed by their bytes. Otherwise their hash would
    depend on the collation, which values have in the table, but not in the parameters of a
    statement.
    """
    values: list[sql.Composable] = []
    for column in columns:
        path = (column.name,) if qualifier is None else (qualifier, column.name)
        value = sql.Identifier(*path)
        bytewise = sql.SQL('{} COLLATE pg_catalog."C"').format(value)
        values.append(bytewise if column.blurred else value)
    return sql.SQL("pg_catalog.hash_record_extended(ROW({}), 0::bigint)").format(
        sql.SQL(", ").join(values)
    )


def create_hash_index(conn: Connection, schema_name: str, table_name: str) -> None:
    """Create the index that finds a row to delete by the hash of its values.

    Columns whose type cannot be hashed are excluded; without other columns there is no index.
    An index that an earlier version made with another expression is replaced.
    REQUIRES: the table is locked, or was created in this transaction.
    """
    table = sql.Identifier(schema_name, table_name)
    row = conn.execute(
        "SELECT %s::pg_catalog.regclass::pg_catalog.oid", (table.as_string(conn),)
    ).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    oid = int(row[0])
    found = attributes(conn, oid)
    flags = hashable(conn, table, found)
    hashed = [a for a, ok in zip(found, flags, strict=True) if ok]
    if not hashed:
        return
    index = sql.Identifier(index_name(oid))
    conn.execute(
        sql.SQL("DROP INDEX IF EXISTS {}").format(sql.Identifier(schema_name, index_name(oid)))
    )
    conn.execute(
        sql.SQL("CREATE INDEX {} ON {} (({}))").format(index, table, row_hash(None, hashed))
    )


def has_hash_index(conn: Connection, oid: int) -> bool:
    """Return whether the table has the index of ``create_hash_index``, with its expression."""
    row = conn.execute(
        "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid"
        " WHERE i.indrelid = %s AND c.relname = %s"
        " AND (strpos(pg_get_expr(i.indexprs, i.indrelid), ' COLLATE \"C\"') > 0 OR NOT EXISTS ("
        "  SELECT FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation"
        "   WHERE a.attrelid = i.indrelid AND NOT a.attisdropped AND NOT l.collisdeterministic)))",
        (oid, index_name(oid)),
    ).fetchone()
    return row is not None and bool(row[0])


def drop_hash_index(conn: Connection, schema_name: str, oid: int) -> bool:
    """Drop the hash index if it exists; return whether it did."""
    name = sql.Identifier(schema_name, index_name(oid))
    row = conn.execute(
        "SELECT pg_catalog.to_regclass(%s) IS NOT NULL", (name.as_string(conn),)
    ).fetchone()
    found = row is not None and bool(row[0])
    if found:
        conn.execute(sql.SQL("DROP INDEX {}").format(name))
    return found


def index_name(oid: int) -> str:
    """Return the name of the hash index of the result table ``oid``; never truncated."""
    name = f"headrace_row_hash_{oid}"
    assert len(name) <= _NAME_BYTES_MAX, "a fixed prefix and an OID"
    return name


def asking_mark(conn: Connection, target: ResultTable) -> sql.Composed:
    """Return a statement that returns whether ``target``'s name has its OID, and its *mark*.

    While the mark is unchanged, so is everything that ``check`` reads, except publications and
    constraints enforced by an index, which cannot change a row.
    """
    return sql.SQL(
        "SELECT pg_catalog.to_regclass({})::pg_catalog.oid"
        " IS NOT DISTINCT FROM {}::pg_catalog.oid,"
        " headrace.table_mark({}::pg_catalog.oid)"
    ).format(
        sql.Literal(target.identifier.as_string(conn)),
        sql.Literal(target.oid),
        sql.Literal(target.oid),
    )


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """All properties of a result table that users may alter and that affect its contents."""

    name: str
    owner: str
    kind: str
    columns: tuple[ResultColumn, ...]
    triggers: tuple[str, ...]
    rules: tuple[str, ...]
    constraints: tuple[str, ...]
    row_security: bool
    forced: bool
    """Whether row security applies to Headrace too."""
    policies: tuple[str, ...]
    published: tuple[str, ...]
    logged: bool
    children: tuple[str, ...]
    whole: str | None
    """The table that it is a partition of."""
    key: tuple[str, ...]
    """Columns of the primary key, if it is valid and not deferrable."""


def fingerprint(conn: Connection, oid: int) -> Fingerprint | None:
    """Return the fingerprint of the table ``oid``; None if there is no such table."""
    return _fingerprints(conn, [oid]).get(oid)


def _fingerprints(conn: Connection, oids: Sequence[int]) -> dict[int, Fingerprint]:
    """Return the fingerprints of those of the tables that exist, by OID; two statements for all."""
    rows = conn.execute(
        "SELECT c.oid, pg_catalog.format('%%I.%%I', n.nspname, c.relname),"
        " pg_catalog.pg_get_userbyid(c.relowner), c.relkind::text,"
        # Triggers that only protect rows referenced by a foreign key do not count.  The check for
        # references may run code of the other table's owner, so that owner must already have our
        # rights.  Actions of a foreign key (CASCADE) do count, because they would run triggers.
        " ARRAY(SELECT DISTINCT coalesce((SELECT pg_catalog.format(CASE k.contype WHEN 'f'"
        "               THEN 'foreign key %%I of table %%I.%%I' ELSE 'deferrable constraint %%I'"
        "               END, k.conname, h.nspname, f.relname)"
        "               FROM pg_catalog.pg_constraint k"
        "               JOIN pg_catalog.pg_class f ON f.oid = k.conrelid"
        "               JOIN pg_catalog.pg_namespace h ON h.oid = f.relnamespace"
        "              WHERE k.oid = t.tgconstraint AND k.contype <> 't'), t.tgname::text)"
        "         FROM pg_catalog.pg_trigger t"
        "        WHERE t.tgrelid = c.oid AND t.tgenabled <> 'D'"
        "          AND NOT (t.tgisinternal AND EXISTS ("
        "            SELECT FROM pg_catalog.pg_constraint k"
        "              JOIN pg_catalog.pg_class f ON f.oid = k.conrelid"
        "             WHERE k.oid = t.tgconstraint AND k.contype = 'f' AND k.confrelid = c.oid"
        "               AND k.confdeltype IN ('a', 'r') AND k.confupdtype IN ('a', 'r')"
        "               AND pg_catalog.pg_has_role(f.relowner, c.relowner, 'MEMBER')))"
        "        ORDER BY 1),"
        " ARRAY(SELECT r.rulename::text FROM pg_catalog.pg_rewrite r"
        "        WHERE r.ev_class = c.oid ORDER BY 1),"
        # Since Postgres 18 NOT NULL is a constraint too (type n); it is not counted here.
        " ARRAY(SELECT k.conname::text FROM pg_catalog.pg_constraint k"
        "        WHERE k.conrelid = c.oid AND k.contype NOT IN ('n', 'p') ORDER BY 1),"
        " c.relrowsecurity, c.relforcerowsecurity, ARRAY(SELECT p.polname::text"
        "   FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid ORDER BY 1),"
        # Not pg_publication_tables: it fails if a publication is dropped at the same time.
        " ARRAY(SELECT p.pubname::text FROM pg_catalog.pg_publication p"
        "        WHERE c.relpersistence = 'p' AND (p.puballtables"
        "           OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel pr"
        "                       WHERE pr.prpubid = p.oid AND pr.prrelid = c.oid)"
        "           OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace pn"
        "                       WHERE pn.pnpubid = p.oid AND pn.pnnspid = c.relnamespace))"
        "        ORDER BY 1),"
        " c.relpersistence = 'p', ARRAY("
        "SELECT pg_catalog.format('%%I.%%I', m.nspname, k.relname)"
        "  FROM pg_catalog.pg_inherits h JOIN pg_catalog.pg_class k ON k.oid = h.inhrelid"
        "  JOIN pg_catalog.pg_namespace m ON m.oid = k.relnamespace"
        " WHERE h.inhparent = c.oid ORDER BY 1),"
        " CASE WHEN c.relispartition THEN ("
        "SELECT pg_catalog.format('%%I.%%I', m.nspname, k.relname)"
        "  FROM pg_catalog.pg_inherits h JOIN pg_catalog.pg_class k ON k.oid = h.inhparent"
        "  JOIN pg_catalog.pg_namespace m ON m.oid = k.relnamespace"
        " WHERE h.inhrelid = c.oid) END,"
        " ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i"
        "   CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)"
        "   JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum"
        "  WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate"
        "    AND k.place <= i.indnkeyatts ORDER BY k.place)"
        " FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY (%s::bigint[]::pg_catalog.oid[])",
        (list(oids),),
    ).fetchall()
    columns = _attributes(conn, oids) if rows else {}
    return {
        int(oid): Fingerprint(
            name=row[0],
            owner=row[1],
            kind=row[2],
            columns=tuple(columns.get(int(oid), ())),
            triggers=tuple(row[3]),
            rules=tuple(row[4]),
            constraints=tuple(row[5]),
            row_security=row[6],
            forced=row[7],
            policies=tuple(row[8]),
            published=tuple(row[9]),
            logged=row[10],
            children=tuple(row[11]),
            whole=row[12],
            key=tuple(row[13]),
        )
        for oid, *row in rows
    }


def check(
    conn: Connection, target: ResultTable, publication: str | None = None, *, filling: bool = False
) -> None:
    """Check that the result table is still as ``create`` made it, and not in ``publication``.

    ``filling``: the table is about to be populated again, which repairs column types, missing
    columns, a missing key, and whether it is logged or published (population/replace.py).
    Additions by users remain errors.

    Raises:
        SinkTableError: the table is gone, or was altered; the message says how.
    """
    found = find_altered(conn, [target], publication, filling=filling)
    if found:
        raise found[target.view_id]


def find_altered(
    conn: Connection,
    targets: Sequence[ResultTable],
    publication: str | None = None,
    *,
    filling: bool = False,
) -> dict[int, SinkTableError]:
    """Return what ``check`` raises for each of ``targets`` that is not as it was made, by view.

    The number of statements does not depend on the number of tables.
    """
    found = _fingerprints(conn, [target.oid for target in targets])
    rows = conn.execute(
        "SELECT current_user, pg_catalog.to_regclass(n.name)::pg_catalog.oid"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS n (name, place) ORDER BY n.place",
        ([target.identifier.as_string(conn) for target in targets],),
    ).fetchall()
    wrong: dict[int, SinkTableError] = {}
    for target, (role, named) in zip(targets, rows, strict=True):
        error = _objection(found.get(target.oid), target, role, named, publication, filling=filling)
        if error is not None:
            wrong[target.view_id] = error
    return wrong


def _objection(
    found: Fingerprint | None,
    target: ResultTable,
    role: str,
    named: int | None,
    publication: str | None,
    *,
    filling: bool,
) -> SinkTableError | None:
    """Return what is wrong with a table; ``named`` is the OID of the table of its name."""
    name = target.shown
    if found is None and named is None:
        return SinkTableError(f"result table {name} was dropped", hint=RESYNC)
    if found is None:
        return SinkTableError(
            f"result table {name} was replaced by another table",
            hint=Repair("Drop or rename that table"),
        )
    if named != target.oid:
        return ResultTableChanged(f"result table {name} was renamed to {found.name}", hint=UNDO)
    if found.owner != role:
        wrong: str | None = f'belongs to role "{found.owner}" now'
    elif publication in found.published and not filling:
        wrong = f'is in publication "{publication}"'
    else:
        wrong = _altered(found, target, filling=filling)
    return ResultTableChanged(f"result table {name} {wrong}", hint=UNDO) if wrong else None


def _altered(found: Fingerprint, target: ResultTable, *, filling: bool) -> str | None:
    """Return how the table of ``target`` was altered, for the message; None if it was not."""
    if found.kind != "r":
        return "is no ordinary table"
    if not found.logged and not filling:
        return "is unlogged now: a crash of the server would empty it"
    wrong = _other_columns(found, target, filling=filling)
    if wrong:
        return wrong
    if found.triggers or found.rules:
        return f"has a trigger or rule: {', '.join(found.triggers + found.rules)}"
    if found.key != target.key and not (filling and not found.key):
        return f"has another key now: ({', '.join(found.key)})" if found.key else _KEYLESS
    if found.constraints:
        return f"has a constraint: {', '.join(found.constraints)}"
    wrong = _other_policies(found, target, filling=filling)
    if wrong:
        return wrong
    if found.children:
        return f"has a child table: {', '.join(found.children)}"
    if found.whole:
        return f"is a partition of {found.whole} now"
    return None


def policy_names(conditions: Sequence[str]) -> dict[str, str]:
    """Return the policies of a table with these ``ResultTable.conditions``: conditions by name.

    All of them are in one policy, so that a table never has only a part of them.
    """
    if not conditions:
        return {}
    text = " AND ".join(f"({condition})" for condition in conditions)
    return {f"{_POLICY}{hashlib.md5(text.encode()).hexdigest()}": text}  # noqa: S324


def earlier_policies(conditions: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the policies that versions up to 0.2.0 made, sorted.

    There was one restrictive policy for each condition, and a permissive one for every row.
    """
    if not conditions:
        return ()
    named = {f"{_POLICY}{hashlib.md5(c.encode()).hexdigest()}" for c in conditions}  # noqa: S324
    return tuple(sorted({EVERY_ROW, *named}))


def _other_policies(found: Fingerprint, target: ResultTable, *, filling: bool) -> str | None:
    wanted = tuple(sorted(policy_names(target.conditions)))
    if filling and all(name.startswith(_POLICY) for name in found.policies):
        wanted = found.policies
    if found.forced or (found.row_security and not wanted):
        return "has row-level security"
    # The earlier ones show the same rows, until ``policies.renew`` replaces them.
    if found.policies not in (wanted, earlier_policies(target.conditions)):
        return "has other policies now"
    lost = bool(wanted) and not found.row_security and not filling
    return "has lost its row-level security" if lost else None


def _other_columns(found: Fingerprint, target: ResultTable, *, filling: bool) -> str | None:
    schema = target.schema
    names = [field.name for field in schema]
    more = [a.name for a in found.columns if a.name not in names]
    if more:
        return f"has other columns now: {', '.join(more)}"
    if filling:
        return None
    if [a.name for a in found.columns] != names:
        return "has other columns now"
    for column, field in zip(found.columns, schema, strict=True):
        wanted = (field.oid, field.typmod)
        if column.of_domain or (column.base_oid, column.base_mod) != wanted:
            return f'has other columns now: column "{column.name}" is of type {column.type_name}'
    return None
