"""Options of ``create_view``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from headrace.config import Settings
from headrace.errors import UserError
from headrace.process import bounds

_MODES: Final = ("auto", "local", "spark")
_KNOWN: Final = (
    *(
        "population",
        "threshold_rows",
        "block",
        "commit_group",
        "on_change",
        "on_damage",
        "sharing",
        "key",
    ),
    *("max_recursion_iterations", "max_recursion_rows"),
    *bounds.NAMES,
)
_ON_CHANGE: Final = ("follow", "stop", "resync")
_ON_DAMAGE: Final = ("resync", "stop")
_GROUP_MAX: Final = 63
_LIMITS: Final = ("max_recursion_iterations", "max_recursion_rows")
_LIMIT_MAX: Final = 2**31 - 1
"""The number of an iteration is an integer."""


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How a view is populated and written."""

    population: str = "auto"
    """``local`` (in the builder), ``spark``, or ``auto``: by the number of rows."""
    threshold_rows: int | None = None
    """Rows of all tables from which ``auto`` takes Spark; None: the server's setting."""
    block: bool = True
    """Whether the caller waits; without waiting the view outlives a restart of the engine."""
    commit_group: str = ""
    """Views of one group appear changed together; '': with all that name none."""

    on_change: str = "follow"
    """What follows when a change of its tables' structure has stopped the view: ``follow`` has it
    resynced by itself where its query stands as it is, ``resync`` wherever that may mend it,
    ``stop`` nowhere (server/resumer.py)."""

    on_damage: str = "resync"
    """What follows when the view's state, its result table or the stream was lost or spoilt:
    ``resync`` has it filled anew by itself, with ``stop`` it waits for a call."""

    sharing: bool = True
    """Whether subplans that other views have too are kept once for all (runtime/sharing.py)."""

    key: tuple[str, ...] = ()
    """Columns of the result table's primary key; empty: it has none (sink/keys.py)."""

    max_recursion_iterations: int | None = None
    """Iterations after which a WITH RECURSIVE is taken to have no end; None: the setting."""

    max_recursion_rows: int | None = None
    """Rows of one iteration that one transaction may change; None: the setting."""

    limits: Mapping[str, int] = field(default_factory=dict)
    """What one transaction may cost the view, where it is not as the settings say."""

    def check(self, settings: Settings) -> None:
        """Raise UserError if an option says more than ``settings`` allow."""
        for name, value in self.limits.items():
            most = getattr(settings, name) * bounds.OPTION_FACTOR_MAX
            if most and value > most:
                raise UserError(
                    f'option "{name}" must be at most {most}',
                    detail="Views are written together, so that what one may take delays the"
                    f" others: {bounds.OPTION_FACTOR_MAX} times the setting at most.",
                    hint="Raise the setting of that name.",
                )

    def recursions(self, settings: Settings) -> tuple[int, int]:
        """The bounds of recursive queries: the view's, else those of the settings."""
        iterations, rows = self.max_recursion_iterations, self.max_recursion_rows
        return (
            settings.max_recursion_iterations if iterations is None else iterations,
            settings.max_recursion_rows if rows is None else rows,
        )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Options of JSON data.

        Raises:
            UserError: 22023, an option is unknown or has no fitting value.
        """
        for name in given:
            if name not in _KNOWN:
                raise UserError(
                    f'unrecognized option "{name}"',
                    hint=f"Options are: {', '.join(sorted(_KNOWN))}.",
                )
        population = _word(given, "population", _MODES)
        rows = given.get("threshold_rows")
        if rows is not None and (
            isinstance(rows, bool) or not isinstance(rows, int) or rows < 0
        ):
            raise UserError('option "threshold_rows" must be a number of rows')
        block = given.get("block", True)
        if not isinstance(block, bool):
            raise UserError('option "block" must be true or false')
        group = given.get("commit_group", "")
        if not isinstance(group, str) or len(group) > _GROUP_MAX:
            raise UserError(
                f'option "commit_group" must be a text of at most {_GROUP_MAX} characters'
            )
        on_change = _word(given, "on_change", _ON_CHANGE)
        on_damage = _word(given, "on_damage", _ON_DAMAGE)
        sharing = given.get("sharing", True)
        if not isinstance(sharing, bool):
            raise UserError('option "sharing" must be true or false')
        key = _key(given["key"]) if "key" in given else ()
        iterations, changed = (_limit(name, given.get(name)) for name in _LIMITS)
        fields = (population, rows, block, group, on_change, on_damage, sharing, key)
        found = {n: _limit(n, given[n]) for n in bounds.NAMES if n in given}
        limits = {n: value for n, value in found.items() if value is not None}
        return cls(*fields, iterations, changed, limits=limits)


def _word(given: Mapping[str, Any], name: str, values: tuple[str, ...]) -> str:
    """The value of an option that is one of ``values``; the first, if it is not given."""
    value = given.get(name, values[0])
    if value not in values:
        raise UserError(
            f'invalid value for option "{name}": "{value}"',
            hint=f"Values are: {', '.join(values)}.",
        )
    return str(value)


def _key(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise UserError(
        'option "key" must be a list of column names',
        hint='Write for example {"key": ["country"]}.',
    )


def _limit(name: str, value: object) -> int | None:
    if value is None:
        return None
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and 0 < value <= _LIMIT_MAX
    ):
        return value
    raise UserError(f'option "{name}" must be a number from 1 to {_LIMIT_MAX}')
