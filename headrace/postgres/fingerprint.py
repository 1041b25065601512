"""The catalog facts that a view relies on, in a form that can be compared.

Most DDL leaves no trace in the stream (E11, E12).  So the facts at the view's population are
stored with the view and read again regularly.  ``take`` determines the facts of a view once;
``read`` returns the present facts of any number of views; ``difference`` returns the reason why a
view cannot continue.  ``definitions`` covers functions, types and other objects of that kind.

Objects are identified by OID, never by name: a renamed table is the same table, one that was
dropped and created again is not.  Harmless are a new column or index, ANALYZE, SET STATISTICS,
VACUUM FULL, CLUSTER, TRUNCATE, new enum labels, a new name or schema of a table, and a new name
or default of a column.

Other changes stop a view in one of two ways.  If the query is still valid but its values may differ
(``StructureChanged``), the server resyncs the view automatically.  Examples are a wider column, a
row type with more attributes, more partitions, or a new body of a function or view.  A dropped
function, operator or cast counts as well, since it may be created again.  If a table or column that
the query reads is gone, or has another type, a user has to decide.

*Tables* are those whose changes are read.  *Relations* are those that the query names; one that is
read with its children must keep its members.  *Rights* are those that the owner needs, and the
owners of underlying views (``privileges``); a view that lacks one stops, and resumes when it is
granted again.  *Views* and *results* (views of Headrace, by their tables) were expanded into the
plan, so their definitions must not change.

*Rewrites.*  ``ALTER COLUMN v TYPE int USING v * 1000`` changes no fact of a column.  But it writes
the column's row of pg_attribute *and* gives the table new storage, in one transaction; few other
commands do both.  One is VACUUM FULL of a table with a used column that was once added with a
default: it stops the view as well, since it cannot be distinguished.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import psycopg

from headrace.errors import (
    RESYNC,
    ContinuityLost,
    DefiniteFailure,
    HeadraceError,
    Repair,
    StructureChanged,
)
from headrace.postgres import definitions, identity, privileges
from headrace.postgres.numbering import Observation, StreamAttribute, VisibleXids
from headrace.postgres.privileges import Right
from headrace.postgres.reliances import Facts, Reliances, Thing, rights_of
from headrace.postgres.uses import Uses
from headrace.postgres.widening import widens
from headrace.types import FIRST_USER_OID

Connection = psycopg.Connection[Any]

Revisions = Callable[[Connection, list[int]], Facts]
"""Facts of the views with these result tables, where Headrace is installed."""

_EARLIER_MAX: Final = 16
"""Observations kept of a table; if it is altered more often, a column may get no number."""
_TABLE_AGAIN: Final = "Create the table again or give the view another query (alter_view)"
_COLUMN_AGAIN: Final = "Add a column of that name or give the view another query (alter_view)"
_KINDS: Final = ("tables", "relations", "views", "results")


# Types of the columns that are read.
_TYPES: Final = """
SELECT DISTINCT a.atttypid::bigint FROM unnest(%s::oid[], %s::int2[]) u (t, n)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = u.t AND a.attnum = u.n
 WHERE a.atttypid >= %s"""

_READ: Final = f"""
SELECT pg_catalog.pg_current_snapshot()::text,
 (SELECT jsonb_build_object('oid', p.oid::bigint, 'written', p.xmin::text,
    'whole', p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate
             AND NOT p.pubviaroot)
    FROM pg_catalog.pg_publication p WHERE p.pubname = %(publication)s),
 (SELECT jsonb_object_agg(c.oid::bigint, jsonb_build_object(
    'schema', n.nspname, 'name', c.relname, 'kind', c.relkind::text,
    'persistence', c.relpersistence::text, 'partition', c.relispartition,
    'parent', EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid),
    'storage', c.relfilenode::bigint, 'identity', c.relreplident::text,
    'key', (SELECT jsonb_agg(k.n ORDER BY k.n) FROM pg_catalog.pg_index i,
        unnest(i.indkey::int2[]) WITH ORDINALITY k (n, place)
       WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
         AND i.indpred IS NULL AND k.place <= i.indnkeyatts
         AND CASE c.relreplident WHEN 'd' THEN i.indisprimary
               WHEN 'i' THEN i.indisreplident END),
    'identified', {identity.IDENTIFIED},
    'published', (SELECT jsonb_build_object('oid', s.oid::bigint,
        'whole', s.prqual IS NULL AND s.prattrs IS NULL)
        FROM pg_catalog.pg_publication_rel s
        JOIN pg_catalog.pg_publication p ON p.oid = s.prpubid
       WHERE s.prrelid = c.oid AND p.pubname = %(publication)s),
    'columns', (SELECT jsonb_object_agg(a.attnum, jsonb_build_object('name', a.attname,
        'type', a.atttypid::bigint, 'typmod', a.atttypmod,
        'collation', a.attcollation::bigint, 'generated', a.attgenerated::text,
        'expression', CASE WHEN a.attgenerated <> '' THEN (SELECT md5(d.adbin::text)
          FROM pg_catalog.pg_attrdef d WHERE d.adrelid = u.t AND d.adnum = u.n) END,
        'not_null', a.attnotnull, 'written', a.xmin::text))
        FROM unnest(%(tables)s::oid[], %(attnums)s::int2[]) u (t, n)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = u.t AND a.attnum = u.n
       WHERE u.t = c.oid AND NOT a.attisdropped),
    'attributes', (SELECT jsonb_agg(jsonb_build_array(a.attnum, a.attname,
        NOT a.attisdropped AND a.attgenerated = '', a.xmin::text) ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)))
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
   WHERE c.oid = ANY (%(tables)s::oid[])),
 (SELECT jsonb_object_agg(c.oid::bigint, jsonb_build_object(
    'name', format('%%I.%%I', n.nspname, c.relname),
    'virtual', (SELECT jsonb_object_agg(a.attnum, md5(d.adbin::text))
        FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
       WHERE a.attrelid = c.oid AND a.attgenerated = 'v' AND NOT a.attisdropped),
    'members', (WITH RECURSIVE m (oid) AS (SELECT c.oid
        UNION SELECT h.inhrelid FROM m JOIN pg_catalog.pg_inherits h ON h.inhparent = m.oid
         WHERE NOT h.inhdetachpending)
      SELECT jsonb_agg(m.oid::bigint ORDER BY m.oid) FROM m)))
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
   WHERE c.oid = ANY (%(relations)s::oid[])),
 (SELECT jsonb_object_agg(c.oid::bigint, jsonb_build_object(
    'name', format('%%I.%%I', n.nspname, c.relname), 'definition', md5(r.ev_action::text),
    'owner', c.relowner::bigint, 'invoker', coalesce((
      SELECT o.option_value::bool FROM pg_catalog.pg_options_to_table(c.reloptions) o
       WHERE o.option_name = 'security_invoker'), false)))
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_rewrite r ON r.ev_class = c.oid AND r.rulename = '_RETURN'
   WHERE c.oid = ANY (%(views)s::oid[]))"""  # noqa: S608  our own constant


def take(conn: Connection, uses: Uses, publication: str, revisions: Revisions) -> Facts:
    """Return the facts of one view, now (or in the snapshot of ``conn``)."""
    columns = sorted(uses.columns)
    tables, attnums = [t for t, _ in columns], [n for _, n in columns]
    rows = conn.execute(_TYPES, (tables, attnums, FIRST_USER_OID)).fetchall()
    roots = {
        "pg_type": {oid for oid in uses.types if oid >= FIRST_USER_OID}
        | {int(row[0]) for row in rows},
        "pg_proc": uses.functions,
    }
    for catalog, oid in uses.others:
        roots[catalog] = {*roots.get(catalog, ()), oid}
    # Read before the rest: the next read shows an alteration that comes after this one.
    known = definitions.find(conn, roots, deep=uses.evaluates)
    found = _read(
        conn,
        columns,
        {
            "relations": sorted({oid for oid, _ in uses.relations}),
            "views": sorted(uses.views),
            "results": sorted(uses.results),
        },
        rights := _with_roles(uses),
        publication,
        revisions,
    )
    facts: Facts = {"owner": uses.owner, **{kind: found[kind] for kind in _KINDS}}
    facts["relations"] = {
        oid: {"inherits": any(i for o, i in uses.relations if str(o) == oid)}
        for oid in found["relations"]
    }
    facts["rights"] = rights
    return _narrow(found, facts) | {"definitions": known}


def read(
    conn: Connection, known: Iterable[Facts], publication: str, revisions: Revisions
) -> list[Facts]:
    """Return the present facts of the objects of each of ``known``, in one snapshot."""
    views = list(known)
    asked = Reliances(enumerate(views))
    found = Present.read(conn, asked, publication, revisions)
    return [found.of(view) for view in views]


@dataclass(frozen=True, slots=True)
class Present:
    """The present facts of the things that a number of views rely on."""

    seen: str
    """The snapshot of the read."""
    found: Facts
    objects: dict[str, Any]
    called: dict[tuple[str, ...], Any]

    @classmethod
    def read(
        cls, conn: Connection, asked: Reliances, publication: str, revisions: Revisions
    ) -> Self:
        """Read the facts of the objects in ``asked``."""
        oids = {kind: asked.of(kind) for kind in _KINDS[1:]}
        found = _read(conn, asked.of("columns"), oids, asked.of("rights"), publication, revisions)
        objects, called = definitions.present(conn, asked.of("objects"), asked.of("words"))
        return cls(found.pop("seen"), found, objects, called)

    def changed(self, before: Present) -> set[Thing] | None:
        """Return the things that differ from ``before`` or are new; None: all may differ."""
        if self.found["publication"] != before.found["publication"]:
            return None
        out: set[Thing] = set()
        for kind in _KINDS:
            now, then = self.found[kind], before.found[kind]
            out |= {(kind, int(oid)) for oid in _unlike(now, then)}
        out |= {("rights", right) for right in _unlike(self.found["lacks"], before.found["lacks"])}
        out |= {("objects", key) for key in _unlike(self.objects, before.objects)}
        return out | {("words", words) for words in _unlike(self.called, before.called)}

    def of(self, view: Facts) -> Facts:
        """Return the facts of one of the views."""
        out = _narrow({"seen": self.seen, **self.found}, view)
        if "definitions" in view:
            known = view["definitions"]
            called = self.called.get(tuple(known.get("words", ())))
            out["definitions"] = definitions.narrow(known, self.objects, called)
        return out


def _unlike(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> set[Any]:
    """Return the keys whose values differ."""
    if now == then:
        return set()
    return {
        k for k in now.keys() | then.keys() if k not in now or k not in then or now[k] != then[k]
    }


def snapshot(conn: Connection) -> str:
    """Return the current snapshot as text: facts cannot change while it stays the same."""
    row = conn.execute("SELECT pg_catalog.pg_current_snapshot()::text", prepare=True).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return str(row[0])


def _with_roles(uses: Uses) -> list[Right]:
    """Return the rights, preceded by entries that the roles still exist."""
    readers = {(role, through) for _, role, _, _, through in uses.rights}
    return [
        ("owner", uses.owner, 0, (), 0),
        *(("reader", role, 0, (), through) for role, through in sorted(readers)),
        *sorted(uses.rights),
    ]


def difference(
    before: Facts,
    now: Facts,
    *,
    published: bool = True,
    quiet: bool = False,
    withdrawn: Collection[int] = (),
) -> HeadraceError | None:
    """Return why a view populated under ``before`` cannot continue under ``now``; None: it can.

    Both are facts of the same view.  Harmless changes are not compared.  The publication counts
    from the time when the tables are in it (``published``).  ``quiet``: no value of the view was
    computed in between.

    ``withdrawn``: entries of pg_publication_rel that were removed because their table had no
    replica identity; it may have one again.
    """

    def errors() -> Iterator[HeadraceError]:
        if published and before["tables"]:  # not for a view of constants
            yield from _publication_changed(before["publication"], now["publication"])
        had = before.get("definitions")
        rows = definitions.relations(had) if had else set()
        relations = before.get("relations", {})
        for oid, facts in before["tables"].items():
            found = now["tables"].get(oid)
            if found is None and relations and oid not in relations:
                # A partition or child; the relation that the query names is checked below.
                yield _refill(f"{_table(facts)} was dropped")
                continue
            if found is not None and _lost_identity(facts, found, withdrawn):
                # Explains a table that has left the publication; nothing was missed before.
                yield _unidentified(found)
            elif published and found is not None:
                yield from _unpublished(facts, found)
            yield from _table_changed(
                facts, found, named=not before.get("relations"), whole=int(oid) in rows
            )
        if had:
            told = definitions.difference(had, now["definitions"], quiet=quiet)
            yield from map(_refill, told)
        elif before.get("types") or before.get("functions"):
            yield _refill("an earlier version did not record everything that the view depends on")
        for oid, facts in before.get("relations", {}).items():
            yield from _relation_changed(facts, now["relations"].get(oid))
        if "rights" not in before:
            yield _refill("an earlier version did not record which roles' rights the view needs")

    found, anew = list(errors()), list(_replaced(before, now))
    # An error that a resync alone cannot repair takes precedence.
    firm = [e for e in (*found, *anew) if not isinstance(e, StructureChanged)]
    # If an underlying view was replaced, the view may need other rights: report that first.
    return next(iter((*firm, *anew)), privileges.error(now["lacks"]) or next(iter(found), None))


def unidentified(facts: Facts) -> bool:
    """Return whether a table of the view has no replica identity."""
    return not all(table.get("identified", True) for table in facts["tables"].values())


def rewritten(before: Facts, now: Facts) -> str | None:
    """Return a table that has new storage: a population that reads it must start again."""
    for oid, old in before["tables"].items():
        new = now["tables"].get(oid)
        if new is None or new["storage"] != old["storage"]:
            return _table(old)
    return None


def followed(before: Facts, now: Facts) -> Facts | None:
    """Return the facts to store for a view that continues under ``now``; None: nothing is new."""
    unlike = {"seen": before.get("seen"), "earlier": before.get("earlier")}
    if now | unlike == before | unlike:
        return None
    earlier = {oid: list(past) for oid, past in before.get("earlier", {}).items()}
    for oid, facts in before["tables"].items():
        attributes = facts.get("attributes")
        if attributes and attributes != now["tables"][oid]["attributes"]:
            past = earlier.setdefault(oid, [])
            past.append([before["seen"], attributes])
            # Keep the first one: no rows older than it are read.
            del past[1 : len(past) - _EARLIER_MAX + 1]
    return now | {"earlier": earlier}


def attributes(facts: Facts, table: int) -> Iterator[tuple[str, list[list[Any]]]]:
    """Yield the observations of a table's columns, the oldest first: snapshot and attributes."""
    oid = str(table)
    past = facts.get("earlier", {}).get(oid, ())
    present = facts.get("tables", {}).get(oid, {}).get("attributes")
    for seen, found in (*past, (facts.get("seen"), present)):
        if seen and found:
            yield seen, found


