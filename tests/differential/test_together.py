"""Random levels of several aggregates that show the order of their rows.

Postgres does not define that order, but aggregates with the same ORDER BY see the same one. Views
and queries are therefore compared by values that do not depend on the order: the multiset of tuples
that such aggregates give side by side, and results of their first elements. A failure prints seed
and query. ``HEADRACE_TOGETHER_SEED`` changes the first seed.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from tests.amounts import seeds
from tests.compared import create_view, difference, multiset
from tests.differential.test_aggregates import FIRST, SMALL, Player, nine_digits

SEED = int(os.environ.get("HEADRACE_TOGETHER_SEED", "1"))
VIEWS = 18
SEEDS = 22

SOURCES = (
    "t",
    "t",
    "t JOIN t u ON u.k = t.v_int4",
    "t LEFT JOIN (SELECT k AS other, count(*) AS n FROM t GROUP BY k) u ON u.other = t.k",
    "(SELECT * FROM t UNION ALL SELECT * FROM t WHERE b) t",
    "(SELECT * FROM t UNION SELECT * FROM t WHERE b) t",
    "(SELECT * FROM t ORDER BY k DESC NULLS LAST, v_text) t",
    "(SELECT DISTINCT k, b, v_int4, v_text, v_numeric, v_float8, v_bool FROM t) t",
    "(SELECT *, rank() OVER (ORDER BY k) AS r FROM t) t",
)
GROUPS = (
    "",
    "t.b",
    "t.b",
    "t.k, t.b",
    "ROLLUP (t.k, t.b)",
    "CUBE (t.k, t.b)",
    "GROUPING SETS ((t.k), (t.b), (t.k), ())",
)
ORDERS = ("", "", "", "t.k", "t.k % 2", "t.v_text DESC", "t.b, t.k NULLS FIRST")
FILTERS = ("", "", "", "t.b", "t.v_int4 > 1", "t.v_text <> 'a' OR t.k = 1")
COLUMNS = ("t.k", "t.v_int4", "t.v_text", "t.v_numeric", "t.v_float8", "t.v_bool",
           "t.v_int4 * 2", "upper(t.v_text)", "10 / nullif(t.v_int4 - 1, 0)")  # fmt: skip
FORMS = (
    ("array_agg({}{})", "unnest({})"),
    ("array_agg({}{})", "unnest({})"),
    ("jsonb_agg({}{})", "jsonb_array_elements({})"),
    ("json_agg({}{})", "json_array_elements({})"),
    ("string_agg(coalesce(({})::text, '~'), ';'{})", "string_to_table({}, ';')"),
)
BESIDE = (
    "count(*)",
    "sum(t.v_int4)",
    "array_agg(DISTINCT t.v_text ORDER BY t.v_text)::text",
    "percentile_disc(0.5) WITHIN GROUP (ORDER BY t.v_int4)",
    "max(t.v_text)",
)


@dataclass
class Level:
    """A level of calls ``a0``, ``a1`` …"""

    calls: list[str] = field(default_factory=list)
    normal: list[str] = field(default_factory=list)
    """SQL over the calls' values with only one possible answer."""

    def add(self, call: str) -> str:
        self.calls.append(call)
        return f"q.a{len(self.calls) - 1}"


