"""The statements T-1 … T-30 of the requirements (1.4, 2.4, 3.4) that need no server.

Those that need one are in ``test_seed_t_engine.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, deque
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections import build
from headrace.collections.base import Collection, Message
from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan, SourceSpec, inputs
from headrace.errors import BugError, PrerequisiteError, RowsLost, TransientError
from headrace.forwarder.batcher import Batch, Batcher, Cut
from headrace.kernels.pgoutput import Changes, Decoder
from headrace.runtime import positions
from headrace.runtime.coordinator import Coordinator, EmitBatch, EmitCommit, FlightState
from headrace.runtime.edges import Edge
from headrace.runtime.incoming import StreamFrames
from headrace.runtime.jobs import Answer, CommitJob
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.positions import BatchRecord, Meta, Position
from headrace.state.memory import MemoryStore
from headrace.state.rocks import RocksDatabase
from headrace.types import INT4, WEIGHT, Diffs, Field, TimeEnd, arrow_schema
from tests.ledger import diffs
from tests.plans import all_plans, table
from tests.runtime.messages import insert, relation, transaction
from tests.runtime.told import words
from tests.state.lists import listed_map
from tests.streams import INSERT, Op, numbered


class Queued:
    """The collections of a plan over edges that carry messages, in the order of a ``Dataflow``."""

    def __init__(self, physical: PhysicalPlan, store: MemoryStore, lose_at: int = 0) -> None:
        """Create it; the edges lose a row of the message with rows of number ``lose_at``."""
        self._physical = physical
        self._lose_at = lose_at
        self.made = {n.id: build.make(n, physical, store, None, 0) for n in physical.nodes}
        self.passed = 0
        """Messages with rows."""
        self.seen: list[Message] = []
        self._fed: Counter[str] = Counter()
        self._out: list[pa.RecordBatch] = []

    def ingest(self, oid: int, changes: pa.RecordBatch, txid: int, attempt: int) -> None:
        for node in self._physical.nodes:
            if isinstance(node, SourceSpec) and node.table_oid == oid:
                self._fed[node.id] += changes.num_rows
                self._deliver(node.id, 0, Diffs(txid, attempt, changes))

    def end(self, txid: int, attempt: int) -> pa.Table:
        for node in self._physical.nodes:
            if not inputs(node):
                self._deliver(node.id, 0, TimeEnd(txid, attempt, self._fed.pop(node.id, 0)))
        out, self._out = self._out, []
        return pa.Table.from_batches(out, schema=arrow_schema(self._physical.sink.schema))

    def _deliver(self, name: str, port: int, message: Message) -> None:
        self.seen.append(message)
        if isinstance(message, Diffs):
            self.passed += 1
            if self.passed == self._lose_at:
                message = Diffs(message.txid, message.attempt, message.batch[1:])
        for out in self.made[name].receive(port, message):
            if name == self._physical.sink.id and isinstance(out, Diffs):
                self._out.append(out.batch)
            for user in self._physical.nodes:
                for at, read in enumerate(inputs(user)):
                    if read == name:
                        self._deliver(user.id, at, out)


def test_every_statement_has_a_test_of_its_name():
    texts = [p.read_text() for p in Path(__file__).parent.glob("test_seed_t*.py")]
    names = re.findall(r"def test((?:_T_\d+)+)", "\n".join(texts))
    numbers = {int(n) for name in names for n in re.findall(r"\d+", name)}
    assert numbers == set(range(1, 31))


TRACE = """
start | batch 1.0 2.0 3.0 4.0
tick | —
fail 2.0 | batch 2.1 3.1 4.1
processed 2.1 | — (1 not committed)
processed 1.0 | commit 1.0
committed 1.0 | commit 2.1, batch 5.0
source idle; committed 2.1 | —
stale fail 3.0 | —
fail 3.1 | batch 3.2 4.2 5.1 (stored metadata is replayed although the source is idle)
source ready; tick | batch 6.0
processed 3.2 | commit 3.2
fail of commit 3.2 | batch 3.3 4.3 5.2 6.1
processed 3.3 | commit 3.3
processed 4.3 | —
committed 3.3 | commit 4.3, batch 7.0
"""
"""Requirements 3.4, word for word."""


def carry_out(c: Coordinator, event: str):
    """Return the coordinator's emissions for an event of the trace."""
    match event.replace("stale ", "").replace("of commit ", "").split():
        case ["start" | "tick"]:
            return c.tick()
        case ["source", "idle;" | "ready;" as how, *rest]:
            c.source_ready = how == "ready;"
            return carry_out(c, " ".join(rest))
        case ["processed" | "committed" | "fail" as what, which]:
            txid, attempt = map(int, which.split("."))
            verb = {"fail": c.failed, "processed": c.processed}.get(what, c.committed)
            return verb(txid, attempt)
    raise AssertionError(event)


