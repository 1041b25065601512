"""A query's text as sqlglot reads it; sqlglot itself is imported in a process of its own."""

from typing import Final

DIALECTS: Final = (
    *("bigquery", "databricks", "duckdb", "mysql", "oracle", "redshift", "snowflake", "spark"),
    *("sqlite", "trino", "tsql"),
)
"""What a query may be written in besides Postgres' SQL."""
CAVEATS: Final = {
    "mysql": "texts are compared as Postgres compares them: upper and lower case differ",
    "oracle": "an empty text is no NULL in Postgres",
    "tsql": "texts are compared as Postgres compares them: upper and lower case differ",
}
"""What no translation of the text can bring along, and so is said to whoever asks for one."""
