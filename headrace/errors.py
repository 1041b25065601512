"""One tree of errors; every class fixes an SQLSTATE and a family.

Five families decide the reaction.  *User* errors are reported and the session continues.
*Definite* failures stop one view and keep its state.  *Transient* ones are retried with bounded
back-off.  *Session* errors end a client session.  *Bugs* stop the process.
Messages follow Postgres: lower-case, no full stop, names quoted; detail and hint are sentences.

The class of the error decides, not its SQLSTATE: a user's function may raise any SQLSTATE.
So ``family`` is called once, where a server has answered (``postgres.failures``,
``expressions.session``), and an error keeps its class across processes (``to_wire``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Self

MESSAGE_CHARS_MAX: Final = 4_000
DETAIL_CHARS_MAX: Final = 64_000
"""A user's function may raise texts of any length; a control message and the catalog must hold
several of them."""


class ErrorFamily(Enum):
    """Family of an error that a server returned for one of Headrace's own statements."""

    TRANSIENT = "the server, or somebody in the way: it may answer otherwise later"
    DEFINITE = "the statement: no row is to blame, and it will not pass"
    DATA = "what it was given, or code of a user"


_FAMILIES: Final = {
    **dict.fromkeys(("08", "40", "53", "57", "58"), ErrorFamily.TRANSIENT),
    **dict.fromkeys(("25006", "55006", "55P03"), ErrorFamily.TRANSIENT),
    **dict.fromkeys(("0A", "25", "28", "2F", "3D", "3F", "42"), ErrorFamily.DEFINITE),
}
"""Families by SQLSTATE or SQLSTATE class; all other errors are about data."""


def family(sqlstate: str | None) -> ErrorFamily:
    """Return the family of an SQLSTATE; None means that the server did not answer."""
    if sqlstate is None:
        return ErrorFamily.TRANSIENT
    default = _FAMILIES.get(sqlstate[:2], ErrorFamily.DATA)
    return _FAMILIES.get(sqlstate, default)


def transient(sqlstate: str | None) -> bool:
    """Return whether a retry may succeed."""
    return family(sqlstate) is ErrorFamily.TRANSIENT


class Then(Enum):
    """Continuation of a view after the user's step; the value ends the hint."""

    RESYNC = ", then create the view again."
    RESUMED = "; then the view goes on by itself."


@dataclass(frozen=True, slots=True)
class Repair:
    """Hint of an error that stops a view.

    Code decides by these fields.  The text is a placeholder where the view has no name yet: the
    caller that knows it names ``CALL headrace.resync_view('<name>')`` instead.
    """

    step: str = ""
    """Step that the user must take first, without a full stop; "" if there is none."""
    then: Then = Then.RESYNC

    def __str__(self) -> str:
        """Return the text of the hint."""
        return f"{self.step}{self.then.value}" if self.step else _NO_STEP


_NOT_ABOUT_DATA: Final = frozenset(
    ("08", "0A", "25", "28", "34", "3D", "3F", "40", "42", "53", "54", "55", "57", "58", "XX")
)
"""Classes of SQLSTATE of which no text of a server quotes values: they are about names, locks,
limits and the like.  A user's function may raise any other."""
_WITHHELD: Final = "the query failed on a row"
_WITHHELD_DETAIL: Final = (
    "The row is not shown, because the view's owner may not be allowed to see it. A role that sees"
    " all rows gets the error of Postgres if it runs the query."
)
_NO_STEP: Final = "Drop the view and create it again."
RESYNC: Final = Repair()


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""

    sqlstate: ClassVar[str] = "XX000"

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | Repair | None = None,
        position: int | None = None,
        sqlstate: str | None = None,
        culprit: str | None = None,
    ) -> None:
        """Create the error; texts that are too long are cut.

        ``position`` is the 1-based character position in the view's query text.
        ``culprit`` describes the row at which the error occurred.
        """
        self.message = _bounded(message, MESSAGE_CHARS_MAX)
        super().__init__(self.message)
        self.detail = detail and _bounded(detail, DETAIL_CHARS_MAX)
        self.repair = hint if isinstance(hint, Repair) else None
        self.hint = _bounded(str(hint), DETAIL_CHARS_MAX) if hint else None
        self.culprit = culprit and _bounded(culprit, MESSAGE_CHARS_MAX)
        self.position = position
        self.code = sqlstate or self.sqlstate

    @property
    def what(self) -> str:
        """The message, with the row if it is known."""
        return f"{self.message} at {self.culprit}" if self.culprit else self.message

    @property
    def advice(self) -> str | Repair | None:
        """The hint as it was given, for an error of another class."""
        return self.repair or self.hint

    def again(self, **other: str | Repair | None) -> Self:
        """Return a copy of the error with the fields in ``other`` replaced."""
        same = {
            "message": self.message,
            "detail": self.detail,
            "hint": self.advice,
            "sqlstate": self.code,
            "culprit": self.culprit,
        }
        return type(self)(**(same | other))  # type: ignore[arg-type]

    def without_values(self) -> HeadraceError:
        """Return the error without the texts that may quote values of a row.

        Those are the texts of a server about data, or of a user's function.
        """
        if self.code[:2] not in _NOT_ABOUT_DATA:
            # Postgres names constraints in the message, and values in the detail.
            message = self.message if self.code.startswith("23") else _WITHHELD
            return self.again(message=message, detail=_WITHHELD_DETAIL, culprit=None)
        return self

    def fields(self) -> dict[str, str]:
        """Return the error's wire fields (``C``, ``M``, ``D``, ``H``, ``P``)."""
        out = {"C": self.code, "M": self.what}
        if self.detail:
            out["D"] = self.detail
        if self.hint:
            out["H"] = self.hint
        if self.position:
            out["P"] = str(self.position)
        return out


