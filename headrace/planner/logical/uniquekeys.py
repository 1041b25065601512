"""Unique keys of a plan node: sets of columns in which no two of its rows are equal.

Two NULLs count as equal.  A key without NULLs, as far as constraints of the tables say, becomes the
key of the result table (``proved``).  The other keys are suggestions (``explain_view``): choosing
one also gives the table a primary key.  Postgres checks both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from operator import itemgetter
from typing import Final

from headrace.planner.logical import nodes
from headrace.planner.logical.facts import at_most_one, column_equalities, not_null
from headrace.planner.logical.scalar import Ref
from headrace.types import (
    BPCHAR,
    BYTEA,
    FIRST_USER_OID,
    FIXED,
    INT2,
    INT4,
    INT8,
    TEXT,
    VARCHAR,
    Field,
    Schema,
)

Key = frozenset[int]
"""Ids of columns."""
Dependency = tuple[Key, Key]
"""Columns, and columns that they determine: rows equal in the first are equal in the second."""

_INTEGERS: Final = frozenset({INT2, INT4, INT8})
_KEYS_MAX: Final = 16
_KEY_COLUMNS_MAX: Final = 32
_KEY_BYTES_MAX: Final = 2000
"""Of all columns of a key: the entry of an index must fit into a third of a page."""


Named = dict[int, list[Key]]
"""Keys of named plans, by number."""


def unique(node: nodes.Node, known: Named | None = None) -> list[Key]:
    """Return keys of the rows of ``node``, the smallest first; the list may be incomplete.

    ``known`` caches the keys of named plans.
    """
    return _least(_unique(node, {} if known is None else known))


def _unique(node: nodes.Node, known: Named) -> Iterable[Key]:
    if at_most_one(node):
        return [frozenset()]
    match node:
        case nodes.ScanNode():
            return _of_table(node)
        case nodes.FilterNode() | nodes.WindowNode() | nodes.TemporalNode() | nodes.CalendarNode():
            return unique(node.input, known)
        case nodes.TopKNode():
            first = node.limit == 1 and not node.ties
            groups = [frozenset(k.id for k in node.keys)] if first else []
            return [*groups, *unique(node.input, known)]
        case nodes.ProjectNode():
            return _shown(node.items, unique(node.input, known))
        case nodes.DistinctNode():
            return [*unique(node.input, known), _reduced(_all(node.columns), node)]
        case nodes.SetOpNode():
            return [] if node.all else [_all(node.columns)]
        case nodes.AggregateNode():
            return [
                *_shown(node.keys, unique(node.input, known)),
                _reduced(frozenset(c.id for c, _ in node.keys), node),
            ]
        case nodes.JoinNode():
            return _joined(node, known)
        case nodes.AgainNode():
            if node.number not in known:
                known[node.number] = unique(node.plan, known)
            return _shown(((c, _inner(node, i)) for c, i in node.pairs), known[node.number])
        case _:
            return []


def _inner(node: nodes.AgainNode, number: int) -> Ref:
    """Return the column with that id in the named plan."""
    return next(c.ref for c in node.plan.columns if c.id == number)


def _of_table(node: nodes.ScanNode) -> list[Key]:
    keyed = [(c, f) for c, f in node.fields if f.attnum in node.table.key]
    # An index may use another collation or operator class.
    plain = all(c.collation < FIRST_USER_OID > c.oid for c, _ in keyed)
    whole = len({f.attnum for _, f in keyed}) == len(node.table.key)
    if not node.table.key or not whole or not plain:
        return []
    return [frozenset(c.id for c, _ in keyed)]


def _shown(items: Iterable[tuple[nodes.Col, object]], keys: Iterable[Key]) -> list[Key]:
    """Translate ``keys`` of the input to columns of ``items``; omit keys not fully shown."""
    places = _places(items)
    return [frozenset(places[c] for c in k) for k in keys if k <= places.keys()]


def _places(items: Iterable[tuple[nodes.Col, object]]) -> dict[int, int]:
    """Return the column of ``items`` for each column of the input that they show unchanged."""
    places: dict[int, int] = {}
    for column, expr in items:
        if isinstance(expr, Ref) and expr.collation == column.collation:
            places.setdefault(expr.id, column.id)
    return places


def _joined(node: nodes.JoinNode, known: Named) -> list[Key]:
    left = unique(node.left, known)
    if node.kind in ("semi", "anti"):
        return left
    if node.kind not in ("inner", "left"):
        return []
    right = unique(node.right, known)
    fixed = _fixed(node)
    out = [a | b for a, b in product(left, right)]
    # Each row of the left side has at most one match.
    if any(key <= fixed for key in right):
        out += left
    if node.kind == "inner" and any(key <= fixed for key in left):
        out += right
    return out


def one_match(node: nodes.JoinNode) -> bool:
    """Return whether each row of the left side meets at most one row of the right side."""
    fixed = _fixed(node)
    return any(key <= fixed for key in unique(node.right))


def _fixed(node: nodes.JoinNode) -> Key:
    """Return the columns of both sides that are equal to one of the other side."""
    return frozenset(column for pair in _equal(node) for column in pair)


def _equal(node: nodes.JoinNode) -> list[tuple[int, int]]:
    """Return pairs of columns, one of each side, that the condition makes equal."""
    mine, other = nodes.ids(node.left), nodes.ids(node.right)
    return [
        (e.left.id, e.right.id)
        for e in column_equalities(node.condition)
        if len({e.left.id, e.right.id} & mine) == 1
        and len({e.left.id, e.right.id} & other) == 1
        and (e.left.oid == e.right.oid or {e.left.oid, e.right.oid} <= _INTEGERS)
        and e.left.collation == e.right.collation
    ]


def _reduced(key: Key, node: nodes.Node) -> Key:
    """Return ``key`` without columns that its other columns determine."""
    found = _dependencies(node)
    for column in sorted(key) if found else ():
        rest = key - {column}
        if column in _closure(rest, found):
            key = rest
    return key


def _closure(key: Key, found: Sequence[Dependency]) -> Key:
    """Return the columns that the columns in ``key`` determine."""
    before = None
    while key != before:
        before = key
        for determinant, dependent in found:
            if determinant <= key:
                key |= dependent
    return key


def _dependencies(node: nodes.Node) -> list[Dependency]:
    """Return functional dependencies among the columns of ``node``; the list may be incomplete."""
    match node:
        case nodes.ScanNode():
            columns = _all(c for c, _ in node.fields)
            return [(key, columns) for key in _of_table(node)]
        case nodes.FilterNode() | nodes.WindowNode() | nodes.TemporalNode() | nodes.CalendarNode():
            return _dependencies(node.input)
        case nodes.TopKNode() | nodes.DistinctNode():
            return _dependencies(node.input)
        case nodes.ProjectNode():
            return _kept(node.items, _dependencies(node.input))
        case nodes.AggregateNode():
            return _kept(node.keys, _dependencies(node.input))
        case nodes.JoinNode() if node.kind in ("semi", "anti"):
            return _dependencies(node.left)
        case nodes.JoinNode() if node.kind == "inner":
            equal = [frozenset(pair) for pair in _equal(node)]
            same = [(frozenset((c,)), pair) for pair in equal for c in pair]
            return [*_dependencies(node.left), *_dependencies(node.right), *same]
        case nodes.JoinNode() if node.kind == "left":
            # A determinant that is NULL in a row without a match must be NULL in no other row.
            sure = [
                (determinant, dependent)
                for determinant, dependent in _dependencies(node.right)
                if any(not_null(node.right, c, declared=True) for c in determinant)
            ]
            return [*_dependencies(node.left), *sure]
        case _:
            return []


def _kept(
    items: Iterable[tuple[nodes.Col, object]], found: Sequence[Dependency]
) -> list[Dependency]:
    """Translate dependencies of the input to columns of ``items``, as ``_shown`` does with keys."""
    places = _places(items)
    return [
        (
            frozenset(places[c] for c in determinant),
            # Also those determined by way of columns that are not shown.
            frozenset(places[c] for c in _closure(determinant, found) if c in places),
        )
        for determinant, _ in found
        if determinant <= places.keys()
    ]


def _all(columns: Iterable[nodes.Col]) -> Key:
    return frozenset(c.id for c in columns)


def _least(keys: Iterable[Key]) -> list[Key]:
    """Return the minimal keys: the keys that contain no other key."""
    out: list[Key] = []
    for key in sorted(set(keys), key=lambda k: (len(k), sorted(k))):
        if not any(known <= key for known in out):
            out.append(key)
    return out[:_KEYS_MAX]


def proved(node: nodes.Node, columns: Schema) -> tuple[str, ...]:
    """Return the default key's column names for a table of ``node``'s rows; empty: none.

    A key whose values always fit into an index is preferred.  Longer ones are possible in the
    others; if one comes, the table loses its key (``sink/keys.py``).
    """
    possible: list[tuple[bool, tuple[str, ...]]] = []
    for key in unique(node):
        places = {c.id: i for i, c in reversed(list(enumerate(node.columns))) if c.id in key}
        size = sum(_bytes_max(columns[i]) for i in places.values())
        known = size <= _KEY_BYTES_MAX
        if (
            0 < len(key) <= _KEY_COLUMNS_MAX
            and (known or all(_has_identity(columns[i]) for i in places.values()))
            and all(not_null(node, c, declared=True) for c in key)
        ):
            possible.append((not known, tuple(columns[i].name for i in sorted(places.values()))))
    return min(possible, key=itemgetter(0), default=(False, ()))[1]


def _has_identity(column: Field) -> bool:
    """Return whether equal values of a column are identical, however long they are."""
    plain = column.oid in (TEXT, VARCHAR) and column.collation < FIRST_USER_OID
    return plain or column.oid in FIXED or column.oid == BYTEA


def _bytes_max(column: Field) -> int:
    """Return an upper bound of a value's bytes in an index; more than fits if there is no bound."""
    if column.oid in FIXED:
        return 16
    plain = column.oid in (BPCHAR, VARCHAR) and column.collation < FIRST_USER_OID
    return 4 * column.typmod if plain and column.typmod >= 0 else _KEY_BYTES_MAX + 1


