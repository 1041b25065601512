"""A streaming server gives the same transactions as one that sends them at their end."""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import ContinuityLost, TransientError
from headrace.forwarder.receiver import Origin, Receiver
from headrace.forwarder.streamed import KINDS, Streams
from headrace.postgres.connect import connect
from headrace.types import parse_lsn

XID = 7


def start(xid=XID, *, first=True) -> bytes:
    return struct.pack("!cIB", b"S", xid, first)


def change(text: str, xid=XID, kind=b"I") -> bytes:
    return kind + struct.pack("!I", xid) + text.encode()


def abort(top: int, xid: int) -> bytes:
    return struct.pack("!cII", b"A", top, xid)


def commit(xid=XID, lsn=100) -> bytes:
    return struct.pack("!cIBQQq", b"c", xid, 0, lsn, lsn + 8, 5)


def handed_on(streams: Streams, *messages: bytes) -> list[bytes]:
    out: list[bytes] = []
    for message in messages:
        assert streams.inside or message[0] in KINDS
        for chunk in streams.take(message) or ():
            out += chunk
    return out


def block(*messages: bytes, xid=XID, first=True) -> list[bytes]:
    return [start(xid, first=first), *messages, b"E"]


def within(out: list[bytes]) -> list[str]:
    """Return the messages of a transaction between its Begin and its Commit."""
    assert (out[0][:1], out[-1][:1]) == (b"B", b"C")
    return [m.decode() for m in out[1:-1]]


@pytest.fixture(params=[0, 1 << 20], ids=["on disk", "in memory"])
def streams(request, tmp_path) -> Iterator[Streams]:
    found = Streams(tmp_path, request.param)
    yield found
    found.close()


def test_blocks_become_a_transaction_at_its_commit(streams):
    assert not handed_on(streams, *block(change("a"), b"O" + b"\0" * 9, change("b", 8)))
    assert not handed_on(streams, *block(change("c", 9), xid=9))
    out = handed_on(streams, *block(change("d"), first=False), commit())
    assert out[0] == struct.pack("!cQqI", b"B", 100, 5, XID)
    assert out[-1] == struct.pack("!cBQQq", b"C", 0, 100, 108, 5)
    assert within(out) == ["Ia", "Ib", "Id"]
    assert within(handed_on(streams, commit(9))) == ["Ic"]
    assert streams.held == (0, 0)


def test_what_is_rolled_back_is_gone(streams):
    handed_on(streams, *block(change("a"), change("b", 8), change("c", 9)))
    handed_on(streams, abort(XID, 9))
    handed_on(streams, *block(change("d", 8), first=False), abort(XID, 8), abort(XID, 8))
    # Aborts of a subtransaction and of a transaction that have sent nothing.
    handed_on(streams, abort(XID, 11), abort(12, 12))
    out = handed_on(streams, *block(change("e"), change("f", 10), first=False), commit())
    assert within(out) == ["Ia", "Ie", "If"]
    handed_on(streams, *block(change("a")), abort(XID, XID))
    assert streams.held == (0, 0)
    with pytest.raises(ContinuityLost):
        handed_on(streams, commit())


def test_a_transaction_with_nothing_left_is_none(streams):
    assert not handed_on(streams, *block(), commit())
    assert not handed_on(streams, *block(change("a", 8)), abort(XID, 8), commit())


@pytest.mark.parametrize(
    "messages",
    [
        [commit()],
        [start(first=False)],
        [*block(), start()],
        [start(), start(8)],
        [start(), commit()],
        [start(), abort(XID, XID)],
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, messages):
    with pytest.raises(ContinuityLost):
        handed_on(Streams(tmp_path, 1000), *messages)


def test_who_asks_meanwhile_what_they_take(tmp_path):
    """Another thread asks while transactions come and go."""
    streams = Streams(tmp_path, 100)
    over = threading.Event()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            while not over.is_set():
                assert min(streams.held) >= 0
        except BaseException as error:  # noqa: BLE001  looked at below
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for number in range(100):
            handed_on(streams, *block(change("a" * 60, number), xid=number))
        for number in range(100, 3000):
            handed_on(streams, *block(change("a" * 60, number), xid=number), abort(number, number))
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)
        streams.close()
    assert not errors


