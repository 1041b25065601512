"""The decoder against real slots, and against damaged messages."""

from __future__ import annotations

import contextlib
import struct
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ContinuityLost
from headrace.kernels.pgoutput import (
    Begin,
    Changes,
    Commit,
    Decoder,
    RelationChanged,
    read_begin,
    read_commit,
)
from headrace.types import UNKNOWN

LAYOUT = [("id", 23), ("a", 25), ("b", 1700)]


def relation(oid=5, columns=LAYOUT, identity=b"d") -> bytes:
    head = b"R" + struct.pack(">I", oid) + b"public\0t\0" + identity
    body = b"".join(
        struct.pack(">B", i == 0) + n.encode() + b"\0" + struct.pack(">Ii", t, -1)
        for i, (n, t) in enumerate(columns)
    )
    return head + struct.pack(">H", len(columns)) + body


def row(*values: str | bool | None) -> bytes:
    """Encode a tuple; None is NULL, True unchanged TOAST."""
    out = struct.pack(">H", len(values))
    for value in values:
        if value is None or value is True:
            out += b"u" if value else b"n"
        else:
            content = value.encode()
            out += b"t" + struct.pack(">I", len(content)) + content
    return out


def begin(lsn=100) -> bytes:
    return b"B" + struct.pack(">qqI", lsn, 7, 9)


def commit(lsn=100) -> bytes:
    return b"C" + struct.pack(">bqqq", 0, lsn, lsn + 8, 7)


def change(letter: bytes, *parts: bytes, oid=5) -> bytes:
    return letter + struct.pack(">I", oid) + b"".join(parts)


def insert(*values: str | None, oid=5) -> bytes:
    return change(b"I", b"N", row(*values), oid=oid)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), 0, *oids)


def test_one_transaction():
    decoder = Decoder()
    events = decoder.feed([begin(), relation(), insert("1", "x", None), commit()])
    assert [type(e) for e in events] == [Begin, RelationChanged, Commit]
    assert events[0] == Begin(100, 7, 9)
    assert events[2] == Commit(100, 108, 7)
    described = events[1].relation
    assert (described.namespace, described.name) == ("public", "t")
    assert [c.key for c in described.columns] == [True, False, False]
    assert decoder.pending_rows == 1
    (changes,) = decoder.flush()
    assert changes.relation == described
    changes.batch.validate(full=True)
    expected = {"__op": 0, "__lsn": 100, "__old": 0, "n:id": "1", "o:id": None}
    expected |= {"n:a": "x", "o:a": None, "n:b": None, "o:b": None}
    assert changes.batch.to_pylist() == [expected]
    assert decoder.pending_rows == decoder.pending_bytes == 0
    assert decoder.flush() == []


def test_begin_and_commit_are_written_as_they_are_read():
    assert read_begin(begin(100)) == Begin(100, 7, 9)
    assert read_commit(commit(100)) == Commit(100, 108, 7)
    assert read_begin(begin(100)).encode() == begin(100)
    assert read_commit(commit(100)).encode() == commit(100)


@pytest.mark.parametrize("read", [read_begin, read_commit])
def test_a_malformed_begin_or_commit_stops_the_stream(read):
    whole = (begin if read is read_begin else commit)(100)
    negative = begin(-1) if read is read_begin else commit(-9)
    for wrong in (b"", whole[:1], whole[:-1], whole + b"\0", negative):
        with pytest.raises(ContinuityLost):
            read(wrong)


def test_transactions_share_a_batch_and_may_be_cut_anywhere():
    messages = [begin(), relation(), insert("1", "x", None), commit()]
    messages += [begin(200), insert("2", None, "1.0"), insert("3", "", "2"), commit(200)]
    messages += [begin(300), commit(300), begin(400), truncate(5), insert("4", "y", "3")]
    whole = Decoder()
    whole.feed(messages)
    (together,) = whole.flush()
    assert together.batch["__lsn"].to_pylist() == [100, 200, 200, 400, 400]
    assert together.batch["__op"].to_pylist() == [0, 0, 0, 3, 0]
    single = Decoder()
    pieces = []
    for message in messages:
        single.feed([message])
        pieces += [c.batch for c in single.flush()]
    assert [r for p in pieces for r in p.to_pylist()] == together.batch.to_pylist()


