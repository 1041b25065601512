"""What sessions are set to: ours from their start, those that evaluate as the caller's was.

    a call is made ── CAPTURED ──► PARSING: what its text means, while the query is analysed
                               └─► EVALUATION: what functions look at, kept with the view

Whatever a view's functions see, values come back as ``PINNED_SETTINGS`` say (``OUTPUT``).
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
    # Temporary objects stand before all schemas unless they are named: they may be a user's.
    "search_path": "pg_catalog, pg_temp",
    "xmloption": "content",
    "lc_monetary": "C",
    # Off, it reads the element NULL of an array as the string "NULL".
    "array_nulls": "on",
    # On, what Postgres prints of a query or a type is not what it prints elsewhere.
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # Higher, a stream gets no warnings; lower, it gets messages that are none.
    "client_min_messages": "notice",
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
"""Settings that functions look at: kept with the view."""

PARSING: Final = (
    *("standard_conforming_strings", "backslash_quote", "array_nulls"),
    *("transform_null_equals", "search_path"),
)
"""Settings that change what the text of the query means, and nothing after that.

The search path comes last: from then on a name may mean what a user has created.
"""

CAPTURED: Final = (*EVALUATION, *PARSING)
"""Settings of the caller that can change what a query means: a call takes them along."""

FUNCTION_PATH: Final = "functions.search_path"
"""Kept with the view as well: the schemas in which functions of users look for names, in order."""

FORCED: Final = frozenset(
    {
        "client_encoding", "lc_monetary", "statement_timeout", "row_security",
        "idle_in_transaction_session_timeout", "default_transaction_read_only", "role",
        "session_authorization",
    }
)  # fmt: skip
"""Kept values of these do not count where values are computed: they could not be read back, or
rights would change."""

OUTPUT: Final = (
    *("TimeZone", "DateStyle", "IntervalStyle", "extra_float_digits", "bytea_output"),
    "lc_monetary",
)
"""Settings that decide how values look."""

AS_JSON: Final = (
    "SELECT pg_catalog.jsonb_object_agg(s.name, pg_catalog.current_setting(s.name))"  # noqa: S608
    f" FROM pg_catalog.unnest('{{{', '.join(CAPTURED)}}}'::pg_catalog.text[]) AS s (name)"
)
"""A query for the ``CAPTURED`` settings of whose session it is."""


def canonical(name: str) -> str:
    """A setting's name as it is written here."""
    for known in PINNED_SETTINGS:
        if known.lower() == name.lower():
            return known
    return name