def test_T_23_the_trace_of_the_requirements():
    c = Coordinator(max_pending=4)
    for line in TRACE.strip().splitlines():
        event, emitted = line.split(" | ")
        assert words(carry_out(c, event)) == emitted.split(" (")[0], event


def test_T_2_one_at_a_time_waits_until_all_is_done():
    c = Coordinator(max_pending=1)
    assert words(c.tick()) == "batch 1.0"
    assert words(c.tick()) == "—"
    assert words(c.processed(1, 0)) == "commit 1.0"
    assert words(c.tick()) == "—"
    assert words(c.committed(1, 0)) == "batch 2.0"


def test_T_3_ids_start_at_1_and_a_replay_has_the_same():
    c = Coordinator()
    assert words(c.tick()) == "batch 1.0"
    assert words(c.failed(1, 0)) == "batch 1.1"
    assert words(c.failed(1, 1)) == "batch 1.2"


@given(st.lists(st.sampled_from(["process", "commit", "fail"]), max_size=40))
def test_T_9_commits_are_in_order_and_one_at_a_time(events):
    c = Coordinator(max_pending=3)
    emitted = c.tick()
    committed, now = [], []
    for event in events:
        for emission in emitted:
            if isinstance(emission, EmitCommit):
                now = [emission]
        flying = {f.txid: f for f in c.flights()}
        assert sum(f.state is FlightState.COMMITTING for f in flying.values()) <= 1
        processing = [f for f in flying.values() if f.state is FlightState.PROCESSING]
        emitted = []
        if event == "process" and processing:
            last = processing[-1]  # the last one first: no order among them
            emitted = c.processed(last.txid, last.attempt)
        elif event == "commit" and now and c.state(now[0].txid) is FlightState.COMMITTING:
            committed.append(now[0].txid)
            emitted = c.committed(now[0].txid, now[0].attempt)
        elif event == "fail" and flying:
            first = min(flying)
            emitted = c.failed(first, flying[first].attempt)
    assert committed == list(range(1, len(committed) + 1))


@pytest.mark.parametrize("phase", ["processing", "processed", "committing"])
def test_T_10_failure_in_either_phase_runs_both_again(phase):
    c = Coordinator(max_pending=2)
    c.tick()
    if phase == "processed":
        c.processed(2, 0)
        txid = 2
    else:
        txid = 1
        if phase == "committing":
            assert words(c.processed(1, 0)) == "commit 1.0"
    assert c.state(txid) is FlightState(phase)
    assert f"{txid}.1" in words(c.failed(txid, 0))
    assert c.state(txid) is FlightState.PROCESSING
    if txid == 2:
        c.processed(1, 0)
        c.committed(1, 0)
    assert words(c.processed(txid, 1)) == f"commit {txid}.1"
    assert words(c.committed(txid, 0)) == "—"


def test_T_12_nothing_is_processed_or_committed_unasked():
    c = Coordinator(max_pending=2)
    assert c.processed(1, 0) == []
    c.tick()
    with pytest.raises(BugError, match="while processing"):
        c.committed(1, 0)
    c.processed(1, 0)
    with pytest.raises(BugError, match="while committing"):
        c.processed(1, 0)
    assert c.committed(3, 0) == []


def test_T_14_nothing_of_a_finished_txid_is_kept():
    c = Coordinator(max_pending=2)
    edge = Edge("source")
    physical = all_plans(table(1), table(2))["join residual"]
    flow = Queued(physical, MemoryStore())
    source = table(1)
    for txid in range(1, 30):
        for emission in c.tick():
            assert isinstance(emission, EmitBatch)
        c.failed(txid, 0)
        edge.open(["view"], txid - 1)
        edge.put(Diffs(txid, 1, diffs((Field("x", INT4),), "+ 1")))
        flow.ingest(1, source.changes([Op(INSERT, (str(txid), "1", "x", "1"))]), txid, 1)
        edge.put(TimeEnd(txid, 1, 1))
        assert len(edge.pull("view")) == 2
        flow.end(txid, 1)
        c.processed(txid, 1)
        c.committed(txid, 1)
        c.durable(txid)
    assert edge.statistics()["frames"] == edge.statistics()["rows"] == 0
    # Only the last txid's attempt is left; it identifies late messages.
    for made in flow.made.values():
        assert made._attempts == {29: 1}
        assert all(not p.held and p.rows == 0 for p in made._inputs)
    c.durable(40)
    assert c._taken == {}


