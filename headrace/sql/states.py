"""State of each view in ``headrace.views``: its status, message and note.

``become`` writes each status and allows only the transitions of ``sql/status.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from headrace.errors import BugError, HeadraceError
from headrace.postgres.identity import IDENTIFIED
from headrace.sql.status import Status, ways_to

Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]

_BECOME: Final = """
UPDATE headrace.views v
   SET status = %(to)s, sqlstate = %(code)s, message = %(message)s, culprit = %(culprit)s,
       detail = %(detail)s, hint = %(hint)s, tried = NULL,
       since = CASE WHEN v.status = %(to)s THEN v.since ELSE clock_timestamp() END,
       last_error = coalesce(%(message)s, v.last_error),
       last_error_at = CASE WHEN %(message)s IS NULL THEN v.last_error_at ELSE clock_timestamp() END
 WHERE v.id = ANY (%(ids)s) AND v.status = ANY (%(before)s)
   AND (v.status, v.sqlstate, v.message, v.culprit, v.detail, v.hint, v.tried)
       IS DISTINCT FROM (%(to)s, %(code)s, %(message)s, %(culprit)s, %(detail)s, %(hint)s, NULL)"""
_BEGUN: Final = """
UPDATE headrace.views SET start_lsn = %s, result_oid = coalesce(%s::bigint::oid, result_oid),
       note = 'rebuilt at ' || pg_catalog.to_char(
         pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()),
         'YYYY-MM-DD HH24:MI:SS') || ' UTC because ' || %s::text
 WHERE id = %s"""
# mark: catalog state that may prevent populating the view again.
_STOPPED: Final = f"""
SELECT v.id, pg_catalog.format('%%I.%%I', v.schema_name, v.view_name) AS name,
       v.created_at::text AS made, r.rolname AS owner, coalesce(v.message, '') AS message,
       v.culprit, v.detail, v.tried, v.sqlstate, v.options ->> 'on_change' AS on_change,
       v.options ->> 'on_damage' AS on_damage, ROW(headrace.table_mark(v.result_oid),
         pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', v.schema_name, v.view_name))::oid,
         pg_catalog.to_regnamespace(pg_catalog.quote_ident(v.schema_name))::oid,
         (SELECT p.xmin FROM pg_catalog.pg_publication p WHERE p.pubname = %(publication)s),
         ARRAY(SELECT ROW(c.xmin, {IDENTIFIED}) FROM headrace.view_tables t
                 JOIN pg_catalog.pg_class c ON c.oid = t.table_oid
                WHERE t.view_id = v.id ORDER BY t.table_oid),
         ARRAY(SELECT l.status FROM headrace.view_uses u
                 JOIN headrace.views l ON l.result_oid = u.result_oid
                WHERE u.view_id = v.id ORDER BY u.result_oid))::text AS mark,
       ARRAY(SELECT l.id FROM headrace.view_uses u
               JOIN headrace.views l ON l.result_oid = u.result_oid
              WHERE u.view_id = v.id AND l.status = 'error') AS below
  FROM headrace.views v JOIN pg_catalog.pg_roles r ON r.oid = v.owner
 WHERE v.status = 'error' AND v.sqlstate = ANY (%(kinds)s)
 ORDER BY v.id"""  # noqa: S608  our own constant
_RECORD_ATTEMPT: Final = """
UPDATE headrace.views SET tried = %s, note = NULL
 WHERE id = %s AND status = 'error' AND tried IS NOT DISTINCT FROM %s
   AND coalesce(message, '') = %s"""
_NOTE: Final = """
UPDATE headrace.views SET note = %s
 WHERE id = ANY (%s) AND status = 'error' AND note IS DISTINCT FROM %s"""
_KEPT_BY_SOURCE: Final = (
    "no more changes are stored here: changes that it has not read remain in the WAL of your"
    " server (the queue has reached half of queue_bytes_max, or the disk is full)"
)
_LOCKED: Final = """
WITH free AS MATERIALIZED (
    SELECT f.id FROM headrace.views f WHERE f.id = ANY (%(ids)s) FOR NO KEY UPDATE SKIP LOCKED)
