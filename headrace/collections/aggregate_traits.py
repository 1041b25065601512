"""Traits of aggregates: facts that planner, dataflow, population and cost estimates share.

``NATIVE`` has one row for each function of ``AggregateSpec``; ``aggregates.py`` has their
accumulators.  ``BUILT_IN`` has one row for each aggregate of ``pg_catalog``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Literal

from headrace.types import INT2, INT4, INT8, NUMERIC

# fmt: off
AggregateFunction = Literal[
    "count_star", "count", "sum", "avg", "bool_and", "bool_or", "min", "max",
    "any", "single", "stddev_samp", "stddev_pop", "var_samp", "var_pop",
    "string_agg", "array_agg", "remote",
]
# fmt: on
"""A function of ``AggregateSpec``."""


class Empty(Enum):
    """Value over no rows."""

    ZERO = auto()
    """The bigint 0; the aggregate is never NULL."""
    NULL = auto()


class Total(Enum):
    """Arguments over which an aggregate cannot fail, as far as is known.

    Sizes of more than a gigabyte, or a number of more than 131 072 digits, do not count.
    """

    NONE = auto()
    EXACT = auto()
    """Integers and numerics: sums of floats overflow."""
    INTEGERS = auto()
    """Bit strings may be of different lengths."""
    SINGLE = auto()
    """Values other than arrays, which may be of different sizes."""
    ANY = auto()


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
    total: Total = Total.NONE
    retained: bool = True
    """Whether its state keeps the values of a group, not only numbers."""
    whole: bool = False
    """Whether a change reads all values of its group."""
    partial: Partial | None = None
    """None: all rows of a group must be in one task."""

    def may_fail(self, argument: int | None, result: int) -> bool:
        """Return whether it may fail over values of type ``argument``; both are type OIDs."""
        match self.total:
            case Total.NONE:
                return True
            case Total.EXACT:
                return argument not in (INT2, INT4, INT8, NUMERIC)
            case Total.INTEGERS:
                return argument not in (INT2, INT4, INT8)
            case Total.SINGLE:
                return argument == result
            case Total.ANY:
                return False


_NUMBERS: Final = AggregateTraits(ordered=False, retained=False, partial=Partial.NUMBERS)
_COUNT: Final = replace(_NUMBERS, empty=Empty.ZERO, total=Total.ANY)
_SUM: Final = replace(_NUMBERS, empty=Empty.NULL, total=Total.EXACT)
_TRUTH: Final = replace(_NUMBERS, empty=Empty.NULL, idempotent=True, total=Total.ANY)
_ANY: Final = AggregateTraits(Empty.NULL, idempotent=True, total=Total.ANY, partial=Partial.EXTREME)
_EXTREME: Final = replace(_ANY, ordered=False)
_UNKNOWN: Final = AggregateTraits()
_LISTED: Final = AggregateTraits(Empty.NULL, whole=True)

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
    "stddev_samp": _SUM,
    "stddev_pop": _SUM,
    "var_samp": _SUM,
    "var_pop": _SUM,
    "string_agg": replace(_LISTED, total=Total.ANY),
    "array_agg": replace(_LISTED, total=Total.SINGLE),
    "remote": AggregateTraits(whole=True),
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
    "stddev": "stddev_samp",
    "stddev_samp": "stddev_samp",
    "stddev_pop": "stddev_pop",
    "variance": "var_samp",
    "var_samp": "var_samp",
    "var_pop": "var_pop",
}
"""Function that computes a built-in aggregate, for some types of its argument at least."""

_REMOTE: Final = AggregateTraits(Empty.NULL, ordered=False)
_IN_ORDER: Final = AggregateTraits(Empty.NULL)
BUILT_IN: Final[Mapping[str, AggregateTraits]] = {
    **{name: NATIVE[function] for name, function in COMPILED.items()},
    "regr_count": AggregateTraits(Empty.ZERO, ordered=False, total=Total.ANY),
    "array_agg": replace(_IN_ORDER, total=Total.SINGLE),
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor"), replace(_REMOTE, total=Total.INTEGERS)),
    **dict.fromkeys(
        ("mode", "range_agg", "range_intersect_agg"), replace(_REMOTE, total=Total.ANY)
    ),
    **dict.fromkeys(
        (
            *("corr", "covar_pop", "covar_samp", "regr_avgx", "regr_avgy", "regr_intercept"),
            *("regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy"),
            *("percentile_cont", "percentile_disc"),
        ),
        _REMOTE,
    ),
    **dict.fromkeys(
        (
            *("string_agg", "xmlagg"),
            *("json_agg", "json_agg_strict", "jsonb_agg", "jsonb_agg_strict"),
        ),
        replace(_IN_ORDER, total=Total.ANY),
    ),
    **dict.fromkeys(
        (
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
