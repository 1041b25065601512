"""The rules of the allowlist, and helpers for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sqlglot import exp

from headrace.reading import DIALECTS
from headrace.reading.kinds import NUMBERS, Kinds, ValueKind
from headrace.reading.trees import Unsaid, nearest

ANY: Final = frozenset(DIALECTS)
OWN: Final = "Write it in SQL of Postgres; a function of this database is written with its schema."
CAST_HINT: Final = "Add a CAST around the argument to give its type."


@dataclass(frozen=True, slots=True)
class Form:
    """The context of a rule: the dialect, and the types of the query's expressions."""

    dialect: str
    kinds: Kinds

    def kind(self, node: exp.Expr) -> ValueKind | None:
        """Return the Postgres type of an argument; None: not certain."""
        return self.kinds.of(node)

    def need(self, node: exp.Expr, wanted: Iterable[ValueKind]) -> None:
        """Refuse an argument whose type is not in ``wanted``; NULL has any type."""
        allowed = frozenset(wanted)
        found = self.kind(node)
        if found in allowed or found is ValueKind.NULL:
            return
        shown = "an unknown type" if found is None else f"type {found}"
        names = ", ".join(sorted(allowed))
        self.refuse(
            node.parent or node,
            f"here it has an argument of {shown}, and is the same only for {names}",
            CAST_HINT if found is None else OWN,
        )

    def refuse(self, node: exp.Expr, why: str, hint: str = OWN) -> NoReturn:
        """Refuse the construct at ``node``."""
        raise self.refusal(node, why, hint)

    def refusal(self, node: exp.Expr, why: str, hint: str = OWN) -> Unsaid:
        """Return the error that refuses the construct at ``node``."""
        return Unsaid(
            f"{shown(node)} of dialect {self.dialect} cannot be translated: {why}",
            nearest(node),
            hint,
        )


Apply = Callable[[Any, Form], exp.Expr]


@dataclass(frozen=True, slots=True)
class TranslationRule:
    """The translation of a construct.

    ``apply`` takes the node, with translated arguments, and returns the node that replaces it.  It
    raises ``Unsaid`` for arguments without an exact equivalent.
    """

    apply: Apply
    kind: Callable[[Any, Kinds], ValueKind | None]
    """Return the type of the construct in Postgres."""
    dialects: frozenset[str] = ANY


TranslationRules = dict[type[exp.Expr], TranslationRule]


def shown(node: exp.Expr) -> str:
    """Return the construct's name for a message."""
    if isinstance(node, exp.Binary) and not isinstance(node, exp.Func):
        return f"operator {type(node).__name__.upper()}"
    return node.sql_name() if isinstance(node, exp.Func) else type(node).__name__.upper()


def always(kind: ValueKind) -> Callable[[Any, Kinds], ValueKind | None]:
    """Return a function that returns ``kind`` for all arguments."""
    return lambda _node, _kinds: kind


def same_as_argument(node: Any, kinds: Kinds) -> ValueKind | None:
    """Return the type of the first argument."""
    return kinds.of(node.this)


def unknown(_node: Any, _kinds: Kinds) -> ValueKind | None:
    """Return None: the type is not derived."""
    return None


def only(node: exp.Expr, form: Form, *names: str) -> None:
    """Refuse arguments other than ``names``."""
    for name, value in node.args.items():
        if name not in names and value not in (None, False, []):
            form.refuse(node, f'its argument "{name.rstrip("_")}" has no equivalent')


def unsigned(node: exp.Expr | None) -> int | None:
    """Return the value of a literal integer; None: it is something else."""
    if isinstance(node, exp.Paren):
        return unsigned(node.this)
    if not isinstance(node, exp.Literal) or not str(node.this).isdigit():
        return None
    return int(node.this)


def signed(node: exp.Expr | None) -> int | None:
    """Return the value of a literal integer with an optional sign, or None."""
    if isinstance(node, exp.Paren):
        return signed(node.this)
    if isinstance(node, exp.Neg):
        value = unsigned(node.this)
        return None if value is None else -value
    return unsigned(node)


def at_least(node: exp.Expr | None, least: int, call: exp.Expr, form: Form) -> None:
    """Refuse anything but a literal integer of at least ``least``."""
    value = unsigned(node)
    if value is None or value < least:
        form.refuse(call, f"it is the same only for a literal number of at least {least} here")


def filled_text(node: exp.Expr | None, call: exp.Expr, form: Form) -> str:
    """Return the text of a literal; refuse an empty one, and anything else."""
    if not (isinstance(node, exp.Literal) and node.is_string and node.this):
        form.refuse(call, "it is the same only for a literal text that is not empty here")
    return str(node.this)


def not_zero(node: exp.Expr) -> bool:
    """Return whether a divisor cannot be zero: a literal, or ``NULLIF(…, 0)``."""
    if isinstance(node, exp.Paren):
        return not_zero(node.this)
    if isinstance(node, exp.Neg):
        return not_zero(node.this)
    if isinstance(node, exp.Nullif):
        return unsigned(node.expression) == 0
    return isinstance(node, exp.Literal) and not node.is_string and float(node.this) != 0


def null_for_zero(node: exp.Expr) -> exp.Expr:
    """Return a divisor that is NULL where ``node`` is zero."""
    return node if not_zero(node) else exp.Nullif(this=node, expression=exp.Literal.number(0))


def cast(node: exp.Expr, kind: str) -> exp.Expr:
    """Return a cast to Postgres type ``kind``."""
    return exp.Cast(this=node, to=exp.DataType.build(kind, dialect="postgres"))


def numbers(node: exp.Expr, form: Form) -> exp.Expr:
    """Return ``node`` unchanged; refuse an argument that is not a number."""
    form.need(node.this, NUMBERS)
    return node
