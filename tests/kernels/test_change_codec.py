"""Typed change batches: values read out of the messages, and parsed from their texts, are equal."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import types
from headrace.kernels import text
from headrace.kernels.pgoutput import Changes, Decoder
from headrace.types import UNKNOWN
from tests.kernels.test_pgoutput import begin, change, relation, row

TEXTS = {
    types.BOOL: ("t", "f"),
    types.INT2: ("0", "-32768", "32767"),
    types.INT4: ("7", "-2147483648", "2147483647"),
    types.INT8: ("1", "-9223372036854775808", "9223372036854775807"),
    types.OID: ("0", "4294967295"),
    types.FLOAT4: ("1.5", "NaN", "-Infinity", "1e-30"),
    types.FLOAT8: ("0.1", "-0", "1.7976931348623157e+308", "Infinity"),
    types.DATE: ("2026-02-28", "infinity", "-infinity", "0044-03-15 BC", "294276-12-31"),
    types.TIME: ("00:00:00", "23:59:59.999999", "24:00:00"),
    types.TIMESTAMP: ("2026-11-30 06:00:59.5", "-infinity", "4713-01-01 00:00:00 BC"),
    types.TIMESTAMPTZ: ("2026-11-30 06:00:59.5+00", "infinity", "0001-01-01 00:00:00+00 BC"),
    types.NUMERIC: ("1.10", "NaN", "0"),
    types.TEXT: ("", "a", "naïve ☃", "t"),
    UNKNOWN: ("", "12"),
}
"""Texts as Postgres prints them, by type."""
WRONG = {
    types.BOOL: ("", "true", "x"),
    types.INT2: ("32768", "-32769", "", "-", "1.0", "+1"),
    types.INT4: ("2147483648", "12a"),
    types.INT8: ("9223372036854775808", "-9223372036854775809", "00000000000000000001"),
    types.OID: ("-1", "4294967296"),
    types.FLOAT8: ("", "1,5"),
    types.DATE: ("", "2026-02-29", "2026-13-01", "infinite"),
    types.TIME: ("24:00:01", "12:60:00", "1:00:00"),
    types.TIMESTAMP: ("2026-11-30", "2026-11-30 06:00", ""),
    types.TIMESTAMPTZ: ("2026-11-30 06:00:59", "2026-11-30 06:00:59+01"),
}


def decoded(rng: random.Random, oids: list[int], rows: int, wrong: float) -> Changes:
    """Return changes of rows with random values; a part of the columns has ``wrong`` ones."""
    columns = [(f"c{i}", oid) for i, oid in enumerate(oids)]
    bad = [rng.random() < wrong for _ in oids]
    empty = [rng.random() < 0.2 for _ in oids]

    def values(unsent: bool) -> bytes:
        out: list[str | bool | None] = []
        for i, oid in enumerate(oids):
            texts = TEXTS[oid]
            if bad[i] and rng.random() < 0.1:
                texts = WRONG.get(oid, texts)
            draw = rng.random()
            nothing = empty[i] or draw < 0.2
            out.append(None if nothing else True if unsent and draw < 0.3 else rng.choice(texts))
        return row(*out)

    decoder = Decoder()
    decoder.feed([begin(100), relation(columns=columns)])
    some = rng.random() < 0.5
    for _ in range(rows):
        match rng.randrange(4 if some else 1):
            case 0:
                decoder.feed([change(b"I", b"N", values(False))])
            case 1:
                decoder.feed([change(b"U", b"N", values(True))])
            case 2:
                old = rng.choice((b"K", b"O"))
                decoder.feed([change(b"U", old, values(False), b"N", values(True))])
            case _:
                decoder.feed([change(b"D", rng.choice((b"K", b"O")), values(False))])
    (changes,) = decoder.flush()
    return changes


def by_text(changes: Changes, columns: tuple[tuple[str, int, int], ...]) -> pa.RecordBatch:
    """Return the batch with values parsed from its columns of texts."""
    batch = changes.select(tuple((name, place, UNKNOWN) for name, place, _ in columns))
    names, arrays = batch.schema.names, batch.columns
    for name, _, oid in columns:
        at = names.index(f"n:{name}")
        try:
            arrays[at : at + 2] = [text.parse(a, oid) for a in arrays[at : at + 2]]
        except ValueError:
            continue
    return pa.RecordBatch.from_arrays(arrays, names)


@pytest.mark.parametrize("seed", range(60))
def test_values_are_read_as_from_their_texts(seed):
    rng = random.Random(seed)
    oids = rng.choices(list(TEXTS), k=rng.randrange(1, 9))
    changes = decoded(rng, oids, rng.choice((1, 2, 7, 8, 9, 700)), rng.choice((0.0, 0.5)))
    places = rng.sample(range(len(oids)), rng.randrange(len(oids) + 1))
    columns = tuple((str(place + 1), place, oids[place]) for place in places)
    found = changes.select(columns)
    found.validate(full=True)
    expected = by_text(changes, columns)
    assert found.schema.equals(expected.schema)
    # As text, since NaN differs from itself.
    assert str(found.to_pylist()) == str(expected.to_pylist())
    for mine, other in zip(found.columns, expected.columns, strict=True):
        assert mine.null_count == other.null_count


def test_many_batches_leave_no_memory():
    rng = random.Random(0)
    changes = decoded(rng, list(TEXTS), 700, 1.0)
    columns = tuple((str(i), i, oid) for i, oid in enumerate(TEXTS))
    changes.select(columns)
    before = resident_kb()
    for _ in range(3_000):
        changes.select(columns)
    assert resident_kb() - before < 40_000, "a batch has 100 kB"


def resident_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
