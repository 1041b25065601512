"""Check that schema ``headrace``, and every object in or attached to it, was made by our role.

A role that prepares an object which we then use runs its code with our rights: a trigger on a
table, a function with a name of ours, a default.  So the engine starts only if every object is
ours; none is adopted, not even from a member of our role.

Event triggers are not checked: only superusers can create them.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from headrace.errors import PrerequisiteError

TRIGGERS: Final = ("stamp",)
POLICIES: Final = ("own", "readers", "made", "moved", "send", "public")

Connection = psycopg.Connection[Any]

_SCHEMA: Final = """
SELECT pg_get_userbyid(nspowner), nspowner = current_user::regrole
  FROM pg_namespace WHERE nspname = 'headrace'"""
# Objects of the bootstrap superuser are pinned: they have no entry in pg_shdepend.
_FOREIGN: Final = """
SELECT pg_describe_object(d.classid, d.objid, 0), pg_get_userbyid(coalesce(s.refobjid, 10))
  FROM pg_depend d LEFT JOIN pg_shdepend s ON s.classid = d.classid AND s.objid = d.objid
   AND s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND s.deptype = 'o'
 WHERE d.refclassid = 'pg_namespace'::regclass
   AND d.refobjid = to_regnamespace('headrace') AND d.deptype <> 'i'
   AND coalesce(s.refobjid, 10) <> quote_ident(current_user)::regrole
 ORDER BY 1"""
_UNKNOWN: Final = """
SELECT pg_describe_object(d.classid, d.objid, 0)
  FROM pg_depend d
  LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
  LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
 WHERE d.refclassid = 'pg_namespace'::regclass
   AND d.refobjid = to_regnamespace('headrace')
   AND NOT coalesce(c.relkind IN ('r', 'p') AND c.relname = ANY (%(relations)s)
         OR c.relkind IN ('S', 'i') AND EXISTS (SELECT FROM pg_depend o
             JOIN pg_class t ON t.oid = o.refobjid
            WHERE o.classid = 'pg_class'::regclass AND o.objid = c.oid
              AND o.refclassid = 'pg_class'::regclass
              AND t.relnamespace = d.refobjid AND t.relname = ANY (%(relations)s))
         OR p.proname = ANY (%(routines)s) AND NOT EXISTS (  -- we have one of each name
             SELECT FROM pg_proc o WHERE o.pronamespace = d.refobjid
                AND o.proname = p.proname AND o.oid < p.oid), false)
 ORDER BY 1"""
# The objects that a constraint or an index names; built-in ones are pinned and have no entry.
_ATTACHED: Final = """
WITH ours AS (SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('headrace'))
SELECT 'trigger "' || tgname || '" on ' || tgrelid::regclass FROM pg_trigger
 WHERE tgrelid IN (SELECT oid FROM ours) AND NOT tgisinternal AND NOT (
       tgname = ANY (%(triggers)s) AND tgfoid IN (SELECT oid FROM pg_proc
        WHERE pronamespace = to_regnamespace('headrace') AND proname = ANY (%(routines)s)))
UNION ALL SELECT 'rule "' || rulename || '" on ' || ev_class::regclass FROM pg_rewrite
 WHERE ev_class IN (SELECT oid FROM ours)
UNION ALL SELECT 'policy "' || polname || '" on ' || polrelid::regclass FROM pg_policy
 WHERE polrelid IN (SELECT oid FROM ours) AND NOT polname = ANY (%(policies)s)
UNION ALL SELECT 'inheritance between ' || inhrelid::regclass || ' and ' || inhparent::regclass
  FROM pg_inherits WHERE inhrelid IN (SELECT oid FROM ours) OR inhparent IN (SELECT oid FROM ours)
UNION ALL SELECT 'constraint "' || conname || '" on ' || conrelid::regclass FROM pg_constraint
 WHERE contype = 'f' AND (conrelid IN (SELECT oid FROM ours)
       <> (confrelid IN (SELECT oid FROM ours)))
UNION ALL SELECT pg_describe_object(classid, objid, objsubid) || ', which needs '
       || pg_describe_object(refclassid, refobjid, refobjsubid) FROM pg_depend
 WHERE refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
                      'pg_opclass'::regclass, 'pg_collation'::regclass)
   AND (classid = 'pg_class'::regclass AND objid IN (SELECT oid FROM ours)
     OR classid = 'pg_attrdef'::regclass
        AND objid IN (SELECT oid FROM pg_attrdef WHERE adrelid IN (SELECT oid FROM ours))
     OR classid = 'pg_constraint'::regclass
        AND objid IN (SELECT oid FROM pg_constraint WHERE conrelid IN (SELECT oid FROM ours)))
UNION ALL SELECT 'a row filter or column list of publication "' || pubname || '" for '
       || prrelid::regclass
  FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
 WHERE prrelid IN (SELECT oid FROM ours) AND (prqual IS NOT NULL OR prattrs IS NOT NULL)
 ORDER BY 1"""
_SHOWN_MAX: Final = 5


def problems(conn: Connection, made: list[str]) -> list[PrerequisiteError]:
    """Return an error for each existing object that is not ours.

    ``made``: the names of all objects that we create.
    """
    with conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        found = conn.execute(_SCHEMA).fetchone()
        if found is None:
            return []
        owner, ours = found
        if not ours:
            return [_foreign_schema(owner)]
        return _objects(conn, made)


def _objects(conn: Connection, made: list[str]) -> list[PrerequisiteError]:
    out = [
        PrerequisiteError(
            f'{what} in schema "headrace" belongs to role "{owner}"',
            detail="It existed before Headrace, and would act with Headrace's rights.",
            hint="Drop it, or uninstall headrace as the role that installed it.",
            sqlstate="42501",
        )
        for what, owner in conn.execute(_FOREIGN)
    ]
    names = {
        "relations": made,
        "routines": [*made, "stamp_command"],
        "triggers": list(TRIGGERS),
        "policies": list(POLICIES),
    }
    strange = [row[0] for row in conn.execute(_UNKNOWN, names)]
    strange += [row[0] for row in conn.execute(_ATTACHED, names)]
    return [*out, *map(_strange, strange)]


def check(conn: Connection, made: list[str]) -> None:
    """Raise the first of ``problems``, with the others as its detail.

    Raises:
        PrerequisiteError: 42501.
    """
    found = problems(conn, made)
    if not found:
        return
    first, *more = found
    if more:
        shown = "; ".join(error.message for error in more[:_SHOWN_MAX])
        detail = f"And {len(more)} more: {shown}."
        raise PrerequisiteError(first.message, detail=detail, hint=first.hint, sqlstate="42501")
    raise first


def _strange(what: str) -> PrerequisiteError:
    return PrerequisiteError(
        f"{what} was not created by headrace",
        detail='Schema "headrace" may contain only Headrace\'s objects, with nothing attached.',
        hint="Drop it.",
        sqlstate="42501",
    )


def _foreign_schema(owner: str) -> PrerequisiteError:
    return PrerequisiteError(
        f'schema "headrace" belongs to role "{owner}"',
        detail="Its owner could use Headrace's rights without limit.",
        hint=f'Let headrace connect as "{owner}" if that role installed it; else drop the schema.',
        sqlstate="42501",
    )
