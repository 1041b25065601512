"""The screen of the demo, from fixed numbers."""

import math
import re

import pytest

from headrace.embedded.demo_screen import Shown, screen, sparkline

CALM = Shown(
    orders=1_000_000,
    transactions_per_s=200.4,
    rows_per_s=640.0,
    rows=12_345,
    p50_ms=6.2,
    p99_ms=18.0,
    history_ms=[1.0, None, 10.0, 100.0, 1000.0, 90_000.0],
    views=[("best_customers", "running", "10,001 rows")],
    heading=("country", "orders"),
    table=[("Peru", "17")],
    busy=0.5,
    processors=2,
    said=["burst: all there"],
    links=[("psql", "psql -p 1")],
)


def test_what_is_measured_is_shown() -> None:
    text = screen(CALM)
    assert "1,000,000 orders" in text
    assert "200 transactions/s" in text
    assert "6 ms p50       18 ms p99" in text
    assert "last 10 s" in text
    for word in ("best_customers", "Peru", "burst: all there", "psql -p 1", "kill -9 the worker"):
        assert word in text
    assert "busy" not in text


@pytest.mark.parametrize("said", [(), ("a" * 78, "b" * 70)])
@pytest.mark.parametrize("lines", [24, 50])
def test_it_fits_the_terminal(said, lines) -> None:
    """In 80 columns only a link may take two lines; the table gives way."""
    full = {
        "history_ms": [90_000.0] * 60,
        "p50_ms": 12_345.0,
        "p99_ms": 123_456.0,
        "views": [
            (name, "populating", "1015325 of 1019927 rows (99 %), 10 s left") for name in "abc"
        ],
        "heading": ("best customer", "orders", "spent"),
        "table": [(f"Customer {n}", "117", "12,997.05") for n in range(8)],
        "busy": 0.99,
        "said": said,
        "links": [("psql", "p" * 60), ("console", "c" * 90)],
    }
    text = screen(Shown(**{name: getattr(CALM, name) for name in CALM.__slots__} | full), 80, lines)
    plain = re.sub("\x1b\\[[0-9]*[mJH]", "", text).split("\n")
    assert [line for line in plain if len(line) > 80 and "ccc" not in line] == []
    assert sum(-(-max(len(line), 1) // 80) for line in plain) <= lines
    assert sum("Customer" in line for line in plain) == (8 if lines == 50 else 1 if said else 4)


def test_a_busy_machine_is_said() -> None:
    told = screen(Shown(**{name: getattr(CALM, name) for name in CALM.__slots__} | {"busy": 0.97}))
    assert "this machine is busy: 97% of 2 processors" in told


def test_nothing_measured_is_no_number() -> None:
    none = {"p50_ms": math.nan, "p99_ms": math.nan, "history_ms": []}
    text = screen(Shown(**{name: getattr(CALM, name) for name in CALM.__slots__} | none))
    assert "– ms p50" in text
    assert "nan" not in text


def test_bars_grow_with_the_logarithm_and_gaps_stay() -> None:
    assert sparkline(CALM.history_ms) == "▁ ▃▅▇█  6 s, at most 90,000 ms"
    assert sparkline([None, None]) == ""
