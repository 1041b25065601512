"""Catalog objects that a view's values depend on: functions, types, row security and so on.

``find`` follows all objects that a plan names, transitively, through pg_depend, the casts, checks
and operator classes of types, and the words in the bodies of functions.  Each object has one or
more rows in the catalog, and ``xmin`` is the transaction that wrote a row last.  So an object that
was changed and changed back between two checks counts as changed: values that were computed in
between may be wrong for good.  ``VACUUM`` leaves ``xmin`` as it is.

``marks`` is the quick check: it reads only the fields that every change alters.  ``read`` also has
names and contents, from which ``difference`` describes the change.

An object that is created and dropped again between two checks leaves no trace.  So there is a check
before and after each evaluation of a batch.  Only objects whose creation *and* drop are both
committed during that evaluation stay undetected: a cast, a check of a domain, a mapping of a text
search configuration, or another function of a name that a body calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg

from headrace.postgres.pipelined import Sent
from headrace.types import FIRST_USER_OID

Connection = psycopg.Connection[Any]

Definitions = dict[str, Any]
"""JSON.  ``objects``: name, content and change markers by ``catalog:oid``; ``words``: those in
functions' bodies; ``called``: user functions with such names; ``deep``: as for ``find``."""

Marks = dict[str, Any]
"""As ``Definitions``, without names and contents."""

_ALIKE: Final = (
    *("proacl", "proowner", "procost", "prorows", "typacl", "typowner", "nspacl"),
    *("nspowner", "oprowner", "collowner", "cfgowner", "dictowner"),
)
"""Columns that no value depends on."""

# By catalog: expression that changes whenever the object does (its own xmin and those of dependent
# rows).  Unnamed objects are parts of their type; those in _EVALUATED count only with ``deep``.
_WRITTEN: Final = {
    "pg_proc": "concat_ws(' ', c.xmin::text, (SELECT a.xmin::text"
    " FROM pg_catalog.pg_aggregate a WHERE a.aggfnoid = c.oid))",
    "pg_operator": "c.xmin::text",
    # The row security of a table; names of roles are in the policies of the result table.
    "pg_class": "concat_ws(' ', c.relrowsecurity, c.relforcerowsecurity,"
    " pg_catalog.pg_get_userbyid(c.relowner), (SELECT string_agg(concat_ws(':', p.oid,"
    " p.xmin::text, (SELECT string_agg(quote_ident(r.rolname), ',' ORDER BY r.oid)"
    " FROM pg_catalog.pg_roles r WHERE r.oid = ANY (p.polroles))), ' ' ORDER BY p.oid)"
    " FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid))",
    "pg_collation": "c.xmin::text",
    "pg_namespace": "c.xmin::text",
    "pg_opclass": "c.xmin::text",
    "pg_opfamily": "concat_ws(' ', c.xmin::text, (SELECT string_agg("
    " concat_ws(':', a.oid, a.xmin::text), ',' ORDER BY a.oid)"
    " FROM pg_catalog.pg_amop a WHERE a.amopfamily = c.oid), (SELECT string_agg("
    " concat_ws(':', a.oid, a.xmin::text), ',' ORDER BY a.oid)"
    " FROM pg_catalog.pg_amproc a WHERE a.amprocfamily = c.oid))",
    "pg_ts_config": "concat_ws(' ', c.xmin::text, (SELECT string_agg("
    " concat_ws(':', m.maptokentype, m.mapseqno, m.mapdict, m.xmin::text), ','"
    " ORDER BY m.maptokentype, m.mapseqno)"
    " FROM pg_catalog.pg_ts_config_map m WHERE m.mapcfg = c.oid))",
    "pg_ts_dict": "c.xmin::text",
    "pg_type": "concat_ws(' ', c.xmin::text, (SELECT r.xmin::text"
    " FROM pg_catalog.pg_range r WHERE c.oid IN (r.rngtypid, r.rngmultitypid)))",
}
# By catalog: content of an object outside its own row.
_CONTENT: Final = {
    "pg_proc": "(SELECT to_jsonb(a) FROM pg_catalog.pg_aggregate a WHERE a.aggfnoid = c.oid)",
    "pg_opfamily": "(SELECT string_agg(a.oid::text, ',' ORDER BY a.oid) FROM ("
    " SELECT a.oid FROM pg_catalog.pg_amop a WHERE a.amopfamily = c.oid UNION ALL"
    " SELECT a.oid FROM pg_catalog.pg_amproc a WHERE a.amprocfamily = c.oid) a)",
    "pg_ts_config": "(SELECT string_agg("
    " concat_ws(':', m.maptokentype, m.mapseqno, m.mapdict), ','"
    " ORDER BY m.maptokentype, m.mapseqno)"
    " FROM pg_catalog.pg_ts_config_map m WHERE m.mapcfg = c.oid)",
}
_CONTENTLESS: Final = ("pg_class",)
"""Catalogs whose rows change without a change of the object; a difference has no more details."""
_PARTS: Final = {
    "labels": "(SELECT jsonb_object_agg(e.oid::bigint, jsonb_build_array("
    " e.enumlabel, e.xmin::text)) FROM pg_catalog.pg_enum e WHERE e.enumtypid = c.oid)",
    "attributes": "(SELECT string_agg(concat_ws(':', a.attnum, a.xmin::text), ','"
    " ORDER BY a.attnum) FROM pg_catalog.pg_attribute a WHERE c.typrelid <> 0"
    " AND a.attrelid = c.typrelid AND a.attnum > 0)",
    "casts": "(SELECT string_agg(concat_ws(':', k.oid, k.xmin::text), ',' ORDER BY k.oid)"
    " FROM pg_catalog.pg_cast k WHERE k.oid >= %(user)s"
    " AND c.oid IN (k.castsource, k.casttarget))",
    "checks": "(SELECT string_agg(concat_ws(':', k.oid, k.xmin::text), ',' ORDER BY k.oid)"
    " FROM pg_catalog.pg_constraint k WHERE k.contypid = c.oid)",
    "orders": "(SELECT string_agg(concat_ws(':', o.oid, o.xmin::text), ',' ORDER BY o.oid)"
    " FROM pg_catalog.pg_opclass o WHERE o.oid >= %(user)s AND o.opcintype = c.oid)",
}
_PG_CATALOG: Final = 11
_EVALUATED: Final = ("casts", "checks", "orders")
_SAID: Final = {
    "attributes": "the attributes of {} have changed",
    "casts": "a cast of {} was created or dropped",
    "checks": "a constraint of {} has changed",
    "orders": "an operator class of {} has changed",
}

