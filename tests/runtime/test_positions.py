"""Batch positions in the state database (T-11, T-26)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.errors import BugError
from headrace.runtime import positions
from headrace.runtime.positions import BatchRecord, Meta, Position, Records
from headrace.state.rocks import RocksDatabase


def record(txid: int, attempt: int = 0) -> BatchRecord:
    return BatchRecord(txid, txid * 10, txid * 10 + 10, 1_000 + txid, attempt)


def test_records_survive_and_are_found_by_txid(tmp_path):
    db = RocksDatabase(tmp_path / "state")
    kept = positions.records(db)
    assert (kept, kept.last) == ({}, 0)
    meta: Meta = {}
    for txid in (1, 2, 3):
        assert kept.record(meta, record(txid)) == record(txid)
    positions.put_position(meta, Position(3, 40))
    db.put_meta(meta, sync=True)
    db.close()
    db = RocksDatabase(tmp_path / "state")
    again = positions.records(db)
    assert again == kept
    assert list(again) == [1, 2, 3]
    meta = {}
    again.trim(meta, 4)
    db.put_meta(meta, sync=False)
    last = positions.records(db)
    assert (last, last.last) == ({}, 3)
    assert last.record({}, record(4)) == record(4)
    db.close()


def test_batches_are_recorded_without_a_gap():
    kept = Records(last=7)
    kept.record({}, record(8))
    meta: Meta = {}
    for wrong in (7, 10):
        with pytest.raises(BugError, match="the last one is 8"):
            kept.record(meta, record(wrong))
    assert (kept.last, list(kept), meta) == (8, [8], {})


def test_a_recorded_batch_keeps_its_end_and_takes_a_new_attempt():
    kept = Records([record(5)])
    meta: Meta = {}
    assert kept.record(meta, record(5)) == record(5)
    assert meta == {}, "nothing is written for what is known"
    # A replay does not know the beginning of idle time or the time of the commit: the record does.
    again = replace(record(5, attempt=2), start_lsn=0, commit_time_us=0)
    assert kept.record(meta, again) == record(5, attempt=2) == kept[5]
    assert len(meta) == 1
    with pytest.raises(BugError, match="end where"):
        kept.record(meta, replace(record(5), end_lsn=1))


def test_forgetting_leaves_the_rest():
    kept = Records(map(record, (3, 4, 5)))
    meta: Meta = {}
    kept.trim(meta, 5)
    assert (list(kept), len(meta), set(meta.values())) == ([5], 2, {None})
    assert kept.last == 5
