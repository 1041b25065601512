"""Control messages and batches in one message, encoded and decoded."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.network.messages import (
    BeginBatch,
    EndStage,
    Reply,
    StageDone,
    TableRows,
    UnitDiffs,
    from_worker,
    packed,
    to_worker,
)

BATCH = pa.record_batch(
    {
        "n:1": pa.array([1, None, 3], pa.int64()),
        "n:2": pa.array(["a", None, "ü" * 100], pa.large_string()),
        "n:3": pa.array([b"", b"\0", None], pa.binary()),
        "__weight": pa.array([1, -1, 2], pa.int64()),
    }
)


@given(oid=st.integers(0, 2**32 - 1), rows=st.integers(0, 3))
def test_a_batch_comes_as_it_went(oid: int, rows: int) -> None:
    """The control message before it may have any length; its buffers are aligned."""
    word, batch = to_worker(packed(TableRows(oid), BATCH.slice(0, rows)))
    assert word == TableRows(oid)
    assert batch is not None
    assert batch.equals(BATCH.slice(0, rows))
    assert batch.schema == BATCH.schema
    for column in batch.columns:
        assert all(buffer is None or buffer.address % 8 == 0 for buffer in column.buffers())


@pytest.mark.parametrize(
    "word",
    [BeginBatch(6, 7, 1, 2, 3, [[4], [5]], {4: [5, 6]}), EndStage(7, 9, {4: {"C": "22012"}})],
)
def test_words_to_a_worker(word: BeginBatch | EndStage) -> None:
    assert to_worker(packed(word)) == (word, None)


@pytest.mark.parametrize(
    "word",
    [
        Reply(1, 2),
        Reply(1, error={"C": "22012"}),
        StageDone(7, 1, {4: 0.5}, {4: {"C": "22012"}}, None, True, False, 5),
    ],
)
def test_words_from_a_worker(word: Reply | StageDone) -> None:
    assert from_worker(packed(word)) == (word, None)


def test_a_word_of_one_side_is_none_of_the_other() -> None:
    with pytest.raises(Exception, match="Invalid value 'UnitDiffs'"):
        to_worker(packed(UnitDiffs(1), BATCH))
