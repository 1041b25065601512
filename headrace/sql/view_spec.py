"""Options of a view: one typed ``ViewSpec``, validated where the request enters.

The commander calls ``ViewSpec.from_request`` for ``create_view`` and ``check_view``, and
``OptionChanges.from_request`` for ``alter_view``.  All later code gets the typed object.  Checks
that need the plan or the database are in ``views/option_checks.py``.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import Meta

from headrace.config import Settings
from headrace.errors import UnsupportedError, UserError
from headrace.process import bounds
from headrace.sql.nodes import MAIN

_GROUP_MAX: Final = 63
_LIMIT_MAX: Final = 2**31 - 1
"""Iteration numbers are 32-bit integers."""

_LATENCY_MS_MAX: Final = 3_600_000
_OWN_CALLS: Final = {"history": "set_history", "placement": "set_placement"}
"""Options that have a call of their own."""
_STAY: Final = ("latency_ms", "placement", "history", "block")
"""Options that ``replace`` keeps if they are not given: a separate call may have changed them."""

Late = Annotated[int, Meta(ge=0, le=_LATENCY_MS_MAX)]
Count = Annotated[int, Meta(ge=0)]
Limit = Annotated[int, Meta(ge=1, le=_LIMIT_MAX)]


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """Options of one view.  ``given`` has them as JSON data, as a caller gave them."""

    population: Literal["auto", "local", "spark"] = "auto"
    """``local`` (in the builder), ``spark``, or ``auto`` (by the number of rows)."""
    threshold_rows: Count | None = None
    """Total rows from which ``auto`` chooses Spark; None means the server's setting."""
    block: bool = True
    """Whether the caller waits.  Without a wait the population survives a restart of the engine."""
    commit_group: Annotated[str, Meta(max_length=_GROUP_MAX)] = ""
    """Views of one group change in one transaction; '' is the group of all views that name none."""

    on_change: Literal["follow", "stop", "resync"] = "follow"
    """Action after a structural change of its tables has stopped the view (server/resumer.py):
    ``follow`` resyncs it automatically if its query can stay the same, ``resync`` wherever a resync
    may repair it, ``stop`` never."""

    on_damage: Literal["resync", "stop"] = "resync"
    """Action after the view's state, its result table or the stream was lost or damaged:
    ``resync`` repopulates it automatically, ``stop`` waits for a call."""

    sharing: bool = True
    """Whether the view shares common subplans with other views (runtime/sharing.py)."""

    key: tuple[str, ...] | None = None
    """Columns of the result table's primary key; empty: no key; None: the plan's proven key."""

    max_recursion_iterations: Limit | None = None
    """Iterations after which a WITH RECURSIVE counts as endless; None means the setting."""

    max_recursion_rows: Limit | None = None
    """Rows of one iteration that one transaction may change; None means the setting."""

    latency_ms: Late = 0
    """Longest delay from a commit until the table shows it; 0 means as soon as possible.  The
    smallest value of all views counts, since each batch is processed once for all (A-41, A-44)."""

    history: str | None = None
    """Interval for which changes are kept; None means no history (A-26; sql/history.py)."""

    placement: Annotated[str, Meta(max_length=_GROUP_MAX)] | dict[str, str] = MAIN
    """The worker that keeps the view's states and computes its changes (``add_worker``); or the
    worker of each collection, by ID or kind; or a strategy (placing.py).  With a value other than
    ``main`` the view shares nothing with other views."""

    dialect: str | None = None
    """SQL dialect of the query, if it is not Postgres'.  The query is translated first
    (reading/dialects.py), and the translation is stored."""

    point: str | None = None
    """Option ``from``: connection point of a view that the query reads.  The rows of that view,
    the first ones and all later ones, come from there (A-25, A-45; population/feeding.py)."""

    first_rows: Literal["auto", "views", "tables"] = "auto"
    """Origin of the first rows of a view over other views: ``views`` (the tables of these views,
    where that is exact), ``tables`` (their queries are computed again from the tables below), or
    ``auto`` (the views, if clearly fewer rows are read then; ``population/stacking.py``)."""

    trust_stable: tuple[str, ...] = ()
    """Functions not declared IMMUTABLE whose results depend on their arguments alone, as the
    author of the view asserts."""

    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of one transaction that differ from the settings."""

    given: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The options as JSON data; the catalog stores them, and messages between processes carry them.
    """

    @classmethod
    def from_request(cls, given: object, settings: Settings) -> Self:
        """Validate the options of a request.

        Raises:
            UserError: 22023, they are not an object, one is unknown or has an invalid value, or
                exceeds the limit of ``settings``.
            UnsupportedError: options exclude each other.
        """
        spec = cls.of(_object(given))
        spec.check(settings)
        return spec

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Parse options from the catalog, or from another process, which were validated before.

        An option that is null has its default.

        Raises:
            UserError: 22023, an option is unknown or has an invalid value.
            UnsupportedError: options exclude each other.
        """
        _check_names(given)
        found = _values({name: value for name, value in given.items() if value is not None})
        limits: dict[str, int] = {}
        for name in bounds.NAMES:
            if name in found:
                limits[name] = found.pop(name)
        point = found.pop("from", None)
        if point is not None and found.get("placement", MAIN) != MAIN:
            raise UnsupportedError(
                'option "placement" cannot be combined with option "from"',
                hint="The view runs on the worker of the view that feeds it.",
            )
        return cls(**found, limits=limits, point=point, given=dict(given))

    def replaced_by(self, wanted: ViewSpec, settings: Settings) -> ViewSpec:
        """Return the options after ``create_view`` with ``replace`` and options ``wanted``.

        Options that have a call of their own stay as they are, except a given ``latency_ms``.

        Raises:
            HeadraceError: as ``from_request``.
        """
        own = ("history", "placement")
        options = {k: v for k, v in wanted.given.items() if v is not None and k not in own}
        stays = [name for name in _STAY if name != "latency_ms" or name not in options]
        options |= {name: self.given[name] for name in stays if name in self.given}
        return ViewSpec.from_request(options, settings)

    def with_placement(self, placement: str | dict[str, str]) -> ViewSpec:
        """Return the options with another placement."""
        return ViewSpec.of({**self.given, "placement": placement})

    def without_key(self) -> ViewSpec:
        """Return the options of a view whose table has no key."""
        return ViewSpec.of({**self.given, "key": []})

    def without_dialect(self) -> ViewSpec:
        """Return the options of a view whose query has been translated to SQL of Postgres."""
        return ViewSpec.of({k: v for k, v in self.given.items() if k != "dialect"})

    def check_alterable(self, after: ViewSpec) -> None:
        """Raise UnsupportedError if an option differs that ``alter_view`` cannot change."""
        before = self.given
        for name, call in _OWN_CALLS.items():
            if before.get(name) != after.given.get(name):
                raise UnsupportedError(
                    f'option "{name}" cannot be changed with the query',
                    hint=f"CALL headrace.{call}.",
                )
        if before.get("from") != after.given.get("from"):
            raise UnsupportedError(
                'option "from" of a view cannot be changed',
                hint="Drop the view and create it again.",
            )

    def is_same(self, other: ViewSpec) -> bool:
        """Return whether the options are the same, except ``block``, which creation alone uses."""
        one, two = (
            {k: v for k, v in options.given.items() if v is not None and k != "block"}
            for options in (self, other)
        )
        return one == two

    def raises_time(self, settings: Settings) -> bool:
        """Return whether the view's time limit is above the setting."""
        most = settings.view_time_ms_max
        return bool(most) and self.limits.get(bounds.TIME, 0) > most

    def recursions(self, settings: Settings) -> tuple[int, int]:
        """Return (iterations, rows), the limits of recursive queries, from options or settings."""
        iterations, rows = self.max_recursion_iterations, self.max_recursion_rows
        return (
            settings.max_recursion_iterations if iterations is None else iterations,
            settings.max_recursion_rows if rows is None else rows,
        )

    def check(self, settings: Settings) -> None:
        """Raise UserError if an option exceeds the limit of ``settings``.

        A view with more time than the setting must be in a named group (``views/groups.py``).
        """
        for name, value in self.limits.items():
            most = getattr(settings, name) * bounds.OPTION_FACTOR_MAX
            if most and value > most:
                raise UserError(
                    f'option "{name}" must be at most {most}',
                    detail="Views are written together, so a higher limit for one delays the"
                    f" rest. The maximum is {bounds.OPTION_FACTOR_MAX} times the setting.",
                    hint="Raise the setting of that name.",
                )
        if self.raises_time(settings) and not self.commit_group:
            raise UserError(
                f'option "{bounds.TIME}" may be more than {settings.view_time_ms_max} only in a'
                " commit group of its own",
                detail="Views of one group are written together: each waits for the slowest.",
                hint='Name a group as well: {"commit_group": "slow",'
                f' "{bounds.TIME}": {self.limits[bounds.TIME]}}}.',
            )


