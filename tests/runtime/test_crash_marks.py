"""Crash marks of work in turn, as the next process reads them after a death at any moment."""

from __future__ import annotations

import pytest

from headrace.process.crash_markers import Marks


def test_only_the_present_piece_of_work_is_marked(tmp_path):
    path = tmp_path / "marks"
    marks = Marks(path)
    with marks.in_turn() as mark:
        assert Marks(path).left == [], "no work has begun"
        for unit in (3, 4):
            mark(unit, 7)
            assert Marks(path).left == [(unit, 7)]
    assert Marks(path).left == []


def test_an_error_that_may_end_the_process_leaves_its_mark(tmp_path):
    path = tmp_path / "marks"
    marks = Marks(path, outlived=(ValueError,))

    def fail(error: type[Exception]) -> None:
        with marks.in_turn() as mark:
            mark(5, 9)
            raise error

    for error, left in ((ValueError, []), (KeyError, [(5, 9)])):
        with pytest.raises(error):
            fail(error)
        assert Marks(path).left == left
