"""Subqueries with columns of the outer query at every place that takes an expression.

``subquery`` returns a query of one numeric column ``z`` over alias ``b``. Its expressions read
columns of ``b`` and of the outer query's ``a``. They are arguments, partitions, orders and filters
of windows and aggregates. They also occur in DISTINCT ON, GROUP BY, HAVING, LIMIT, OFFSET, joins,
set operations, VALUES, WITH, functions in FROM and the select list.
"""

from __future__ import annotations

import random
from collections.abc import Callable

FRAMES = (
    "",
    "",
    " ROWS 1 PRECEDING",
    " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW",
    " GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW",
)


class Places:
    """Expressions for the places of one subquery; the data are those of ``subqueries.Maker``."""

    def __init__(self, rng: random.Random, table: Callable[[str], str]) -> None:
        """Use ``table``, which returns a table of FROM for an alias."""
        self._rng = rng
        self._table = table
        self._outer = self._inner = ""

    def subquery(self, outer: str, inner: str) -> str:
        """Return a query over alias ``inner`` that reads columns of ``outer``."""
        self._outer, self._inner = outer, inner
        forms = (
            self._window,
            self._window,
            self._window,
            self._aggregate,
            self._ordered,
            self._grouped,
            self._limited,
            self._distinct_on,
            self._combined,
            self._functions,
            self._joined,
            self._with,
        )
        return self._rng.choice(forms)()

    def value(self) -> str:
        """Return a number of columns of both queries, or of one."""
        a = self._outer
        return self._rng.choice((self.own(), self.own(), f"{a}.y + 1", f"{a}.x"))

    def own(self) -> str:
        """Return a number that reads the inner query: an aggregate of it is the inner query's."""
        a, b = self._outer, self._inner
        return self._rng.choice(
            (
                f"{b}.y + {a}.y",
                f"{b}.x * 2 - {a}.x",
                f"{b}.y / nullif({a}.y, 0)",
                f"coalesce({a}.x, {b}.y)",
                f"coalesce({b}.x, {a}.y + {b}.id)",
                f"CASE WHEN {a}.x > {b}.x THEN {a}.y + 1 ELSE {b}.y END",
                f"length({b}.s || {a}.s)",
                f"floor({b}.n + {a}.n)::int",
                f"{b}.y",
            )
        )

    def test(self) -> str:
        operator = self._rng.choice(("=", "<", "<=", "<>"))
        return f"{self.value()} {operator} {self.value()}"

    def _from(self) -> str:
        where = f" WHERE {self.test()}" if self._rng.random() < 0.5 else ""
        return f"FROM {self._table(self._inner)}{where}"

    def _over(self) -> str:
        partition = f"PARTITION BY {self.value()} " if self._rng.random() < 0.4 else ""
        # By all columns: no two rows are equal in the order.
        order = f"ORDER BY {self.value()}, {self._inner}.id"
        return f"({partition}{order}{self._rng.choice(FRAMES)})"

    def _window(self) -> str:
        value, b = self.value(), self._inner
        filtered = f" FILTER (WHERE {self.test()})" if self._rng.random() < 0.3 else ""
        call = self._rng.choice(
            (
                f"max({value}){filtered}",
                f"sum({value}){filtered}",
                f"count({value}){filtered}",
                f"lag({value})",
                f"lead({value}, 1, {self.value()})",
                f"lag({b}.y, 1, {value})",
                f"lag({b}.y, {self._outer}.y)",
                f"first_value({value})",
                f"nth_value({value}, 2)",
                f"nth_value({b}.id, 1 + {self._outer}.y)",
                "row_number()",
                "ntile(2)",
            )
        )
        over = self._rng.choice(("()", self._over(), self._over()))
        if over == "()" and not call.startswith(("max", "sum", "count")):
            over = self._over()
        more = f" + {self.value()}" if self._rng.random() < 0.2 else ""
        return f"SELECT {call} OVER {over}{more} AS z {self._from()}"

    def _aggregate(self) -> str:
        value = self.own()
        filtered = f" FILTER (WHERE {self.test()})" if self._rng.random() < 0.4 else ""
        call = self._rng.choice(
            (
                f"sum({value})",
                f"count(DISTINCT {value})",
                f"max({value})",
                f"bool_or({value} > {self.value()})",
            )
        )
        shown = f"({call}{filtered})"
        if call.startswith("bool"):
            shown += "::int"
        having = f" HAVING {self._outer}.x < count(*)" if self._rng.random() < 0.3 else ""
        return f"SELECT {shown} AS z {self._from()}{having}"

    def _ordered(self) -> str:
        """Return aggregates that see their rows in an order."""
        value, order = self.own(), f"ORDER BY {self.value()}, {self._inner}.id"
        call = self._rng.choice(
            (
                f"(array_agg({value} {order}))[1]",
                f"length(string_agg(({value})::text, {self._outer}.s {order}))",
                f"percentile_disc(0.5) WITHIN GROUP (ORDER BY {value})",
            )
        )
        return f"SELECT {call} AS z {self._from()}"

    def _grouped(self) -> str:
        value, b = self.value(), self._inner
        keys = self._rng.choice(("{}", "{}", "{}, x", "ROLLUP ({})", "GROUPING SETS (({}), ())"))
        shown = self._rng.choice(("k", "count(*)", "sum(y)", "max(k) + count(*)"))
        having = f" HAVING count(*) > {self._outer}.y" if self._rng.random() < 0.3 else ""
        rows = f"SELECT {value} AS k, {b}.x, {b}.y {self._from()}"
        return f"SELECT {shown} AS z FROM ({rows}) g GROUP BY {keys.format('k')}{having}"

    def _limited(self) -> str:
        a = self._outer
        count = self._rng.choice(
            ("LIMIT 2", f"LIMIT {a}.y", f"LIMIT 1 OFFSET {a}.x", f"OFFSET {a}.y + 1")
        )
        order = f"ORDER BY {self.value()}, {self._inner}.id"
        return f"SELECT {self.value()} AS z {self._from()} {order} {count}"

    def _distinct_on(self) -> str:
        value = self.value()
        if self._rng.random() < 0.3:
            return f"SELECT DISTINCT {value} AS z {self._from()}"
        order = f"ORDER BY {value}, {self._inner}.id DESC"
        return f"SELECT DISTINCT ON ({value}) {self.value()} AS z {self._from()} {order}"

    def _combined(self) -> str:
        word = self._rng.choice(("UNION", "UNION ALL", "EXCEPT", "INTERSECT ALL"))
        first = f"SELECT {self.value()} AS z {self._from()}"
        second = f"SELECT {self.value()} {self._from()}"
        values = f"VALUES ({self._outer}.x), ({self._outer}.y + 1)"
        return f"{first} {word} {self._rng.choice((second, values))}"

    def _functions(self) -> str:
        a, b = self._outer, self._inner
        return self._rng.choice(
            (
                f"SELECT generate_series({a}.y, {self.value()}) AS z {self._from()}",
                f"SELECT unnest(ARRAY[{self.value()}, {self.value()}]) AS z {self._from()}",
                f"SELECT g + {b}.y AS z FROM {self._table(b)}, generate_series({a}.y, {b}.x) g",
                f"SELECT g AS z FROM unnest(ARRAY[{a}.x, {a}.y]) g",
            )
        )

    def _joined(self) -> str:
        b, c = self._inner, f"{self._inner}c"
        kind = self._rng.choice(("JOIN", "LEFT JOIN"))
        on = f"{b}.x = {c}.x AND {self.test()}"
        return (
            f"SELECT {self.value()} + coalesce({c}.y, {self._outer}.y) AS z"
            f" FROM {self._table(b)} {kind} {self._table(c)} ON {on}"
        )

    def _with(self) -> str:
        rows = f"SELECT {self.value()} AS z, {self._inner}.id {self._from()}"
        total = f"w.z + sum(w.z + {self._outer}.y) OVER (ORDER BY w.id)"
        return f"WITH w AS ({rows}) SELECT {total} AS z FROM w"