_WORD: Final = r'"(?:[^"]|"")+"|(?:[A-Za-z_]|[^\x01-\x7f])(?:[\w$]|[^\x01-\x7f])*'
_TOKENS: Final = f"""
SELECT CASE WHEN m[1] LIKE '"%%' THEN replace(substr(m[1], 2, length(m[1]) - 2), '""', '"')
            ELSE m[1] END AS word
  FROM regexp_matches(f.prosrc, $re$({_WORD})$re$, 'g') m
UNION SELECT lower(m[1]) FROM regexp_matches(f.prosrc, $re$({_WORD})$re$, 'g') m
 WHERE m[1] NOT LIKE '"%%'"""  # noqa: S608
# Bodies that Postgres stores as text; it knows the dependencies of the others (prosqlbody).
_BODIES: Final = """
SELECT f.oid, f.prosrc FROM pg_catalog.pg_proc f
  JOIN pg_catalog.pg_language l ON l.oid = f.prolang
 WHERE f.oid = ANY (%(oids)s::oid[]) AND l.lanname NOT IN ('internal', 'c')
   AND f.prosqlbody IS NULL"""
_WORDS: Final = f"""
SELECT DISTINCT w.word FROM ({_BODIES} OFFSET 0) f CROSS JOIN LATERAL ({_TOKENS}) w
 ORDER BY 1"""  # noqa: S608

# Objects that the given objects of a catalog depend on directly: (catalog, OID).  First those in
# pg_depend, then those that pg_depend does not have in this direction.
_DEPENDENCIES: Final = """
SELECT d.refclassid, d.refobjid FROM pg_catalog.pg_depend d
 WHERE d.classid = %(catalog)s::regclass AND d.objid = ANY (%(oids)s::oid[])"""
