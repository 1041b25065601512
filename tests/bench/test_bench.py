"""The benchmarks run and report every figure; with small sizes, no values are expected."""

import inspect
import json

import pytest

from bench.__main__ import SCENARIOS, main, shown
from bench.engine import Engine


def test_each_line_is_shown_when_it_is_there() -> None:
    taken = []

    def lines():
        for figures in ({"a": 1, "long_column": "x"}, {"a": 100, "long_column": "yy"}):
            taken.append(figures)
            yield figures

    out = shown(lines())
    assert next(out) == "        a  long_column"
    assert next(out) == "        1            x"
    assert len(taken) == 1, "the second one is not waited for"
    assert list(out) == ["      100           yy"]
    assert list(shown([])) == []


def test_the_engines_lines_come_one_by_one() -> None:
    assert inspect.isgeneratorfunction(Engine.run)


def test_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["speed"])
    assert "no scenario speed" in capsys.readouterr().err


def test_help_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert all(f"{name}: " in said for name in SCENARIOS)


SMALL = {
    "cdc": ("--rows 20000", 1),
    "checkpoint": ("--rows 8000", 6),
    "creations": ("--rows 20000", 4),
    "drain": ("--rows 8000", 9),
    "engine": ("--rows 20000 --only filter", 3),
    "expressions": ("--rows 20000", 12),
    "freshness": ("--rows 20000 --seconds 2", 5),
    "growth": ("--rows 40000", 3),
    "links": ("--rows 4000", 12),
    "memory": ("--views 10 --seconds 1", 2),
    "moving": ("--rows 2000 --seconds 1", 2),
    "oltp_tax": ("--seconds 1", 3),
    "placement": ("--rows 600 --only q3,Q3", 2),
    "queues": ("--rows 100", 5),
    "relay": ("--seconds 1", 8),
    "restart": ("--rows 20000", 12),
    "small": ("--views 1 --seconds 1", 4),
    "spark": ("--rows 20000 --only group_sum", 6),
    "standby_tax": ("--seconds 1", 3),
    "tpch": ("--rows 20000", 22),
    "workers": ("--rows 8000", 1),
}
"""Benchmark -> arguments for as little work as possible, and the number of result lines."""


def ran(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert main([name, "--json", *words.split()]) == 0
    return json.loads(capsys.readouterr().out)["results"][name]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SMALL))
def test_scenario_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, count = SMALL[name]
    lines = ran(name, words, capsys)
    assert len(lines) == count
    for line in lines:
        assert line.get("refused", "-") == "-"


@pytest.mark.slow
def test_one_rate_is_measured_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ran("freshness", "--rows 2000 --seconds 3 --rate 20", capsys)
    assert [line["latency_ms"] for line in lines] == [0, 1000]
    for line in lines:
        assert line["rate"] == 20
        assert line["transactions_per_s"] > 0
        assert line["probes"] > 0


@pytest.mark.slow
def test_F_23_tiers_are_measured_beside_plain_rocksdb(capsys: pytest.CaptureFixture[str]) -> None:
    """The three figures that Flink published: state in memory, spilled state, and RocksDB alone."""
    assert main(["state", "--json", "--rows", "20000"]) == 0
    lines = json.loads(capsys.readouterr().out)["results"]["state"]
    found = {line["what"]: line for line in lines}
    for what in ("gets/s, resident", "gets/s, spilled"):
        assert found[what]["figure"] > 0
        assert found[what]["plain_rocksdb"] > 0
        assert found[what]["ratio"] > 0
