"""A query as of a timestamp."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headrace.views.clocks import at

INSTANT = datetime(2024, 2, 29, 12, 30, 0, 250_000, UTC)
NOW = "'2024-02-29 12:30:00.250000+00:00'::pg_catalog.timestamptz"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT now() AS now", f"SELECT ({NOW}) AS now"),
        ("WHERE a > (CURRENT_DATE - 1)", f"WHERE a > ((({NOW})::pg_catalog.date) - 1)"),
        ("LOCALTIMESTAMP", f"(({NOW})::pg_catalog.timestamp)"),
        ("CURRENT_TIMESTAMP", f"({NOW})"),
        ("'now() it''s now()' || E'\\' now()'", "'now() it''s now()' || E'\\' now()'"),
        ('"now()" , x.now(), public.now()', '"now()" , x.now(), public.now()'),
        ('"a""CURRENT_DATE", mynow(), now(1)', '"a""CURRENT_DATE", mynow(), now(1)'),
        ("CURRENT_TIMESTAMP(3), xCURRENT_DATE", "CURRENT_TIMESTAMP(3), xCURRENT_DATE"),
    ],
)
def test_only_the_clock_is_replaced(query, expected):
    assert at(query, INSTANT) == expected