_MADE_OF: Final = """
SELECT 'pg_type'::regclass::oid, x.oid FROM pg_catalog.pg_type t CROSS JOIN LATERAL (
    SELECT t.typelem UNION ALL SELECT t.typbasetype
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
      WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r
      WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) x (oid)
 WHERE t.oid = ANY (%(oids)s::oid[])"""
_MORE: Final = {
    "pg_type": """
SELECT 'pg_cast'::regclass::oid, k.oid FROM pg_catalog.pg_cast k
 WHERE k.castsource = ANY (%(oids)s::oid[]) OR k.casttarget = ANY (%(oids)s::oid[])
UNION ALL SELECT 'pg_constraint'::regclass, k.oid FROM pg_catalog.pg_constraint k
 WHERE k.contypid = ANY (%(oids)s::oid[])
UNION ALL SELECT 'pg_opclass'::regclass, o.oid FROM pg_catalog.pg_opclass o
 WHERE o.opcintype = ANY (%(oids)s::oid[])""",
    "pg_opfamily": """
SELECT 'pg_amop'::regclass::oid, a.oid FROM pg_catalog.pg_amop a
 WHERE a.amopfamily = ANY (%(oids)s::oid[])
UNION ALL SELECT 'pg_amproc'::regclass, a.oid FROM pg_catalog.pg_amproc a
 WHERE a.amprocfamily = ANY (%(oids)s::oid[])""",
    "pg_ts_config": """
SELECT 'pg_ts_dict'::regclass::oid, m.mapdict FROM pg_catalog.pg_ts_config_map m
 WHERE m.mapcfg = ANY (%(oids)s::oid[])""",
    "pg_proc": f"""
WITH body AS MATERIALIZED ({_BODIES}), word AS MATERIALIZED (
    SELECT DISTINCT w.word::name AS word FROM body f CROSS JOIN LATERAL ({_TOKENS}) w)
SELECT 'pg_proc'::regclass::oid, g.oid FROM word JOIN pg_catalog.pg_proc g
    ON g.proname = word.word AND g.oid >= %(user)s
UNION ALL SELECT 'pg_type'::regclass, t.oid FROM word JOIN pg_catalog.pg_type t
    ON t.typname = word.word AND t.oid >= %(user)s
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class k
   WHERE k.oid = t.typrelid AND k.relkind <> 'c')
UNION ALL SELECT 'pg_operator'::regclass, o.oid FROM body JOIN pg_catalog.pg_operator o
    ON o.oid >= %(user)s AND strpos(body.prosrc, o.oprname) > 0""",  # noqa: S608
}
_OWN_NUMBERS: Final = ("pg_namespace", "pg_ts_dict")
"""Catalogs whose built-in rows count too."""
_CATALOGS: Final = """
SELECT c.oid::bigint, c.relname FROM pg_catalog.pg_class c
 WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relname = ANY (%s)"""
# A subquery, so that each word is looked up in the index.
_CALLED: Final = """
SELECT 'called', w.i, NULL, NULL, string_agg((SELECT string_agg(g.oid::text, ',' ORDER BY g.oid)
    FROM pg_catalog.pg_proc g WHERE g.proname = w.word::name AND g.oid >= %(user)s),
    ',' ORDER BY w.word), NULL::jsonb
  FROM ROWS FROM (unnest(%(words)s::text[]), unnest(%(lists)s::int[])) w (word, i)
 GROUP BY w.i"""


def find(conn: Connection, roots: Mapping[str, Collection[int]], *, deep: bool) -> Definitions:
    """Return the present definitions of all objects that ``roots`` (OIDs by catalog) depend on.

    ``deep``: Postgres evaluates expressions of the view, so the objects that it uses for that
    count too.
    """
    found = _reached(conn, roots, deep=deep)
    bodies = sorted(found.get("pg_proc", ())) if deep else []
    rows = conn.execute(_WORDS, {"oids": bodies}).fetchall() if bodies else []
    known: Definitions = {
        "objects": {
            f"{catalog}:{oid}": {} for catalog in _WRITTEN for oid in sorted(found.get(catalog, ()))
        },
        "words": [row[0] for row in rows],
        "deep": deep,
    }
    return read(conn, [known])[0]


