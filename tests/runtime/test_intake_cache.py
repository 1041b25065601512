"""The intake log as a cache, with ``wal_retention = source``."""

from __future__ import annotations

from pathlib import Path

from headrace.config import Settings
from headrace.forwarder.batcher import Batch
from headrace.runtime.intake_log import IntakeLog
from headrace.runtime.positions import BatchRecord
from headrace.state.rocks import RocksDatabase
from headrace.storage.manager import Storage


def test_it_begins_anew_where_the_stream_goes_on(tmp_path: Path) -> None:
    """After an interrupted replay the stream may begin beyond the last batch of the log."""
    database = RocksDatabase(tmp_path / "state")
    storage = Storage(tmp_path / "queues", 4 << 20)
    log = IntakeLog(Settings(source="dbname=none", data_dir=tmp_path, wal_retention="source"))
    log.open(database, storage)

    def put(txid: int) -> bool:
        record = BatchRecord(txid, 100 * txid, 100 * txid + 100, 0)
        return log.put(record, Batch(end_lsn=record.end_lsn, parts=[[b"C"]]))

    assert [put(txid) for txid in (1, 2, 3)] == [True] * 3
    assert (log.base, log.last, log.lsn) == (0, 3, 400)
    log.rewind()
    assert put(9)
    assert (log.base, log.last, log.lsn) == (8, 9, 1000)
    assert put(10)
    assert not log.covers(3)
    assert log.covers(8)
    assert [record.txid for record in log.records(8)] == [9, 10]
    assert len(storage.queues) == 1
    storage.close()
    database.close()
