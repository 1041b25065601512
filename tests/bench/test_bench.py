"""The benchmarks run and count what they say; small sizes, no figures expected."""

import json

import pytest

from bench.__main__ import SCENARIOS, main, table


def test_table_is_aligned() -> None:
    assert table([{"a": 1, "bb": "x"}, {"a": 100, "bb": "yy"}]) == (
        "  a  bb\n  1   x\n100  yy"
    )


def test_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["speed"])
    assert "no scenario speed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"population"}))
def test_scenario_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--json", "--rows", "20000", "--seconds", "2"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["results"][name]
    assert line.get("differing_rows", 0) == 0
