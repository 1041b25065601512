"""The form of each class of sqlglot's expressions."""

from __future__ import annotations

from typing import Final

from headrace.planner.front import calls, expressions, words
from headrace.planner.front.walk import Form


class _Forms(dict[str, Form]):
    """Forms by class; any other class is the call of a function, if it says a name."""

    def get(self, kind: str, default: Form | None = None) -> Form:  # type: ignore[override]
        """Return the form of a class."""
        return super().get(kind, default) or calls.call


FORMS: Final = _Forms(
    {
        **dict.fromkeys(words.OPERATORS, expressions.binary),
        **dict.fromkeys(("And", "Or"), expressions.logic),
        **dict.fromkeys(("NullSafeEQ", "NullSafeNEQ"), expressions.distinct),
        **dict.fromkeys(("Null", "Boolean"), expressions.fixed),
        **dict.fromkeys(("Select", "Union", "Intersect", "Except"), expressions.subquery),
        **dict.fromkeys(("Subquery", "Exists"), expressions.subquery),
        **dict.fromkeys(("Filter", "WithinGroup"), calls.filtered),
        **dict.fromkeys(
            ("Coalesce", "Greatest", "Least", "Nullif", "Tuple", "Struct", "Array"),
            expressions.parts,
        ),
        "Column": expressions.column,
        "Literal": expressions.literal,
        "Neg": expressions.negative,
        "BitwiseNot": expressions.unary,
        "Interval": expressions.interval,
        "Cast": expressions.cast,
        "In": expressions.within,
        "Between": expressions.between,
        "Not": expressions.negation,
        "Is": expressions.test,
        "Case": expressions.conditional,
        "Bracket": expressions.subscript,
        "Dot": expressions.field,
        "Collate": expressions.collation,
        "Escape": expressions.escape,
        "Window": calls.windowed,
    }
)
