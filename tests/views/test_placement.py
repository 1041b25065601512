"""Moves of states: a move leaves those of an earlier, interrupted one as they are."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.config import Settings
from headrace.errors import HeadraceError, TransientError
from headrace.population import staging
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.spark import Spark
from headrace.views import placement

FACTS = {"view_id": 7, "mark": [1, 2, 3]}


class Worker:
    """A worker that answers the request to move."""

    def __init__(self, answer: dict[str, Any] | HeadraceError | None) -> None:
        self.answer = answer

    def call(self, method: str, *_: object) -> object:
        if method != "move":
            return {}
        if isinstance(self.answer, HeadraceError):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [None, TransientError("the worker has begun anew")])
def test_a_move_that_does_not_begin_leaves_the_states_of_an_earlier_one(tmp_path, answer):
    """The catalog may name their new place, and a worker has yet to load them."""
    settings = Settings(source="", data_dir=tmp_path)
    staged = staging.of_view(settings.staging_dir, 7)
    staged.make()
    staged.moved.write_bytes(b"states")
    staged.seal(FACTS)
    context = JobContext(settings, cast("Any", Worker(answer)), Spark(settings))
    view = cast("Any", SimpleNamespace(id=7, name="moved"))
    with contextlib.suppress(TransientError):
        assert not placement._shipped(
            context, Job(lambda _: None), view, cast("Any", None), "w1", {}
        )
    assert staged.moved.read_bytes() == b"states"
    assert staging.sealed(settings.staging_dir) == [7]
    assert [path.name for path in settings.staging_dir.iterdir()] == ["7"]
