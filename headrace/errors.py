"""One tree of errors; every class fixes an SQLSTATE and a family.

Five families decide the reaction: *user* errors are reported and the
session continues; *definite* failures stop one view and keep its state; *transient* ones are
retried with bounded back-off; *session* errors end a client session; *bugs* stop the process.
Messages follow Postgres: lower-case, no full stop, names quoted; detail and hint are sentences.

The class is what decides.  An SQLSTATE alone says nothing about who raised it: code of a user may
raise any of them.  So ``family`` is asked once, where a server has answered (``pinned``,
``expressions.session``), and an error keeps its class from process to process (``to_wire``).
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Final, Self

RESYNC: Final = "Drop the view and create it again."
"""Hint of what a resync mends; whoever stops the view and knows its name makes it the call."""

THEN_RESYNC: Final = ", then create the view again."
"""End of a hint that says first what else must be done; replaced like ``RESYNC``."""

MESSAGE_CHARS_MAX: Final = 4_000
DETAIL_CHARS_MAX: Final = 64_000
"""Code of a user says what it likes; it must fit a control message and the catalog many times."""


class ErrorFamily(Enum):
    """Which of them an answer of a server to a *statement of ours* is, and what it is about."""

    TRANSIENT = "the server, or somebody in the way: it may answer otherwise later"
    DEFINITE = "the statement: no row is to blame, and it will not pass"
    DATA = "what it was given, or code of a user"


_FAMILIES: Final = {
    **dict.fromkeys(("08", "40", "53", "57", "58"), ErrorFamily.TRANSIENT),
    **dict.fromkeys(("25006", "55006", "55P03"), ErrorFamily.TRANSIENT),
    **dict.fromkeys(("0A", "25", "28", "2F", "3D", "3F", "42"), ErrorFamily.DEFINITE),
}
"""By SQLSTATE, or by its class; all others are about data."""


def family(sqlstate: str | None) -> ErrorFamily:
    """The family of an answer; None: there was none."""
    if sqlstate is None:
        return ErrorFamily.TRANSIENT
    default = _FAMILIES.get(sqlstate[:2], ErrorFamily.DATA)
    return _FAMILIES.get(sqlstate, default)


def transient(sqlstate: str | None) -> bool:
    """Whether trying again may help."""
    return family(sqlstate) is ErrorFamily.TRANSIENT


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""

    sqlstate: ClassVar[str] = "XX000"

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        position: int | None = None,
        sqlstate: str | None = None,
        culprit: str | None = None,
    ) -> None:
        """``position`` is the 1-based character position in the view's query text.

        ``culprit``: the row that it happened at, in words.
        """
        self.message = _bounded(message, MESSAGE_CHARS_MAX)
        super().__init__(self.message)
        self.detail = detail and _bounded(detail, DETAIL_CHARS_MAX)
        self.hint = hint and _bounded(hint, DETAIL_CHARS_MAX)
        self.culprit = culprit and _bounded(culprit, MESSAGE_CHARS_MAX)
        self.position = position
        self.code = sqlstate or self.sqlstate

    @property
    def what(self) -> str:
        """What has happened, and where."""
        return f"{self.message} at {self.culprit}" if self.culprit else self.message

    def again(self, **other: str | None) -> Self:
        """A new one that says the same, but for ``other``."""
        same = {
            "message": self.message,
            "detail": self.detail,
            "hint": self.hint,
            "sqlstate": self.code,
            "culprit": self.culprit,
        }
        return type(self)(**(same | other))  # type: ignore[arg-type]

    def fields(self) -> dict[str, str]:
        """Wire fields (``C``, ``M``, ``D``, ``H``, ``P``) of the error."""
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


class UnsupportedError(UserError):
    """A construct that cannot be maintained exactly; refused at create_view."""

    sqlstate = "0A000"


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


class StructureChanged(DefiniteFailure):
    """What the view reads was altered; its query stands, and a resync makes it right by itself."""

    sqlstate = "55H01"


class RightEnded(DefiniteFailure):
    """Who a view reads something for may not read it any more; it goes on when he may again."""

    sqlstate = "42501"


class OwnerGone(DefiniteFailure):
    """The role that owned the view was dropped: nobody's rights are left to go on with."""

    sqlstate = "42704"


class RowError(DefiniteFailure):
    """An expression failed on one row (division by zero, bad cast): SQLSTATE class 22."""

    sqlstate = "22000"


class SinkBlocked(DefiniteFailure):
    """The result table cannot be written now (locked); retried by itself."""

    sqlstate = "55P03"


class SinkTableError(DefiniteFailure):
    """The result table was dropped or altered behind our back, or its rows were.

    With another SQLSTATE: what Postgres said when it was written.
    """

    sqlstate = "55H03"


class StateDamaged(DefiniteFailure):
    """Files of the state are lost, or do not hold what was written to them: none are used."""

    sqlstate = "55H04"


class OtherFormat(StateDamaged):
    """The state has the format of another version: nothing is wrong with it, but that."""


class Deadly(DefiniteFailure):
    """Processes of ours have died of it: it is left alone until somebody calls for it."""

    sqlstate = "58000"


class ContinuityLost(DefiniteFailure):
    """The stream cannot be continued without loss; every view needs a resync."""

    sqlstate = "55H02"


class LimitExceeded(DefiniteFailure):
    """A view's work is more than may delay the others; it is filled anew beside them."""

    sqlstate = "54H01"


class SessionsTerminated(LimitExceeded):
    """A function that the view calls terminates the sessions of other views' functions."""


# --- transient


class TransientError(HeadraceError):
    """Worth retrying with bounded back-off."""

    sqlstate = "08006"


class PeerGone(TransientError):
    """The process that was asked died before it answered."""


class SnapshotLost(TransientError):
    """A snapshot's exporter died: what was read must be thrown away, then tried anew."""


class RowsLost(TransientError):
    """An edge did not deliver what was sent on it: the batch must be run again."""


class Interrupted(TransientError):
    """What was done for one view alone was interrupted, perhaps by its own code.

    The view leaves the others and is tried again by itself, a bounded number of times.
    """


class OutOfReach(Interrupted):
    """A connection for one view cannot be had: it is tried for as long as that takes."""


# --- session


class ProtocolError(HeadraceError):
    """A client sent bytes that are not the protocol."""

    sqlstate = "08P01"


# --- bugs


class BugError(HeadraceError):
    """A broken invariant; stops the process with the story."""

    sqlstate = "XX000"


class FencedError(BugError):
    """Another engine took the views over: this one must stop at once."""

    sqlstate = "55000"


# --- from process to process

Wire = dict[str, str]
_KIND: Final = "K"


def to_wire(error: HeadraceError) -> Wire:
    """``fields`` of the error and its class, for ``from_wire`` in another process."""
    known = next(c for c in type(error).__mro__ if c.__module__ == __name__)
    return {**error.fields(), _KIND: known.__name__}


def from_wire(wire: Wire) -> HeadraceError:
    """The error that ``to_wire`` has told; of the nearest class that this module has."""
    kind = globals().get(wire.get(_KIND, ""), HeadraceError)
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        kind = HeadraceError
    return kind(
        wire.get("M", "unknown error"),
        detail=wire.get("D"),
        hint=wire.get("H"),
        position=int(wire["P"]) if "P" in wire else None,
        sqlstate=wire.get("C"),
    )


def _bounded(text: str, length_max: int) -> str:
    text = text if len(text) <= length_max else f"{text[: length_max - 1]}…"
    # Half of a surrogate pair, as in the name of a file, is no character to whoever is told.
    return text.encode(errors="backslashreplace").decode()