def observations(facts: Facts, table: int) -> Iterator[Observation]:
    """Yield the observations of a table's columns, the oldest first."""
    for seen, found in attributes(facts, table):
        yield Observation(VisibleXids.of(seen), tuple(StreamAttribute(*entry) for entry in found))


# --- reading


def _read(
    conn: Connection,
    columns: list[tuple[int, int]],
    oids: dict[str, list[int]],
    rights: list[Right],
    publication: str,
    revisions: Revisions,
) -> Facts:
    row = conn.execute(
        _READ,
        {
            **oids,
            "tables": [table for table, _ in columns],
            "attnums": [attnum for _, attnum in columns],
            "publication": publication,
            "user": FIRST_USER_OID,
        },
        prepare=True,
    ).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    out = {"seen": row[0], "publication": row[1]}
    out |= {kind: part or {} for kind, part in zip(_KINDS[:-1], row[2:], strict=True)}
    out["results"] = revisions(conn, oids["results"])
    out["lacks"] = privileges.lacking(conn, rights)
    return out


def _narrow(found: Facts, known: Facts) -> Facts:
    """Return the part of ``found`` that concerns the view with the facts ``known``."""
    out: Facts = {
        "owner": known["owner"],
        "seen": found["seen"],
        "publication": found["publication"],
    }
    for kind in (kind for kind in _KINDS if kind in known):
        out[kind] = {oid: dict(found[kind][oid]) for oid in known[kind] if oid in found[kind]}
    for oid, table in out["tables"].items():
        had = known["tables"][oid]["columns"] or {}
        table["columns"] = {n: c for n, c in (table["columns"] or {}).items() if n in had}
    for oid, relation in out.get("relations", {}).items():
        relation["inherits"] = known["relations"][oid]["inherits"]
        if not relation["inherits"]:
            relation["members"] = None
    if "rights" in known:
        out["rights"] = known["rights"]
    lacks = found["lacks"]
    out["lacks"] = [lacks[right] for right in rights_of(known) if right in lacks]
    return out


