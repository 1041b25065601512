"""The form of each class of sqlglot's expressions, and the Postgres nodes that it may be."""

from __future__ import annotations

from typing import Final

from headrace.planner.front import calls, expressions, words
from headrace.planner.front.walk import Form

_QUERIES: Final = ("Select", "Union", "Intersect", "Except", "Subquery", "Exists")
_LITERALS: Final = ("Literal", "Null", "Boolean", "BitString", "ByteString", "HexString")
_ANY: Final[tuple[str, ...]] = ()

FORMS: Final[dict[str, tuple[Form, tuple[str, ...]]]] = {
    **dict.fromkeys(words.OPERATORS, (expressions.binary, _ANY)),
    **dict.fromkeys(("And", "Or"), (expressions.logic, ("BOOLEXPR",))),
    **dict.fromkeys(("NullSafeEQ", "NullSafeNEQ"), (expressions.distinct, _ANY)),
    **dict.fromkeys(_LITERALS, (expressions.literal, ("CONST",))),
    **dict.fromkeys(_QUERIES, (expressions.subquery, ("SUBLINK",))),
    **dict.fromkeys(("Filter", "WithinGroup"), (calls.filtered, ("AGGREF",))),
    **dict.fromkeys(("Greatest", "Least"), (expressions.parts, ("MINMAXEXPR",))),
    **dict.fromkeys(("Tuple", "Struct"), (expressions.parts, ("ROWEXPR",))),
    "Coalesce": (expressions.parts, ("COALESCEEXPR",)),
    "Nullif": (expressions.parts, ("NULLIFEXPR",)),
    "Array": (expressions.parts, ("ARRAYEXPR", "SUBLINK")),
    "Column": (expressions.column, ("VAR", "FIELDSELECT", "SQLVALUEFUNCTION")),
    "Neg": (expressions.negative, _ANY),
    "BitwiseNot": (expressions.negative, _ANY),
    "Interval": (expressions.interval, _ANY),
    "Cast": (expressions.cast, _ANY),
    "In": (expressions.within, _ANY),
    "Between": (expressions.between, ("BOOLEXPR",)),
    "Not": (expressions.negation, _ANY),
    "Is": (expressions.predicate, ("NULLTEST", "BOOLEANTEST")),
    "Case": (expressions.conditional, ("CASEEXPR",)),
    "Bracket": (expressions.subscript, ("SUBSCRIPTINGREF",)),
    "Dot": (expressions.field, _ANY),
    "Collate": (expressions.collation, ("COLLATEEXPR",)),
    "Escape": (expressions.escape, _ANY),
    "Window": (calls.windowed, ("WINDOWFUNC",)),
}
CALL: Final = (calls.call, _ANY)
"""The form of any other class: a call of a function, if it says a name."""
