"""Session settings: pinned ones, and those captured from the caller of a command.

    a call is made ── CAPTURED ──► PARSING: used while the query is analysed
                               └─► EVALUATION: used by functions, stored with the view

Values are always returned in the format of ``PINNED_SETTINGS`` (``OUTPUT``).
"""

from __future__ import annotations

from typing import Final

PINNED_SETTINGS: Final[dict[str, str]] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    # Unless pg_temp is listed, a user's temporary objects come before all schemas.
    "search_path": "pg_catalog, pg_temp",
    "xmloption": "content",
    "lc_monetary": "C",
    # If off, the array element NULL is read as the string "NULL".
    "array_nulls": "on",
    # If on, Postgres prints queries and types differently than in other sessions.
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # With a higher level a stream gets no warnings; with a lower one, debug messages too.
    "client_min_messages": "notice",
    # Compiling a query of the catalogs takes a hundred times as long as the query.
    "jit": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "row_security": "off",
}
"""Settings pinned on *every* connection that reads or writes values (stream, population,
evaluation, sink), so that one value always has one text (E13)."""

EVALUATION: Final = (
    *("TimeZone", "DateStyle", "IntervalStyle", "extra_float_digits", "bytea_output"),
    *("lc_monetary", "lc_numeric", "lc_time", "xmloption", "xmlbinary"),
    *("default_text_search_config", "timezone_abbreviations", "quote_all_identifiers"),
)
"""Settings that functions read; stored with the view."""

PARSING: Final = (
    *("standard_conforming_strings", "backslash_quote", "array_nulls"),
    *("transform_null_equals", "search_path"),
)
"""Settings that affect only the parsing and analysis of the query.

The search path is set last: from then on a name may resolve to a user's object.
"""

CAPTURED: Final = (*EVALUATION, *PARSING)
"""Settings of the caller that can change the meaning of a query; each call carries them."""

FUNCTION_PATH: Final = "functions.search_path"
"""Also stored with the view: the schemas in which users' functions look up names, in order."""

FORCED: Final = frozenset(
    {
        "client_encoding", "lc_monetary", "statement_timeout", "row_security",
        "idle_in_transaction_session_timeout", "default_transaction_read_only", "role",
        "session_authorization",
    }
)  # fmt: skip
"""Settings of a view that its evaluation ignores: they would change rights, end statements, or
make results unreadable."""

OUTPUT: Final = (
    *("TimeZone", "DateStyle", "IntervalStyle", "extra_float_digits", "bytea_output"),
    "lc_monetary",
)
"""Settings that determine the output format of values."""

AS_JSON: Final = (
    "SELECT pg_catalog.jsonb_object_agg(s.name, pg_catalog.current_setting(s.name))"  # noqa: S608
    f" FROM pg_catalog.unnest('{{{', '.join(CAPTURED)}}}'::pg_catalog.text[]) AS s (name)"
)
"""A query for the ``CAPTURED`` settings of its session."""


def canonical(name: str) -> str:
    """Return a setting's name in the spelling of ``PINNED_SETTINGS``."""
    for known in PINNED_SETTINGS:
        if known.lower() == name.lower():
            return known
    return name
