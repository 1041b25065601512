"""A leaderboard that is never recomputed: the ten best players, shown again whenever they change.

    python leaderboard.py [--once] [DSN]

The view keeps the sums of all players as its state, and the ten rows as its table.  A score costs
the sum of its player and the place that it moves to, however many scores there are.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg

QUERY = """
SELECT p.id, p.name, sum(s.points) AS total, count(*) AS games
  FROM scores s JOIN players p ON p.id = s.player_id
 GROUP BY p.id, p.name
 ORDER BY total DESC, p.id LIMIT 10
"""


def prepare(conn: psycopg.Connection) -> None:
    """Make tables and view, where they are not there yet."""
    conn.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
    there = conn.execute("SELECT to_regclass('leaderboard') IS NOT NULL").fetchone()
    if there != (True,):
        # With a history, each change of it is told to who listens.
        conn.execute(
            "CALL headrace.create_view('leaderboard', %s, '{\"history\": \"1 hour\"}')", (QUERY,)
        )


def board(conn: psycopg.Connection) -> list[str]:
    """Return the lines to show."""
    rows = conn.execute(
        "SELECT rank() OVER (ORDER BY total DESC), name, total, games FROM leaderboard"
        " ORDER BY total DESC, id"
    ).fetchall()
    return [
        f"{place:>3}  {name:<20} {total:>8}  {games:>4} games" for place, name, total, games in rows
    ]


def boards(conn: psycopg.Connection, wait_s: float | None = None) -> Iterator[list[str]]:
    """Yield the board, and again after each change; end when none comes for ``wait_s``."""
    conn.execute("LISTEN headrace_leaderboard")
    yield board(conn)
    while True:
        told = next(conn.notifies(timeout=wait_s, stop_after=1), None)
        if told is None:
            return
        yield board(conn)


def main() -> None:
    """Show the board until Ctrl-C."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("dsn", nargs="?", default=os.environ.get("DATABASE_URL", ""))
    arguments.add_argument("--once", action="store_true")
    given = arguments.parse_args()
    with psycopg.connect(given.dsn, autocommit=True) as conn:
        prepare(conn)
        for lines in boards(conn):
            sys.stdout.write("\n".join(["", *lines, ""]))
            sys.stdout.flush()
            if given.once:
                return


if __name__ == "__main__":
    main()
