"""Peers of the benchmarks: absent peers, plots, and changes of the shapes' tables."""

from pathlib import Path

import psycopg

from bench import plots, shapes
from bench.peers import others


def test_a_peer_that_cannot_be_installed_is_a_line_that_says_so(tmp_path: Path) -> None:
    cache = tmp_path / "file"
    cache.touch()  # a file: no environment can be made in it
    answers = {"filter": (1, 1.0), "join": (2, 2.0)}
    lines = list(others.measure(others.PEERS[0], cache, tmp_path, answers))
    assert [line.view for line in lines] == ["filter", "join"]
    for line in lines:
        assert "cannot be installed" in line.note
        assert line.figures(10)["rows_per_s"] == "-"


def test_a_peer_with_another_answer_has_no_figure(tmp_path: Path, monkeypatch) -> None:
    told = {"seconds": 1.0, "cpu_s": 1.0, "answer": [7, 2.5]}
    monkeypatch.setattr(others, "_installed", lambda *_: tmp_path)
    monkeypatch.setattr(others, "_run", lambda *_: dict(told))
    (right,) = others.measure(others.PEERS[0], tmp_path, tmp_path, {"join": (7, 2.5)})
    (few,) = others.measure(others.PEERS[0], tmp_path, tmp_path, {"join": (8, 2.5)})
    (less,) = others.measure(others.PEERS[0], tmp_path, tmp_path, {"join": (7, 2.6)})
    assert right.figures(10)["rows_per_s"] == 10
    assert few.figures(10)["rows_per_s"] == less.figures(10)["rows_per_s"] == "-"


def test_curves_are_by_name_and_leave_out_what_has_no_figure() -> None:
    plot = plots.Plot("s", "x", "y", ("view", "rows"))
    lines = [
        {"view": "a", "rows": 1, "x": 1, "y": 2.5},
        {"view": "a", "rows": 1, "x": 2, "y": "-"},
        {"view": "a", "rows": 5, "x": 1, "y": 4},
    ]
    assert plots.curves(plot, lines) == {"a, rows 1": [(1, 2.5)], "a, rows 5": [(1, 4)]}


def test_changes_end_where_they_are_told_to(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        stream = shapes.Stream(conn, 1_000)
        stream.fill()
        for _ in range(3):
            stream.change(50, 100)  # a step longer than all of them
            stream.change(130, 100)  # a step that does not divide them
        row = conn.execute("SELECT count(*), max(id) FROM orders").fetchone()
        # A fifth of the rows is new; the row inserted last has the number of the last change.
        assert row == (1_000, 1_000 + 3 * 180 // 5)
