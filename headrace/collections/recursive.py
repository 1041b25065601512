"""WITH RECURSIVE: iterations of a step over the rows of the previous iteration.

Rows inside the step have the number of their iteration as one more column (the planner adds it to
every key).  So all iterations share one set of ordinary collections, and outside inputs are stored
once.  A txid runs the step in *rounds*, one per iteration with changes, ascending.  For the
collections of the step each round ends like a txid:

    round -1   diffs of the outside inputs are joined with the old rows of all iterations; the
               resulting diffs of iteration r wait for round r, at every edge
    round r    diffs of R(r), and those waiting for r, run through; the output is diffs of Y(r + 1)

Invariant 1: when round r runs, Y(0) … Y(r) are final, and so is R(r).
Invariant 2: diffs of Y(r) change R(r) and later iterations only.
Invariant 3: at the end of round r the step has, for iterations up to r, seen only rows that the
    commit shows: an expression in it never fails on a combination that no commit showed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections import base, plan
from headrace.collections.listed import ListedIndex
from headrace.errors import BugError, DefiniteFailure
from headrace.kernels import packed
from headrace.process import bounds
from headrace.state.contract import StateStore
from headrace.types import Schema, diff_batch

_NUMBER_BYTES: Final = 4
"""Bytes of an iteration in the state: big-endian, so that rows are sorted by iteration."""
_OUTSIDE: Final = -1
"""The round of the outside inputs."""


class Recursive(base.Collection):
    """Base, then the step over the rows of the previous iteration, until there are none.

    Meaning: R(0) = base, R(i + 1) = step(R(i)), result = R(0) + R(1) + ….  ``distinct``: a row of
        Y(i) that equals one of an earlier iteration, or of its own, is not in R(i).  The output
        has the least representation in the row's first iteration (by length, then bytes).  The
        planner ensures that the step of an empty input is empty.  So the first empty iteration
        is the last, as in Postgres.
    Shape: base, outside inputs of the step -> columns of the base.
    State: those of the step's collections; ``id`` if distinct: canonical key -> iteration, row ->
        weight, one entry per row and iteration that yields it.
    Time: emits on TimeEnd.  Work is proportional to the changes in all iterations.
    Errors: DefiniteFailure (54001) beyond ``iterations_max`` iterations or ``rows_max`` changed
        rows in one; those of the step.
    Source: McSherry et al., Differential dataflow (CIDR 2013), where the iteration is part of the
        time: deletions in cycles end, because a row never supports itself in its own iteration.
    """

    words = "a recursive query"

    def __init__(
        self, node: plan.RecursiveSpec, make: Callable[[plan.Node], base.Collection]
    ) -> None:
        super().__init__(node.id, node.schema, 1 + len(node.outer))
        self._node = node
        self._oids = [field.oid for field in node.schema]
        self._step = _Step(node, [(n, make(n)) for n in node.step[1:]])
        self._work: dict[int, base.Diffed] = {}
        self._new: set[bytes] = set()
        self._counted: dict[bytes, tuple[int, bytes] | None] = {}
        self._out = base.Diffed(node.schema)
        self._state: ListedIndex

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        if self._node.distinct:
            self._state = ListedIndex(store.index(self.id))
        self._step.open(store)

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if port:
            self._step.feed(self._node.outer[port - 1], batch)
        else:
            self._yield(0, batch)
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        self._advance(self._step.end(txid), _OUTSIDE)
        self._count(0)
        while (now := self._next()) is not None:
            bounds.check()
            if now >= self._node.iterations_max:
                self._too_many()
            work = self._work.pop(now, None)
            self._step.begin(now)
            for batch in work.take() if work is not None else ():
                self._out.add(batch)
                self._step.send(self._node.step[0].id, self._numbered(batch, now))
            self._advance(self._step.end(txid), now)
            self._count(now + 1)
        self._counted = {}
        self._step.begin(_OUTSIDE)
        return self._out.take()

    def describe(self) -> str:
        """See ``Collection``."""
        how = "union" if self._node.distinct else "union all"
        return f"Recursive ({how}, {len(self._node.step) - 1} collections in its step)"

    def _next(self) -> int | None:
        """Return the first iteration with changes; None if there is none."""
        return min([*self._work, *self._step.waiting], default=None)

    def _too_many(self) -> None:
        raise DefiniteFailure(
            f"a recursive query did not end after {self._node.iterations_max} iterations",
            detail="Postgres, too, would continue until an iteration finds no new rows.",
            hint="Follow each row once (UNION instead of UNION ALL) or bound the depth in"
            " the query, or create the view with a higher limit: options =>"
            f" '{{\"max_recursion_iterations\": {self._node.iterations_max * 10}}}' (or"
            " raise the setting of that name for all views).",
            sqlstate="54001",
        )

    def _too_wide(self) -> None:
        raise DefiniteFailure(
            f"an iteration of a recursive query returns more than {self._node.rows_max} rows",
            hint="Follow each row once (UNION instead of UNION ALL) or bound the depth in"
            " the query, or create the view with a higher limit: options =>"
            f" '{{\"max_recursion_rows\": {self._node.rows_max * 10}}}' (or raise the"
            " setting of that name for all views).",
            sqlstate="54001",
        )

    def _numbered(self, batch: pa.RecordBatch, iteration: int) -> pa.RecordBatch:
        number = pa.repeat(pa.scalar(iteration, pa.int32()), batch.num_rows)
        columns = [*base.columns_of(batch), number]
        return diff_batch(self._node.step[0].schema, columns, batch.columns[-1])

    def _advance(self, batches: list[pa.RecordBatch], now: int) -> None:
        """Add the diffs that the step made in round ``now`` to the next iteration."""
        if sum(batch.num_rows for batch in batches) > self._node.rows_max:
            self._too_wide()
        for batch in batches:
            if now == _OUTSIDE:
                raise BugError(f'the step of "{self.id}" gave rows out of no iteration')
            columns = base.columns_of(batch)[:-1]
            self._yield(now + 1, diff_batch(self.schema, columns, batch.columns[-1]))

    def _yield(self, iteration: int, batch: pa.RecordBatch) -> None:
        """Add diffs of Y(``iteration``)."""
        if not self._node.distinct:
            self._worked(iteration).add(batch)
            return
        columns = base.columns_of(batch)
        keys = base.keys_of(columns, self._oids, batch.num_rows).strings()
        new = [key for key in dict.fromkeys(keys) if key not in self._counted]
        if new:
            self._counted.update(zip(new, self._first(new), strict=True))
        number = iteration.to_bytes(_NUMBER_BYTES, "big")
        encoded = [number + row for row in base.encode(columns, batch.num_rows).strings()]
        self._state.add_many(keys, encoded, base.weights_of(batch).tolist())
        self._new.update(keys)

    def _worked(self, iteration: int) -> base.Diffed:
        found = self._work.get(iteration)
        if found is None:
            found = self._work[iteration] = base.Diffed(self.schema)
        return found

    def _count(self, iteration: int) -> None:
        """Apply the new diffs of Y(``iteration``) to R."""
        if not self._new:
            return
        touched = sorted(self._new)
        self._new = set()
        changes: dict[int, tuple[list[bytes], list[int]]] = {}
        for key, first in zip(touched, self._first(touched, final=True), strict=True):
            old = self._counted[key]
            if first == old:
                continue
            self._counted[key] = first
            for where, weight in ((old, -1), (first, 1)):
                if where is None:
                    continue
                if where[0] < iteration:
                    raise BugError(f'iteration {where[0]} of "{self.id}" was over')
                found, weights = changes.setdefault(where[0], ([], []))
                found.append(where[1])
                weights.append(weight)
        for number, (found, weights) in changes.items():
            diffs = base.decode(packed.pack(found), self.schema, np.array(weights, np.int64))
            for batch in base.cut(diffs):
                self._worked(number).add(batch)

    def _first(self, keys: list[bytes], *, final: bool = False) -> list[tuple[int, bytes] | None]:
        """Return per key the first iteration with such a row, and the representation to output."""
        at, found, weights = self._state.scan_many(keys)
        out: list[tuple[int, bytes] | None] = [None] * len(keys)
        for place, numbered, weight in zip(at, found, weights, strict=True):
            if weight < 0:
                if final:
                    raise BugError(f'a row in state "{self.id}" has a negative weight')
                continue
            iteration = int.from_bytes(numbered[:_NUMBER_BYTES], "big")
            row = numbered[_NUMBER_BYTES:]
            best = out[place]
            if best is None or (iteration, len(row), row) < (best[0], len(best[1]), best[1]):
                out[place] = (iteration, row)
        return out


class _Step:
    """The collections of the step, run round by round.

    Attributes:
        waiting: Iteration -> diffs that wait for it at edges.
    """

    def __init__(
        self, node: plan.RecursiveSpec, made: list[tuple[plan.Node, base.Collection]]
    ) -> None:
        self.waiting: dict[int, list[tuple[str, pa.RecordBatch]]] = {}
        self._now = _OUTSIDE
        self._last = node.step[-1].id
        self._made = [collection for _, collection in made]
        self._users: dict[str, list[tuple[base.Collection, int]]] = {
            name: [] for name in (*node.outer, *(n.id for n in node.step))
        }
        for each, collection in made:
            for port, name in enumerate(plan.inputs(each)):
                self._users[name].append((collection, port))
        self._places = {n.id: _place(n.schema) for n in node.step}
        self._out: list[pa.RecordBatch] = []

    def open(self, store: StateStore) -> None:
        for collection in self._made:
            collection.open(store)

    def begin(self, iteration: int) -> None:
        """Begin round ``iteration`` with the diffs that wait for it."""
        self._now = iteration
        for name, batch in self.waiting.pop(iteration, ()):
            self.send(name, batch)

    def feed(self, name: str, batch: pa.RecordBatch) -> None:
        """Send diffs to all readers of ``name``, a node of the step or an outside input."""
        for user, port in self._users[name]:
            batches = user.apply(port, batch)
            bounds.made(user, *bounds.measured(batches))
            for out in batches:
                self._leave(user.id, out)

    def end(self, txid: int) -> list[pa.RecordBatch]:
        """End the round, and return its output diffs."""
        for collection in self._made:
            batches = collection.time_end(txid)
            bounds.made(collection, *bounds.measured(batches))
            for out in batches:
                self._leave(collection.id, out)
        batches, self._out = self._out, []
        return batches

    def _leave(self, name: str, batch: pa.RecordBatch) -> None:
        """Send on diffs from a collection; those of later iterations wait."""
        place = self._places[name]
        if batch.num_rows == 0:
            return
        if place is None:
            self.feed(name, batch)
            return
        for number, mine in _by_iteration(batch, place):
            if number < self._now:
                raise BugError(f'"{name}" gave rows of iteration {number} too late')
            if number == self._now:
                self.send(name, mine)
            else:
                self.waiting.setdefault(number, []).append((name, mine))

    def send(self, name: str, batch: pa.RecordBatch) -> None:
        """Send on diffs of this round's iteration, from the work table or a collection."""
        if name == self._last:
            self._out.append(batch)
        else:
            self.feed(name, batch)


def _by_iteration(batch: pa.RecordBatch, place: int) -> list[tuple[int, pa.RecordBatch]]:
    """Split ``batch`` by the iteration in its column ``place``, ascending."""
    numbers = batch.column(place).to_numpy()
    if (numbers == numbers[0]).all():
        return [(int(numbers[0]), batch)]
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    ends = np.append(starts[1:], len(numbers))
    ordered = batch.take(pa.array(order))
    return [
        (int(number), ordered.slice(start, end - start))
        for number, start, end in zip(found, starts.tolist(), ends.tolist(), strict=True)
    ]


def _place(schema: Schema) -> int | None:
    """Return the index of the iteration column; None if rows are the same in all iterations."""
    for place, field in enumerate(schema):
        if field.name == plan.ITERATION:
            return place
    return None
