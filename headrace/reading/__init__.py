"""Reading and translating query text with sqlglot, which runs in a separate process."""

from typing import Final

DIALECTS: Final = (
    *("bigquery", "databricks", "duckdb", "mysql", "oracle", "redshift", "snowflake", "spark"),
    *("sqlite", "trino", "tsql"),
)
"""Dialects that are translated to Postgres' SQL."""
CAVEATS: Final = {
    "mysql": "texts are compared as Postgres compares them: upper and lower case differ",
    "oracle": "an empty text is no NULL in Postgres",
    "tsql": "texts are compared as Postgres compares them: upper and lower case differ",
}
"""Differences that a translation of the text cannot remove; reported with each translation."""
