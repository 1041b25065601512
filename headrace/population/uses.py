"""Catalog objects that a planned view depends on: the input of ``postgres.fingerprint``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headrace.collections.plan import PhysicalPlan, to_json
from headrace.collections.source import load_columns
from headrace.errors import HeadraceError, OwnerGone, PrivilegeError, RightEnded
from headrace.planner import Planned
from headrace.population import names
from headrace.population.tables import TableChanged
from headrace.postgres import fingerprint, privileges
from headrace.postgres.connect import Connection
from headrace.postgres.reliances import Facts
from headrace.postgres.uses import Uses


def of(
    physical: PhysicalPlan,
    owner: int,
    *,
    types: frozenset[int] = frozenset(),
    functions: frozenset[int] = frozenset(),
) -> Uses:
    """Return the columns of the plan's sources, and its types besides those of the query.

    ``owner``: the OID of the role that the view acts for.
    """
    data = to_json(physical)
    return Uses(
        frozenset(
            (source.table_oid, column.attnum)
            for source in physical.sources
            for column in load_columns(source)
        ),
        types | frozenset(types_of(data)),
        functions,
        owner,
        # An inlined function call depends on the text of the function's body, too.
        evaluates=_evaluates(data) or bool(functions),
    )


def of_planned(conn: Connection, planned: Planned, caller: str | None) -> Uses:
    """Return the dependencies of ``planned``, for a view of ``caller`` (None: our own role)."""
    owner = names.role(conn, caller).oid
    used = of(planned.physical, owner, types=planned.types, functions=planned.functions)
    if planned.whole is not None:
        whole = of(planned.whole, owner)
        used = replace(
            used,
            columns=used.columns | whole.columns,
            types=used.types | whole.types,
            evaluates=used.evaluates or whole.evaluates,
        )
    return replace(
        used,
        columns=used.columns | planned.generated,
        others=planned.others,
        relations=planned.relations,
        rights=planned.rights,
        views=planned.views,
        results=planned.results,
    )


def check_planned(before: Facts, physical: PhysicalPlan, now: Facts) -> None:
    """Check that the plan, made from the facts ``before``, fits the snapshot's facts ``now``.

    Raises:
        TableChanged: a dependency was altered in between.
        PrivilegeError: a right has ended.
    """
    error = fingerprint.difference(before, now, published=False)
    if error is not None:
        raise _against(error)
    for source in physical.sources:
        name = f'table "{source.schema_name}"."{source.table_name}"'
        table = now["tables"].get(str(source.table_oid))
        if table is None:
            raise _changed(f"{name} was dropped")
        full, key = table["identity"] == "f", sorted(c.attnum for c in source.key)
        if source.full_identity != full or key != (table["key"] or []):
            raise _changed(f"{name} got another replica identity or key")
        for column in load_columns(source):
            found = table["columns"].get(str(column.attnum))
            if found is None:
                raise _changed(f'column "{column.name}" of {name} was altered')


def check_kept(before: Facts, now: Facts) -> None:
    """Check that tables stayed unchanged while a snapshot with the facts ``before`` was read.

    Raises:
        TableChanged: a dependency was altered, or a table has another file node (a snapshot
            protects neither against TRUNCATE nor against a rewrite).
        PrivilegeError: a right has ended.
    """
    error = fingerprint.difference(before, now)
    if error is not None:
        raise _against(error)
    table = fingerprint.rewritten(before, now)
    if table is not None:
        raise _changed(f"{table} was rewritten or truncated")


def check_rights(facts: Facts) -> None:
    """Raise PrivilegeError if the view of ``facts`` lacks a right."""
    error = privileges.error(facts["lacks"])
    if error is not None:
        raise _against(error)


def _against(error: HeadraceError) -> HeadraceError:
    if isinstance(error, RightEnded | OwnerGone):
        hint = error.repair.step if error.repair is not None else error.hint
        return PrivilegeError(error.message, detail=error.detail, hint=hint, sqlstate=error.code)
    return _changed(error.message, error.detail)


def _changed(message: str, detail: str | None = None) -> TableChanged:
    return TableChanged(
        f"{message} while the view was being filled", detail=detail, hint="Make the call again."
    )


def _evaluates(data: Any) -> bool:
    """Return whether Postgres evaluates any part of a plan (as JSON)."""
    if isinstance(data, dict):
        if data.get("sql") or data.get("native") is False:
            return True
        data = list(data.values())
    return isinstance(data, list) and any(map(_evaluates, data))


def types_of(data: Any) -> Iterator[int]:
    """Yield the value of every ``oid`` in a plan (as JSON)."""
    if isinstance(data, dict):
        if isinstance(data.get("oid"), int):
            yield data["oid"]
        data = list(data.values())
    if isinstance(data, list):
        for part in data:
            yield from types_of(part)
