"""Options of Spark in the setting ``spark_options``: name=value, separated by semicolons."""

from __future__ import annotations

from typing import Final

from headrace.errors import UserError

FIXED: Final = (
    "spark.sql.adaptive.enabled",
    "spark.sql.shuffle.partitions",
    "spark.sql.execution.arrow.pyspark.enabled",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
)
"""Options that the results of a population depend on."""


def parse(text: str) -> dict[str, str]:
    """Return the options by name.

    Raises:
        UserError: a part is no option, or one of ``FIXED``.
    """
    found = {}
    for part in filter(str.strip, text.split(";")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name.startswith("spark."):
            raise UserError(
                f'setting "spark_options" has an invalid part "{name}"',
                hint="Write spark.some.option=value; spark.another=value.",
            )
        if name in FIXED:
            raise UserError(f'setting "spark_options" must not set {name}')
        found[name] = value
    return found