SELECT v.id FROM headrace.views v
 WHERE v.id = ANY (%(ids)s) AND v.id <> ALL (ARRAY(SELECT free.id FROM free))"""
_SET_NOTES: Final = """
WITH free AS MATERIALIZED (
    SELECT id FROM headrace.views WHERE {where} FOR NO KEY UPDATE SKIP LOCKED),
 done AS (
    UPDATE headrace.views SET note = {note}
     WHERE id = ANY (ARRAY(SELECT free.id FROM free)) AND {where})
SELECT NOT EXISTS (SELECT FROM headrace.views
                    WHERE {where} AND id <> ALL (ARRAY(SELECT free.id FROM free)))"""
_SAY_KEPT: Final = _SET_NOTES.format(
    note="pg_catalog.concat_ws('; ', note, %(text)s::text)",
    where="status <> 'error' AND pg_catalog.strpos(coalesce(note, ''), %(text)s) = 0",
)
_UNSAY_KEPT: Final = _SET_NOTES.format(
    note="nullif(pg_catalog.replace(pg_catalog.replace("
    " note, '; ' || %(text)s, ''), %(text)s, ''), '')",
    where="pg_catalog.strpos(note, %(text)s) > 0",
)
_WAITING_END: Final = "; it tries again by itself"
_WAITING: Final = "it waits to read the source again: "
_TELL: Final = _SET_NOTES.format(
    note="pg_catalog.concat_ws('; ', note, %(text)s::text)",
    where="id = ANY (%(ids)s) AND status = 'running'",
)
_OVERLOAD: Final = "overloaded: "
_FRESHNESS: Final = "; batches grow, the views fall behind, and nothing is lost"
_WITHOUT: Final = "nullif(pg_catalog.regexp_replace(note, %(pattern)s, '', 'g'), '')"
_END_NOTE: Final = _SET_NOTES.format(note=_WITHOUT, where="note ~ %(pattern)s")
_END_NOTES_OF: Final = _SET_NOTES.format(
    note=_WITHOUT, where="note ~ %(pattern)s AND id = ANY (%(ids)s)"
)
_ANEW: Final = "it is computed anew: "
_ANEW_END: Final = " to catch up"
_SLOW: Final = "it makes other views late: "
_APART: Final = "; in a commit_group of its own it would not"
_WAITED: Final = "it was late: it waited for "
_WAITED_END: Final = ", which took long"
# Every role may see the names of views, as in at_work.sql.
_TELL_LATE: Final = """
WITH slow AS MATERIALIZED (
    SELECT s.key::bigint AS id, s.value AS what FROM pg_catalog.jsonb_each_text(%(slow)s) s),
 named AS (
    SELECT pg_catalog.string_agg(pg_catalog.format('%%I.%%I', v.schema_name, v.view_name), ', ' ORDER BY v.id) AS names
      FROM headrace.views v JOIN slow s ON s.id = v.id),
 free AS MATERIALIZED (
    SELECT f.id FROM headrace.views f WHERE f.id = ANY (%(late)s) OR f.id IN (SELECT id FROM slow)
       FOR NO KEY UPDATE SKIP LOCKED)