# --- comparing


def _stop(message: str, first: str = "") -> HeadraceError:
    """Return the error for an object that is gone or has become unusable for the query.

    ``first``: the step that must precede a resync.
    """
    return DefiniteFailure(message, hint=Repair(first))


def _refill(message: str, detail: str | None = None) -> HeadraceError:
    """Return the error for a query that is still valid but over other values."""
    return StructureChanged(message, detail=detail, hint=RESYNC)


def _lost(message: str) -> HeadraceError:
    return ContinuityLost(message, detail="Changes may have been missed meanwhile.", hint=RESYNC)


def _lost_identity(old: Facts, new: Facts, withdrawn: Collection[int]) -> bool:
    entry, now = ((facts["published"] or {}).get("oid") for facts in (old, new))
    return not new.get("identified", True) or (entry != now and entry in withdrawn)


def _unidentified(table: Facts) -> HeadraceError:
    return StructureChanged(
        f"{_table(table)} lost its replica identity",
        detail="Postgres refuses updates and deletes of a published table without one, so it"
        " leaves the publication.",
        hint=Repair("Add a primary key or set REPLICA IDENTITY FULL"),
    )


def _table(facts: Facts) -> str:
    return f'table "{facts["schema"]}"."{facts["name"]}"'


def _publication_changed(old: Facts | None, new: Facts | None) -> Iterator[HeadraceError]:
    if old is None or new is None:
        yield _lost("the publication was dropped")
    elif old["oid"] != new["oid"]:
        yield _lost("the publication was dropped and created again")
    elif not new["whole"]:
        yield _lost("the publication no longer publishes every change")
    elif old["written"] != new["written"]:
        yield _lost("the publication was altered")


