"""Options of ``create_view``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from headrace.errors import UserError

_MODES: Final = ("auto", "local", "spark")
_KNOWN: Final = ("population", "threshold_rows", "block")


@dataclass(frozen=True, slots=True)
class Options:
    """How a view is populated."""

    population: str = "auto"
    """``local`` (in the builder), ``spark``, or ``auto``: by the number of rows."""
    threshold_rows: int | None = None
    """Rows of all tables from which ``auto`` takes Spark; None: the server's setting."""
    block: bool = True
    """Whether the caller waits; without waiting the view outlives a restart of the engine."""

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
        return cls(str(population), rows, block)
