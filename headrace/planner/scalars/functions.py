"""Functions that a maintained view may call, and those that can fail on a row.

Volatile functions and those that read the clock or the session are refused.  Stable built-in
ones are allowed from a list: their results depend only on their arguments and on settings that
are captured with the view.  Immutable functions are always allowed.
"""

from __future__ import annotations

import re
from typing import Final

from headrace import types as t
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.logical.scalar import Const, Expr

_STABLE: Final = frozenset(
    {
        # Time zone, DateStyle and the words of lc_time.
        "to_char", "to_date", "to_timestamp", "to_number", "date_trunc", "date_part",
        "extract", "timezone", "timestamptz", "timestamp", "date", "time", "timetz",
        "timestamptz_pl_interval", "timestamptz_mi_interval", "interval_pl_timestamptz",
        "date_add", "date_subtract", "overlaps", "in_range", "make_timestamptz",
        "jsonb_path_exists_tz", "jsonb_path_match_tz", "jsonb_path_query_array_tz",
        "jsonb_path_query_first_tz",
        # They print values of any type.
        "concat", "concat_ws", "format", "array_to_string", "textanycat", "anytextcat",
        "to_json", "to_jsonb", "row_to_json", "array_to_json", "json_build_array",
        "json_build_object", "jsonb_build_array", "jsonb_build_object", "json_object",
        "quote_literal", "quote_nullable", "json_populate_record", "jsonb_populate_record",
        "jsonb_populate_record_valid",
        # lc_monetary, xmloption, default_text_search_config.
        "numeric", "money", "xml", "xml_is_well_formed", "to_tsvector", "to_tsquery",
        "plainto_tsquery", "phraseto_tsquery", "websearch_to_tsquery", "ts_headline",
        "ts_match_tt", "ts_match_tq", "json_to_tsvector", "jsonb_to_tsvector",
        # Fixed for a database.
        "convert", "convert_from", "convert_to", "length", "current_database",
        "getdatabaseencoding", "pg_encoding_to_char", "pg_char_to_encoding",
    }
)  # fmt: skip
"""Stable functions whose result depends on no settings but captured ones."""
_READER: Final = re.compile(
    r"current_user|session_user|system_user|current_schemas?|getpgusername|row_security_active"
    r"|has_.*_privilege|pg_has_role|inet_(client|server)_(addr|port)|pg_.*_is_visible"
)
_CATALOGS: Final = re.compile(
    r"pg_.*|to_reg.*|regclass|format_type|(sh)?obj_description|col_description|enum_.*"
    r"|oidvectortypes|.*_to_xml(schema|_and_xmlschema)?|get_current_ts_config"
)
_POPULATES: Final = frozenset(
    {"json_populate_record", "jsonb_populate_record", "jsonb_populate_record_valid"}
)
"""Functions that read texts as values, in which 'today' is not a fixed date."""
_STABLE_COMPARISON: Final = re.compile(
    r"(date|timestamp|timestamptz)_(eq|ne|lt|le|gt|ge|cmp)_(date|timestamp|timestamptz)"
)
_CLOCK_INPUT: Final = frozenset({t.DATE, t.TIME, t.TIMESTAMP, t.TIMESTAMPTZ, t.TIMETZ})
"""Input functions that read the clock: 'now', 'today', 'tomorrow', 'yesterday'."""
_OFFSET_OF_TODAY: Final = frozenset({2037, 2047, 6336})
"""timezone(text, timetz), timetz(time), timezone(timetz): a zone's offset at the current date."""
_CLOCK_RANGES: Final = frozenset({3908, 3910, 3912, 4533, 4534, 4535})
"""tsrange, tstzrange, daterange and their multiranges."""

# Names of built-in functions (also behind operators) that fail on no row.
_SAFE: Final = frozenset(
    {
        *("lower", "upper", "initcap", "length", "char_length", "character_length"),
        *("octet_length", "bit_length", "btrim", "ltrim", "rtrim", "left", "right"),
        *("md5", "reverse", "strpos", "position", "starts_with", "ascii"),
        *("replace", "translate", "isfinite", "text", "hashtext", "cardinality"),
        *("array_length", "array_lower", "array_upper", "array_ndims", "jsonb_typeof"),
        *("jsonb_object_field", "jsonb_object_field_text", "jsonb_exists"),
        *("jsonb_contains", "jsonb_contained", "arraycontains", "arraycontained"),
        *("arrayoverlap", "network_sub", "network_sup", "scale", "isempty"),
    }
)
_SAFE_WITH_CONSTANT_FIELD: Final = frozenset({"date_part", "extract", "date_trunc"})
_NETWORKS: Final = (t.CIDR, t.INET)
_REGEX: Final = re.compile(r"(text|bpchar|name)(ic)?regex(eq|ne)")
_LIKE: Final = re.compile(r"(text|bpchar|name)(ic)?n?like|like|notlike")
REG_TYPES: Final = frozenset({24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191})
"""regproc, regclass and so on: their text is looked up in the current catalogs."""


_TSQUERY_COMPARISON: Final = re.compile("tsquery_(?:lt|le|eq|ne|ge|gt|cmp)")
"""``a & (b & c)`` and ``(a & b) & c`` differ but have the same text, and texts are streamed."""


