"""Statistics for strategies and rebalance(): counted for long enough, or not used."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.population import placing
from headrace.runtime.operators import StatsRow
from headrace.views import balance


def rows(*found: tuple[str, int, float]) -> list[dict[str, Any]]:
    """Return statistics of collections: worker, rows in, and seconds of counting."""
    return [
        msgspec.structs.asdict(
            StatsRow(
                f"n{number}", "map", False, worker,
                rows_in=count, busy_us=10 * count, bytes_out=100 * count, since_s=since_s,
            )
        )
        for number, (worker, count, since_s) in enumerate(found)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "known"),
    [
        ([], False),
        ([("main", 0, 0.0)], False),
        ([("main", 1, 0.01)], False),
        ([("main", 1, 60.0)], True),
        ([("main", 20, 0.5), ("main", 1, 0.5)], True),
        # After a restart of the worker, its first rows are no rate yet.
        ([("w1", 3, 0.2), ("main", 10_000, 3600.0)], False),
        ([("w1", 0, 0.0), ("main", 10_000, 3600.0)], False),
        ([("w1", 50, 0.2), ("main", 10_000, 3600.0)], True),
        ([("w1", 3, 90.0), ("main", 10_000, 3600.0)], True),
    ],
)
def test_numbers_count_once_enough_was_counted(found, known):
    assert (placing.measured(rows(*found)) is not None) == known


def test_rates_are_of_each_collections_own_time():
    found = placing.measured(rows(("w1", 100, 10.0), ("main", 100, 100.0), ("main", 3, 100.0)))
    assert found is not None
    assert found.rates == {"n0": 1000.0, "n1": 100.0, "n2": 3.0}
    assert found.ns_per_row == {"n0": 10_000, "n1": 10_000}, "three rows say nothing"
    assert found.seconds == 10.0


def test_nothing_is_known_of_a_view_that_sends_nothing():
    assert placing.measured(rows(("main", 0, 3600.0))) is None


def test_the_load_of_a_view_is_what_it_takes_per_second():
    """A view that has run for an hour is no heavier than one with the same load for a minute."""
    assert balance._busy(rows(("main", 3600, 3600.0))) == balance._busy(rows(("w1", 60, 60.0)))
    assert balance._busy(rows(("main", 100, 10.0), ("main", 50, 10.0))) == 150.0
    assert balance._busy(rows(("main", 0, 0.0))) == 0.0, "no row has come"
    assert balance._busy(rows(("main", 3, 0.1))) is None
    assert balance._busy(None) is None, "its worker cannot be asked"
