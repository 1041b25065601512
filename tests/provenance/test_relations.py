"""Relations have the rows of the naive evaluator, for any equalities and sizes of pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections.plan import PhysicalPlan, SinkSpec, SourceSpec
from headrace.errors import UserError
from headrace.kernels import text
from headrace.provenance.contributions import Contributions
from headrace.provenance.relations import Budget, TracedPlan
from headrace.provenance.runner import Runner
from headrace.provenance.values import AllowedValues, Equalities, satisfied
from tests.amounts import examples
from tests.plans import all_plans, table
from tests.reference import Row, evaluate
from tests.streams import Table

NAMES = sorted(all_plans(table(1), table(2)))
rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["0", "1", "2", "-3"])),
        st.one_of(st.none(), st.sampled_from(["", "x", "yy"])),
        st.one_of(st.none(), st.sampled_from(["1", "1.0", "1.00", "0.5"])),
    ),
    max_size=6,
)
MEMORY = 1 << 20


def filled(oid: int, chosen: Sequence[tuple[str | None, ...]], *, keyed: bool) -> Table:
    made = table(oid, keyed=keyed)
    made.rows.extend((str(number + 1), *values) for number, values in enumerate(chosen))
    return made


def traced(
    physical: PhysicalPlan, tables: Sequence[Table], size: int, bytes_max: int = MEMORY
) -> tuple[TracedPlan, Contributions]:
    """Return the relations of a plan over tables that are read ``size`` rows at a time."""
    by_oid = {t.oid: t for t in tables}

    def read(source: SourceSpec, equalities: Equalities) -> Iterator[list[pa.Array]]:
        columns = by_oid[source.table_oid].load()
        for start in range(0, len(columns[0]), size):
            piece = [column.slice(start, size) for column in columns]
            mask = satisfied(piece, len(piece[0]), equalities)
            # Postgres may return more rows than are wanted; ``of`` leaves them out.
            keep = mask | (np.arange(len(mask)) % 3 == 0)
            yield [column.filter(pa.array(keep)) for column in piece]

    made = Contributions(100)
    return TracedPlan(physical, Runner(None, 0), read, Budget(bytes_max), made), made


def counted(batch: pa.RecordBatch) -> Counter[Row]:
    out: Counter[Row] = Counter()
    for raw in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        row = tuple(repr(value) if isinstance(value, float) else value for value in raw)
        out[row[:-1]] += row[-1]
    return out


def equalities_of(
    batch: pa.RecordBatch, sink: SinkSpec, places: Sequence[int], at: int
) -> Equalities:
    """Return the values that one row has in the columns ``places``."""
    found = {}
    for place in {p % len(sink.schema) for p in places}:
        oid = sink.schema[place].oid
        shown = text.render(batch.column(place).slice(at, 1), oid).to_pylist()
        found[place] = AllowedValues(oid, frozenset(shown))
    return found


@pytest.mark.parametrize("name", NAMES)
@examples(20)
@given(
    rows,
    rows,
    st.integers(1, 7),
    st.booleans(),
    st.lists(st.integers(0, 7), max_size=3),
    st.integers(0, 20),
)
def test_any_equalities(name, one, two, size, keyed, places, at):
    tables = [filled(1, one, keyed=keyed), filled(2, two, keyed=keyed)]
    physical = all_plans(*tables)[name]
    wanted = evaluate(physical, {t.oid: t.typed() for t in tables})
    relations, _ = traced(physical, tables, size)
    sink = physical.sink
    everything = relations.of(sink.id, {}).whole()
    assert counted(everything.batch) == wanted
    if not everything.count:
        return
    # The same rows, found anew from what one of them has in some columns.
    some = equalities_of(everything.batch, sink, places, at % everything.count)
    mask = satisfied(everything.batch.columns[:-1], everything.count, some)
    again, contributions = traced(physical, tables, size)
    found = again.of(sink.id, some).whole()
    assert counted(found.batch) == counted(everything.batch.filter(pa.array(mask)))
    found.back(found.all())
    check_contributions(contributions, tables)
    # Twice is as often as once.
    before = {oid: rows_of.count for oid, rows_of in contributions.tables.items()}
    found.back(found.all())
    assert before == {oid: rows_of.count for oid, rows_of in contributions.tables.items()}


def check_contributions(contributions: Contributions, tables: Sequence[Table]) -> None:
    for here in tables:
        found = contributions.tables.get(here.oid)
        if found is None:
            continue
        assert 0 < found.count <= len(here.rows)
        assert sum(often for _, often in found.samples(100)) == found.count


def test_what_must_be_held_is_bounded():
    tables = [
        filled(1, [("1", "x" * 1000, "1")] * 40, keyed=True),
        filled(2, [("1", "x", "1")], keyed=True),
    ]
    plans = all_plans(*tables)
    relations, _ = traced(plans["top"], tables, 5, bytes_max=6000)
    with pytest.raises(UserError) as refused:
        relations.of(plans["top"].sink.id, {}).whole()
    assert refused.value.code == "54000"
    # Groups are added up piece by piece, and their rows are counted so.
    relations, contributions = traced(plans["reduce"], tables, 5, bytes_max=6000)
    groups = relations.of(plans["reduce"].sink.id, {}).whole()
    groups.back(groups.all())
    assert contributions.tables[1].count == 40