def _unpublished(old: Facts, new: Facts) -> Iterator[HeadraceError]:
    before, now = old["published"], new["published"]
    if before is None or now is None:
        yield _lost(f"{_table(old)} was taken out of the publication")
    elif not now["whole"]:
        yield _lost(f"the publication has a row filter or column list of {_table(old)}")
    elif before["oid"] != now["oid"]:
        yield _lost(f"{_table(old)} was out of the publication for a while")


def _table_changed(
    old: Facts, new: Facts | None, *, named: bool, whole: bool
) -> Iterator[HeadraceError]:
    """Yield the errors for changes of one table.

    ``named``: the facts have no relations, so the query names the table itself.
    ``whole``: the table's row type is used, perhaps without single columns.
    """
    table = _table(old)
    if new is None:
        yield _stop(f"{table} was dropped", _TABLE_AGAIN)
        return
    if old["kind"] != new["kind"]:
        yield _stop(f"{table} is of another kind now", _TABLE_AGAIN)
    if old["persistence"] != new["persistence"]:
        yield _stop(f"{table} is unlogged now", "Run ALTER TABLE … SET LOGGED")
    moved = old["storage"] != new["storage"]
    names = {name for _, name, there, _ in new["attributes"] or () if there}
    for number, column in old["columns"].items():
        known = int(number) in (old["key"] or ())
        found = (new["columns"] or {}).get(number)
        if found is None:
            again = column["name"] in names
            yield _column_dropped(f'column "{column["name"]}" of {table}', again=again, whole=whole)
        else:
            yield from _column_changed(column, found, table, key=known, moved=moved)
    for name, what in (
        ("parent", "has partitions or inheritance children now"),
        ("identity", "has another replica identity now"),
        ("key", "has another key now"),
    ):
        if old[name] != new[name] and (named or name != "parent"):
            yield _refill(f"{table} {what}")


