"""Random queries over subqueries whose columns may fail on a row, and their safe twins.

A failing expression has a twin that is NULL where the expression fails. Wherever Postgres answers
the first query without use of a failing value, the second one has the same rows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

DDL = """
    CREATE TABLE e (id int PRIMARY KEY, k int, v int, n int, t text, jb jsonb);
    CREATE TABLE j (id int PRIMARY KEY, k int, g int, s text);
"""
FAILING = (
    ("(100 / {a}.n)", "(100 / nullif({a}.n, 0))"),
    ("sqrt({a}.v)::int", "(CASE WHEN {a}.v >= 0 THEN sqrt({a}.v)::int END)"),
    ("{a}.t::int", "(CASE WHEN {a}.t ~ '^[0-9]+$' THEN {a}.t::int END)"),
    ("({a}.v * 1000000)", "(CASE WHEN abs({a}.v) < 2000 THEN {a}.v * 1000000 END)"),
    (
        "({a}.jb ->> 'a')::int",
        "(CASE WHEN {a}.jb ->> 'a' ~ '^[0-9]+$' THEN ({a}.jb ->> 'a')::int END)",
    ),
)
"""(expression of table ``e``, its safe twin)"""
GUARDS = ("{a}.n <> 0", "{a}.v >= 0", "{a}.t ~ '^[0-9]+$'", "{a}.v < 2000", "{a}.id < 5")
COLUMNS = ("id", "k", "v", "n", "t", "jb", "x", "y")


@dataclass(frozen=True)
class Pair:
    """A query, and its safe twin."""

    query: str
    safe: str

    def within(self, template: str) -> Pair:
        """Put both queries in the place of ``{}``."""
        return Pair(template.replace("{}", self.query), template.replace("{}", self.safe))


class Queries:
    """Random pairs of queries."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def pair(self) -> Pair:
        """Return a query of columns ``id``, ``a`` and ``b``, or of groups."""
        pick = self._rng.choice
        rows = self._rows(self._rng.randrange(3))
        forms = (
            "SELECT s.id, {x} AS a, {y} AS b FROM ({}) s JOIN j ON j.id = s.id",
            "SELECT s.id, {x} AS a, {y} AS b FROM ({}) s JOIN j ON j.k = s.k WHERE {guard}",
            "SELECT j.id, {x} AS a, {y} AS b FROM j LEFT JOIN ({}) s ON j.id = s.id",
            "SELECT j.id, {x} AS a, s.n AS b FROM j LEFT JOIN ({}) s ON j.k = s.k AND {guard}",
            "SELECT j.id, {x} AS a, j.g AS b FROM ({}) s RIGHT JOIN j ON j.id = s.id",
            "SELECT j.id, {x} AS a, s.id AS b FROM ({}) s FULL JOIN j ON j.id = s.id WHERE j.g > 0",
            "SELECT j.id, {x} AS a, j.g AS b FROM ({}) s JOIN j ON j.id = s.id AND {x} > j.g",
            "SELECT j.id, j.g AS a, j.k AS b FROM j WHERE EXISTS"
            " (SELECT FROM ({}) s WHERE s.id = j.id AND s.k > 0)",
            "SELECT j.id, j.g AS a, j.k AS b FROM j WHERE j.k IN"
            " (SELECT {x} FROM ({}) s WHERE s.id = j.id)",
            "SELECT j.id, (SELECT {x} FROM ({}) s WHERE s.id = j.id) AS a, j.k AS b FROM j",
            "SELECT j.g AS id, sum({x}) AS a, count({y}) AS b FROM ({}) s JOIN j ON j.id = s.id"
            " GROUP BY j.g",
            "SELECT j.g AS id, sum({x}) FILTER (WHERE {guard}) AS a, count(*) AS b"
            " FROM ({}) s JOIN j ON j.k = s.k GROUP BY j.g",
            "SELECT {x} AS id, count(*) AS a, max(j.g) AS b FROM ({}) s JOIN j ON j.id = s.id"
            " GROUP BY 1",
            "WITH s AS ({}) SELECT s.id, {x} AS a, j.g AS b FROM s JOIN j ON j.id = s.id",
            "WITH s AS ({}) SELECT j.id, {x} AS a, r.y AS b FROM j JOIN s ON j.id = s.id"
            " LEFT JOIN s r ON r.id = j.k",
            "SELECT s.id, CASE WHEN {guard} THEN {x} END AS a, s.k AS b FROM ({}) s",
            "SELECT s.id, coalesce(s.k, {x}) AS a, s.v AS b FROM ({}) s",
            "SELECT s.id, s.k AS a, s.v AS b FROM ({}) s WHERE s.k = 1 OR {x} > 3",
            "SELECT s.id, {x} AS a, {y} AS b FROM ({}) s WHERE {guard} AND {guard}",
            "SELECT s.id, {x} AS a, rank() OVER (ORDER BY s.id) AS b FROM ({}) s"
            " JOIN j ON j.id = s.id",
            "SELECT s.id, sum({x}) FILTER (WHERE {guard}) OVER (PARTITION BY s.k) AS a, s.v AS b"
            " FROM ({}) s",
            "SELECT s.id, {x} AS a, j.g AS b FROM ({}) s JOIN j ON j.id = s.id"
            " ORDER BY s.id LIMIT 3",
            "SELECT s.id, {x} AS a, s.k AS b FROM (SELECT * FROM ({}) i ORDER BY id LIMIT 2) s",
            "SELECT DISTINCT j.g AS id, {x} AS a, s.k AS b FROM ({}) s JOIN j ON j.id = s.id",
            "SELECT s.id, {x} AS a, 1 AS b FROM ({}) s JOIN j ON j.id = s.id"
            " UNION ALL SELECT id, g, k FROM j",
            "SELECT s.id, l.z AS a, s.k AS b FROM ({}) s JOIN j ON j.id = s.id,"
            " LATERAL (SELECT {x} + j.g AS z) l",
            "SELECT j.id, u AS a, s.k AS b FROM ({}) s JOIN j ON j.id = s.id,"
            " generate_series(1, least({x}, 2)) u",
            "SELECT s.id, {x} AS a, o.g AS b FROM ({}) s JOIN j ON j.id = s.id"
            " LEFT JOIN j o ON o.k = s.k AND o.g = {x}",
        )
        template = pick(forms)
        while "{x}" in template or "{y}" in template or "{guard}" in template:
            template = template.replace("{x}", self._value(), 1)
            template = template.replace("{y}", self._value(), 1)
            template = template.replace("{guard}", pick(GUARDS).format(a="s"), 1)
        return rows.within(template)

    def _rows(self, depth: int) -> Pair:
        """Return rows of ``COLUMNS``; the outermost have failing expressions."""
        pick = self._rng.choice
        if depth == 0:
            (x, safe_x), (y, safe_y) = pick(FAILING), pick(FAILING)
            where = pick(("", "", f" WHERE {pick(GUARDS)}")).format(a="e")
            form = "SELECT e.id, e.k, e.v, e.n, e.t, e.jb, {x} AS x, {y} AS y FROM e" + where
            return Pair(
                form.format(x=x.format(a="e"), y=y.format(a="e")),
                form.format(x=safe_x.format(a="e"), y=safe_y.format(a="e")),
            )
        below = self._rows(depth - 1)
        others = "i.id, i.k, i.v, i.n, i.t, i.jb"
        guard = pick(GUARDS).format(a="i")
        form = pick(
            (
                f"SELECT {others}, i.x + 1 AS x, i.y FROM ({{}}) i",
                f"SELECT {others}, i.x + i.y AS x, i.x AS y FROM ({{}}) i",
                f"SELECT {others}, CASE WHEN {guard} THEN i.x END AS x, i.y FROM ({{}}) i",
                f"SELECT {others}, coalesce(i.x, 0) AS x, i.y FROM ({{}}) i WHERE i.k > 0",
                f"SELECT {others}, i.x, i.y FROM ({{}}) i WHERE {guard}",
                f"SELECT {others}, i.x, i.y FROM ({{}}) i JOIN j ON j.k = i.k AND j.id = i.id",
                f"SELECT {others}, i.x, i.y + j.g AS y FROM ({{}}) i LEFT JOIN j ON j.id = i.id",
                f"SELECT {others}, i.x, i.y FROM ({{}}) i UNION ALL"
                " SELECT 7, 2, 1, 1, '1', NULL, 1, 2",
                f"SELECT {others}, i.x, i.x AS y FROM ({{}}) i UNION ALL"
                " SELECT id, k, g, 1, s, NULL, k, g FROM j WHERE id > 5",
                f"SELECT {others}, i.x, i.y FROM ({{}}) i WHERE EXISTS"
                " (SELECT FROM j WHERE j.id = i.id)",
                f"SELECT {others}, i.x, row_number() OVER (ORDER BY i.id)::int AS y FROM ({{}}) i",
            )
        )
        return below.within(form)

    def _value(self) -> str:
        pick = self._rng.choice
        return pick(
            (
                "s.x",
                "s.x",
                "s.y",
                "(s.x + s.y)",
                "coalesce(s.x, s.k)",
                f"CASE WHEN {pick(GUARDS).format(a='s')} THEN s.x ELSE s.k END",
            )
        )

    def statement(self) -> str:
        rng = self._rng
        number = rng.randrange(1, 12)
        if rng.random() < 0.25:
            return f"DELETE FROM {rng.choice('ej')} WHERE id = {number}"
        if rng.random() < 0.4:
            # Rows that fail have no join partners: their ids are large.
            return (
                f"INSERT INTO j VALUES ({number}, {rng.choice('123')}, {rng.choice('012')}, 'a')"
                " ON CONFLICT (id) DO UPDATE SET k = excluded.k, g = excluded.g"
            )
        bad = rng.random() < 0.4
        number += 100 * bad
        good = (rng.choice("0149"), rng.choice("123"), f"'{rng.randrange(9)}'", "'{\"a\": 5}'")
        failing = ("-7", "0", "'bad'", '\'{"a": "bad"}\'')
        huge = ("5000", "0", "''", "'{\"a\": []}'")
        v, n, t, jb = rng.choice((failing, huge)) if bad else good
        key = 9 if bad else rng.randrange(1, 4)
        return (
            f"INSERT INTO e VALUES ({number}, {key}, {v}, {n}, {t}, {jb}) ON CONFLICT (id) DO"
            " UPDATE SET k = excluded.k, v = excluded.v, n = excluded.n, t = excluded.t"
        )