def test_old_rows_and_unchanged_values():
    decoder = Decoder()
    decoder.feed([begin(), relation()])
    decoder.feed([change(b"U", b"N", row("1", True, "2"))])
    decoder.feed([change(b"U", b"K", row("1", None, None), b"N", row("2", "x", "y"))])
    decoder.feed([change(b"U", b"O", row("1", "p", "q"), b"N", row("1", True, "y"))])
    decoder.feed([change(b"D", b"K", row("2", None, None))])
    decoder.feed([change(b"D", b"O", row("2", "x", ""))])
    (changes,) = decoder.flush()
    batch = changes.batch
    batch.validate(full=True)
    assert batch["__op"].to_pylist() == [1, 1, 1, 2, 2]
    assert batch["__old"].to_pylist() == [0, 1, 2, 1, 2]
    assert batch["u:a"].to_pylist() == [True, False, True, False, False]
    assert "u:b" not in batch.schema.names
    assert batch["n:a"].to_pylist() == [None, "x", None, None, None]
    assert batch["o:id"].to_pylist() == [None, "1", "1", "2", "2"]
    assert batch["o:b"].to_pylist() == [None, None, "q", None, ""]


def test_only_chosen_columns_are_decoded_under_chosen_names():
    decoder = Decoder()
    decoder.feed([begin(100), relation(), commit(100), begin(300)])
    decoder.feed([change(b"U", b"O", row("1", "p", "q"), b"N", row("1", True, "y"))])
    (changes,) = decoder.flush()
    assert changes.last_lsn == 300
    (found,) = changes.select((("7", 1, UNKNOWN), ("3", 2, UNKNOWN))).to_pylist()
    head = {"__op": 1, "__lsn": 300, "__old": 2}
    assert found == head | {"n:7": None, "o:7": "p", "u:7": True, "n:3": "y", "o:3": "q"}
    assert changes.select(()).to_pylist() == [head]


def test_columns_without_any_value_in_a_batch():
    decoder = Decoder()
    decoder.feed([begin(), relation()])
    for key in ("1", "2"):
        decoder.feed([change(b"U", b"N", row(key, True, None))])
    (changes,) = decoder.flush()
    batch = changes.batch
    batch.validate(full=True)
    assert batch.schema.names[3:] == ["n:id", "o:id", "n:a", "o:a", "u:a", "n:b", "o:b"]
    assert batch["n:id"].to_pylist() == ["1", "2"]
    assert batch["u:a"].to_pylist() == [True, True]
    for name in ("o:id", "n:a", "o:a", "n:b", "o:b"):
        assert batch[name].to_pylist() == [None, None]


def test_a_new_description_flushes_only_its_relation():
    decoder = Decoder()
    decoder.feed([begin(), relation(5), relation(6), insert("1", None, None)])
    decoder.feed([insert("2", None, None, oid=6)])
    events = decoder.feed([relation(5, [("id", 20)])])
    assert [type(e) for e in events] == [Changes, RelationChanged]
    assert events[0].relation.oid == 5
    assert len(events[0].relation.columns) == 3
    decoder.feed([insert("7")])
    assert {c.relation.oid: c.batch.num_rows for c in decoder.flush()} == {5: 1, 6: 1}


def test_truncate_reaches_every_relation():
    decoder = Decoder()
    decoder.feed([begin(), relation(5), relation(6), truncate(5, 6), commit()])
    assert decoder.pending_rows == 2
    assert [c.batch["__op"].to_pylist() for c in decoder.flush()] == [[3], [3]]


def test_types_origins_and_logical_messages_are_ignored():
    decoder = Decoder()
    ignored = [b"Y" + b"\0" * 4 + b"a\0b\0", b"O" + b"\0" * 8 + b"x\0", b"M\0anything"]
    assert decoder.feed([b"M\0outside", begin(), *ignored, commit()])[0].final_lsn == 100