def _column_dropped(column: str, *, again: bool, whole: bool) -> HeadraceError:
    """Return the error; ``again``: another column has the name, and a resync will read it."""
    what = f"{column} was dropped"
    if whole:  # the row has one column less; replanning finds other problems
        return _refill(what)
    return _stop(what, "" if again else _COLUMN_AGAIN)


def _column_changed(
    old: Facts, new: Facts, table: str, *, key: bool, moved: bool
) -> Iterator[HeadraceError]:
    column = f'column "{old["name"]}" of {table}'
    if old.get("expression") != new.get("expression"):
        yield _refill(f"{column} is generated in another way now")
    had, has = ((c["type"], c["typmod"]) for c in (old, new))
    if old["collation"] != new["collation"] and 0 not in (old["collation"], new["collation"]):
        yield _stop(f"{column} has another collation now")
    elif had != has and not widens(had, has):
        yield _stop(f"{column} has another type now")
    elif had != has:
        yield _refill(f"{column} has a wider type now")
    if old["generated"] != new["generated"]:
        yield _refill(f"{column} is no longer generated")
    if key and not new["not_null"]:
        yield _refill(f"{column}, part of its key, may be NULL now")
    if moved and old["written"] != new["written"]:
        yield _refill(
            f"{column} was rewritten",
            "ALTER TABLE may have changed its values, which the stream does not tell.",
        )


