"""A measured peer, and as a line of the table."""

from __future__ import annotations

from dataclasses import dataclass

from bench.scenario import Figures


@dataclass(frozen=True, slots=True)
class Line:
    """What one needed for the changes of a view; ``note`` where there is no figure."""

    peer: str
    view: str
    given: str
    """What it was given, and what it owes for that."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    note: str = "-"

    def figures(self, rows: int) -> Figures:
        """For so many changed rows."""
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