def fill(count: int) -> list[bytes]:
    """Return a stream of ``count`` transactions, each with two rows, over one table."""
    out = []
    for number in range(1, count + 1):
        body = [] if number > 1 else [relation()]
        body += [insert(f"{number}{i}", f"{i}", "x", f"{number}.0") for i in (0, 1)]
        out += transaction(number * 10, body)
    return out


@pytest.mark.parametrize("name", ["join", "reduce", "union", "distinct", "failing map"])
def test_T_15_five_replays_give_the_same_bytes(name):
    physical = all_plans(table(1), table(2))[name]
    told = set()
    for attempt in range(5):
        store, decoder = MemoryStore(), Decoder()
        batcher = Batcher(start_lsn=0, cuts=[Cut(1, 30), Cut(2, 60)], interval_s=0)
        messages = fill(6)
        # The socket may cut the stream anywhere.
        for start in range(0, len(messages), attempt + 1):
            batcher.add(messages[start : start + attempt + 1])
        digest = hashlib.sha256()
        flow = Dataflow(physical, store, None, 0)
        for txid in (1, 2):
            batch = batcher.take(0)
            assert isinstance(batch, Batch)
            assert batch.txid == txid
            flow.begin(txid)
            for chunk in StreamFrames(batch, decoder, txid, attempt, InOrder()):
                for frame in chunk:
                    digest.update(ipc(frame.diffs.batch))
                    for oid in (1, 2):
                        flow.ingest(oid, frame.diffs.batch)
            digest.update(ipc(flow.end(txid)))
        told.add((digest.hexdigest(), repr(store.dump())))
    assert len(told) == 1


class InOrder:
    """Knows tables without dropped columns."""

    def described(self, found):
        return {}

    def numbered(self, changes: Changes, xid: int, read: object) -> pa.RecordBatch:
        return numbered(changes)


def ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("name", sorted(all_plans(table(1), table(2))))
def test_T_16_every_message_carries_txid_and_attempt(name):
    one, two = table(1), table(2)
    flow = Queued(all_plans(one, two)[name], MemoryStore())
    for txid, attempt in ((7, 3), (8, 1)):
        flow.seen.clear()
        for here in (one, two):
            op = Op(INSERT, (str(txid), "1", "x", "1"))
            flow.ingest(here.oid, here.changes([op]), txid, attempt)
        flow.end(txid, attempt)
        assert {(m.txid, m.attempt) for m in flow.seen} == {(txid, attempt)}
        assert {type(m) for m in flow.seen} == {Diffs, TimeEnd}


def test_T_18_the_id_goes_up_by_one_per_batch():
    c = Coordinator(max_pending=2)
    seen = [e.txid for e in c.tick()]
    for txid in range(1, 20):
        c.processed(txid, 0)
        seen += [e.txid for e in c.committed(txid, 0) if isinstance(e, EmitBatch)]
    assert seen == list(range(1, 22))


def test_T_24_a_failure_takes_all_later_ones_back():
    c = Coordinator(max_pending=3)
    c.tick()
    c.processed(2, 0)
    c.processed(3, 0)
    assert words(c.failed(1, 0)) == "batch 1.1 2.1 3.1"
    # Results of later txids depended on the batch that failed.
    assert {f.state for f in c.flights()} == {FlightState.PROCESSING}
    assert c.processed(2, 0) == []


