"""Metrics in Prometheus text format (the HTTP port: tests/console)."""

from __future__ import annotations

import re

import msgspec
import pytest

from headrace.runtime.histogram import Histogram
from headrace.server import health
from headrace.server.metrics import Page


def test_what_names_have_is_escaped():
    page = Page()
    page.put("view_rows", 1, 'x"\\\n')
    page.put("batches_total", 2.5)
    page.put("view_rows", 12_345_678_901, "y")
    # In the order of the table, each name once; a value has the precision of a double.
    assert page.render() == (
        "# HELP headrace_batches_total Batches written to the tables.\n"
        "# TYPE headrace_batches_total counter\nheadrace_batches_total 2.5\n"
        "# HELP headrace_view_rows Rows of its table, as estimated.\n"
        "# TYPE headrace_view_rows gauge\n"
        'headrace_view_rows{view="x\\"\\\\\\n"} 1.0\n'
        'headrace_view_rows{view="y"} 1.2345678901e+10\n'
    )


def test_a_histogram_counts_what_is_below_each_bound():
    told = Histogram()
    for seconds in (0.001, 0.0011, 0.3, 100):
        told.note(seconds)
    page = Page()
    page.count("sink_transaction_seconds", msgspec.structs.asdict(told.counts()))
    buckets = dict(re.findall(r'_bucket{le="(\S+)"} (\S+)', page.render()))
    # A bound belongs to its bucket, as in Prometheus.
    assert [buckets[le] for le in ("0.001", "0.0025", "0.25", "0.5", "60.0", "+Inf")] == [
        *("1.0", "2.0", "2.0", "3.0", "3.0", "4.0"),
    ]
    assert "headrace_sink_transaction_seconds_count 4.0\n" in page.render()
    assert "headrace_sink_transaction_seconds_sum 100.3021\n" in page.render()


@pytest.mark.parametrize(
    ("lags", "shown"), [([], "0.0"), ([1500, None, 20], "1.5"), ([None], None), ([0, None], "0.0")]
)
def test_an_unknown_lag_is_no_lag_of_0(lags, shown):
    views = [{"status": "running", "lag_ms": lag} for lag in lags]
    page = Page()
    health._all_views(page, [*views, {"status": "error", "lag_ms": None}])
    found = re.findall(r"^headrace_views_freshness_max_seconds (\S+)$", page.render(), re.MULTILINE)
    assert found == ([] if shown is None else [shown])
