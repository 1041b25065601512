"""Random queries with subqueries: every kind in every position, nested, over NULLs and duplicates.

Tables ``da``, ``db`` and ``dc`` have one shape. A subquery's own tables have aliases, so that they
may be the same as outer ones.
"""

from __future__ import annotations

import random

from tests.differential.places import Places

TABLES = ("da", "db", "dc")
DDL = tuple(
    f"CREATE TABLE {t} (id int PRIMARY KEY, x int, y int, n numeric, s text)" for t in TABLES
)
_NUMBERS = ("x", "y", "id")
_VALUES = {
    "x": ("0", "1", "2", "3"),
    "y": ("0", "1", "2"),
    "n": ("1.0", "1.00", "2", "2.50"),
    "s": ("'a'", "'b'", "''"),
}
_OPERATORS = ("=", "=", "=", "<>", "<", ">=")


class Maker:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._aliases = 0
        self._places = Places(self.rng, self._table)

    # -- queries

    def placed(self) -> str:
        """Return a query with a subquery that reads its columns at all kinds of places."""
        self._aliases = 0
        a, b = self._alias(), self._alias()
        inner = self._places.subquery(a, b)
        table, column = self._table(a), self.rng.choice(_NUMBERS)
        return self.rng.choice(
            (
                f"SELECT {a}.id, q.z FROM {table}, LATERAL ({inner}) q",
                f"SELECT {a}.id, q.z FROM {table} LEFT JOIN LATERAL ({inner}) q ON q.z > {a}.y",
                f"SELECT {a}.id FROM {table} WHERE EXISTS ({inner})",
                f"SELECT {a}.id FROM {table} WHERE {a}.{column} NOT IN ({inner})",
                f"SELECT {a}.id, {a}.{column} IN ({inner}) AS v FROM {table}",
                f"SELECT {a}.id, (SELECT sum(q.z) FROM ({inner}) q) AS v FROM {table}",
                f"SELECT {a}.id, ARRAY(SELECT q.z FROM ({inner}) q ORDER BY 1) AS v FROM {table}",
            )
        )

    def query(self) -> str:
        self._aliases = 0
        outer = self._alias()
        return self.rng.choice(
            (self._listed, self._where, self._grouped, self._joined, self._lateral)
        )(outer)

    def _alias(self) -> str:
        self._aliases += 1
        return f"t{self._aliases}"

    def _table(self, alias: str) -> str:
        return f"{self.rng.choice(TABLES)} {alias}"

    def _listed(self, a: str) -> str:
        where = self._maybe(f" WHERE {self._condition([a], 1)}")
        return f"SELECT {a}.id, {self._value([a], 2)} AS v FROM {self._table(a)}{where}"

    def _where(self, a: str) -> str:
        return f"SELECT {a}.id, {a}.n FROM {self._table(a)} WHERE {self._condition([a], 2)}"

    def _grouped(self, a: str) -> str:
        key = f"{a}.{self.rng.choice(('x', 'y', 's'))}"
        b = self._alias()
        inner = f"SELECT max({b}.y) FROM {self._table(b)} WHERE {b}.x = {a}.id"
        lists = (
            f"sum(({inner}))",
            f"count(*) FILTER (WHERE {self._condition([a], 1)})",
            f"max({a}.y)",
        )
        column = key.rsplit(".", 1)[1]
        c = self._alias()
        match = f"{c}.{column} = {key}"
        having = self._maybe(
            f" HAVING count(*) >= (SELECT count(*) FROM {self._table(c)} WHERE {match})"
            if self.rng.random() < 0.5
            else f" HAVING EXISTS (SELECT FROM {self._table(c)} WHERE {match}"
            f" AND {c}.y < count({a}.id))"
        )
        d = self._alias()
        shown = f"(SELECT min({d}.id) FROM {self._table(d)} WHERE {d}.{column} = {key})"
        return (
            f"SELECT {key}, {self.rng.choice(lists)} AS v, {shown} AS w"
            f" FROM {self._table(a)} GROUP BY {key}{having}"
        )

    def _joined(self, a: str) -> str:
        b = self._alias()
        kind = self.rng.choice(("JOIN", "LEFT JOIN"))
        on = f"{a}.x = {b}.x AND {self._condition([a, b], 1)}"
        return f"SELECT {a}.id, {b}.id AS b FROM {self._table(a)} {kind} {self._table(b)} ON {on}"

    def _lateral(self, a: str) -> str:
        b = self._alias()
        test = self._correlation(b, [a])
        forms = (
            f"SELECT count(*) AS z FROM {self._table(b)} WHERE {test}",
            f"SELECT {b}.x AS z FROM {self._table(b)} WHERE {test}",
            f"SELECT DISTINCT {b}.x AS z FROM {self._table(b)} WHERE {test}",
            f"SELECT {b}.x + {a}.y AS z FROM {self._table(b)} WHERE {test}",
            f"SELECT {b}.id AS z FROM {self._table(b)} WHERE {test} ORDER BY {b}.id DESC LIMIT 2",
            f"SELECT {b}.x AS z FROM {self._table(b)} WHERE {test} UNION ALL SELECT {a}.y",
            f"SELECT {b}.x AS z FROM {self._table(b)} WHERE {test} EXCEPT SELECT {a}.y",
            f"SELECT {b}.y AS z FROM {self._table(b)} WHERE {test} GROUP BY {b}.y"
            " HAVING count(*) > 1",
        )
        form = self.rng.choice(forms)
        join = self.rng.choice(
            (
                "CROSS JOIN LATERAL {} q",
                "LEFT JOIN LATERAL {} q ON true",
                "LEFT JOIN LATERAL {} q ON q.z > 1",
            )
        )
        return f"SELECT {a}.id, q.z FROM {self._table(a)} " + join.format(f"({form})")

    def _maybe(self, text: str) -> str:
        return text if self.rng.random() < 0.5 else ""

    # -- subqueries

    def _correlation(self, inner: str, outer: list[str]) -> str:
        column = self.rng.choice(("x", "y", "x", "y", "n", "s"))
        other = self.rng.choice(outer)
        if column in ("n", "s"):
            return f"{inner}.{column} = {other}.{column}"
        operator = self.rng.choice(_OPERATORS)
        test = f"{inner}.{column} {operator} {other}.{self.rng.choice(_NUMBERS)}"
        if self.rng.random() < 0.2:
            test += f" AND {inner}.y IS NOT DISTINCT FROM {self.rng.choice(outer)}.y"
        return test

    def _inner(self, what: str, outer: list[str], depth: int) -> str:
        """Return a subquery over one table; ``{i}`` in ``what`` is its alias."""
        i = self._alias()
        tests = []
        if self.rng.random() < 0.75:
            tests.append(self._correlation(i, outer))
        if depth > 1 and self.rng.random() < 0.4:
            tests.append(self._condition([i, *outer], depth - 1))
        where = f" WHERE {' AND '.join(tests)}" if tests else ""
        return f"(SELECT {what.format(i=i)} FROM {self._table(i)}{where})"

    def _scalar(self, outer: list[str], depth: int) -> str:
        """Return a subquery of one row and a numeric column."""
        what = self.rng.choice(
            (
                "count(*)",
                "max({i}.x)",
                "min({i}.y)",
                "sum({i}.x)",
                "count({i}.y) + 1",
                "max({i}.x) - min({i}.y)",
                f"sum({{i}}.x + {self.rng.choice(outer)}.y)",
            )
        )
        if self.rng.random() < 0.2:
            i = self._alias()
            return (
                f"(SELECT {i}.y FROM {self._table(i)}"
                f" WHERE {i}.id = {self.rng.choice(outer)}.{self.rng.choice(_NUMBERS)})"
            )
        return self._inner(what, outer, depth)

    def _condition(self, outer: list[str], depth: int) -> str:
        o = self.rng.choice(outer)
        column = self.rng.choice(_NUMBERS)
        no = self.rng.choice(("", "NOT "))
        kind = self.rng.randrange(9)
        if kind == 0:
            return f"{no}EXISTS {self._inner('1', outer, depth)}"
        if kind in (1, 2):
            return f"{o}.{column} {no}IN {self._inner('{i}.x', outer, depth)}"
        if kind == 3:
            return f"({o}.x, {o}.y) {no}IN {self._inner('{i}.x, {i}.y', outer, depth)}"
        if kind == 4:
            word = self.rng.choice(("ANY", "ALL"))
            operator = self.rng.choice(_OPERATORS)
            inner = self._inner("{i}.y", outer, depth)
            return f"{no}({o}.{column} {operator} {word} {inner})"
        if kind == 5:
            operator = self.rng.choice(_OPERATORS)
            return f"{o}.{column} {operator} {self._scalar(outer, depth)}"
        if kind == 6:
            other = f"{o}.x = {self.rng.randrange(4)}"
            return f"({other} OR {self._condition(outer, depth - 1 or 1)})"
        if kind == 7:
            return f"{o}.n {no}IN {self._inner('{i}.n', outer, depth)}"
        i = self._alias()
        key = f"{i}.id = {o}.{column}"
        return f"({o}.x, {o}.y) = (SELECT {i}.x, {i}.y FROM {self._table(i)} WHERE {key})"

    def _value(self, outer: list[str], depth: int) -> str:
        o = self.rng.choice(outer)
        kind = self.rng.randrange(6)
        if kind < 2:
            return self._scalar(outer, depth)
        if kind == 2:
            return self._condition(outer, depth)
        if kind == 3:
            return f"coalesce({self._scalar(outer, depth)}, {o}.x, -1)"
        if kind == 4:
            test = self._condition(outer, 1)
            return f"CASE WHEN {test} THEN {self._scalar(outer, 1)} ELSE {o}.y END"
        return f"{o}.x + {self._scalar(outer, depth)}"

    # -- data

    def rows(self, table: str, count: int) -> str:
        """Return an INSERT of new or known rows, or of none."""
        values = ", ".join(self._row(self.rng.randrange(12)) for _ in range(count))
        return f"INSERT INTO {table} VALUES {values} ON CONFLICT (id) DO NOTHING"

    def _row(self, number: int) -> str:
        columns = (self._datum(c) for c in ("x", "y", "n", "s"))
        return f"({number}, {', '.join(columns)})"

    def _datum(self, column: str) -> str:
        return self.rng.choice(("NULL", *_VALUES[column], *_VALUES[column]))

    def change(self) -> str:
        table = self.rng.choice(TABLES)
        column = self.rng.choice(tuple(_VALUES))
        some = f"id % {self.rng.randint(1, 4)} = 0"
        return self.rng.choice(
            (
                self.rows(table, 4),
                self.rows(table, 1),
                f"UPDATE {table} SET {column} = {self._datum(column)} WHERE {some}",
                f"UPDATE {table} SET {column} = {self._datum(column)}"
                f" WHERE id = {self.rng.randrange(12)}",
                f"DELETE FROM {table} WHERE {some}",
                f"DELETE FROM {table} WHERE id < {self.rng.randrange(6)}",
                self.rng.choice((f"TRUNCATE {table}", f"DELETE FROM {table}")),
            )
        )