UPDATE headrace.views v SET note = pg_catalog.concat_ws('; ',
         nullif(pg_catalog.regexp_replace(coalesce(v.note, ''), %(pattern)s, '', 'g'), ''),
         CASE WHEN s.id IS NULL THEN %(waited)s || n.names || %(waited_end)s
              ELSE %(is_slow)s || s.what || %(apart)s END)
  FROM named n CROSS JOIN headrace.views w LEFT JOIN slow s ON s.id = w.id
 WHERE v.id = w.id AND v.status <> 'error' AND n.names IS NOT NULL
   AND v.id = ANY (ARRAY(SELECT free.id FROM free))"""
_LATE: Final = rf"(; )?({_SLOW}.*?{_APART}|{_WAITED}.*?{_WAITED_END})"
# The view of a wait, and the source's position, in one query.
_LOOK_UP: Final = """
SELECT v.id, v.status, headrace.view_message(v.id) AS message,
       v.sqlstate, v.tried, v.options ->> 'on_change' AS on_change,
       v.options ->> 'on_damage' AS on_damage,
       EXISTS (SELECT FROM pg_roles o, pg_roles c WHERE o.oid = v.owner
          AND c.rolname = %(caller)s AND pg_has_role(c.oid, o.oid, 'USAGE')) AS owns,
       CASE WHEN v.id IS NOT NULL THEN format('%%I.%%I', v.schema_name, v.view_name) END AS name,
       coalesce(%(lsn)s::pg_lsn, now.lsn)::text AS lsn, now.lsn::text AS now,
       pg_current_wal_flush_lsn()::text AS flushed,
       %(lsn)s::pg_lsn IS NULL AND EXISTS (SELECT FROM headrace.view_tables t
         JOIN headrace.stand_ins i ON i.table_oid = t.table_oid WHERE t.view_id = v.id) AS beyond,
       extract(epoch FROM %(timeout)s::interval)::float8 AS timeout,
       EXISTS (SELECT FROM headrace.commands c JOIN pg_roles r ON r.oid = c.caller
         WHERE c.queued AND c.status IN ('pending', 'running') AND r.rolname = %(caller)s
           AND (v.id IS NULL OR c.subject = %(name)s AND c.procedure IN ('create_view', 'drop_view', 'create_assertion', 'drop_assertion'))) AS queued,
       CASE WHEN v.id IS NULL THEN (
         SELECT c.error FROM headrace.commands c JOIN pg_roles r ON r.oid = c.caller
          WHERE c.queued AND c.status = 'failed' AND c.subject = %(name)s AND r.rolname = %(caller)s
          ORDER BY c.id DESC LIMIT 1) END AS failed
  FROM (SELECT parse_ident(%(name)s) AS parts, pg_current_wal_insert_lsn() AS lsn) now
  LEFT JOIN LATERAL (
    SELECT * FROM headrace.views x
     WHERE x.view_name = now.parts[cardinality(now.parts)]
       AND CASE cardinality(now.parts)
           WHEN 1 THEN x.schema_name = ANY (%(path)s::name[]) AND EXISTS (
             SELECT FROM pg_namespace n WHERE n.nspname = x.schema_name
                AND has_schema_privilege(%(caller)s::name, n.oid, 'USAGE'))
           WHEN 2 THEN x.schema_name = now.parts[1] ELSE false END
     ORDER BY array_position(%(path)s::text[], x.schema_name::text) LIMIT 1) v ON true
"""


@dataclass(frozen=True, slots=True)
class StoppedView:
    """View that has stopped with one of the requested SQLSTATEs."""

    id: int
    name: str
    made: str
    owner: str
    message: str
    culprit: str | None
    detail: str | None
    tried: str | None
    """The server's own repair that did not help."""
    sqlstate: str
    on_change: str | None
    on_damage: str | None
    mark: str
    """While it is unchanged, so are the obstacles to populating the view again."""
    below: Sequence[int] = ()
    """Stopped views that it reads."""

    @property
    def reason(self) -> str:
        """Why it has stopped, without the hint."""
        what = f"{self.message} at {self.culprit}" if self.culprit else self.message
        return "; ".join(filter(None, (what, self.detail))).rstrip(".")


@dataclass(frozen=True, slots=True)
class WaitedView:
    """View that a caller waits for, with positions and the caller's timeout."""

    id: int | None
    """None: there is no view of that name."""
    status: Status
    message: str | None
    sqlstate: str | None
    tried: str | None
    on_change: str | None
    on_damage: str | None
    owns: bool
    """Whether the caller acts for its owner."""
    name: str
    lsn: str
    now: str
    flushed: str
    beyond: bool
    """Whether the view reads other databases, which must be asked for their positions."""
    timeout: float | None
    queued: bool
    """Whether calls that the caller has made in transactions, and that may create or drop it, are
    not carried out yet."""
    failed: dict[str, str] | None
    """Error of the last such call about that name, if there is no view."""