class Writer:
    """Random queries."""

    def __init__(self, seed: int, *, any_value: bool) -> None:
        self.rng = random.Random(seed)
        self.any_value = any_value

    def level(self) -> Level:
        level = Level()
        for _ in range(self.rng.choice([1, 1, 2])):
            self.together(level)
        for call in self.rng.sample(BESIDE, self.rng.randrange(3)):
            level.normal.append(level.add(call))
        return level

    def together(self, level: Level) -> None:
        """Add calls that see the same rows in the same order."""
        rng = self.rng
        order, condition = rng.choice(ORDERS), rng.choice(FILTERS)
        by = f" ORDER BY {order}" if order else ""
        where = f" FILTER (WHERE {condition})" if condition else ""
        taken = []
        for _ in range(rng.choice([2, 2, 3])):
            make, take = rng.choice(FORMS)
            name = level.add(make.format(rng.choice(COLUMNS), by) + where)
            taken.append(take.format(name))
        names = [f"e{n}" for n in range(len(taken))]
        texts = ", ".join(f"{name}::text" for name in names)
        level.normal.append(
            '(SELECT array_agg(x ORDER BY x COLLATE "C") FROM (SELECT'
            f" array_to_string(ARRAY[{texts}], '|', '~') FROM ROWS FROM"
            f" ({', '.join(taken)}) u ({', '.join(names)})) s (x))::text"
        )
        if rng.random() < 0.4:
            column = rng.choice(COLUMNS)
            listed = level.add(f"array_agg(({column})::text{by}){where}")
            traced = level.add(f"trace_of(({column})::text{by}){where}")
            found = f"(array_remove({listed}, NULL))[1]"
            level.normal.append(f"{traced} IS NOT DISTINCT FROM array_to_string({listed}, '', '-')")
            if order:
                # Postgres removes NULLs before it sorts for these, so ties may differ.
                return
            for name in ("first_of", *(["any_value"] if self.any_value else [])):
                some = level.add(f"{name}(({column})::text){where}")
                level.normal.append(f"{some} IS NOT DISTINCT FROM {found}")

    def query(self) -> tuple[str, str]:
        """Return a query, and the expression to compare over its rows ``q``."""
        rng, level = self.rng, self.level()
        calls = ", ".join(f"{c} AS a{n}" for n, c in enumerate(level.calls))
        normal = ", ".join(level.normal)
        source, group = rng.choice(SOURCES), rng.choice(GROUPS)
        where = rng.choice(["", "", " WHERE t.v_int4 IS DISTINCT FROM 7"])
        kind = rng.randrange(5)
        if kind == 0:
            # For each row a separate level.
            return (
                f"SELECT o.id, x.* FROM t o, LATERAL (SELECT {calls} FROM {source}"
                f" WHERE t.k = o.k) x",
                f"q.id, {normal}",
            )
        if not group:
            return f"SELECT {calls} FROM {source}{where}", normal
        keys = [c for c in ("k", "b") if f"t.{c}" in group]
        listed = ", ".join(f"t.{c}" for c in keys)
        sql = f"SELECT {listed}, {calls} FROM {source}{where} GROUP BY {group}"
        shown = ", ".join(f"q.{c}" for c in keys)
        if kind == 1 and "(" not in group:
            # One WITH query, each use of which shows other columns.
            mine = [f"{'o' if n % 2 else 'p'}.a{n}" for n in range(len(level.calls))]
            same = " AND ".join(f"o.{c} IS NOT DISTINCT FROM p.{c}" for c in keys)
            sql = (
                f"WITH s AS ({sql}) SELECT {', '.join(f'o.{c}' for c in keys)},"
                f" {', '.join(mine)} FROM s o JOIN s p ON {same}"
            )
        return sql, f"{shown}, {normal}"


class Pairs(Player):
    """Compares results that do not depend on the order of the rows."""

    def add(self, query: str, normal: str) -> None:
        name = f"view{len(self.views)}"
        create_view(self.commander, name, query)
        self.views[name] = query, normal

    def check(self, where: str) -> None:
        for name, (query, normal) in self.views.items():
            want, got = (
                multiset(self.source, f"SELECT {normal} FROM {rows} q", nine_digits)
                for rows in (f"({query})", name)
            )
            assert want == got, f"{where}\n{query}\n{normal}\n{difference(want, got)}"


def run(seed: int, source, commander) -> None:
    player = Pairs(source, commander, seed, SMALL)
    source.execute(FIRST)
    source.execute(player.insert(15))
    writer = Writer(seed, any_value=source.info.server_version >= 160000)
    for _ in range(VIEWS):
        player.add(*writer.query())
    player.play(6)


@pytest.mark.parametrize("seed", seeds(SEED, SEEDS))
def test_aggregates_stand_beside_each_other_as_their_rows_do(seed, source, commander):
    run(seed, source, commander)
