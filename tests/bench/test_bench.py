"""The benchmarks run and count what they say; small sizes, no figures expected."""

import json

import pytest

from bench.__main__ import SCENARIOS, main, table


def test_table_is_aligned() -> None:
    assert table([{"a": 1, "bb": "x"}, {"a": 100, "bb": "yy"}]) == ("  a  bb\n  1   x\n100  yy")


def test_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["speed"])
    assert "no scenario speed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"population", "state"}))
def test_scenario_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--json", "--rows", "20000", "--seconds", "2"]) == 0
    lines = json.loads(capsys.readouterr().out)["results"][name]
    assert len(lines) == {"tpch": 22, "creations": 4, "restart": 12}.get(name, 1)
    for line in lines:
        assert line.get("differing_rows", 0) == 0
        assert line.get("refused", "-") == "-"


@pytest.mark.slow
def test_F_23_tiers_are_measured_beside_plain_rocksdb(capsys: pytest.CaptureFixture[str]) -> None:
    """The three figures that Flink published: in memory, spilled, and RocksDB alone."""
    assert main(["state", "--json", "--rows", "20000"]) == 0
    lines = json.loads(capsys.readouterr().out)["results"]["state"]
    found = {line["what"]: line for line in lines}
    for what in ("gets/s, resident", "gets/s, spilled"):
        assert found[what]["figure"] > 0
        assert found[what]["plain_rocksdb"] > 0
        assert found[what]["ratio"] > 0