def _reached(
    conn: Connection, roots: Mapping[str, Collection[int]], *, deep: bool
) -> dict[str, set[int]]:
    """Return the OIDs, by catalog, of all objects that can be reached from ``roots``."""
    # Of a table only the row security counts, and only where it is given.
    others = ("pg_cast", "pg_constraint", "pg_amop", "pg_amproc")
    followed = (*(_WRITTEN.keys() - {"pg_class"}), *others)
    names = dict(conn.execute(_CATALOGS, (list(followed),)).fetchall())
    found: dict[str, set[int]] = {c: set() for c in followed}
    new = {c: set(oids) - {0} for c, oids in roots.items() if c in found}
    while any(new.values()):
        reached: dict[str, set[int]] = {c: set() for c in followed}
        for catalog, oids in new.items():
            found[catalog] |= oids
            asked = {"catalog": catalog, "oids": sorted(oids), "user": FIRST_USER_OID}
            steps = [_MADE_OF] if catalog == "pg_type" else []
            if deep:
                steps += [_DEPENDENCIES, *filter(None, [_MORE.get(catalog)])]
            for step in steps if oids else ():
                for number, oid in conn.execute(step, asked):
                    other = names.get(number)
                    if other and (oid >= FIRST_USER_OID or other in _OWN_NUMBERS):
                        reached[other].add(oid)
        new = {c: oids - found[c] - {0} for c, oids in reached.items()}
    found["pg_namespace"].discard(_PG_CATALOG)
    found["pg_class"] = set(roots.get("pg_class", ()))
    return found


def read(conn: Connection, known: Iterable[Definitions]) -> list[Definitions]:
    """Return the present definitions of the objects of each of ``known``, in one snapshot."""
    return _read(conn, list(known), full=True)


def present(
    conn: Connection, objects: Iterable[str], words: Iterable[tuple[str, ...]]
) -> tuple[dict[str, Any], dict[tuple[str, ...], Any]]:
    """Read the present definitions for many views at once, in one snapshot.

    ``objects`` are the keys of their ``objects``, ``words`` their lists of words; see ``narrow``.
    """
    lists = [words for words in dict.fromkeys(words) if words]
    asked: list[Definitions] = [
        {"objects": {key: {} for key in objects}, "words": [], "deep": True},
        *({"objects": {}, "words": list(words), "deep": True} for words in lists),
    ]
    first, *others = _read(conn, asked, full=True)
    called = zip(lists, others, strict=True)
    return first["objects"], {words: found["called"] for words, found in called}


def marks(conn: Connection, known: Iterable[Definitions]) -> list[Marks]:
    """Read only the fields that ``changed`` needs."""
    return _read(conn, list(known), full=False)


def asking(known: Sequence[Definitions]) -> Sent | None:
    """Return the statement of ``marks``; None if there is nothing to read."""
    text, values = _asked(list(known), full=False)
    return Sent.named(text, values) if text else None


def parse_marks(known: Sequence[Definitions], rows: Iterable[tuple[Any, ...]]) -> list[Marks]:
    """Convert the rows of ``asking(known)`` to the result of ``marks``."""
    return _parse(list(known), rows)


def changed(before: Definitions, now: Marks) -> bool:
    """Return whether an object of ``before`` has changed or is gone."""
    if before.get("called") != now.get("called"):
        return True
    objects = now["objects"]
    return any(
        key not in objects or _differs(entry, objects[key]) is not None
        for key, entry in before["objects"].items()
    )


def difference(before: Definitions, now: Definitions, *, quiet: bool = False) -> Iterator[str]:
    """Describe the changes; ``quiet``: nothing was evaluated in between.

    With ``quiet``, an object that was changed and changed back does not count.
    """
    for key, old in before["objects"].items():
        new = now["objects"].get(key)
        if new is None:
            yield f"{old['name']} was dropped"
            continue
        what = _differs(old, new)
        if what is None:
            continue
        if key.startswith("pg_class:"):
            yield f"row security of {new['name']} was altered"
            continue
        if old["name"] != new["name"]:
            yield f"{old['name']} was renamed to {new['name']}"
        elif what == "labels":
            yield from _labels_changed(old, new)
        elif what in _SAID:
            yield _SAID[what].format(old["name"])
        elif old["content"] != new["content"]:
            said = "replaced" if key.startswith("pg_proc") else "altered"
            yield f"{old['name']} was {said}"
        elif not quiet:
            yield f"{old['name']} was altered, and may have been another for a while"
    if before.get("called") != now.get("called"):
        yield "a function of a name that is called was created or dropped"


