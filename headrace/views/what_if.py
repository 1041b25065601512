"""what_if: the rows of views that a statement would change, without changing any.

    plan ─► the caller's session runs the statement, and holds its locks ─► hold: states as of then
         ─► the session rolls back, and sends the rows ─► changes of tables ─► diffs of views

The statement's locks are held until the states have every change that was committed before it.
So the states have just the rows that it replaces, and the answer is the effect that it would have
had if it had committed then.  The engine only writes a checkpoint earlier than usual.

The session runs the caller's code, so its rows are a claim.  Hence the answer is given only to a
role that may make any change to the table, and it has only views that the role may read.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace import clock
from headrace.counting import counted
from headrace.errors import (
    HeadraceError,
    PrivilegeError,
    QueryCancelled,
    TransientError,
    UndefinedError,
    UnsupportedError,
    UserError,
)
from headrace.forks.run import Fork, ForkedUnit, copy_states, read_units
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job, cancelled
from headrace.postgres.connect import Connection
from headrace.process import bounds
from headrace.process.bounds import Bound
from headrace.sql import questions, reads, views
from headrace.sql.verbs import WhatIf, WhatIfHold, WhatIfPlan, WhatIfRows
from headrace.sql.views import ViewRow
from headrace.types import parse_lsn
from headrace.views import captured, effects, read_rights
from headrace.views.statement_rows import StatementRows

MOST: Final = 10_000
"""Maximum number of rows of one view that a call returns."""
_HELD_MAX: Final = 8
_HELD_PER_ROLE_MAX: Final = 4
_HELD_S: Final = 60.0
"""Seconds without a step after which held states are dropped: the call has failed."""
_BYTES_MAX: Final = 64 << 20
_SIGNAL_S: Final = 20.0
_BEFORE_S: Final = 30.0
"""Seconds that a call waits for the views before the statement runs, while it has no locks."""
_POLL_S: Final = 0.01
# It flushes all earlier WAL: the source sends only flushed WAL.
_NOW: Final = """
SELECT pg_catalog.pg_logical_emit_message(true, 'headrace', '')::pg_catalog.text,
       pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()
           - '2000-01-01 00:00:00+00'::pg_catalog.timestamptz) * 1000000)::pg_catalog.int8"""
# A role that may do all this can make any row appear or vanish; triggers may forbid it some rows.
_MAY_CHANGE: Final = """
SELECT pg_catalog.pg_has_role(r.oid, c.relowner, 'USAGE') OR r.rolsuper
    OR (pg_catalog.has_table_privilege(r.oid, c.oid, 'SELECT')
        AND (SELECT pg_catalog.bool_and(pg_catalog.has_table_privilege(r.oid, c.oid, p.name))
               FROM pg_catalog.unnest(%(rights)s::text[]) p (name))
        AND (NOT c.relrowsecurity OR r.rolbypassrls)
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
             WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D'))
  FROM pg_catalog.pg_class c, pg_catalog.pg_roles r
 WHERE c.oid = %(table)s::bigint::oid AND r.rolname = coalesce(%(caller)s::name, current_user)"""
_SHOWN: Final = """
SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = %s::bigint::oid"""


@dataclass(slots=True)
class HeldStates:
    """Copied states that wait for the rows of a statement."""

    caller: str | None
    copies: Mapping[str, Path]
    """The copied state database of each worker, by name."""
    units: Sequence[ForkedUnit]
    folder: Path
    views: tuple[int, ...]
    problems: Mapping[int, str]
    instant: int
    """The time for views that read the clock, microseconds since 2000-01-01 UTC."""
    size: int = 0
    used: float = field(default_factory=clock.monotonic)
    """When the last step of the call came, on the monotonic clock."""

    @property
    def rows(self) -> Path:
        """A file with the rows: texts of records, one on each line."""
        return self.folder / "rows"

    def close(self) -> None:
        """Remove the copies."""
        shutil.rmtree(self.folder, ignore_errors=True)


class _Facts(msgspec.Struct, frozen=True):
    """Facts on the statement that the session reports besides its rows."""

    table: int
    """OID of the table that it names."""
    before: dict[int, tuple[int, int, int]]
    """Rows inserted, updated and deleted when it began, by table."""
    counts: dict[int, tuple[int, int, int]]
    """The same when it had ended."""
    locked: list[int]
    """Tables that it has locked against everyone, as only DDL and TRUNCATE do."""
    tracked: bool
    """Whether the counts are kept."""


_READ_FACTS: Final = msgspec.json.Decoder(_Facts)


def what_if_plan(context: JobContext, job: Job, request: WhatIfPlan) -> dict[str, Any]:
    """Return the queries that run a statement, for ``sql/what_if.sql``.

    Raises:
        HeadraceError: as ``captured.read`` and ``captured.capture``.
    """
    standard = request.settings.get("standard_conforming_strings", "on") == "on"
    statement = captured.read(request.statement, standard_strings=standard)
    with job.connection(context.settings.source, what="what_if") as conn, job.translating():
        found = captured.capture(conn, statement, request.caller, request.settings)
        tables = captured.leaves(conn, reads.tables(conn))
        # So that the locks of the statement are held for a short time only.
        asked = {"lsn": _now(conn)[0], "tables": captured.leaves(conn, [found.table])}
        with _soon(job):
            context.worker.call("durable_units", asked, job)
    plan = {
        "query": found.query,
        "table": found.table,
        "settings": found.settings,
        "tables": tables,
    }
    return {"rows": [[msgspec.json.encode(plan).decode()]]}


def what_if_hold(context: JobContext, job: Job, request: WhatIfHold) -> dict[str, Any]:
    """Copy the states as of now, tell the session that asks, and keep them for ``what_if``.

    Raises:
        UserError: 53400, several calls are under way.
        TransientError: 40001, the session has given up its locks.
    """
    settings, number = context.settings, request.question
    with job.connection(settings.source, what="what_if") as conn, job.translating():
        try:
            _hold(context, job, conn, request)
        finally:
            _signal(conn, job, number)
    return {"rows": []}


def _hold(context: JobContext, job: Job, conn: Connection, request: WhatIfHold) -> None:
    settings, number = context.settings, request.question
    _check_room(context, conn, request)
    lsn, instant = _now(conn)
    asked = {"lsn": lsn, "tables": captured.leaves(conn, [request.table])}
    folder = settings.forks_dir / str(number)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        held = _copied(context, job, request, asked, folder, instant)
        if not questions.stands(conn, number):
            raise TransientError("the session has not waited for the states", sqlstate="40001")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    context.held[number] = held
    _drop_later(context, number)


def _check_room(context: JobContext, conn: Connection, request: WhatIfHold) -> None:
    asks = {number: questions.process(number) for number in [*context.held]}
    there = questions.present(conn, asks.values())
    for number, pid in asks.items():
        # A session makes one call at a time.
        if pid not in there or pid == questions.process(request.question):
            _drop(context, number)
    caller, held = request.caller, list(context.held.values())
    own = sum(one.caller == caller for one in held)
    if own >= _HELD_PER_ROLE_MAX or len(held) >= _HELD_MAX:
        whose = f' of role "{caller}"' if own >= _HELD_PER_ROLE_MAX else ""
        raise UserError(
            f"{own if whose else len(held)} calls of what_if{whose} are under way and there may be"
            " no more",
            hint="Wait for some; one that has failed is forgotten after a minute.",
            sqlstate="53400",
        )


def _now(conn: Connection) -> tuple[int, int]:
    """Return a position after all that is committed, and the time, as in ``HeldStates.instant``."""
    row: Any = conn.execute(_NOW).fetchone()
    return parse_lsn(row[0]), int(row[1])


@contextlib.contextmanager
def _soon(job: Job) -> Iterator[None]:
    """Raise QueryCancelled (57014) if the block takes too long."""
    late = threading.Event()

    def end() -> None:
        late.set()
        job.cancel()

    timer = threading.Timer(_BEFORE_S, end)
    timer.start()
    try:
        yield
    except QueryCancelled as error:
        if late.is_set():
            raise QueryCancelled(
                "canceling what_if due to timeout",
                detail=f"Views do not have all earlier changes after {_BEFORE_S:g} s.",
                hint="See headrace.list_views() for their status and lag.",
            ) from error
        raise
    finally:
        timer.cancel()


def _copied(
    context: JobContext,
    job: Job,
    request: WhatIfHold,
    asked: dict[str, Any],
    folder: Path,
    instant: int,
) -> HeldStates:
    asked |= {"describe": True}
    while True:
        facts = context.worker.call("durable_units", asked, job)
        workers = {int(unit): str(name) for unit, name in facts["workers"].items()}
        sources = {name: _states_of(context, name) for name in {"", *workers.values()}}
        copies = copy_states(sources, folder, job.wait)
        # A view that was dropped or filled anew meanwhile may have no states in the copy.
        again = context.worker.call("durable_units", asked | {"describe": False}, job)
        if again["read"] == facts["read"] and again["views"] == facts["views"]:
            break
    units = [ForkedUnit.of_record(r, workers.get(r.id, "")) for r in read_units(facts["units"])]
    problems = {int(view): str(why) for view, why in facts["problems"].items()}
    problems |= {
        unit.id: f'the states of the view are on worker "{unit.worker}", on another machine'
        for unit in units
        if unit.worker not in copies
    }
    held = tuple(view for view in facts["views"] if view not in problems)
    here = [unit for unit in units if unit.worker in copies]
    return HeldStates(request.caller, copies, here, folder, held, problems, instant)


def _states_of(context: JobContext, worker: str) -> Path:
    """Return where a worker has its states, if it is on this machine."""
    settings = context.settings
    return settings.of_worker(worker).state_dir if worker else settings.state_dir


def _signal(conn: Connection, job: Job, number: int) -> None:
    """Tell the session that asks, which sees no rows but locks, and wait until it has seen that."""
    with questions.answered(conn, number):
        left = _SIGNAL_S
        while left > 0 and questions.stands(conn, number):
            job.wait(_POLL_S)
            left -= _POLL_S


def _drop(context: JobContext, number: int) -> None:
    held = context.held.pop(number, None)
    if held is not None:
        held.close()


def _drop_later(context: JobContext, number: int) -> None:
    """Drop held states once no step has come for a while."""

    def look() -> None:
        held = context.held.get(number)
        if held is not None and clock.monotonic() < held.used + _HELD_S:
            _drop_later(context, number)
        else:
            _drop(context, number)

    timer = threading.Timer(_HELD_S, look)
    timer.daemon = True
    timer.start()


def what_if_rows(context: JobContext, job: Job, request: WhatIfRows) -> dict[str, Any]:
    """Take some of the rows of a statement.

    Raises:
        UserError: 54000, there are too many.
        UndefinedError: 42704, there are no held states of that number and caller.
    """
    held = _held(context, request.call, request.caller)
    held.size += len(request.rows)
    if held.size > _BYTES_MAX:
        raise UserError(
            "the statement changes too many rows",
            detail=f"All rows together may have {_BYTES_MAX >> 20} MB of text.",
            hint="Try it for a part of the rows.",
            sqlstate="54000",
        )
    with held.rows.open("a") as file:
        file.write(f"{request.rows}\n")
    return {"rows": []}


def what_if(context: JobContext, job: Job, request: WhatIf) -> dict[str, Any]:
    """Return the rows of ``sql/what_if_rows.sql``.

    Raises:
        UserError: 22023, an argument is out of range.
        UnsupportedError: 0A000, some of its changes are unknown, or the caller is restricted.
        TransientError: 40001, the rows have changed; a repetition may succeed.
    """
    most = request.most
    with (
        # First of all: states that are not taken are dropped after a while.
        _taken(context, request) as held,
        context.explanations.take(job, request.caller),
        job.connection(context.settings.source, what="what_if") as conn,
        job.translating(),
        contextlib.ExitStack() as stack,
    ):
        if not 0 <= most <= MOST:
            raise UserError(f"argument most must be from 0 to {MOST}", sqlstate="22023")
        try:
            facts = _READ_FACTS.decode(request.facts)
        except msgspec.DecodeError as error:
            raise UserError("the facts cannot be read", sqlstate="22023") from error
        raw = held.rows.read_bytes() if held.rows.exists() else b""
        changed = StatementRows.of(conn, facts.table, raw)
        _check_rights(conn, request.caller, facts.table, changed)
        _check_complete(conn, facts, changed)
        bound = Bound(bounds.of_filling(context.settings, {}), "a step of what_if")
        fork = stack.enter_context(
            contextlib.closing(Fork.open(context.settings, held.copies, held.units))
        )
        with job.cancelling(lambda: bound.cancel(cancelled())):
            found = fork.diffs(changed.batches(), held.instant, bound)
        rows: list[list[Any]] = []
        shown = {**dict.fromkeys(held.views), **held.problems}
        for view, hidden in _readable(conn, request.caller, shown):
            problem, outcome = hidden or shown[view.id], found.get(view.id)
            if problem is None and isinstance(outcome, HeadraceError):
                owns = names.acts_for_owner(conn, view, request.caller)
                problem = _stop(outcome, owns=owns)
            if problem is not None:
                rows.append([_table(conn, view), None, None, None, None, problem])
            elif isinstance(outcome, pa.RecordBatch) and outcome.num_rows:
                schema, name = fork.schema(view.id), _table(conn, view)
                rows += effects.of_view(conn, view, name, schema, outcome, most)
        return {"rows": rows, "notices": _notices(conn, facts, changed, shown)}


@contextlib.contextmanager
def _taken(context: JobContext, request: WhatIf) -> Iterator[HeldStates]:
    _held(context, request.call, request.caller)
    held = context.held.pop(request.call, None)
    if held is None:
        raise _gone()
    try:
        yield held
    finally:
        held.close()


def _held(context: JobContext, number: int, caller: str | None) -> HeldStates:
    held: HeldStates | None = context.held.get(number)
    if held is None or held.caller != caller:
        raise _gone()
    held.used = clock.monotonic()
    return held


def _gone() -> UndefinedError:
    return UndefinedError(
        "the held states of this call are gone", hint="Call what_if again.", sqlstate="42704"
    )


def _stop(error: HeadraceError, *, owns: bool) -> str:
    """Return the note on a view that the statement would stop; a message may have a row's value."""
    return f"the view would stop: {error.message}" if owns else "the view would stop"


def _readable(
    conn: Connection, caller: str | None, ids: Mapping[int, object]
) -> Iterator[tuple[ViewRow, str | None]]:
    """Yield the views whose table the caller may read, by name; and why not all of its rows."""
    found = [view for view_id in ids if (view := views.of_id(conn, view_id)) is not None]
    for view in sorted(found, key=lambda view: view.shown):
        try:
            read_rights.result_table(conn, view, caller, "trying a statement on")
        except (PrivilegeError, UndefinedError):
            continue
        except UnsupportedError as error:
            yield view, error.message
        else:
            yield view, None


def _check_rights(conn: Connection, caller: str | None, table: int, changed: StatementRows) -> None:
    about = {"caller": caller, "table": table, "rights": changed.rights}
    row = conn.execute(_MAY_CHANGE, about).fetchone()
    if row is None or not row[0]:
        raise UnsupportedError(
            f"what_if is not supported for a role that may not make any change to table"
            f" {_shown(conn, table)}",
            detail="The role lacks a right to the whole table, or row security or a trigger of the"
            " table restricts it.",
            hint="Ask the owner of the table to call it.",
        )


def _check_complete(conn: Connection, facts: _Facts, changed: StatementRows) -> None:
    """Raise UnsupportedError unless the rows are all that the statement changes for views."""
    if not facts.tracked:
        raise UnsupportedError(
            "the rows that the statement changes are not counted",
            hint="Turn setting track_counts on.",
        )
    expected = changed.counts()
    for table in captured.leaves(conn, reads.tables(conn)):
        before, after = (some.get(table, (0, 0, 0)) for some in (facts.before, facts.counts))
        counted = [last - first for first, last in zip(before, after, strict=True)]
        returned = expected.get(table, [0, 0, 0])
        if counted == returned and table not in facts.locked:
            continue
        if table in expected and counted[1] > returned[1] and counted[0] < returned[0]:
            raise UnsupportedError(
                f"the statement changes the key of rows of table {_shown(conn, table)}",
                detail="Before Postgres 18 their old rows cannot be found.",
            )
        raise UnsupportedError(
            f"the statement also changes rows of table {_shown(conn, table)} that it does not"
            " return",
            detail="A trigger, a rule, a foreign key or a function changes them.",
        )


def _notices(
    conn: Connection, facts: _Facts, changed: StatementRows, shown: Mapping[int, object]
) -> Sequence[str]:
    table = _shown(conn, facts.table)
    if not shown:
        return [f"no view reads table {table}"]
    rows = changed.rows.num_rows
    return [f"the statement changes {counted(rows, 'row')} of table {table}"]


def _table(conn: Connection, view: ViewRow) -> str:
    return _shown(conn, view.result_oid or 0)


def _shown(conn: Connection, table: int) -> str:
    row = conn.execute(_SHOWN, (table,)).fetchone()
    return str(row[0]) if row else f"with OID {table}"