# --- user errors: report, the session goes on


class UserError(HeadraceError):
    """The request cannot be carried out as asked; ``sqlstate`` tells why."""

    sqlstate = "22023"


class RowLocked(UserError):
    """The transaction of another call has the catalog row of the view."""

    sqlstate = "55P03"


class UnsupportedError(UserError):
    """A construct that cannot be maintained exactly; refused at create_view."""

    sqlstate = "0A000"


class SystemRelationError(UnsupportedError):
    """The query reads a system relation, or one of Headrace's own."""


class UnreadableViewError(UserError):
    """The query reads a Headrace view that has stopped."""

    sqlstate = "55000"

    def __init__(self, message: str, *, view: str = "", **more: Any) -> None:
        """Create the error; ``view``: qualified and quoted name of the view that has stopped."""
        super().__init__(message, **more)
        self.view = view


class SyntaxUserError(UserError):
    """Malformed command or query."""

    sqlstate = "42601"


class UndefinedError(UserError):
    """A named object does not exist (42704; 42P01 and 42703 are given explicitly)."""

    sqlstate = "42704"


class DuplicateError(UserError):
    """The name is taken."""

    sqlstate = "42710"


class PrivilegeError(UserError):
    """The caller may not do this."""

    sqlstate = "42501"


class PrerequisiteError(UserError):
    """The source database lacks something (wal_level, slot, right, replica identity)."""

    sqlstate = "55000"


class QueryCancelled(UserError):
    """The user gave up waiting; nothing is left behind."""

    sqlstate = "57014"


# --- definite failures: the view stops, its last consistent contents stay


class DefiniteFailure(HeadraceError):
    """The view cannot go on; recorded as its status and message."""

    sqlstate = "55000"


class ViewStopped(DefiniteFailure):
    """The view has stopped already, after it was created or filled."""


class StructureChanged(DefiniteFailure):
    """An object that the view reads was altered, but its query is valid: a resync repairs it."""

    sqlstate = "55H01"


class RightEnded(DefiniteFailure):
    """The view's role lost the right to read an object; the view resumes when it has it again."""

    sqlstate = "42501"


class OwnerGone(DefiniteFailure):
    """The role that owned the view was dropped, so there are no rights to read with."""

    sqlstate = "42704"


class RowError(DefiniteFailure):
    """An expression failed on one row (division by zero, bad cast): SQLSTATE class 22."""

    sqlstate = "22000"

    def without_values(self) -> HeadraceError:
        """Return the error with its SQLSTATE alone: a user's function may have raised it."""
        return RowError(_WITHHELD, detail=_WITHHELD_DETAIL, sqlstate=self.code)


class SinkBlocked(DefiniteFailure):
    """The result table cannot be written now (locked); retried automatically."""

    sqlstate = "55P03"


