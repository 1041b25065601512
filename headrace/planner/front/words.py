"""Words of both trees: operators, functions and types by sqlglot's class of node."""

from __future__ import annotations

from typing import Final

OPERATORS: Final = {
    "EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=",
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "IntDiv": "/", "Mod": "%", "Pow": "^",
    "DPipe": "||", "Like": "~~", "ILike": "~~*", "RegexpLike": "~", "RegexpILike": "~*",
    "SimilarTo": "~", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "#",
    "BitwiseLeftShift": "<<", "BitwiseRightShift": ">>", "Distance": "<->",
    "ArrayContainsAll": "@>", "ArrayContainedBy": "<@", "ArrayOverlaps": "&&",
    "JSONExtract": "->", "JSONExtractScalar": "->>", "JSONBExtract": "#>",
    "JSONBExtractScalar": "#>>", "JSONBContains": "?", "JSONBContainsAnyTopKeys": "?|",
    "JSONBContainsAllTopKeys": "?&", "JSONBDeleteAtPath": "#-", "MatchAgainst": "@@",
    "ExtendsLeft": "&<", "ExtendsRight": "&>", "Adjacent": "-|-", "Glob": "~~~",
    "NullSafeEQ": "=", "NullSafeNEQ": "=", "ArrayContains": "@>", "Operator": "",
}  # fmt: skip
"""Operators of two operands; an ``Operator`` has its own name."""
UNARY: Final = {"Neg": "-", "BitwiseNot": "~", "Sqrt": "|/", "Cbrt": "||/", "Abs": "@"}
NEGATED: Final = {"~~": "!~~", "~~*": "!~~*", "~": "!~", "~*": "!~*", "=": "<>"}
"""The operator that stands for NOT and another one."""
SPECIAL: Final[dict[str, tuple[frozenset[str], tuple[str, ...]]]] = {
    "StrPosition": (frozenset({"position", "strpos"}), ("this", "substr")),
    "Substring": (frozenset({"substring", "substr"}), ("this", "start", "length")),
    "Overlay": (frozenset({"overlay"}), ("this", "expression", "from", "for")),
    "Trim": (frozenset({"btrim", "ltrim", "rtrim"}), ("this", "expression")),
    "TimestampTrunc": (frozenset({"date_trunc"}), ("unit", "this", "zone")),
    "DateTrunc": (frozenset({"date_trunc"}), ("unit", "this", "zone")),
    "Extract": (frozenset({"extract", "date_part"}), ("this", "expression")),
    "AtTimeZone": (frozenset({"timezone"}), ("zone", "this")),
    "Ceil": (frozenset({"ceil", "ceiling"}), ("this",)),
    "Overlaps": (frozenset({"overlaps"}), ("this", "expression")),
    "Pow": (frozenset({"power", "pow"}), ("this", "expression")),
    "GroupConcat": (frozenset({"string_agg"}), ("this", "separator")),
    "JSONArrayAgg": (frozenset({"json_agg"}), ("this", "order")),
    "JSONBObjectAgg": (frozenset({"jsonb_object_agg"}), ("this", "expression")),
    "TimeToStr": (frozenset({"to_char"}), ("this", "format")),
    "StrToTime": (frozenset({"to_timestamp"}), ("this", "format")),
    "StrToDate": (frozenset({"to_date"}), ("this", "format")),
    "Unnest": (frozenset({"unnest"}), ("expressions",)),
    "Mod": (frozenset({"mod"}), ("this", "expression")),
}
"""Names of a function, and its arguments in Postgres' order, where the text may not say so."""
SETS: Final = {"Rollup": "2", "Cube": "3", "GroupingSets": "4"}
"""GroupingSetKind."""
TYPES: Final = {
    "int": "int4", "integer": "int4", "smallint": "int2", "bigint": "int8", "boolean": "bool",
    "real": "float4", "double precision": "float8", "decimal": "numeric", "char": "bpchar",
    "character": "bpchar", "character varying": "varchar", "bytea": "bytea",
    "time without time zone": "time", "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz", "time with time zone": "timetz", "float": "float8",
    "bit varying": "varbit",
}  # fmt: skip
"""Names of types in ``pg_type``, where SQL has another name."""
