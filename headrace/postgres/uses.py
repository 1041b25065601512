"""The catalog objects that a plan names."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.postgres.privileges import Right


@dataclass(frozen=True, slots=True)
class Uses:
    """The objects that a plan names; ``fingerprint.take`` adds those that they depend on."""

    columns: frozenset[tuple[int, int]]
    """(table, attnum) of every column that is read, key columns too."""
    types: frozenset[int]
    functions: frozenset[int]
    """Functions that are not built in."""
    owner: int
    """OID of the role that the view belongs to."""
    relations: frozenset[tuple[int, bool]] = frozenset()
    """(table as named, with its children)."""
    rights: frozenset[Right] = frozenset()
    views: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()
    """Tables of views of Headrace."""
    others: frozenset[tuple[str, int]] = frozenset()
    """(catalog, OID) of operators, collations and text search configurations."""
    evaluates: bool = True
    """Whether Postgres evaluates expressions of the view."""