def become(
    conn: Connection,
    view_id: int,
    to: Status,
    error: HeadraceError | None = None,
    *,
    only: Collection[Status] | None = None,
) -> bool:
    """Give a view another status, if there is a transition to it; return whether the row changed.

    ``only``: the statuses from which it may come.

    Raises:
        BugError: one of ``only`` has no transition to ``to``.
    """
    before = [s for s in ways_to(to) if only is None or s in only]
    if only is not None and len(before) < len(only):
        raise BugError(f"there is no way from {' or '.join(only)} to {to}")
    told = {
        name: getattr(error, name, None)
        for name in ("code", "message", "culprit", "detail", "hint")
    }
    values = {"to": to, "ids": [view_id], "before": before}
    try:
        return conn.execute(_BECOME, told | values).rowcount == 1
    except (psycopg.DataError, UnicodeError):
        # A text that the database cannot store must not keep the view from stopping.
        plain = {name: text and _plain(text) for name, text in told.items()}
        return conn.execute(_BECOME, plain | values).rowcount == 1


def locked(conn: Connection, views: Collection[int]) -> set[int]:
    """Lock the rows of ``views``, without a wait; return those that are locked elsewhere.

    REQUIRES: an open transaction, which holds the locks until its end.
    """
    return {row[0] for row in conn.execute(_LOCKED, {"ids": sorted(views)}).fetchall()}


def run(conn: Connection, views: Collection[int]) -> None:
    """Set views to ``running`` where a transition allows it, in one statement."""
    told = dict.fromkeys(("code", "message", "culprit", "detail", "hint"))
    to = Status.RUNNING
    values = {"to": to, "ids": sorted(views), "before": ways_to(to)}
    conn.execute(_BECOME, told | values)


def begin(
    conn: Connection,
    view_id: int,
    start_lsn: str,
    *,
    result_oid: int | None = None,
    because: str | None = None,
) -> None:
    """Store the position of a view's population, from which it runs on.

    ``because``: why the server populated it again without a call, for its note.
    """
    conn.execute(_BEGUN, (start_lsn, result_oid, because, view_id))


def reconsider(conn: Connection, view_id: int, error: HeadraceError) -> None:
    """Put ``error`` before the message of a stopped view: the reason for it may be gone."""
    conn.execute(
        "UPDATE headrace.views SET message = concat_ws('; before: ', %s::text, message), sqlstate = %s"
        " WHERE id = %s AND status = 'error'",
        (error.message, error.code, view_id),
    )


def paused_by(conn: Connection, view_id: int, role: str | None) -> None:
    """Store the role that has paused a view."""
    conn.execute(
        "UPDATE headrace.views SET paused_by ="
        " (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = %s) WHERE id = %s",
        (role, view_id),
    )


def message(conn: Connection, view_id: int) -> str | None:
    """Return why a view does not run, as its owner may see it."""
    row = conn.execute("SELECT headrace.view_message(%s)", (view_id,)).fetchone()
    return row[0] if row else None


async def stopped(
    conn: AsyncConnection, kinds: Sequence[str], publication: str
) -> list[StoppedView]:
    """Return views that errors of these SQLSTATEs have stopped, and whose owner exists."""
    async with conn.cursor(row_factory=class_row(StoppedView)) as cursor:
        values = {"kinds": list(kinds), "publication": publication}
        return await (await cursor.execute(_STOPPED, values)).fetchall()


def sqlstate(conn: Connection, view_id: int) -> str | None:
    """Return the SQLSTATE with which a view has stopped; None: it has not, or does not exist."""
    row = conn.execute(
        "SELECT sqlstate FROM headrace.views WHERE id = %s AND status = %s",
        (view_id, Status.ERROR),
    ).fetchone()
    return None if row is None else row[0]


def is_sound(conn: Connection, view_id: int) -> bool:
    """Return whether a view exists and has not stopped for good."""
    row = conn.execute(
        "SELECT FROM headrace.views WHERE id = %s AND status <> %s", (view_id, Status.ERROR)
    )
    return row.fetchone() is not None


