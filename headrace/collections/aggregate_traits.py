"""What is true of an aggregate wherever it is planned, computed, divided or priced.

One row for each function of ``AggregateSpec``, and one for each built-in aggregate of Postgres of
which more is known than Postgres' catalog says.  ``aggregates.py`` has the accumulators.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Partial(Enum):
    """How the rows of one group can be divided among tasks, and the results combined."""

    NUMBERS = auto()
    """Each task has integers, which are added."""
    EXTREME = auto()
    """Each task has a value, and the same value is in one task only."""


@dataclass(frozen=True, slots=True)
class AggregateTraits:
    """Properties of one aggregate function."""

    zero: bool = False
    """Whether it is 0 over no rows."""
    null: bool = False
    """Whether it is NULL over no rows."""
    ordered: bool = True
    """Whether its value may depend on the order of its rows."""
    idempotent: bool = False
    """Whether DISTINCT changes nothing."""
    retained: bool = False
    """Whether the state has its values, not only numbers."""
    partial: Partial | None = None
    """None: all rows of a group must be in one task."""


_COUNT: Final = AggregateTraits(zero=True, ordered=False, partial=Partial.NUMBERS)
_SUM: Final = AggregateTraits(null=True, ordered=False, partial=Partial.NUMBERS)
_TRUTH: Final = AggregateTraits(null=True, ordered=False, idempotent=True, partial=Partial.NUMBERS)
_EXTREME: Final = AggregateTraits(
    null=True, ordered=False, idempotent=True, retained=True, partial=Partial.EXTREME
)
_ANY: Final = AggregateTraits(null=True, idempotent=True, retained=True, partial=Partial.EXTREME)

NATIVE: Final = {
    "count_star": _COUNT,
    "count": _COUNT,
    "sum": _SUM,
    "avg": _SUM,
    "bool_and": _TRUTH,
    "bool_or": _TRUTH,
    "min": _EXTREME,
    "max": _EXTREME,
    "any": _ANY,
    "single": AggregateTraits(null=True, retained=True),
    "remote": AggregateTraits(retained=True),
}
"""By function of ``AggregateSpec``."""
_REMOTE: Final = AggregateTraits(null=True, retained=True)
BUILT_IN: Final = {
    **{name: NATIVE[name] for name in ("count", "sum", "avg", "bool_and", "bool_or", "min", "max")},
    "every": _TRUTH,
    "any_value": _ANY,
    **dict.fromkeys(
        (
            *("bit_and", "bit_or", "bit_xor", "string_agg", "array_agg", "corr", "mode", "xmlagg"),
            *("stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"),
            *("json_agg", "jsonb_agg", "json_object_agg", "jsonb_object_agg"),
            *("percentile_cont", "percentile_disc", "range_agg", "range_intersect_agg"),
            *("covar_pop", "covar_samp"),
        ),
        _REMOTE,
    ),
}
"""By name in ``pg_catalog``; of an aggregate that is not here nothing is known."""
NATIVE_NAMES: Final = {"every": "bool_and", "any_value": "any"}
"""Built-in aggregates that ``NATIVE`` has under another name."""