def test_T_24_no_row_is_skipped_when_a_replayed_batch_is_shorter():
    # The records were lost in a power failure, so the batches are cut anew.
    c = Coordinator(max_pending=2)
    rows = [m for i in range(1, 101) for m in transaction(i * 10, [b"I" + bytes(5)])]
    first = Batcher(start_lsn=0, interval_s=0, rows_max=150)
    first.add(rows)
    assert [first.take(0).end_lsn for _ in c.tick()] == [500, 1000]
    assert words(c.failed(1, 0)) == "batch 1.1 2.1"
    again = Batcher(start_lsn=0, interval_s=0)
    again.add(rows[: 3 * 30])
    ends = [again.take(0).end_lsn]
    again.add(rows[3 * 30 :])
    ends.append(again.take(0).end_lsn)
    assert ends == [300, 1000]
    committed = []
    for txid, batch_end in enumerate(ends, start=1):
        assert words(c.processed(txid, 1)) == f"commit {txid}.1"
        c.committed(txid, 1)
        start = committed[-1] + 10 if committed else 10
        committed += range(start, batch_end + 1, 10)
    assert committed == [i * 10 for i in range(1, 101)]


def test_T_25_stale_answers_change_nothing():
    c = Coordinator(max_pending=3)
    c.tick()
    c.failed(1, 0)
    before = c.flights()
    for txid in (1, 2, 3):
        assert c.failed(txid, 0) == c.processed(txid, 0) == c.committed(txid, 0) == []
    assert c.failed(9, 0) == []
    assert c.flights() == before
    assert words(c.processed(1, 1)) == "commit 1.1"
    assert words(c.failed(1, 0)) == "—", "also a stale fail of what commits now"
    assert c.state(1) is FlightState.COMMITTING


def test_T_11_T_26_a_crash_between_record_and_emission(tmp_path):
    """The same range is emitted again, although more transactions have come in the meantime."""
    stream = fill(9)
    db = RocksDatabase(tmp_path / "state")
    records = positions.records(db)
    batcher = Batcher(start_lsn=0, interval_s=0)
    batcher.add(stream[:-16])  # of nine transactions, five
    batch = batcher.take(0)
    meta: Meta = {}
    records.record(meta, BatchRecord(1, 0, batch.end_lsn, batch.commit_time_us))
    db.put_meta(meta, sync=False)
    del records
    db.close()

    db = RocksDatabase(tmp_path / "state")
    records = positions.records(db)
    position = positions.get_position(db) or Position(0, 0)
    c = Coordinator(
        position.txid + 1,
        recorded=records.last,
        attempts={t: r.attempt for t, r in records.items()},
    )
    c.source_ready = False
    assert words(c.tick()) == "batch 1.1", "it is known without the source"
    cuts = [Cut(t, r.end_lsn) for t, r in records.items()]
    batcher = Batcher(start_lsn=position.lsn, cuts=cuts, interval_s=0)
    batcher.add(stream)
    again = batcher.take(0)
    assert (again.txid, again.end_lsn) == (1, batch.end_lsn)
    assert list(again.chunks()) == list(batch.chunks())
    assert batcher.take(0).end_lsn == 90
    with pytest.raises(BugError, match="the last one is 1"):
        records.record({}, BatchRecord(3, 0, 90, 0))
    db.close()


def test_T_26_nobody_asks_for_what_is_before_the_committed():
    kept = positions.Records()
    meta: Meta = {}
    for txid in range(1, 4):
        kept.record(meta, BatchRecord(txid, 10 * txid, 10 * txid + 10, 0))
    with pytest.raises(BugError, match="the last one is 3"):
        kept.record(meta, BatchRecord(5, 50, 60, 0))
    kept.trim(meta, 3)
    assert list(kept) == [3]
    with pytest.raises(BugError):
        kept.record(meta, BatchRecord(2, 20, 30, 0))


def test_T_27_attempts_go_up_over_rewinds_and_restarts(tmp_path):
    c = Coordinator(max_pending=2)
    c.tick()
    c.failed(1, 0)
    c.rewind(1, recorded=2)
    assert words(c.tick()) == "batch 1.2 2.2"
    c.processed(1, 2)
    c.committed(1, 2)
    c.rewind(1, recorded=3)
    db = RocksDatabase(tmp_path / "state")
    records, meta = positions.records(db), Meta()
    for emission in c.tick():
        record = BatchRecord(emission.txid, 0, emission.txid, 0, emission.attempt)
        records.record(meta, record)
    db.put_meta(meta, sync=True)
    db.close()
    db = RocksDatabase(tmp_path / "state")
    attempts = {t: r.attempt for t, r in positions.records(db).items()}
    assert attempts == {1: 3, 2: 3}
    c = Coordinator(1, 3, recorded=2, attempts=attempts)
    assert words(c.tick()) == "batch 1.4 2.4 3.0"
    db.close()