def given(node: nodes.Node, names: Sequence[str], key: Sequence[str]) -> str:
    """Return the explanation of a key that the user chose; columns by ``names``."""
    columns = node.columns
    mine = frozenset(c.id for c, n in zip(columns, names, strict=True) if n in key)
    if not key:
        return "key: none, as requested"
    text = f"key: ({', '.join(key)})"
    if not any(known <= mine for known in unique(node)):
        return f"{text}, checked at each write"
    nulls = _nullable(node, names, mine)
    if nulls:
        return f"{text}, unique as proved, NULLs in {nulls} checked at each write"
    return f"{text}, proved"


def _nullable(node: nodes.Node, names: Sequence[str], key: Key) -> str:
    return ", ".join(
        n
        for c, n in zip(node.columns, names, strict=True)
        if c.id in key and not not_null(node, c.id, declared=True)
    )


def explain(node: nodes.Node, columns: Schema, taken: Sequence[str]) -> str:
    """Explain the key ``taken`` that a table of ``node``'s rows gets, and suggest others."""
    names = tuple(c.name for c in columns)
    keys = unique(node)
    if frozenset() in keys:
        return "key: none; there is one row at most, and no key in Postgres has no column"
    lines = [f"key: ({', '.join(taken)}), proved"] if taken else []
    for key in keys:
        mine = [n for c, n in zip(node.columns, names, strict=True) if c.id in key]
        if set(taken) <= set(mine) and taken:
            continue
        nulls = _nullable(node, names, key)
        line = f"could have key ({', '.join(mine)}), proved"
        if nulls:
            line += f"; that there is no NULL in {nulls} would be checked"
        lines.append(line)
    return "\n".join(lines) or 'key: none proved; what option "key" names would be checked'
