"""A search index outside of Postgres that follows a view: each change once, in order, nothing lost.

    python search_index.py [--once] [--search WORDS] DSN INDEX.sqlite

The view joins what a document consists of; its feed tells which documents have changed, also where
a tag or the name of an author has.  The index here is SQLite's (FTS5); any other engine that
can remember a number together with what it has taken in does as well.

Why nothing is lost or doubled:

* The feed keeps this subscriber's place until it is acknowledged: what was read and not, comes again.
* The index remembers the txid that it has come to *in the transaction* that takes the changes in: what
  comes again is recognized.  Acknowledging comes after that, and may be lost.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from pathlib import Path

import psycopg

FEED = "search_index"
QUERY = """
SELECT a.id, a.title, a.body, u.name AS author,
       coalesce(string_agg(t.tag, ' ' ORDER BY t.tag), '') AS tags
  FROM articles a JOIN authors u ON u.id = a.author_id
  LEFT JOIN tags t ON t.article_id = a.id
 GROUP BY a.id, a.title, a.body, u.name
"""
COLUMNS = "id, title, body, author, tags"
ROWS_MAX = 1_000


class SearchIndex:
    """A file of SQLite with the documents and the txid that they are of."""

    def __init__(self, path: str) -> None:
        """Open or make it."""
        self._index = sqlite3.connect(path, isolation_level=None)
        self._index.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS documents"
            " USING fts5 (id UNINDEXED, title, body, author, tags)"
        )
        self._index.execute("CREATE TABLE IF NOT EXISTS place (txid INTEGER NOT NULL)")

    def close(self) -> None:
        """Close the file."""
        self._index.close()

    @property
    def txid(self) -> int | None:
        """The last transaction of the view that is in the index; None: it was never filled."""
        row = self._index.execute("SELECT max(txid) FROM place").fetchone()
        return None if row[0] is None else int(row[0])

    def fill(self, conn: psycopg.Connection) -> None:
        """Begin: the feed and all documents are of one snapshot, so no change is between them."""
        with conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            known = conn.execute("SELECT count(*) FROM headrace.feeds WHERE name = %s", (FEED,))
            if known.fetchone() != (0,):
                conn.execute("CALL headrace.drop_feed(%s)", (FEED,))
            conn.execute("CALL headrace.create_feed(%s, 'documents')", (FEED,))
            txid = conn.execute("SELECT headrace.view_txid('documents')").fetchone()
            rows = conn.execute(f"SELECT {COLUMNS} FROM documents").fetchall()
        self._index.execute("BEGIN")
        self._index.execute("DELETE FROM documents")
        self._index.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", rows)
        self._moved(txid[0] if txid else 0)
        self._index.execute("COMMIT")

    def follow(self, conn: psycopg.Connection) -> int:
        """Take in what the feed has; returns how many changes were new."""
        rows = conn.execute(
            f"SELECT txid, weight, {', '.join(f'(data::documents).{c}' for c in COLUMNS.split(', '))}"
            " FROM headrace.feed_read(%s, %s)",
            (FEED, ROWS_MAX),
        ).fetchall()
        if not rows:
            return 0
        new = [row for row in rows if row[0] > (self.txid or 0)]
        self._index.execute("BEGIN")
        # Of one document the last change counts: it is there then, or it is not.
        there = {row[2]: row[2:] if row[1] > 0 else None for row in sorted(new, key=_order)}
        self._index.executemany("DELETE FROM documents WHERE id = ?", [(i,) for i in there])
        self._index.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?)", [d for d in there.values() if d]
        )
        self._moved(rows[-1][0])
        self._index.execute("COMMIT")
        conn.execute("CALL headrace.feed_ack(%s, %s)", (FEED, rows[-1][0]))
        return len(new)

    def search(self, words: str) -> list[tuple[int, str]]:
        """Return number and title of the documents that have all ``words``, the best first."""
        found = self._index.execute(
            "SELECT id, title FROM documents WHERE documents MATCH ? ORDER BY rank, id", (words,)
        )
        return [(int(number), title) for number, title in found]

    def _moved(self, txid: int) -> None:
        self._index.execute("DELETE FROM place")
        self._index.execute("INSERT INTO place VALUES (?)", (txid,))


def _order(row: tuple[int, int, int]) -> tuple[int, int]:
    """By transaction; within one, what goes is before what comes."""
    txid, weight, _ = row[:3]
    return txid, weight


def prepare(conn: psycopg.Connection) -> None:
    """Make tables and view, where they are not there yet."""
    conn.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
    there = conn.execute("SELECT to_regclass('documents') IS NOT NULL").fetchone()
    if there != (True,):
        conn.execute(
            "CALL headrace.create_view('documents', %s, '{\"history\": \"1 day\"}')", (QUERY,)
        )


def main() -> None:
    """Follow until Ctrl-C."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("dsn", nargs="?", default=os.environ.get("DATABASE_URL", ""))
    arguments.add_argument("index", nargs="?", default="index.sqlite")
    arguments.add_argument("--once", action="store_true")
    arguments.add_argument("--search", metavar="WORDS")
    given = arguments.parse_args()
    index = SearchIndex(given.index)
    with psycopg.connect(given.dsn, autocommit=True) as conn:
        prepare(conn)
        conn.execute("LISTEN headrace_documents")
        if index.txid is None:
            index.fill(conn)
        while True:
            try:
                while index.follow(conn):
                    pass
            except psycopg.errors.InvalidParameterValue:
                # It was away for longer than the view's history goes back.
                index.fill(conn)
            if given.search:
                for number, title in index.search(given.search):
                    sys.stdout.write(f"{number:>6}  {title}\n")
            if given.once or given.search:
                return
            next(conn.notifies(stop_after=1), None)


if __name__ == "__main__":
    main()