STARTED = [begin(), relation()]
WRONG = {
    "empty": [b""],
    "unknown": [b"S\0\0\0\0\0"],
    "row outside": [begin(), relation(), commit(), insert("1", "2", "3")],
    "truncate outside": [begin(), relation(), commit(), truncate(5)],
    "nested": [begin(), begin()],
    "commit alone": [commit()],
    "another commit": [begin(100), commit(101)],
    "undescribed": [*STARTED, insert("1", "2", "3", oid=6)],
    "truncate undescribed": [*STARTED, truncate(5, 6)],
    "columns": [*STARTED, insert("1", "2")],
    "trailing": [*STARTED, insert("1", "2", "3") + b"x"],
    "no tuple": [*STARTED, change(b"I", b"NNN")],
    "insert with key": [*STARTED, change(b"I", b"K", row("1", None, None))],
    "delete without": [*STARTED, change(b"D", b"N", row("1", None, None))],
    "unchanged insert": [*STARTED, insert("1", True, None)],
    "unchanged old": [*STARTED, change(b"D", b"O", row("1", True, None))],
    "binary": [*STARTED, change(b"I", b"N\0\3b\0\0\0\1x", b"nn")],
    "length": [*STARTED, change(b"I", b"N\0\3t\0\0\0\2x")],
    "negative": [*STARTED, change(b"I", b"N\0\3t\xff\xff\xff\xffx", b"nn")],
    "long begin": [begin() + b"x"],
    "identity": [begin(), relation(identity=b"x")],
    "name": [begin(), b"R\0\0\0\5public"],
}


@pytest.mark.parametrize("name", WRONG)
def test_whatever_is_unknown_stops_the_stream(name):
    decoder = Decoder()
    with pytest.raises(ContinuityLost):  # noqa: PT012  either call may find it
        decoder.feed(WRONG[name])
        decoder.flush()


GOOD = [
    *(begin(), relation(), insert("1", "text", None), truncate(5)),
    change(b"U", b"K", row("1", None, None), b"N", row("2", True, "12.50")),
    *(change(b"D", b"O", row("2", "x", "y")), commit()),
]