async def record_attempt(conn: AsyncConnection, view: StoppedView, tried: str) -> None:
    """Replace a stopped view's note by what was tried, unless it has stopped again meanwhile."""
    await conn.execute(_RECORD_ATTEMPT, (tried, view.id, view.tried, view.message))


def tell_who_keeps(conn: Connection, *, by_source: bool) -> bool:
    """Add to each view's note that its changes cannot be kept here, or remove that.

    Like the functions below, it does not wait for rows that are locked, and returns whether there
    were none.
    """
    return _noted(conn, _SAY_KEPT if by_source else _UNSAY_KEPT, text=_KEPT_BY_SOURCE)


def tell_overload(conn: Connection, why: str) -> bool:
    """Note with each view that it falls behind because of overload."""
    return end_overload(conn) & _noted(conn, _SAY_KEPT, text=f"{_OVERLOAD}{why}{_FRESHNESS}")


def end_overload(conn: Connection) -> bool:
    """Remove the notes of ``tell_overload``."""
    return _noted(conn, _END_NOTE, pattern=f"(; )?{_OVERLOAD}.*{_FRESHNESS}")


def tell_waiting(conn: Connection, views: Sequence[int], why: str) -> bool:
    """Note with ``views`` why they cannot read the source again now."""
    return _noted(conn, _TELL, ids=list(views), text=f"{_WAITING}{why}{_WAITING_END}")


def end_waiting(conn: Connection) -> bool:
    """Remove the notes of ``tell_waiting``."""
    return _noted(conn, _END_NOTE, pattern=f"(; )?{_WAITING}.*{_WAITING_END}")


def tell_late(conn: Connection, slow: Mapping[int, str], late: Sequence[int]) -> None:
    """Note with ``slow`` views what took long, and with those in ``late`` that they waited.

    Rows that are locked are left out: the note is only true for a moment.
    """
    values = {"slow": Jsonb({str(view): what for view, what in slow.items()}), "late": list(late)}
    words = {"waited": _WAITED, "waited_end": _WAITED_END, "is_slow": _SLOW, "apart": _APART}
    conn.execute(_TELL_LATE, values | words | {"pattern": _LATE})


def end_late(conn: Connection) -> bool:
    """Remove the notes of ``tell_late``."""
    return _noted(conn, _END_NOTE, pattern=_LATE)


async def tell_anew(conn: AsyncConnection, view_id: int, left_s: float) -> None:
    """Note with a view that it is computed anew instead of catching up within ``left_s``."""
    text = f"{_ANEW}it would take about {left_s:.0f} s more{_ANEW_END}"
    await conn.execute(_TELL, {"ids": [view_id], "text": text})


async def end_anew(conn: AsyncConnection, view_id: int | None = None) -> None:
    """Remove the note of ``tell_anew``; None: those of all views."""
    query = _END_NOTE if view_id is None else _END_NOTES_OF
    await conn.execute(query, {"pattern": f"(; )?{_ANEW}.*{_ANEW_END}", "ids": [view_id]})


async def note(conn: AsyncConnection, views: Collection[int], text: str) -> None:
    """Store the note of stopped views, which says how they are handled."""
    if views:
        await conn.execute(_NOTE, (text, list(views), text))


async def look_up(conn: AsyncConnection, asked: Mapping[str, Any]) -> WaitedView:
    """Return the view called ``name`` on ``path``, as ``caller`` may name it."""
    async with conn.cursor(row_factory=class_row(WaitedView)) as cursor:
        found = await (await cursor.execute(_LOOK_UP, asked, prepare=True)).fetchone()
    assert found is not None, "an outer join has a row"
    return found


def _noted(conn: Connection, query: str, **values: object) -> bool:
    row = conn.execute(query, values).fetchone()
    return row is not None and bool(row[0])


def _plain(text: str) -> str:
    return text.encode("ascii", "backslashreplace").replace(b"\0", b"\\0").decode("ascii")
