"""Traits of aggregates: facts that planner, dataflow, population and cost estimates share.

``NATIVE`` has one row for each function of ``AggregateSpec``; ``aggregates.py`` has their
accumulators.  ``BUILT_IN`` has one row for each aggregate of ``pg_catalog``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Literal

# fmt: off
AggregateFunction = Literal[
    "count_star", "count", "sum", "avg", "bool_and", "bool_or", "min", "max",
    "any", "single", "remote",
]
# fmt: on
"""A function of ``AggregateSpec``."""


class Empty(Enum):
    """Value over no rows."""

    ZERO = auto()
    """The bigint 0; the aggregate is never NULL."""
    NULL = auto()


class Partial(Enum):
    """How the rows of one group can be divided among tasks, and the results combined."""

    NUMBERS = auto()
    """Each task has integers, which are added."""
    EXTREME = auto()
    """Each task has a value, and equal values are in one task only."""


@dataclass(frozen=True, slots=True)
class AggregateTraits:
    """Properties of one aggregate function; the defaults hold for any aggregate."""

    empty: Empty | None = None
    """None: the value over no rows is not known."""
    ordered: bool = True
    """Whether its value may depend on the order of its rows, last digits of floats apart."""
    idempotent: bool = False
    """Whether DISTINCT changes nothing."""
    total: bool = False
    """Whether it cannot fail."""
    retained: bool = True
    """Whether its state keeps the values of a group, not only numbers."""
    partial: Partial | None = None
    """None: all rows of a group must be in one task."""


_NUMBERS: Final = AggregateTraits(ordered=False, retained=False, partial=Partial.NUMBERS)
_COUNT: Final = replace(_NUMBERS, empty=Empty.ZERO, total=True)
_SUM: Final = replace(_NUMBERS, empty=Empty.NULL)
_TRUTH: Final = replace(_NUMBERS, empty=Empty.NULL, idempotent=True, total=True)
_ANY: Final = AggregateTraits(Empty.NULL, idempotent=True, partial=Partial.EXTREME)
_EXTREME: Final = replace(_ANY, ordered=False, total=True)
_UNKNOWN: Final = AggregateTraits()

NATIVE: Final[Mapping[AggregateFunction, AggregateTraits]] = {
    "count_star": _COUNT,
    "count": _COUNT,
    "sum": _SUM,
    "avg": _SUM,
    "bool_and": _TRUTH,
    "bool_or": _TRUTH,
    "min": _EXTREME,
    "max": _EXTREME,
    "any": _ANY,
    "single": AggregateTraits(Empty.NULL),
    "remote": _UNKNOWN,
}
COMPILED: Final[Mapping[str, AggregateFunction]] = {
    "count": "count",
    "sum": "sum",
    "avg": "avg",
    "bool_and": "bool_and",
    "every": "bool_and",
    "bool_or": "bool_or",
    "min": "min",
    "max": "max",
    "any_value": "any",
}
"""Function that computes a built-in aggregate, for some types of its argument at least."""

_REMOTE: Final = AggregateTraits(Empty.NULL, ordered=False)
_IN_ORDER: Final = AggregateTraits(Empty.NULL)
BUILT_IN: Final[Mapping[str, AggregateTraits]] = {
    **{name: NATIVE[function] for name, function in COMPILED.items()},
    "regr_count": AggregateTraits(Empty.ZERO, ordered=False),
    **dict.fromkeys(
        (
            *("bit_and", "bit_or", "bit_xor", "range_agg", "range_intersect_agg"),
            *("stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"),
            *("corr", "covar_pop", "covar_samp", "regr_avgx", "regr_avgy", "regr_intercept"),
            *("regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy"),
            *("mode", "percentile_cont", "percentile_disc"),
        ),
        _REMOTE,
    ),
    **dict.fromkeys(
        (
            *("array_agg", "string_agg", "xmlagg"),
            *("json_agg", "json_agg_strict", "jsonb_agg", "jsonb_agg_strict"),
            *("json_object_agg", "json_object_agg_strict", "json_object_agg_unique"),
            *("json_object_agg_unique_strict", "jsonb_object_agg", "jsonb_object_agg_strict"),
            *("jsonb_object_agg_unique", "jsonb_object_agg_unique_strict"),
        ),
        _IN_ORDER,
    ),
    **dict.fromkeys(
        ("cume_dist", "dense_rank", "percent_rank", "rank"), replace(_UNKNOWN, ordered=False)
    ),
}
"""By name in ``pg_catalog``."""


def built_in(name: str) -> AggregateTraits:
    """Return the traits of aggregate ``name`` of ``pg_catalog``, without any for an unknown one."""
    return BUILT_IN.get(name, _UNKNOWN)