def decode_mutilated(data: st.DataObject) -> None:
    """Decode damaged messages: they raise ContinuityLost, or give a complete batch."""
    messages = list(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        which = data.draw(st.integers(0, len(messages) - 1))
        content = bytearray(messages[which])
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        match data.draw(st.sampled_from(["flip", "cut", "add", "swap"])):
            case "flip" if content:
                content[at] = data.draw(st.integers(0, 255))
            case "cut":
                del content[at:]
            case "add":
                content[at:at] = data.draw(st.binary(max_size=4))
            case _:
                other = data.draw(st.integers(0, len(messages) - 1))
                content[:] = messages[other]
        messages[which] = bytes(content)
    decoder = Decoder()
    try:
        batches = [e for e in decoder.feed(messages) if isinstance(e, Changes)]
        batches += decoder.flush()
    except ContinuityLost:
        return
    for changes in batches:
        changes.batch.validate()


@settings(max_examples=300)
@given(st.data())
def test_mutilated_messages_raise_cleanly(data):
    decode_mutilated(data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=50_000)
@given(st.data())
def test_many_mutilated_messages_raise_cleanly(data):
    decode_mutilated(data)


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_noise_raises_cleanly(messages):
    decoder = Decoder()
    with contextlib.suppress(ContinuityLost):
        decoder.feed([begin(), relation(), *messages])
        decoder.flush()


class Source:
    """A database with one table ``t``, a publication of it and a slot."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn
        self.slot = f"a_test_{uuid.uuid4().hex[:12]}"
        self.decoder = Decoder()

    def setup(self, *statements: str) -> None:
        for statement in statements:
            self.conn.execute(statement)
        self.conn.execute("CREATE PUBLICATION p FOR ALL TABLES")
        create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
        self.conn.execute(create, [self.slot])

    def changes(self, *statements: str) -> list[Changes]:
        """Return the changes of the statements, each its own transaction."""
        for statement in statements:
            self.conn.execute(statement)
        read = (
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'p')"
        )
        messages = [r[0] for r in self.conn.execute(read, [self.slot])]
        events = self.decoder.feed(messages)
        out = [e for e in events if isinstance(e, Changes)] + self.decoder.flush()
        for changes in out:
            changes.batch.validate(full=True)
        return out


@pytest.fixture
def source(database: str) -> Iterator[Source]:
    with psycopg.connect(database, autocommit=True) as conn:
        made = Source(conn)
        yield made
        conn.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            [made.slot],
        )


def columns(changes: Changes, *names: str) -> list[tuple[object, ...]]:
    return list(zip(*(changes.batch[n].to_pylist() for n in names), strict=True))


def test_a_table_with_a_primary_key(source):
    source.setup("CREATE TABLE t (id int PRIMARY KEY, a text, n numeric(6,2))")
    (changes,) = source.changes(
        "INSERT INTO t VALUES (1, 'x', 1), (2, NULL, 2.5), (3, E'tab\\t\\\\é', NULL)",
        "UPDATE t SET a = '' WHERE id = 1",
        "UPDATE t SET id = 4 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
    )
    assert changes.relation.identity == "d"
    assert [c.key for c in changes.relation.columns] == [True, False, False]
    assert columns(changes, "__op", "__old", "o:id", "n:id", "n:a", "n:n", "o:a") == [
        (0, 0, None, "1", "x", "1.00", None),
        (0, 0, None, "2", None, "2.50", None),
        (0, 0, None, "3", "tab\t\\é", None, None),
        (1, 0, None, "1", "", "1.00", None),
        (1, 1, "2", "4", None, "2.50", None),
        (2, 1, "3", None, None, None, None),
    ]
    lsns = changes.batch["__lsn"].to_pylist()
    assert lsns == sorted(lsns)
    assert len(set(lsns)) == 4
    # TRUNCATE changes the table's file, so Postgres describes the table anew.
    for changes in source.changes("INSERT INTO t VALUES (9)", "TRUNCATE t"):
        assert changes.batch.num_rows == 1
    assert columns(changes, "__op", "__old", "n:id") == [(3, 0, None)]


def test_replica_identity_full(source):
    source.setup("CREATE TABLE t (a text, b int)", "ALTER TABLE t REPLICA IDENTITY FULL")
    (changes,) = source.changes(
        "INSERT INTO t VALUES ('x', 1), ('x', NULL)",
        "UPDATE t SET b = 2 WHERE b = 1",
        "DELETE FROM t WHERE b IS NULL",
    )
    assert changes.relation.identity == "f"
    assert columns(changes, "__op", "__old", "o:a", "o:b", "n:a", "n:b") == [
        (0, 0, None, None, "x", "1"),
        (0, 0, None, None, "x", None),
        (1, 2, "x", "1", "x", "2"),
        (2, 2, "x", None, None, None),
    ]


BIG = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i"


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_unchanged_toast(source, identity):
    source.setup(
        "CREATE TABLE t (id int PRIMARY KEY, big text, b int)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
    )
    (changes,) = source.changes(
        f"INSERT INTO t VALUES (1, ({BIG}), 0)", "UPDATE t SET b = 1", "UPDATE t SET big = 'small'"
    )
    (big,) = source.conn.execute(BIG).fetchone()
    kept = identity == "FULL"
    assert columns(changes, "n:big", "u:big", "o:big") == [
        (big, False, None),
        (None, True, big if kept else None),
        ("small", False, big if kept else None),
    ]


def test_a_changed_table_is_described_before_its_new_rows(source):
    source.setup("CREATE TABLE t (id int PRIMARY KEY, a text)")
    first, second = source.changes(
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE t DROP COLUMN a, ADD COLUMN b int DEFAULT 7",
        "INSERT INTO t VALUES (2)",
    )
    assert first.batch["n:a"].to_pylist() == ["x"]
    assert second.batch["n:b"].to_pylist() == ["7"]


def test_many_tables_in_interleaved_statements(source):
    source.setup(*(f"CREATE TABLE t{i} (id int PRIMARY KEY, v text)" for i in range(3)))
    rounds = [f"INSERT INTO t{i % 3} VALUES ({i}, 'v{i}')" for i in range(30)]
    changes = source.changes("; ".join(rounds))
    assert len(changes) == 3
    for batch in changes:
        table = int(batch.relation.name[1:])
        wanted = [(str(i), f"v{i}") for i in range(30) if i % 3 == table]
        assert columns(batch, "n:id", "n:v") == wanted


def test_very_large_pending_rows_come_in_several_batches(monkeypatch):
    monkeypatch.setattr("headrace.kernels.pgoutput._CHUNK_BYTES_MAX", 100)
    decoder = Decoder()
    decoder.feed([begin(), relation()])
    decoder.feed([insert(str(i), "x" * i, None) for i in range(150)])
    parts = decoder.flush()
    assert len(parts) > 50
    assert [v for p in parts for v in p.batch["n:id"].to_pylist()] == [str(i) for i in range(150)]
    assert decoder.pending_rows == 0
