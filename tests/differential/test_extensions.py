"""Types of extensions: citext, equal without regard to case; hstore and ltree as keys."""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.compared import create_view, follow, numbered
from tests.waiting import create_marker

DDL = """
    CREATE TABLE people (email citext PRIMARY KEY, team citext, n int);
    CREATE TABLE mails (id int PRIMARY KEY, sender citext, body citext COLLATE "C");
"""
QUERIES = (
    # The form that a group shows of equal values is undefined.
    "SELECT lower(team::text) AS t, count(*) AS c, sum(n) AS s FROM people GROUP BY team",
    "SELECT lower(t::text) AS t FROM (SELECT DISTINCT team AS t FROM people) q",
    "SELECT count(*) AS c FROM (SELECT sender FROM mails UNION SELECT email FROM people) q",
    "SELECT count(DISTINCT body) AS c, count(DISTINCT lower(team::text)) AS d FROM mails"
    " LEFT JOIN people ON sender = email",
    "SELECT p.email, m.id FROM people p JOIN mails m ON m.sender = p.email",
    "SELECT p.email, m.id FROM people p LEFT JOIN mails m ON m.sender = p.email"
    " AND m.body <> p.team",
    "SELECT email FROM people WHERE email IN (SELECT sender FROM mails)",
    "SELECT id FROM mails WHERE sender NOT IN (SELECT team FROM people WHERE team = 'RED')",
    "SELECT id FROM mails WHERE body = 'Red' OR body LIKE 'b%'",
    "SELECT email, row_number() OVER (PARTITION BY team ORDER BY n, email) AS r FROM people",
    "SELECT DISTINCT ON (team) email, n FROM people ORDER BY team, n, email",
    "SELECT email, n FROM people ORDER BY email LIMIT 3",
    "SELECT email, (SELECT count(*) FROM mails WHERE sender = email) AS c FROM people",
    "SELECT id, nullif(sender, 'RED')::text AS n, sender IS DISTINCT FROM body AS d FROM mails"
    " WHERE body IS NOT DISTINCT FROM 'blue' OR id < 6",
    "SELECT lower(body::text) AS b, max(id) AS m FROM mails GROUP BY GROUPING SETS ((body), ())",
)


class Writer:
    """Random statements over few words in many upper and lower cases."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def word(self, *, null: bool = True) -> str:
        word = self.rng.choice(["red", "blue", "ÄRGER", "x", ""] + ["?"] * null)
        if word == "?":
            return "NULL"
        return "'" + "".join(self.rng.choice([c.lower(), c.upper()]) for c in word) + "'"

    def statement(self) -> str:
        r = self.rng
        kind, key = r.randrange(8), r.randrange(12)
        if kind < 3:
            return (
                f"INSERT INTO people VALUES ({self.word(null=False)}, {self.word()}, {key})"
                " ON CONFLICT (email) DO UPDATE SET email = excluded.email, n = excluded.n"
            )
        if kind < 6:
            return (
                f"INSERT INTO mails VALUES ({key}, {self.word()}, {self.word()})"
                " ON CONFLICT (id) DO UPDATE SET sender = excluded.sender"
            )
        return r.choice(
            [
                f"DELETE FROM mails WHERE id % 4 = {key % 4}",
                f"DELETE FROM people WHERE n % 3 = {key % 3}",
                "UPDATE people SET email = upper(email), team = lower(team)",
                f"UPDATE mails SET body = {self.word()} WHERE id % 2 = {key % 2}",
            ]
        )

    def transaction(self) -> list[str]:
        return [self.statement() for _ in range(self.rng.randrange(1, 5))]


def extension(source: psycopg.Connection, name: str) -> None:
    try:
        source.execute(f"CREATE EXTENSION IF NOT EXISTS {name}")
    except psycopg.Error as error:
        pytest.skip(f"the server has no {name}: {error}")


def test_views_over_citext(source, commander):
    extension(source, "citext")
    source.execute(DDL)
    create_marker(source, commander)
    writer = Writer(3)
    for _ in range(12):
        source.execute(writer.statement())
    views = numbered(QUERIES)
    for name, query in views.items():
        create_view(commander, name, query)
    follow(source, views, (writer.transaction() for _ in range(10)), "seed 3")


def test_what_is_refused(source, commander):
    extension(source, "citext")
    source.execute("CREATE TABLE words (w citext PRIMARY KEY)")
    for query in (
        "SELECT w FROM words INTERSECT SELECT w FROM words",
        "WITH RECURSIVE r(w) AS (SELECT w FROM words UNION SELECT w FROM r) TABLE r",
    ):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="citext"):
            create_view(commander, "refused", query)


def test_hstore_and_ltree_are_keys(source, commander):
    extension(source, "hstore")
    extension(source, "ltree")
    source.execute("CREATE TABLE trees (id int PRIMARY KEY, path ltree, h hstore)")
    create_marker(source, commander)
    source.execute(
        "INSERT INTO trees VALUES (1, 'a.b', 'x=>1, y=>2'), (2, 'a.b', 'y=>2,x=>1'),"
        " (3, 'a.B', 'x=>NULL'), (4, '', ''), (5, NULL, NULL)"
    )
    views = numbered(
        [
            "SELECT path, count(*) AS c FROM trees GROUP BY path",
            "SELECT DISTINCT h FROM trees",
            "SELECT subpath(path, 0, 1) AS p, count(DISTINCT h) AS c FROM trees"
            " WHERE nlevel(path) > 0 GROUP BY 1",
            "SELECT t.id, u.id AS i FROM trees t JOIN trees u ON t.path @> u.path AND t.h = u.h",
        ]
    )
    for name, query in views.items():
        create_view(commander, name, query)
    changes = [
        ["UPDATE trees SET h = h || 'z=>3' WHERE id < 3", "DELETE FROM trees WHERE id = 4"],
        ["UPDATE trees SET h = h - 'y'::text, path = 'a.B.c'", "INSERT INTO trees VALUES (9)"],
    ]
    follow(source, views, changes, "trees")