def test_T_27_batches_are_throttled_by_an_interval():
    slow = Batcher(start_lsn=0, interval_s=60)
    slow.add(fill(2))
    assert slow.take(0) is None
    quick = Batcher(start_lsn=0, interval_s=0)
    quick.add(fill(2))
    assert quick.take(0).transactions == 2


def test_T_28_a_txid_replays_on_the_value_before_it(tmp_path):
    """The opaque table of 3.4, as versions of state: 4 at txid 2, 1 at txid 1, then 2 more."""
    db = RocksDatabase(tmp_path / "state")
    store = db.view(1)

    def value() -> int:
        (found,) = listed_map(store, "m").get_many([b"k"])
        return int(found or b"0")

    def add(txid: int, more: int) -> int:
        store.begin(txid)
        listed_map(store, "m").put_many([b"k"], [str(value() + more).encode()])
        store.prepare()
        return value()

    add(1, 1)
    store.commit(1)
    db.end_checkpoint(write(db, store, 1))
    assert add(2, 3) == 4
    assert add(3, 2) == 6, "a later one adds to it"
    assert store.rollback(3) in (1, 2)
    assert store.rollback(2) == 1
    assert value() == 1
    assert add(2, 2) == 3, "the same one starts from the value before"
    with pytest.raises(BugError):
        store.begin(1)
    db.close()


def write(db: RocksDatabase, store, txid: int):
    checkpoint = db.begin_checkpoint([(store, txid)], {})
    checkpoint.write(sync=False)
    return checkpoint


def test_T_17_frames_of_an_old_attempt_are_dropped_and_counted():
    edge, row = Edge("source"), diffs((Field("x", INT4),), "+ 1")
    edge.open(["a", "b"], 6)
    edge.put(Diffs(7, 2, row))
    for late in (Diffs(7, 1, row), TimeEnd(7, 0), Diffs(7, 0, row)):
        edge.put(late)
    edge.put(TimeEnd(7, 2, 1))
    assert edge.statistics()["dropped"] == 3
    for successor in ("a", "b"):
        assert [(f.txid, f.attempt) for f in edge.pull(successor)] == [(7, 2)] * 2


@pytest.mark.parametrize("sent", [0, 1, 3])
def test_T_29_an_edge_counts_what_it_delivers(sent):
    edge, row = Edge("source"), diffs((Field("x", INT4),), "+ 1")
    edge.open(["a"], 0)
    edge.put(Diffs(1, 0, row))
    edge.put(Diffs(1, 0, row))
    edge.put(TimeEnd(1, 0, sent))
    with pytest.raises(RowsLost, match=f"2 of the {sent} rows"):
        edge.pull("a")


# --- T-8, T-9, T-17, T-25, T-30: the pipeline between engine and sink thread


def job(txid: int, attempt: int = 0) -> CommitJob:
    return CommitJob(txid, attempt, txid * 16, 1, 0, ())


def begun(count: int) -> Pipeline:
    """Return a pipeline with txids 1 … ``count`` taken and processed."""
    pipeline = Pipeline(count)
    pipeline.rewind(1, 0, {})
    for txid in range(1, count + 1):
        assert pipeline.room
        assert pipeline.begin(txid) == 0
    assert not pipeline.room
    for txid in range(count, 0, -1):
        pipeline.processed(job(txid))
    return pipeline


def states(pipeline: Pipeline) -> str:
    return " ".join(f"{f.txid}.{f.attempt} {f.state.value}" for f in pipeline.flights())


def test_T_8_T_9_later_batches_are_processed_while_one_commits():
    pipeline = begun(3)
    assert pipeline.next_job(0) == job(1)
    assert states(pipeline) == "1.0 committing 2.0 processed 3.0 processed"
    pipeline.committed(Answer(job(1)))
    assert pipeline.next_job(0) == job(2), "the sink thread asks nobody"
    assert pipeline.begin(4) == 0
    assert states(pipeline) == "2.0 committing 3.0 processed 4.0 processing"
    assert [a.job.txid for a in pipeline.answers()] == [1]