def test_no_room_on_disk(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TransientError):
        handed_on(Streams(tmp_path / "file", 100), *block(change("a" * 200)))


def test_any_undoing_in_any_memory(tmp_path):
    """Savepoints nest as in Postgres; only changes that were not rolled back are left."""
    for seed in range(200):
        rng = random.Random(seed)
        streams = Streams(tmp_path, rng.choice([0, 100, 300, 10_000]))
        numbers = itertools.count(XID + 1)
        # Each level: its number, its changes, and those of levels released into it, by number.
        levels: list[tuple[int, list[str], list[int]]] = [(XID, [], [])]
        first = True
        for step in range(rng.randrange(1, 60)):
            move = rng.random()
            if move < 0.5:
                texts = [f"{step}.{n}" for n in range(rng.randrange(1, 4))]
                sent = [change(t, levels[-1][0]) for t in texts]
                handed_on(streams, *block(*sent, first=first))
                first = False
                levels[-1][1].extend(f"I{t}" for t in texts)
            elif move < 0.7:
                levels.append((next(numbers), [], []))
            elif len(levels) > 1 and move < 0.85:  # RELEASE
                number, texts, others = levels.pop()
                levels[-1][1].extend(texts)
                levels[-1][2].extend((*others, number))
            elif len(levels) > 1:  # ROLLBACK TO
                number, _, others = levels.pop()
                handed_on(streams, *(abort(XID, n) for n in (*others, number)))
        expected = [t for _, texts, _ in levels for t in texts]
        if first:
            continue
        out = handed_on(streams, commit())
        assert (within(out) if out else []) == expected, seed
        assert streams.held == (0, 0)


@contextlib.contextmanager
def receiving(dsn: str, slot: str, folder) -> Iterator[Receiver]:
    with connect(dsn, name="test") as ordinary:
        row = ordinary.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            (slot,),
        ).fetchone()
        assert row is not None
        origin = Origin(dsn, slot, slot, "p", folder, 1000)
        receiver = Receiver(origin, ordinary, parse_lsn(row[0]), lambda *_: None)
        try:
            yield receiver
        finally:
            receiver.close()


def until_commit_of(receiver: Receiver, commits: int) -> list[bytes]:
    out: list[bytes] = []
    deadline = time.monotonic() + 60
    while sum(m[:1] == b"C" for m in out) < commits:
        assert time.monotonic() < deadline, "it comes"
        messages, idle = receiver.gather()
        out += messages
        if idle:
            receiver.wait(0.1)
    return out


@pytest.mark.parametrize("how", ["immediate", "64kB"])
def test_it_is_what_a_server_sends_that_streams_nothing(database, tmp_path, how):
    """Two slots of one server, and concurrent sessions that write and roll back."""
    _compare(database, tmp_path, how, _written)


@pytest.mark.slow
def test_it_is_so_of_prepared_transactions(tmp_path):
    settings = {"max_prepared_transactions": "10"}
    with EmbeddedPostgres(None, 16, settings, durable=False) as server:
        _compare(server.dsn(), tmp_path, "immediate", _prepared)


