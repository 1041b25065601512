"""Change batches as views receive them: by column number, typed, and only the columns read."""

from __future__ import annotations

import pyarrow as pa

from headrace.kernels.pgoutput import Changes, Decoder, RelationChanged
from headrace.postgres.numbering import Observation, StreamAttribute, VisibleXids
from headrace.runtime.columns import Columns, Description
from headrace.types import INT4, UNKNOWN
from tests.kernels.test_pgoutput import begin, insert, relation


def decoded() -> tuple[Columns, Changes]:
    """Decode one row of a table with column numbers 1, 3 and 4; the second column was dropped."""
    attributes = [
        StreamAttribute(1, "id", True, ""),
        StreamAttribute(2, "........pg.dropped.2........", False, ""),
        StreamAttribute(3, "a", True, ""),
        StreamAttribute(4, "b", True, ""),
    ]
    seen = [Observation(VisibleXids(100, frozenset()), tuple(attributes))]
    columns, decoder = Columns(lambda oid, xid: seen), Decoder()
    events = decoder.feed([begin(), relation(), insert("1", "x", "2")])
    columns.describe([Description(9, e.relation) for e in events if isinstance(e, RelationChanged)])
    (changes,) = decoder.flush()
    return columns, changes


def test_only_columns_that_are_read_are_decoded():
    columns, changes = decoded()
    head = ["__op", "__lsn", "__old"]
    every = columns.numbered(changes, 9)
    assert every.schema.names == [*head, "n:1", "o:1", "n:3", "o:3", "n:4", "o:4"]
    some = columns.numbered(changes, 9, dict.fromkeys((1, 4, 7), UNKNOWN))
    assert some.schema.names == [*head, "n:1", "o:1", "n:4", "o:4"]
    assert some.to_pylist() == every.select(some.schema.names).to_pylist()
    assert columns.numbered(changes, 9, {}).schema.names == head


def test_what_a_type_does_not_print_stays_text():
    columns, changes = decoded()
    batch = columns.numbered(changes, 9, {1: INT4, 3: INT4, 4: UNKNOWN})
    assert batch.schema.field("n:1").type == batch.schema.field("o:1").type == pa.int32()
    assert batch["n:1"].to_pylist() == [1]
    assert batch["n:3"].to_pylist() == ["x"]
    assert batch["n:4"].to_pylist() == ["2"]