def test_T_10_T_25_nothing_later_commits_after_a_failure():
    pipeline = begun(3)
    assert pipeline.next_job(0) == job(1)
    pipeline.failed(TransientError("cut"))
    with pytest.raises(TransientError):
        pipeline.answers()
    pipeline.abort(lambda: None)
    pipeline.rewind(1, 3, {})
    assert [pipeline.begin(txid) for txid in (1, 2, 3)] == [1, 1, 1]
    for txid in (1, 2, 3):
        pipeline.processed(job(txid, 0))  # of an earlier attempt
    assert states(pipeline) == "1.1 processing 2.1 processing 3.1 processing"
    pipeline.processed(job(1, 1))
    assert pipeline.next_job(0) == job(1, 1)


@pytest.mark.parametrize("writing", [False, True])
def test_T_30_a_failed_batch_takes_only_later_ones_with_it(writing):
    pipeline = begun(4)
    if writing:
        assert pipeline.next_job(0) == job(1)
    with pytest.raises(PrerequisiteError, match="batch 5 is not in flight"):
        pipeline.take_back(5)
    assert pipeline.take_back(3)
    if not writing:
        assert pipeline.next_job(0) == job(1)
    pipeline.committed(Answer(job(1)))
    assert pipeline.next_job(0) == job(2)
    pipeline.committed(Answer(job(2)))
    assert not pipeline._jobs, "3 was taken back"
    assert [a.job.txid for a in pipeline.answers()] == [1, 2]
    assert not pipeline.busy
    pipeline.rewind(3, 4, {})
    assert pipeline.begin(3) > 0
    assert pipeline.begin(4) > 0
    assert pipeline.begin(5) == 0


def test_T_30_what_is_being_written_cannot_just_be_taken_back():
    pipeline = begun(2)
    assert pipeline.next_job(0) == job(1)
    assert not pipeline.take_back(1)
    assert states(pipeline) == "1.0 committing 2.0 processed"
    pipeline.committed(Answer(job(1)))  # a late answer, which is ignored
    with pytest.raises(TransientError, match="batch 1 was failed"):
        pipeline.answers()
    pipeline.abort(lambda: None)
    pipeline.rewind(1, 2, {})
    assert pipeline.begin(1) == 1
    waiting = begun(2)
    assert waiting.take_back(1), "but what waits for the sink thread can"
    assert not waiting.busy


# --- T-19 … T-22, T-29: collections and their ends


class Bolt(Collection):
    """A node that passes rows on and records its execute and finish calls."""

    def __init__(self, name: str, ports: int, told: list[str]) -> None:
        super().__init__(name, (Field("x", INT4),), ports)
        self.told = told

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        self.told.append(f"{self.id}.exec")
        return [batch]

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        self.told.append(f"{self.id}.finish {txid}")
        return []

    def describe(self) -> str:
        return self.id


class Topology:
    """A→{B, C}, B→C, C→D over queues that deliver in any order of edges.

    A committer has one more port than inputs: the commit signal is the TimeEnd on that port. B's
    successors finish in the commit phase only because TimeEnds are counted (T-22).
    """

    def __init__(self) -> None:
        self.told: list[str] = []
        ports = {"A": 1, "B": 2, "C": 2, "D": 1}
        self.bolts = {n: Bolt(n, p, self.told) for n, p in ports.items()}
        self.edges: dict[tuple[str, int], deque[Message]] = {
            (name, port): deque() for name, bolt in self.bolts.items() for port in range(bolt.ports)
        }
        self.users = {"A": [("B", 0), ("C", 0)], "B": [("C", 1)], "C": [("D", 0)], "D": []}

    def emit(self, txid: int, attempt: int, rows: int) -> None:
        for value in range(rows):
            batch = diffs(self.bolts["A"].schema, f"+ {value}")
            self.edges["A", 0].append(Diffs(txid, attempt, batch))
        self.edges["A", 0].append(TimeEnd(txid, attempt, rows))

    def commit(self, txid: int, attempt: int) -> None:
        self.told.append(f"*commit* {txid}")
        self.edges["B", 1].append(TimeEnd(txid, attempt))

    def run(self, data: st.DataObject) -> None:
        """Deliver messages until no queue has any."""
        while full := sorted(edge for edge, queue in self.edges.items() if queue):
            name, port = data.draw(st.sampled_from(full))
            message = self.edges[name, port].popleft()
            for out in self.bolts[name].receive(port, message):
                for user in self.users[name]:
                    self.edges[user].append(out)


