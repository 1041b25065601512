"""alter_view that keeps a view's states, if the query has changed only above them.

    suspend ─► states durable at mark m ─► one transaction: rows made of the table's, catalog
            ─► the worker gives the states to the view of the new id, and it goes on after m

For the worker it is a new view, as after any alter_view, but one that takes over states. The
tables of the query are not read, and the states are not touched. If this is not possible, the view
is filled anew and the notice gives the reason.

* Invariant: the table has the rows of the states at m. Nothing was written since, the table is
  locked, and states that are found at another mark are not taken over.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from headrace.collections import plan, state_reuse
from headrace.collections.state_reuse import Common, NotReusable
from headrace.errors import SnapshotLost
from headrace.population import alter_table_plan, choice, recompute_in_place, uses
from headrace.population.alter_table_plan import AlterTablePlan
from headrace.population.choice import Choice
from headrace.population.context import JobContext
from headrace.population.job import Job, cancelled
from headrace.population.replace import Replaced, repair
from headrace.population.staging import Staging
from headrace.population.tables import TableSize
from headrace.postgres import fingerprint
from headrace.postgres.connect import Connection
from headrace.process import bounds, faults
from headrace.process.bounds import Bound
from headrace.sink import table
from headrace.sql import history, nodes, progress, watched
from headrace.sql.views import StoredView, ViewRow
from headrace.views.alter_rebuild import ViewAlteration, Wanted
from headrace.views.resync import Replanned


class StateReusingAlter(ViewAlteration):
    """One alter_view after planning, which keeps the states if it can."""

    def __init__(
        self,
        context: JobContext,
        job: Job,
        view: ViewRow,
        stored: StoredView,
        again: Replanned,
        wanted: Wanted,
    ) -> None:
        super().__init__(context, job, view, stored, again, wanted)
        self._told: dict[str, Any] = {}
        """The worker's description of the states."""
        self._keeping: Common | None = None
        self._why = ""
        self._rows = 0
        try:
            self._keeping = self._found()
        except NotReusable as reason:
            self._why = str(reason)

    def _found(self) -> Common:
        """Return the nodes that the old and the new query have in common.

        Raises:
            NotReusable: there are none, or their states cannot be kept.
        """
        if self._moves:
            raise NotReusable("it gets another owner")
        if self._planned.parts or nodes.whole(self._options.placement):
            raise NotReusable("other workers have states of it")
        if self._options.sharing != self._before.options.sharing:
            raise NotReusable("whether it shares with other views is changed")
        try:
            before = plan.from_json(self._before.plan)
        except (ValueError, TypeError, KeyError):
            raise NotReusable("its plan is of an earlier version of headrace") from None
        old = (before, self._before.settings)
        return state_reuse.find(old, (self._planned.physical, self._planned.settings))

    # --- steps

    def _choose(self, sizes: dict[str, TableSize]) -> Choice:
        """Choose local population if the states are kept: nothing is loaded then."""
        chosen = super()._choose(sizes)
        return chosen if self._keeping is None else replace(chosen, mode=choice.LOCAL)

    def _populate(self, staged: Staging, position: dict[str, Any], attempt: int) -> int:
        if self._keeping is not None:
            try:
                return self._go_on(self._keeping, staged, position)
            except NotReusable as reason:
                self._keeping, self._why = None, str(reason)
                self._kept = self._replaced = None
                # The view follows its tables again meanwhile.
                self._worker.release()
                position = self._worker.hold()
        self._log.info("altered view is rebuilt", reason=self._why)
        return super()._populate(staged, position, attempt)

    def _go_on(self, found: Common, staged: Staging, position: dict[str, Any]) -> int:
        """Give the states to the altered view; return its number of rows.

        Raises:
            NotReusable: the states cannot be kept.
        """
        staged.make()
        self._told = self._ask(found)
        facts = {
            **self._told,
            **{"view_id": self._view_id, "held": position},
            **{"kept": self._view.id, "nodes": sorted(found.nodes)},
        }
        faults.point(faults.STATES_KEPT)
        with self._connect() as conn:
            taken = self._facts_now(conn, self._planned_under)
        uses.check_planned(self._planned_under, self._planned.physical, taken)
        none: Future[None] = Future()
        none.set_result(None)
        self._publish(staged, facts, taken, none)
        self._log.info("view keeps its states", nodes=sorted(found.nodes))
        return self._rows

    def _ask(self, found: Common) -> dict[str, Any]:
        """Suspend the view with durable states; return the worker's description of them.

        Raises:
            NotReusable: the worker cannot provide them.
        """
        about = {"view_id": self._view.id, "job": self._job.name, "nodes": sorted(found.nodes)}
        told: dict[str, Any] = self._worker.call("keep", about)
        if "why" in told:
            raise NotReusable(str(told["why"]))
        return told

    def appear(self, conn: Connection, staged: Staging, facts: dict[str, Any]) -> None:
        """Check also that the facts hold under which the states were made; see ``Resync``."""
        super().appear(conn, staged, facts)
        if self._keeping is None:
            return
        if self._ask(self._keeping) != self._told:
            raise SnapshotLost("the view went on while it was altered")
        now = self._facts_now(conn, self._planned_under)
        uses.check_planned(self._planned_under, self._planned.physical, now)

    def _suspend(self) -> None:
        if self._keeping is None:
            super()._suspend()

    def _write_rows(
        self, conn: Connection, oid: int | None, staged: Staging, facts: dict[str, Any]
    ) -> int:
        found = self._keeping
        if found is None:
            return super()._write_rows(conn, oid, staged, facts)
        self._check_facts(conn)
        if oid is None or table.fingerprint(conn, oid) is None:
            raise NotReusable("its table was dropped")
        key, publication = self._planned.physical.sink.key, self._settings.publication_name
        if not repair(conn, self._as_is(oid), publication, key):
            raise NotReusable("its table was altered")
        mark = facts["mark"]
        if progress.written(conn, self._view.id) != mark[2]:
            raise SnapshotLost("the view went on while it was altered")
        if history.find(conn, self._view.id, int(facts["txid"]), "0/0") is not None:
            raise NotReusable("its changes are kept")
        self._replaced = self._remake(conn, oid, found, staged)
        return oid

    def _check_facts(self, conn: Connection) -> None:
        """Raise NotReusable if the objects that the states were made of have changed."""
        view_id = self._view.id
        before = watched.load(conn, [view_id]).get(view_id)
        if before is None or before.get("ended"):
            raise NotReusable("it is not known what it was made of")
        if fingerprint.difference(before, self._facts_now(conn, before)) is not None:
            raise NotReusable("an object that its query depends on was altered")

    def _remake(self, conn: Connection, oid: int, found: Common, staged: Staging) -> Replaced:
        """Change the rows of the locked table into those of the new query."""
        before, target = self._as_is(oid), self._target(oid)
        shape = AlterTablePlan.of(table.attributes(conn, oid), target.schema)
        same = found.unchanged >= {f.name for f in target.schema} and before.key == target.key
        if same and not (shape.makes or shape.retyped):
            self._rows = shape.narrow(conn, before, target)
            return Replaced(0, 0)
        limits = bounds.of_filling(self._settings, self._options.limits)
        bound = Bound(limits, "a step of its population")
        remote = self._evaluator(limits.value_bytes)
        self._job.phase("reading")
        try:
            with self._job.cancelling(lambda: bound.cancel(cancelled())), bound.applied():
                self._rows, had = recompute_in_place.remake(
                    self._job, conn, before, found, remote, staged
                )
        finally:
            remote.close()
        faults.point(faults.ROWS_REMADE)
        if shape.makes and not alter_table_plan.is_referred(conn, oid):
            # The rows to write are of the same txid as those that were read.
            return self._refill(conn, shape, staged, had)
        return self._exchange(conn, oid, staged, None)

    def _progress(self, conn: Connection, facts: dict[str, Any]) -> Callable[[], object]:
        """Carry the old view's progress over to the new id."""
        if self._keeping is None:
            return super()._progress(conn, facts)
        return progress.carried(conn, self._view.id, self._view_id)

    def _leave(self) -> None:
        # The old view owns the states until they are handed over.
        if self._keeping is None:
            super()._leave()

    def _notice(self) -> str:
        said = super()._notice()
        if self._keeping is not None:
            return f"{said}; its states were kept"
        return f"{said}; it was rebuilt because {self._why}"