def _relation_changed(old: Facts, new: Facts | None) -> Iterator[HeadraceError]:
    if new is None:
        yield _stop(f"table {old['name']} was dropped", _TABLE_AGAIN)
        return
    if old["members"] != new["members"]:
        had, have = set(old["members"]), set(new["members"])
        what = "has other partitions or children"
        if had < have:
            what = "has more partitions or children"
        elif have < had:
            what = "has fewer partitions or children"
        yield _refill(f"table {old['name']} {what} now")
    # Rows of children are computed by these expressions, and the parent may not be published.
    known, found = old.get("virtual") or {}, new["virtual"] or {}
    if old["inherits"] and (
        any(found.get(number, text) != text for number, text in known.items())
        or ("virtual" not in old and found)  # an earlier version used those of the children
    ):
        yield _refill(f"a virtual column of table {old['name']} is generated in another way now")


def _replaced(before: Facts, now: Facts) -> Iterator[HeadraceError]:
    """Yield the errors for underlying views that were replaced."""
    for oid, facts in before.get("views", {}).items():
        yield from _view_changed(facts, now["views"].get(oid))
    for oid, facts in before.get("results", {}).items():
        yield from _result_changed(facts, now["results"].get(oid))


def _view_changed(old: Facts, new: Facts | None) -> Iterator[HeadraceError]:
    name = old["name"]
    if new is None:
        yield _stop(f"view {name} was dropped", "Create that view again")
    elif old["definition"] != new["definition"]:
        yield _refill(f"view {name} was replaced")
    elif (old["owner"], old["invoker"]) != (new["owner"], new["invoker"]):
        yield _refill(f"view {name} is now read with the rights of another role")


def _result_changed(old: Facts, new: Facts | None) -> Iterator[HeadraceError]:
    if new is None:  # while it is read it cannot be dropped
        yield _refill(f"the result table of view {old['name']} was created again")
    elif old["revision"] != new["revision"]:
        yield _refill(f"view {old['name']} was altered")
