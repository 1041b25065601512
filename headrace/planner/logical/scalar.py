"""Scalar expressions of the planner: frozen, typed, bound; columns are known by id.

A column id is unique in a plan, so rules move expressions freely; only ``physical.py`` turns
ids into positions.  A ``Call`` carries both of its possible fates: the name of a kernel, if
there is one, and SQL that means exactly this to the user's Postgres under
``search_path = pg_catalog``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.planner.limits import check_parts
from headrace.postgres.tokens import doubled
from headrace.types import (
    BOOL,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    OID,
    TIMESTAMPTZ,
    VARCHAR,
)  # fmt: skip

ARG: Final = "\0"
"""Marks the place of an argument in a template; no text in Postgres can hold it."""

SINGLE: Final = "single"
"""``single(count, value)``: error 21000 if count > 1; SQL cannot express it: never remote."""
CONDITIONAL: Final = frozenset({"and", "or", "case", "coalesce", "nullif"})


@dataclass(frozen=True, slots=True)
class Ref:
    """A column of some node below; ``label`` is how EXPLAIN calls it."""

    id: int
    oid: int
    typmod: int = -1
    collation: int = 0
    label: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Const:
    """A constant as output text under the pinned settings; ``None`` is NULL."""

    text: str | None
    oid: int
    typmod: int = -1
    collation: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """``symbol`` applied to ``args``.

    ``sql`` and ``show`` are templates with one ``ARG`` per argument: exact SQL and text for people.
    ``raises`` and ``trusted`` describe this call alone, not its arguments. ``strict``: Postgres
    does not evaluate the call where an argument is NULL; the result is NULL.
    """

    symbol: str
    args: tuple[Expr, ...]
    oid: int
    typmod: int
    collation: int
    sql: str
    show: str = field(compare=False)
    native: str | None = field(compare=False)
    raises: bool = field(compare=False)
    input_collation: int = 0
    immutable: bool = True
    trusted: bool = True
    strict: bool = field(default=False, compare=False)
    parts: int = field(init=False, compare=False, repr=False, default=1)
    """How many columns, constants and calls it consists of."""

    def __post_init__(self) -> None:
        """Count the parts; an expression that is too large is refused as soon as it is made."""
        found = 1 + sum(parts(arg) for arg in self.args)
        check_parts(found)
        object.__setattr__(self, "parts", found)

    @property
    def infix(self) -> bool:
        """Whether the text needs parentheses inside another expression."""
        return not self.show.endswith((")", "END"))


Expr = Ref | Const | Call


def parts(expr: Expr) -> int:
    """Return the number of columns, constants and calls in ``expr``."""
    return expr.parts if isinstance(expr, Call) else 1


def constant(expr: Expr) -> str | None:
    """Return the text of a constant that is not NULL."""
    return expr.text if isinstance(expr, Const) else None


CLOCK: Final = Ref(-1_000_000, TIMESTAMPTZ, -1, 0, "now()")
"""``now()``, a column of no node; ``refs`` leaves it out (``planner/passes/temporal.py``)."""


def refs(expr: Expr) -> frozenset[int]:
    """Return the ids of the columns that ``expr`` reads."""
    match expr:
        case Ref():
            return frozenset() if expr.id == CLOCK.id else frozenset((expr.id,))
        case Const():
            return frozenset()
        case Call():
            return frozenset().union(*(refs(a) for a in expr.args))


def references(expr: Expr) -> Iterator[Ref]:
    """Yield the columns that ``expr`` reads, in order."""
    match expr:
        case Ref():
            yield expr
        case Call():
            for argument in expr.args:
                yield from references(argument)
        case Const():
            return


def reads_clock(expr: Expr) -> bool:
    """Return whether ``expr`` changes as time passes."""
    match expr:
        case Ref():
            return expr.id == CLOCK.id
        case Const():
            return False
        case Call():
            return any(map(reads_clock, expr.args))


def substitute(expr: Expr, mapping: Mapping[int, Expr]) -> Expr:
    """Return ``expr`` with columns replaced; columns without an entry stay."""
    match expr:
        case Ref():
            return mapping.get(expr.id, expr)
        case Const():
            return expr
        case Call():
            args = tuple(substitute(a, mapping) for a in expr.args)
            return expr if args == expr.args else dataclasses.replace(expr, args=args)


def any_call(expr: Expr, test: Callable[[Call], bool]) -> bool:
    """Return whether some call in ``expr`` satisfies ``test``."""
    return isinstance(expr, Call) and (test(expr) or any(any_call(a, test) for a in expr.args))


def raises(expr: Expr) -> bool:
    """Return whether evaluating ``expr`` can fail on some row."""
    return any_call(expr, lambda c: c.raises)


def trusted(expr: Expr) -> bool:
    """Return whether only built-in functions take part."""
    return not any_call(expr, lambda c: not c.trusted)


def immutable(expr: Expr) -> bool:
    """Return whether the result depends only on the arguments, not on settings."""
    return not any_call(expr, lambda c: not c.immutable)


def native(expr: Expr) -> bool:
    """Return whether kernels can compute all of ``expr``.

    A conditional's part without a column that fails is Postgres' business: when it fails (at
    planning, for any row, for those that ask) is not a matter of the rows.
    """
    match expr:
        case Ref() | Const():
            return True
        case Call():
            if expr.native is None or not all(native(a) for a in expr.args):
                return False
            return expr.symbol not in CONDITIONAL or not any_call(expr, _fixed_failure)


def _fixed_failure(call: Call) -> bool:
    return call.raises and not refs(call)


def core(expr: Expr) -> Expr:
    """Return ``expr`` without the cast of varchar to text that precedes every comparison.

    The cast changes neither the value nor whether two values are equal.
    """
    if isinstance(expr, Call) and expr.symbol == "cast text" and expr.native:
        [arg] = expr.args
        if arg.oid == VARCHAR:
            return arg
    return expr


_WITHOUT_COLLATION: Final = frozenset(
    {"pg_catalog.text", "pg_catalog.name", "pg_catalog.bpchar", "pg_catalog.varchar"}
)
"""Conversions between types of text, which get a collation but do not read it."""


def plain(expr: Expr) -> Expr:
    """Return ``expr`` without modifiers, which generated columns do not have.

    The collation is removed too: COLLATE gives it back, and Postgres moves that above casts.
    """
    while (
        isinstance(expr, Call)
        and expr.symbol == "collate"
        and _collation_below(expr.args[0]) == expr.collation
    ):
        [expr] = expr.args
    match expr:
        case Ref() | Const():
            return dataclasses.replace(expr, typmod=-1, collation=0)
        case Call():
            args = tuple(plain(a) for a in expr.args)
            unread = expr.symbol in _WITHOUT_COLLATION and len(args) == 1
            read = 0 if unread else expr.input_collation
            return dataclasses.replace(
                expr, args=args, typmod=-1, collation=0, input_collation=read
            )


def _collation_below(expr: Expr) -> int | None:
    """Return the collation of the column that ``expr`` is a cast of."""
    while isinstance(expr, Call) and expr.symbol.startswith("cast "):
        [expr] = expr.args
    return expr.collation if isinstance(expr, Ref) else None


def conjuncts(expr: Expr) -> list[Expr]:
    """Split the condition ``expr`` into conjuncts, in order.

    As in Postgres, a conjunct that all arms of a disjunction share is factored out, so that it can
    join: (a AND b) OR (a AND c) = a AND (b OR c).  A conjunct that may fail on a row is not.
    """
    if isinstance(expr, Call) and expr.symbol == "and":
        return [c for a in expr.args for c in conjuncts(a)]
    if not isinstance(expr, Call) or expr.symbol != "or":
        return [expr]
    arms = [conjuncts(a) for a in expr.args]
    shared = [p for p in arms[0] if all(p in arm for arm in arms) and not raises(p)]
    rest = [[p for p in arm if p not in shared] for arm in arms]
    if not shared or not all(rest):
        return shared or [expr]
    return [*shared, disjunction(expr, [conjunction(expr, parts) for parts in rest])]


def conjunction(like: Call, parts: Sequence[Expr]) -> Expr:
    """Return the AND of ``parts``, at least one; ``like`` is some AND or OR."""
    return _junction(like, "and", parts)


def disjunction(like: Call, parts: Sequence[Expr]) -> Expr:
    """Return the OR of ``parts``, at least one; ``like`` is some AND or OR."""
    return _junction(like, "or", parts)


def _junction(like: Call, symbol: str, parts: Sequence[Expr]) -> Expr:
    if len(parts) == 1:
        return parts[0]
    # Flat, as Postgres' grammar parses the generated SQL.
    flat = tuple(
        e for p in parts for e in (p.args if isinstance(p, Call) and p.symbol == symbol else (p,))
    )
    text = f" {symbol.upper()} ".join([ARG] * len(flat))
    return dataclasses.replace(
        like, symbol=symbol, args=flat, sql=f"({text})", show=text, native=like.native and symbol
    )


def guarded(condition: Expr, value: Expr) -> Call:
    """Return ``value`` if ``condition`` is true, else NULL without evaluating ``value``."""
    return choice([(condition, value)], Const(None, value.oid, -1, value.collation))


def choice(whens: Sequence[tuple[Expr, Expr]], last: Expr) -> Call:
    """Return CASE with these (condition, value) pairs and ELSE ``last``, all values of its type."""
    text = f"CASE{f' WHEN {ARG} THEN {ARG}' * len(whens)} ELSE {ARG} END"
    first = whens[0][1]
    same = all(value.typmod == first.typmod for _, value in whens)
    return Call(
        symbol="case",
        args=(*(e for pair in whens for e in pair), last),
        oid=first.oid,
        typmod=first.typmod if same else -1,
        collation=first.collation,
        sql=f"({text})",
        show=text,
        native="case",
        raises=False,
    )


def equals_number(ref: Ref, number: int) -> Call:
    """Return ``ref = number``, for an int4 column."""
    return Call(
        symbol="=",
        args=(ref, Const(str(number), INT4)),
        oid=BOOL,
        typmod=-1,
        collation=0,
        sql=f"({ARG} OPERATOR(pg_catalog.=) {ARG})",
        show=f"{ARG} = {ARG}",
        native="=",
        raises=False,
        strict=True,
    )


def fill(template: str, args: Iterable[str]) -> str:
    """Return ``template`` with the arguments in place of its marks."""
    first, *rest = template.split(ARG)
    return first + "".join(a + p for a, p in zip(args, rest, strict=True))


def quote(text: str | None, type_name: str) -> str:
    """Return a constant as SQL that means the same under any ``standard_conforming_strings``."""
    if text is None:
        return f"NULL::{type_name}"
    written = doubled(text)
    if "\\" in text:
        return " E'" + written.replace("\\", "\\\\") + f"'::{type_name}"
    return f"'{written}'::{type_name}"


def to_sql(expr: Expr, column: Callable[[Ref], str], type_name: Callable[[int], str]) -> str:
    """Return exact SQL of ``expr`` under ``search_path = pg_catalog``."""
    match expr:
        case Ref():
            return column(expr)
        case Const():
            return quote(expr.text, type_name(expr.oid))
        case Call():
            return fill(expr.sql, [to_sql(a, column, type_name) for a in expr.args])


def show(expr: Expr, *, nested: bool = False) -> str:
    """Return the text of ``expr`` for people."""
    match expr:
        case Ref():
            return expr.label or f"#{expr.id}"
        case Const():
            return _show_const(expr)
        case Call():
            text = fill(expr.show, [show(a, nested=expr.infix) for a in expr.args])
            return f"({text})" if nested and expr.infix else text


_BARE: Final = frozenset({BOOL, INT8, INT2, INT4, OID, FLOAT4, FLOAT8, NUMERIC})
"""Types whose constants are shown without a cast."""


def _show_const(const: Const) -> str:
    if const.text is None:
        return "NULL"
    if const.oid in _BARE:
        return {"t": "true", "f": "false"}.get(const.text, const.text)
    return f"'{doubled(const.text)}'"
