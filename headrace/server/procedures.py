"""Calls of the verbs (``sql/verbs.py``), with their arguments bound to the parameters.

``bind`` turns a parsed statement and its parameter values into an ``Invocation``.  It returns None
where only Postgres can interpret the statement, or say what is wrong with it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace import types as t
from headrace.errors import UndefinedError, UserError
from headrace.server.statements import Argument, Statement
from headrace.sql.comments import ABOUT
from headrace.sql.verbs import VERBS, Parameter

_UNTYPED: Final = (0, t.UNKNOWN)
"""Types of parameters and literals that take the type that is wanted."""
READ: Final = {
    "text": frozenset((*_UNTYPED, t.TEXT, t.VARCHAR, t.NAME)),
    "bool": frozenset((*_UNTYPED, t.BOOL)),
    "jsonb": frozenset((*_UNTYPED, t.JSONB)),
    "pg_lsn": frozenset((*_UNTYPED, t.PG_LSN)),
    "interval": frozenset((*_UNTYPED, t.INTERVAL)),
}
"""Kinds of arguments that are read here, and the parameter types accepted for each."""
_CALLED: Final = tuple(name for verb in VERBS.values() if (name := verb.called))
_NEAR: Final = 0.75
"""Similarity from which on a name counts as misspelt."""
_TRUE: Final = frozenset(("t", "true", "on", "yes", "1"))
_FALSE: Final = frozenset(("f", "false", "off", "no", "0"))


@dataclass(frozen=True, slots=True)
class Given:
    """A value from Bind: its format, bytes (None is NULL) and declared type (0 unknown)."""

    format: int
    data: bytes | None
    oid: int


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call ready to run: every parameter of ``procedure`` has its value."""

    procedure: str
    arguments: dict[str, Any]
    position: Callable[[int], int | None] = field(default=lambda _: None, compare=False)
    """Position in the statement of a position in argument ``query`` (both 1-based)."""

    def error_fields(self, fields: dict[str, str]) -> dict[str, str]:
        """Return ``fields`` with the position moved from the query to the statement.

        If the query came as a parameter, it is shown to the client as an internal query.
        """
        if "P" not in fields:
            return fields
        rest = {k: v for k, v in fields.items() if k != "P"}
        moved = self.position(int(fields["P"]))
        if moved is not None:
            return {**rest, "P": str(moved)}
        return {**rest, "p": fields["P"], "q": self.text} if self.text else rest

    @property
    def text(self) -> str | None:
        """The query among the arguments, if there is one."""
        text = self.arguments.get("query", self.arguments.get("name_or_query"))
        return str(text) if text else None


def invocation_of(procedure: str, arguments: Any) -> Invocation:
    """Return the invocation in a row of the command table, which any role may have written.

    Raises:
        UserError: it is no call of a procedure with arguments of its types.
    """
    verb = VERBS.get(procedure)
    if verb is None:
        raise unknown(procedure)
    if not isinstance(arguments, dict):
        raise UserError(f"the arguments of {procedure} are not values by name")
    kinds = {p.name: "text" if p.exact else p.kind for p in verb.parameters}
    if verb.secret:
        kinds["digest"] = "text"
    for name, value in arguments.items():
        if name not in kinds:
            raise UserError(f'{procedure} has no argument "{name}"')
        if value is not None and not _fits(value, kinds[name]):
            raise UserError(f'argument "{name}" of {procedure} is no {kinds[name]}')
    return Invocation(procedure, dict(arguments))


def _fits(value: Any, kind: str) -> bool:
    """Return whether a JSON value can be an argument; dates and positions come as texts."""
    match kind:
        case "jsonb":
            return True
        case "bool":
            return isinstance(value, bool)
        case "bigint":
            return isinstance(value, int) and not isinstance(value, bool)
        case _:
            return isinstance(value, str)


