"""Array literals of rows: compiled loops compared with values that are rendered one by one."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from headrace import types
from headrace.kernels import copytext, text
from headrace.types import arrow_type
from tests.kernels.test_change_codec import TEXTS

OIDS = [oid for oid in TEXTS if oid != types.UNKNOWN]
WEIRD = ("", "NULL", 'a"b', "back\\slash", "{1,2}", " ", "a,b", "☃\n\t", "nul", "'")


def batch_of(rng: random.Random, oids: list[int], rows: int) -> pa.RecordBatch:
    """Return random rows, perhaps a slice of more."""
    skipped = rng.choice((0, 0, 1, 3, 8, 13))
    whole = skipped + rows + rng.choice((0, 5))
    columns = []
    for oid in oids:
        texts = TEXTS[oid] + (WEIRD if oid == types.TEXT else ())
        nulls = rng.choice((0.0, 0.3, 1.0))
        values = [None if rng.random() < nulls else rng.choice(texts) for _ in range(whole)]
        columns.append(text.parse(pa.array(values, pa.string()), oid))
    names = [f"c{n}" for n in range(len(oids))]
    weights = pa.array(np.ones(whole, np.int64))
    made = pa.RecordBatch.from_arrays([*columns, weights], [*names, "__weight"])
    return made.slice(skipped, rows)


def rendered(column: pa.Array, oid: int) -> str:
    quoted = oid != types.BOOL and oid not in text.RANGES
    out = []
    for value in text.render(column, oid).to_pylist():
        if value is None:
            out.append("NULL")
        elif quoted:
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            out.append(f'"{escaped}"')
        else:
            out.append(value)
    return f"{{{','.join(out)}}}"


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_written_as_their_values(seed):
    rng = random.Random(seed)
    oids = rng.choices(OIDS, k=rng.randrange(1, 8))
    rows = rng.choice((1, 2, 9, 200))
    batch = batch_of(rng, oids, rows)
    places = np.array(rng.choices(range(rows), k=rng.randrange(rows + 3)), np.int64)
    columns = rng.sample(range(len(oids)), rng.randrange(len(oids) + 1))
    taken = batch.take(pa.array(places))
    expected = [rendered(taken.column(c), oids[c]) for c in columns]
    assert copytext.ArrayColumns(oids).literals(batch, places, columns) == expected


@pytest.mark.parametrize("seed", range(40))
def test_changed_columns_are_those_whose_values_differ(seed):
    rng = random.Random(seed)
    oids = rng.choices(OIDS, k=rng.randrange(1, 8))
    rows = rng.choice((2, 9))
    batch = batch_of(rng, oids, rows)
    count = rng.randrange(1, 4)
    old = np.array(rng.choices(range(rows), k=count), np.int64)
    new = np.array(rng.choices(range(rows), k=count), np.int64)
    # As text, since NaN differs from itself, and 0 equals -0.
    shown = [text.render(batch.column(c), oid).to_pylist() for c, oid in enumerate(oids)]
    differ = [c for c, v in enumerate(shown) if [v[i] for i in old] != [v[i] for i in new]]
    assert copytext.ArrayColumns(oids).changed(batch, old, new) == tuple(differ)


def test_wrong_numbers_and_columns_are_errors():
    batch = batch_of(random.Random(0), [types.INT4, types.TEXT], 3)
    columns = copytext.ArrayColumns([types.INT4, types.TEXT])
    rows = np.array([0, 1], np.int64)
    for wrong in (3, -1):
        with pytest.raises(IndexError):
            columns.literals(batch, np.array([wrong], np.int64), [0])
        with pytest.raises(IndexError):
            columns.changed(batch, rows, np.array([0, wrong], np.int64))
    with pytest.raises(IndexError):
        columns.literals(batch, rows, [2])
    others = copytext.ArrayColumns([types.INT8, types.TEXT])
    with pytest.raises(TypeError):
        others.literals(batch, rows, [0])
    assert arrow_type(types.INT8) != batch.schema.types[0]
    negative = batch_of(random.Random(0), [types.TIME], 1).set_column(0, "c0", pa.array([-5]))
    times = copytext.ArrayColumns([types.TIME])
    with pytest.raises(ValueError, match="out of range"):
        times.literals(negative, rows[:1], [0])
