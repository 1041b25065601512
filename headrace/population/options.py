"""Options of ``create_view``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from headrace.errors import UserError

_MODES: Final = ("auto", "local", "spark")
_KNOWN: Final = (
    *("population", "threshold_rows", "block", "commit_group", "on_change", "sharing"),
)
_ON_CHANGE: Final = ("follow", "stop", "resync")
_GROUP_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class Options:
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

    sharing: bool = True
    """Whether subplans that other views have too are kept once for all (runtime/sharing.py)."""

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
        population = given.get("population", "auto")
        if population not in _MODES:
            raise UserError(
                f'invalid value for option "population": "{population}"',
                hint=f"Values are: {', '.join(_MODES)}.",
            )
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
        on_change = given.get("on_change", "follow")
        if on_change not in _ON_CHANGE:
            raise UserError(
                f'invalid value for option "on_change": "{on_change}"',
                hint=f"Values are: {', '.join(_ON_CHANGE)}.",
            )
        sharing = given.get("sharing", True)
        if not isinstance(sharing, bool):
            raise UserError('option "sharing" must be true or false')
        return cls(str(population), rows, block, group, str(on_change), sharing)