@dataclass(frozen=True, slots=True)
class OptionChanges:
    """Options that ``alter_view`` changes, as JSON data; null resets one to its default."""

    given: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_request(cls, given: object, settings: Settings) -> Self:
        """Validate the options of a request, each by itself.

        Raises:
            UserError: 22023, they are not an object, one is unknown, or has an invalid value.
        """
        return cls.of(_object(given))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Parse changes from another process; see ``from_request``."""
        _check_names(given)
        _values({name: value for name, value in given.items() if value is not None})
        return cls(dict(given))

    def applied(self, before: ViewSpec, settings: Settings) -> ViewSpec:
        """Return the options of a view that has the options ``before``.

        Raises:
            HeadraceError: as ``ViewSpec.from_request``.
        """
        options = {**before.given, **self.given}
        return ViewSpec.from_request(
            {name: value for name, value in options.items() if value is not None}, settings
        )


def value_of(name: str, given: object) -> Any:
    """Return the typed value of one option, from a call that changes only this one.

    Raises:
        UserError: 22023, the value is invalid.
    """
    return _values({name: given})[name]


def json_text(value: object) -> str:
    """Return the JSON text of an option's value, as messages quote it."""
    return msgspec.json.encode(value).decode()


def _object(given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise UserError("options must be a JSON object")
    return given


def _check_names(given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in _TYPES:
            near = difflib.get_close_matches(name, _TYPES, 1)
            perhaps = f'Perhaps you mean "{near[0]}". ' if near else ""
            raise UserError(
                f'unrecognized option "{name}"',
                hint=f"{perhaps}Options are: {', '.join(sorted(_TYPES))}.",
            )


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the typed values of ``given``, in the order of the class; the first error counts."""
    _check_names(given)
    found: dict[str, Any] = {}
    for name in (name for name in _TYPES if name in given):
        try:
            found[name] = msgspec.convert(given[name], _TYPES[name])
        except msgspec.ValidationError as error:
            raise _misfit(name, given[name]) from error
    return found


_TYPES: Final[dict[str, Any]] = {
    **{
        name: kind
        for name, kind in typing.get_type_hints(ViewSpec, include_extras=True).items()
        if name not in ("limits", "point", "given")
    },
    "from": str,
    **dict.fromkeys(bounds.NAMES, Limit | None),
}
_WANTED: Final = {
    "threshold_rows": "a number of rows",
    "block": "true or false",
    "commit_group": f"a text of at most {_GROUP_MAX} characters",
    "sharing": "true or false",
    "key": "a list of column names",
    "from": "the name of a connection point",
    "trust_stable": "a list of function names",
    "history": "an interval, as text",
    "placement": "the name of a worker, a strategy, or an object of collections and workers",
    "dialect": "the name of an SQL dialect, as snowflake",
    "latency_ms": f"a number of milliseconds up to {_LATENCY_MS_MAX}",
}


def _misfit(name: str, value: object) -> UserError:
    if typing.get_origin(_TYPES[name]) is Literal:
        return UserError(
            f'invalid value for option "{name}": {json_text(value)}',
            hint=f"Values are: {', '.join(typing.get_args(_TYPES[name]))}.",
        )
    wanted = _WANTED.get(name, f"a number from 1 to {_LIMIT_MAX}")
    examples = {"key": '{"key": ["country"]}', "trust_stable": '{"trust_stable": ["public.f"]}'}
    hint = f"Write for example {examples[name]}." if name in examples else None
    return UserError(f'option "{name}" must be {wanted}', hint=hint)
