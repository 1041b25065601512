"""A measured peer, and its line of the table."""

from __future__ import annotations

from dataclasses import dataclass

from bench.scenario import Figures


@dataclass(frozen=True, slots=True)
class Line:
    """One peer's figures for the changes of a view; ``note`` explains a missing figure."""

    peer: str
    view: str
    given: str
    """The peer's input, and the guarantees that come with it."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    note: str = "-"

    def figures(self, rows: int) -> Figures:
        """Return the figures for ``rows`` changed rows."""
        measured = self.note == "-" and self.seconds > 0
        return {
            "view": self.view,
            "peer": self.peer,
            "changed_rows": rows,
            "seconds": round(self.seconds, 3) if measured else "-",
            "rows_per_s": round(rows / self.seconds) if measured else "-",
            "cpu_us_per_row": round(self.cpu_s / rows * 1e6, 2) if measured else "-",
            "given": self.given,
            "note": self.note,
        }