def refusal(function: Function) -> str | None:
    """Return why ``function`` may not be called, or ``None``."""
    label = f'function "{function.name}"'
    if function.kind in ("w",):
        return f"window {label} is not supported"
    if function.returns_set:
        return f"set-returning {label} is not supported"
    if function.trusted:
        return None
    if function.volatility == "v":
        return f"volatile {label} is not supported"
    if function.builtin and _TSQUERY_COMPARISON.fullmatch(function.name):
        return f"{label} is not supported because different queries have one text"
    if function.volatility == "i":
        return None
    if not function.builtin:
        return f"{label} is not supported because it is not immutable"
    if function.oid in _OFFSET_OF_TODAY:
        return f"{label} is not supported because it reads the current date"
    if function.name in _STABLE or _STABLE_COMPARISON.fullmatch(function.name):
        return None
    if _READER.fullmatch(function.name):
        return f"{label} is not supported because it depends on the role that reads the view"
    if _CATALOGS.fullmatch(function.name):
        return f"{label} is not supported because it reads the system catalogs"
    return f"{label} is not supported because its result depends on time or session"


def remedy(function: Function) -> str | None:
    """Return a hint for a refused function, or None."""
    if function.builtin and _TSQUERY_COMPARISON.fullmatch(function.name):
        return "Compare the texts: cast both sides to text."
    if function.builtin or function.kind != "f" or function.volatility == "i":
        return None
    rewritten = "Write it as an SQL function of one query, whose tables the view then follows. "
    return (rewritten if function.untranslated else "") + (
        "If its result depends on its arguments alone, declare function"
        f" {function.quoted} IMMUTABLE, or name it in option trust_stable."
    )


def doubted(function: Function) -> str | None:
    """Return why the dependencies of a refused function's result are unknown, or None."""
    return f"Of function {function.quoted}: {function.doubt}." if function.doubt else None


def clock_guarded(target: int) -> bool:
    """Return whether a text without words for the current time may be cast to the type.

    This is false for timetz, as the offset of a named zone depends on the current date.
    """
    return target in _CLOCK_INPUT and target != t.TIMETZ


def io_refusal(catalog: Catalog, source: int, target: int, *, guarded: bool = False) -> str | None:
    """Return why a value may not be cast through its text, or ``None``.

    ``guarded``: no such text denotes the current time.
    """
    for oid in (source, target):
        if oid in REG_TYPES:
            return f"cast from or to type {catalog.types[oid].name} is not supported"
    into = catalog.types[target]
    if not guarded and reads_clock(catalog, target):
        return (
            f"cast of {catalog.types[source].name} to {into.name} is not supported"
            " because its result may depend on the current time"
        )
    for oid in (catalog.types[source].output, into.input):
        if catalog.functions[oid].volatility == "v":
            return f"cast from {catalog.types[source].name} to {into.name} is volatile"
    return None


def reads_clock(catalog: Catalog, oid: int) -> bool:
    """Return whether the input of the type, or of a part, accepts 'now', 'today' and so on."""
    oid = catalog.types.base(oid)
    kind = catalog.types[oid]
    if oid in _CLOCK_INPUT or oid in _CLOCK_RANGES:
        return True
    if kind.element:
        return reads_clock(catalog, kind.element)
    if oid < t.FIRST_USER_OID or kind.kind == "e":
        return False
    # A user-defined base type has unknown input, so it may read the clock.
    parts = catalog.types.parts(oid)
    return not parts or any(reads_clock(catalog, part) for part in parts)


def io_immutable(catalog: Catalog, source: int, target: int) -> bool:
    """Return whether a cast through text depends on no setting."""
    functions = (catalog.types[source].output, catalog.types[target].input)
    return all(catalog.functions[oid].volatility == "i" for oid in functions)


def is_reg_type(oid: int) -> bool:
    """Return whether values of the type are names of catalog objects."""
    return oid in REG_TYPES


def borrowed(
    cast: tuple[int, str] | None, function: Function, args: tuple[Expr, ...], oid: int
) -> bool:
    """Return whether a cast runs a function declared for other, binary-compatible types.

    A cast of int2 to oid runs a function that returns int4; a cast of cidr to text runs one that
    takes inet.  In SQL only the cast syntax expresses that.
    """
    if cast is None or cast[0] != function.oid:
        return False
    return oid in (t.OID, t.BPCHAR, t.VARCHAR) or args[0].oid in _NETWORKS


def populates_dates(catalog: Catalog, function: Function, oid: int) -> bool:
    """Return whether the function reads texts of a document into dates or times of a row."""
    return function.name in _POPULATES and reads_clock(catalog, oid)


def may_raise(function: Function, args: tuple[Expr, ...]) -> bool:
    """Return whether a call may fail on some row."""
    if not function.builtin:
        return True
    name = function.name
    if _REGEX.fullmatch(name):
        return not isinstance(args[-1], Const)
    if _LIKE.fullmatch(name):
        pattern = args[-1]
        plain = isinstance(pattern, Const) and "\\" not in (pattern.text or "")
        return not plain
    if name in _SAFE_WITH_CONSTANT_FIELD:
        return not isinstance(args[0], Const)
    if name in ("substr", "substring") and len(args) == 3:
        size = args[2]
        if not isinstance(size, Const) or size.oid != t.INT4:
            return True
        return (size.text or "").startswith("-")
    if name in ("substr", "substring"):
        return not args[1:] or args[1].oid != t.INT4
    return name not in _SAFE