@given(st.data(), st.integers(0, 4))
def test_T_21_T_22_finishing_order_with_a_committer(data, rows):
    top, c = Topology(), Coordinator(max_pending=1)
    (emission,) = c.tick()
    top.emit(emission.txid, emission.attempt, rows)
    top.run(data)
    a, others = rows, rows + 2 * rows + 2 * rows
    processing = list(top.told)
    assert [e for e in processing if e.startswith("A")] == ["A.exec"] * a + ["A.finish 1"]
    rest = [e for e in processing if not e.startswith("A")]
    assert len(rest) == others
    assert all(e.endswith(".exec") for e in rest), "none of B, C, D has finished"
    assert [b._done for b in top.bolts.values()] == [1, -1, -1, -1]
    (commit,) = c.processed(1, 0)
    assert isinstance(commit, EmitCommit)
    top.commit(commit.txid, commit.attempt)
    top.run(data)
    after = ["*commit* 1", "B.finish 1", "C.finish 1", "D.finish 1"]
    assert top.told[len(processing) :] == after


@given(st.data())
def test_T_20_T_22_a_committer_downstream_needs_no_signal_of_its_own(data):
    """D commits too: its complete batch comes only in the commit phase, in order."""
    top, c = Topology(), Coordinator(max_pending=3)
    effects: list[int] = []
    time_end = top.bolts["D"].time_end
    top.bolts["D"].time_end = lambda txid: effects.append(txid) or time_end(txid)
    for emission in c.tick():
        top.emit(emission.txid, emission.attempt, 2)
    top.run(data)
    assert top.bolts["A"]._done == 3, "T-8: A has gone on"
    assert effects == []
    assert top.told.count("B.exec") == 2, "B may take rows of 2 only after its end of 1"
    for txid in (3, 1, 2):
        for emission in c.processed(txid, 0):
            top.commit(emission.txid, emission.attempt)
    for txid in (1, 2, 3):
        top.run(data)
        assert effects == list(range(1, txid + 1)), "only what commits has an effect"
        for emission in c.committed(txid, 0):
            if isinstance(emission, EmitCommit):
                top.commit(emission.txid, emission.attempt)
    finished = [e for e in top.told if "finish" in e or "commit" in e]
    assert [e for e in finished if not e.startswith("A")] == [
        f"{what} {txid}"
        for txid in (1, 2, 3)
        for what in ("*commit*", "B.finish", "C.finish", "D.finish")
    ]


def test_T_19_basic_batch_and_committing_collections():
    """A filter sends rows at once, a group by once at the end; nothing is visible before."""
    one, two = table(1), table(2)
    sent: dict[str, list[int]] = {}
    for name, node in (("filter map", "keep"), ("reduce", "total")):
        flow = Dataflow(all_plans(one, two)[name], MemoryStore(), None, 0)
        made = flow._nodes[node].made
        flow.ingest(1, one.changes([Op(INSERT, ("1", "1", "x", "1"))]))
        executed = made.metrics.rows_out
        flow.end(1)
        sent[name] = [executed, made.metrics.rows_out - executed]
    assert sent == {"filter map": [1, 0], "reduce": [0, 1]}


@pytest.mark.parametrize("name", ["join", "reduce", "union", "self-join", "distinct"])
def test_T_29_a_lost_row_fails_the_batch_and_the_replay_is_exact(name):
    one, two = table(1), table(2)
    physical = all_plans(one, two)[name]
    ops = [Op(INSERT, (str(i), str(i % 3), "x", "1.0")) for i in range(1, 9)]

    def play(flow: Queued | Dataflow, *at: int) -> str:
        for here in (one, two):
            flow.ingest(here.oid, here.changes(ops), *at)
        return repr(flow.end(1, *at[1:]).to_pydict())

    wanted, queued = MemoryStore(), MemoryStore()
    result = play(Dataflow(physical, wanted, None, 0))
    flow = Queued(physical, queued)
    assert play(flow, 1, 0) == result
    assert queued.dump() == wanted.dump()
    edges, store = flow.passed, MemoryStore()
    assert edges >= 3
    for edge in range(1, edges + 1):
        with pytest.raises(RowsLost):
            play(Queued(physical, store, lose_at=edge), 1, 0)
        store.rollback()
    assert play(Queued(physical, store), 1, 0) == result
    assert store.dump() == wanted.dump()
    assert WEIGHT in result