def bind(statement: Statement, given: Sequence[Given], encoding: str) -> Invocation | None:
    """Return the invocation of ``statement`` with ``given`` values, or None (see the module)."""
    verb = VERBS.get(statement.procedure)
    if verb is None and _misspelt(statement.procedure):
        return Invocation(statement.procedure, {})
    if verb is None or verb.relayed or verb.step or verb.selected:
        return None
    signature = verb.parameters
    named = {p.name: p for p in signature}
    values: dict[str, Any] = {}
    sources: dict[str, Argument] = {}
    for number, argument in enumerate(statement.arguments):
        if argument.name is None:
            # Positional arguments come first.
            if number >= len(signature) or any(s.name for s in sources.values()):
                return None
            parameter = signature[number]
        elif argument.name in named:
            parameter = named[argument.name]
        else:
            return None
        if parameter.name in values:
            return None
        ok, value = _value(argument, parameter, given, encoding)
        if not ok:
            return None
        values[parameter.name] = value
        sources[parameter.name] = argument
    for parameter in signature:
        if parameter.name not in values:
            if parameter.required:
                return None
            values[parameter.name] = parameter.default
    return Invocation(statement.procedure, values, _positions(sources.get("query")))


def unknown(procedure: str) -> UndefinedError:
    """Return the error of a call of ``procedure``, which is not a verb."""
    near = difflib.get_close_matches(procedure, _CALLED, 1, _NEAR)
    return UndefinedError(
        f"procedure headrace.{procedure} does not exist",
        hint=f"Perhaps you mean headrace.{near[0]}." if near else "See headrace.help().",
        sqlstate="42883",
    )


def _misspelt(procedure: str) -> bool:
    """Return whether ``procedure`` is like a name of ours, but not one."""
    if procedure in ABOUT:
        return False
    return bool(difflib.get_close_matches(procedure, _CALLED, 1, _NEAR))


def _positions(argument: Argument | None) -> Callable[[int], int | None]:
    def position(at: int) -> int | None:
        if argument is None or argument.parameter is not None:
            return None
        rest = at - 1
        for span in argument.spans:
            if 0 <= rest < len(span):
                return span[rest] + 1
            rest -= len(span)
        # One past the end is where Postgres reports "at end of input".
        last = argument.spans[-1] if argument.spans else range(0)
        return last[-1] + 2 if last and rest == 0 else None

    return position


def _value(
    argument: Argument, parameter: Parameter, given: Sequence[Given], encoding: str
) -> tuple[bool, Any]:
    """Return (whether it could be read, value) of ``argument`` as ``parameter``'s type."""
    if argument.parameter is None:
        if not _cast_fits(argument, parameter):
            return False, None
        return _convert(argument.value, parameter)
    if not 1 <= argument.parameter <= len(given):
        return False, None
    item = given[argument.parameter - 1]
    kind = argument.cast or parameter.kind
    kind = {"varchar": "text", "json": "jsonb", "boolean": "bool"}.get(kind, kind)
    if kind != parameter.kind:
        return False, None
    if item.data is None:
        return True, None
    if item.oid not in READ[kind]:
        return False, None
    try:
        if item.format == 1 and kind != "text":
            return _binary(item.data, parameter, encoding)
        return _convert(item.data.decode(encoding), parameter)
    except UnicodeDecodeError:
        return False, None


def _binary(data: bytes, parameter: Parameter, encoding: str) -> tuple[bool, Any]:
    """Return as ``_value`` does, for a value in binary format."""
    match parameter.kind:
        case "bool":
            return (True, data == b"\x01") if len(data) == 1 else (False, None)
        case "jsonb" if data[:1] == b"\x01":
            return _convert(data[1:].decode(encoding), parameter)
        case _:
            return False, None


def _cast_fits(argument: Argument, parameter: Parameter) -> bool:
    if argument.cast is None:
        # A bare TRUE for a text parameter is an error that Postgres reports better.
        return not isinstance(argument.value, bool) or parameter.kind == "bool"
    families = {
        "text": ("text", "varchar"),
        "jsonb": ("jsonb",),
        "bool": ("bool", "boolean"),
        "pg_lsn": ("pg_lsn",),
        "interval": ("interval",),
    }
    return argument.cast in families[parameter.kind]


def _convert(value: str | bool | None, parameter: Parameter) -> tuple[bool, Any]:
    kind = parameter.kind
    if value is None:
        return True, None
    if kind in ("text", "pg_lsn", "interval"):
        # Postgres converts text to the other types, and reports errors better.
        return True, value
    if kind == "bool":
        text = str(value).strip().lower()
        return text in _TRUE | _FALSE, text in _TRUE
    try:
        return True, msgspec.json.decode(str(value))
    except (ValueError, RecursionError):
        return False, None
