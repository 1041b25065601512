"""The screen of the demo, from fixed numbers."""

import contextlib
import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from headrace.embedded.demo_screen import Shown, opened, page, sparkline

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


def text_of(shown, columns=80, lines=24, **console):
    made = Console(width=columns, height=lines, file=io.StringIO(), **console)
    made.print(page(shown, made))
    return made.file.getvalue()


def test_what_is_measured_is_shown() -> None:
    text = text_of(CALM)
    assert "1,000,000 orders" in text
    assert "200 transactions/s" in text
    assert "6 ms p50       18 ms p99" in text
    assert "last 10 s" in text
    for word in ("best_customers", "Peru", "burst: all there", "psql -p 1", "kill -9 the worker"):
        assert word in text
    assert "busy" not in text


@pytest.mark.parametrize(
    ("lines", "reports", "rows"),
    [(24, 0, 5), (24, 2, 3), (24, 4, 1), (22, 4, 1), (50, 0, 8), (50, 4, 8)],
)
def test_it_fits_the_terminal(lines, reports, rows) -> None:
    """Table and earlier reports give way; an address of the usual length takes one line."""
    said = ["old", "older", "a" * 78, "b" * 70][4 - reports :]
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
        "links": [("psql", "p" * 60), ("web", "c" * 73)],
    }
    plain = text_of(replace(CALM, **full), 80, lines).rstrip("\n").split("\n")
    assert [line for line in plain if len(line) > 80] == []
    assert len(plain) <= lines
    assert sum("Customer" in line for line in plain) == rows
    assert "  web  " + "c" * 73 in plain
    assert plain[-1].endswith("q quit")
    shown = [line for line in plain if line.strip() in said]
    assert [line.strip() for line in shown] == (said[-2:] if lines == 22 else said)


def test_a_busy_machine_is_said() -> None:
    told = text_of(replace(CALM, busy=0.97))
    assert "this machine is busy: 97% of 2 processors" in told


def test_nothing_measured_is_no_number() -> None:
    text = text_of(replace(CALM, p50_ms=math.nan, p99_ms=math.nan, history_ms=[]))
    assert "– ms p50" in text
    assert "nan" not in text


def test_text_of_the_database_is_no_markup() -> None:
    """Brackets stay, and change no style; so do the names of emojis."""
    literal = "[bold]x[/bold] [/] [link=http://x] :smile: [red]"
    hostile = replace(
        CALM,
        views=[("[dim]v", "[b]run", literal)],
        table=[(literal, "[i]17")],
        said=[literal],
        links=[("[b]l", literal)],
    )
    text = text_of(hostile, 120, force_terminal=True, color_system="truecolor", highlight=False)
    assert text.count(literal) == 4
    for name in ("[dim]v", "[b]run", "[i]17", "[b]l"):
        assert name in text
    assert "\x1b[31m" not in text


@pytest.mark.parametrize(("term", "moves"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_gets_lines(monkeypatch, capsys, term, moves) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for rich
    with opened() as draw:
        draw(CALM)
        draw(replace(CALM, said=["the second page"]))
    out = capsys.readouterr().out
    assert out.count("Headrace demo") == 2
    assert "the second page" in out
    assert ("\x1b[?1049h" in out) is moves
    assert out.count("\x1b[1;1H") == (2 if moves else 0), "each page begins in the corner"
    assert out.endswith("\x1b[?1049l\x1b[?25h") is moves
    assert moves or "\x1b" not in out


def test_a_pipe_gets_lines(monkeypatch, capsys) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with opened() as draw:
        draw(CALM)
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "Headrace demo   1,000,000 orders"
    assert "\x1b" not in "".join(lines)


def test_an_error_restores_the_terminal(monkeypatch, capsys) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with contextlib.suppress(KeyboardInterrupt), opened() as draw:
        draw(CALM)
        raise KeyboardInterrupt
    assert capsys.readouterr().out.endswith("\x1b[?1049l\x1b[?25h")


def test_bars_grow_with_the_logarithm_and_gaps_stay() -> None:
    assert sparkline(CALM.history_ms) == "▁ ▃▅▇█  6 s, at most 90,000 ms"
    assert sparkline([None, None]) == ""