def relations(known: Definitions) -> set[int]:
    """Return the OIDs of the tables whose row types are used."""
    return {e["relation"] for e in known["objects"].values() if e.get("relation")}


def _differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return the part of an object that has changed; new labels of an enum are harmless."""
    has = new.get("labels") or {}
    for oid, label in (old.get("labels") or {}).items():
        if has.get(oid) != label:
            return "labels"
    for part in (*_SAID, "written"):
        if part in old and old[part] != new.get(part):
            return part
    return None


def _labels_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    has = new.get("labels") or {}
    for oid, (label, written) in old["labels"].items():
        found = has.get(oid)
        if found is None or found[0] != label:
            yield f'label "{label}" of {old["name"]} was renamed'
        elif found[1] != written:
            yield (
                f'label "{label}" of {old["name"]} was altered,'
                " and may have been another for a while"
            )


def _read(conn: Connection, known: list[Definitions], *, full: bool) -> list[Definitions]:
    text, values = _asked(known, full=full)
    rows = conn.execute(text, values, prepare=True).fetchall() if text else []
    return _parse(known, rows)


def _asked(known: list[Definitions], *, full: bool) -> tuple[str, dict[str, Any]]:
    """Return the statement that reads ``known`` (empty if there is nothing), and parameters."""
    oids: dict[str, set[int]] = {}
    for view in known:
        for key in view["objects"]:
            catalog, _, oid = key.partition(":")
            oids.setdefault(catalog, set()).add(int(oid))
    words = [(w, i) for i, view in enumerate(known) for w in view.get("words", ())]
    asked = {catalog: sorted(found) for catalog, found in oids.items()}
    branches = [_branch(catalog, full=full) for catalog in sorted(asked)]
    if words:
        branches.append(_CALLED)
    return " UNION ALL ".join(branches), {
        **asked,
        "user": FIRST_USER_OID,
        "words": [word for word, _ in words],
        "lists": [i for _, i in words],
    }


def _parse(known: list[Definitions], rows: Iterable[tuple[Any, ...]]) -> list[Definitions]:
    found: dict[str, dict[str, Any]] = {}
    called: dict[int, str] = {}
    for catalog, oid, name, content, written, parts in rows:
        if catalog == "called":
            called[oid] = written
            continue
        entry = {"name": name, "content": content, "written": written}
        found[f"{catalog}:{oid}"] = entry | (parts or {})
    return [narrow(view, found, called.get(i)) for i, view in enumerate(known)]


def _branch(catalog: str, *, full: bool) -> str:
    name, content, parts = "NULL::text", "NULL::text", "NULL::jsonb"
    if full:
        name = (
            "(SELECT concat_ws(' ', i.type, i.identity) FROM"  # noqa: S608
            f" pg_catalog.pg_identify_object('pg_catalog.{catalog}'::regclass, c.oid, 0) i)"
        )
        content = (
            f"md5(concat_ws(' ', to_jsonb(c) - '{{{','.join(_ALIKE)}}}'::text[],"
            f" {_CONTENT.get(catalog, 'NULL')}))"
        )
    if catalog in _CONTENTLESS:
        content = "NULL::text"
    if catalog == "pg_type":
        pairs = ", ".join(f"'{name}', {text}" for name, text in _PARTS.items())
        parts = f"jsonb_build_object('relation', c.typrelid::bigint, {pairs})"
    return (
        f"SELECT '{catalog}', c.oid::bigint, {name}, {content},"  # noqa: S608
        f" {_WRITTEN[catalog]}, {parts} FROM pg_catalog.{catalog} c"
        f" WHERE c.oid = ANY (%({catalog})s::oid[])"
    )


def narrow(
    known: Definitions, found: Mapping[str, dict[str, Any]], called: str | None
) -> Definitions:
    """Return the part of ``found`` that concerns ``known``."""
    left_out = () if known["deep"] else _EVALUATED
    objects = {
        key: {k: v for k, v in found[key].items() if k not in left_out}
        for key in known["objects"]
        if key in found
    }
    return known | {"objects": objects, "called": called}