def _compare(database: str, folder: Path, how: str, written: Callable[[str], int]) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (a int PRIMARY KEY, b text); CREATE TABLE other (a int)")
        conn.execute(
            "CREATE TABLE late (a int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t, late"
        )
        names = [f"{conn.info.dbname}_{n}" for n in "xy"]
        for name in names:
            conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    try:
        commits = written(database)
        setting = {
            "immediate": "-c debug_logical_replication_streaming=immediate",
            "64kB": "-c logical_decoding_work_mem=64kB",
        }[how]
        with receiving(database + f" options='{setting}'", names[0], folder) as receiver:
            streamed = until_commit_of(receiver, commits)
        with psycopg.connect(database, autocommit=True) as conn:
            ((count,),) = conn.execute(
                "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s",
                (names[0],),
            ).fetchall()
            assert count > 0, "else nothing is tested"
            plain = conn.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
                " 'proto_version', '1', 'publication_names', 'p')",
                (names[1],),
            ).fetchall()
        # Each streamed transaction describes its tables anew.
        assert _changes(streamed) == _changes([bytes(row[0]) for row in plain])
        assert _tables(streamed) == _tables([bytes(row[0]) for row in plain])
    finally:
        with psycopg.connect(database, autocommit=True) as conn:
            for name in names:
                conn.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def _changes(messages: list[bytes]) -> list[bytes]:
    return [m for m in messages if m[:1] not in (b"R", b"Y")]


def _tables(messages: list[bytes]) -> set[bytes]:
    """Check that each table is described before its changes; return the described tables."""
    known: set[bytes] = set()
    for message in messages:
        if message[:1] == b"R":
            known.add(message[1:5])
        elif message[:1] in (b"I", b"U", b"D"):
            assert message[1:5] in known, "it is described before"
    return known


def _prepared(dsn: str) -> int:
    """Run two-phase transactions among others; return how many changed a published table."""
    with psycopg.connect(dsn) as conn, psycopg.connect(dsn, autocommit=True) as other:
        for number in range(6):
            conn.execute(
                "INSERT INTO t SELECT %s + i, 'x' FROM generate_series(0, 9) i", (number * 10,)
            )
            conn.execute("SAVEPOINT s")
            conn.execute("INSERT INTO late VALUES (%s)", (number,))
            if number % 3 == 0:
                conn.execute("ROLLBACK TO s")
            conn.execute(f"PREPARE TRANSACTION 'g{number}'")
            conn.rollback()
            other.execute("INSERT INTO late VALUES (%s)", (100 + number,))
        for number in (3, 0, 5, 1, 4, 2):
            end = "ROLLBACK" if number in (1, 5) else "COMMIT"
            other.execute(f"{end} PREPARED 'g{number}'")
    return 10


def _written(dsn: str) -> int:
    """Run concurrent sessions; return how many transactions changed a published table."""
    rng = random.Random(5)
    seen = 0
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(psycopg.connect(dsn)) for _ in range(3)]
        begin = 0
        wrote = [False] * len(conns)
        depth = [0] * len(conns)
        for step in range(300):
            at = rng.randrange(len(conns))
            conn = conns[at]
            match rng.randrange(9):
                case 0 | 1 | 2 | 3:
                    many = rng.choice([1, 3, 400])
                    conn.execute(
                        "INSERT INTO t SELECT %s + i, repeat('x', 50) FROM generate_series(0, %s) i",
                        (begin, many - 1),
                    )
                    begin += many
                    wrote[at] = True
                case 4:
                    conn.execute("INSERT INTO other SELECT generate_series(1, 500)")
                case 5 | 6:
                    depth[at] += 1
                    conn.execute(f"SAVEPOINT s{depth[at]}")
                case 7 if depth[at]:
                    verb = rng.choice(["RELEASE", "ROLLBACK TO"])
                    level = rng.randrange(depth[at]) + 1
                    conn.execute(f"{verb} s{level}")
                    depth[at] = level if verb == "ROLLBACK TO" else level - 1
                case 8 if rng.random() < 0.5:
                    if rng.random() < 0.3:
                        conn.rollback()
                    else:
                        if wrote[at]:
                            conn.execute("INSERT INTO late VALUES (%s)", (step,))
                            seen += 1
                        conn.commit()
                    wrote[at], depth[at] = False, 0
        for at, conn in enumerate(conns):
            conn.execute("INSERT INTO late VALUES (%s)", (1000 + at,))
            conn.commit()
            seen += 1
    return seen