class SinkTableError(DefiniteFailure):
    """The result table, or its rows, were dropped or changed by another session.

    Another SQLSTATE than the default is the one that Postgres returned for the write.
    """

    sqlstate = "55H03"


class ResultTableChanged(SinkTableError):
    """A user has altered the result table; undoing that lets the view go on."""


class StateDamaged(DefiniteFailure):
    """Files of the state are missing or damaged; none of them is used."""

    sqlstate = "55H04"


class OtherFormat(StateDamaged):
    """The state is intact but has the format of another version."""


class RowsInDoubt(DefiniteFailure):
    """The view was filled from a view whose rows may have been wrong: a resync repairs it."""

    sqlstate = "55H05"


class BelowStopped(DefiniteFailure):
    """A row stops a view below that the view is stacked on; its own query may not need that row."""

    sqlstate = "55H06"


class Deadly(DefiniteFailure):
    """The view crashed Headrace processes; the server does not resync it for this error."""

    sqlstate = "58000"


class ContinuityLost(DefiniteFailure):
    """The stream cannot be continued without loss; every view needs a resync."""

    sqlstate = "55H02"


class LimitExceeded(DefiniteFailure):
    """The view's work would delay the other views too long; it is repopulated beside them."""

    sqlstate = "54H01"


class SessionsTerminated(LimitExceeded):
    """A function that the view calls terminates the sessions of other views' functions."""


# --- transient


class TransientError(HeadraceError):
    """Worth retrying with bounded back-off."""

    sqlstate = "08006"


class SparkUnavailable(TransientError):
    """Spark could not be started, or a job of it failed for a cause that is not in the rows."""


class PeerGone(TransientError):
    """The process that received the request died before it answered."""


class SnapshotLost(TransientError):
    """The exporter of a snapshot died: the rows read so far must be discarded and read again."""


class RowsLost(TransientError):
    """An edge lost rows that were sent on it: the batch must be run again."""


class Interrupted(TransientError):
    """Work for a single view was interrupted, perhaps by a function that it calls.

    The view is separated from the others and retried alone, a bounded number of times.
    """

    def without_values(self) -> HeadraceError:
        """Return the error with its SQLSTATE alone: a user's function may have raised it."""
        return type(self)("the evaluation of a row was interrupted", sqlstate=self.code)


class OutOfReach(Interrupted):
    """No connection can be opened for one view; the attempt is repeated without a limit."""


# --- session


class ProtocolError(HeadraceError):
    """A client violated the protocol."""

    sqlstate = "08P01"


# --- bugs


class BugError(HeadraceError):
    """An invariant is broken; the process stops."""

    sqlstate = "XX000"


class FencedError(BugError):
    """Another engine has taken over the views; this one must stop at once."""

    sqlstate = "55000"


# --- from process to process

Wire = dict[str, str]
_KIND: Final = "K"
_VIEW: Final = "view"
_STEP: Final = "repair_step"
_THEN: Final = "repair_then"


def to_wire(error: HeadraceError) -> Wire:
    """Return the error's ``fields`` and class, for ``from_wire`` in another process."""
    known = next(c for c in type(error).__mro__ if c.__module__ == __name__)
    wire = {**error.fields(), _KIND: known.__name__}
    if error.repair is not None:
        wire |= {_STEP: error.repair.step, _THEN: error.repair.then.name}
    if isinstance(error, UnreadableViewError):
        wire[_VIEW] = error.view
    return wire


def from_wire(wire: Wire) -> HeadraceError:
    """Return the error that ``to_wire`` encoded, as the nearest class in this module."""
    kind = globals().get(wire.get(_KIND, ""), HeadraceError)
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        kind = HeadraceError
    repair = Repair(wire[_STEP], Then[wire[_THEN]]) if _THEN in wire else None
    more = {"view": wire.get(_VIEW, "")} if issubclass(kind, UnreadableViewError) else {}
    return kind(
        wire.get("M", "unknown error"),
        **more,
        detail=wire.get("D"),
        hint=repair or wire.get("H"),
        position=int(wire["P"]) if "P" in wire else None,
        sqlstate=wire.get("C"),
    )


def _bounded(text: str, length_max: int) -> str:
    text = text if len(text) <= length_max else f"{text[: length_max - 1]}…"
    # Escape lone surrogates (as in file names), which cannot be encoded as UTF-8.
    return text.encode(errors="backslashreplace").decode()
