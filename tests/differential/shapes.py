"""Random query shapes: trees of every construct over one random schema.

``Shapes(seed)`` makes the schema, the transactions and, one by one, the queries. Postgres is the
reference, so a query must have one answer only:

* where order matters (limits, row_number, array_agg), rows are ordered by every column that can be
  told apart, so that ties are indistinguishable rows; unordered aggregates are compared side by
  side, as multisets (``together``);
* values that are equal but look different (``LOOSE`` kinds) are shown, never ordered or grouped;
* no expression raises on any value of the pools.

A query depends on the seed, its number and the views of Headrace that it may read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.differential.generate import POOLS, Generator, Table

T = TypeVar("T")
Column = tuple[str, str]
"""SQL expression and kind."""

STORED = ["int", "small", "big", "text", "vchar", "money2", "bool", "date", "stamp", "uuid",
          "json", "ints"]  # fmt: skip
SHOWN = frozenset(("int", "small", "big", "text", "vchar", "money2", "bool", "uuid", "json"))
"""Kinds whose texts tell them apart under all settings."""
LOOSE = frozenset(("num", "double"))
"""Kinds whose equal values may look different."""
WHOLE = ("int", "small", "big")
COMPARED = ("int", "small", "big", "text", "vchar", "money2", "date", "stamp")
TYPES = {kind: POOLS[kind][0] for kind in POOLS}
SUBTLE = 0.12
"""Probability that a predicate is a subquery, where the budget allows one."""


class Shapes(Generator):
    """Random schema, transactions and queries of one seed."""

    depths: Sequence[int] = (0, 1, 1, 2, 2, 3)
    """Depths of nesting, each equally often."""

    def _table(self, number: int) -> Table:
        rng = self.rng
        identity = rng.choice(["pk", "pk", "full"])
        columns = {} if identity == "full" else {"id": "int"}
        columns |= {"k": rng.choice(["int", "int", "big"]), "n": "int", "s": "text"}
        for i in range(rng.randint(1, 4)):
            columns[f"c{i}"] = rng.choice(STORED)
        return Table(f"t{number}", columns, identity, self._form(number))

    def views(self) -> list[tuple[str, str, list[str]]]:
        """Return the user's own views: name, query and the kinds of their columns."""
        out: list[tuple[str, str, list[str]]] = []
        for number in range(2):
            made = Query(random.Random(f"{self.tables}/view{number}"), self.tables)
            made.shared = [(name, shown) for name, _, shown in out]
            sql, shown = made.block(1, [])
            out.append((f"w{number}", sql, shown))
        return out

    def ddl(self) -> list[str]:
        return [*super().ddl(), *(f"CREATE VIEW {name} AS {sql}" for name, sql, _ in self.views())]

    def shape(
        self, number: int, results: Sequence[tuple[str, list[str]]] = ()
    ) -> tuple[str, list[str]]:
        """Return the query of that number and its columns' kinds; it may read ``results``, too."""
        made = Query(random.Random(f"{self.tables}/{number}"), self.tables)
        made.own = [(name, shown) for name, _, shown in self.views()]
        made.results = list(results)
        return made.text(self.depths)


class Query:
    """One random query."""

    def __init__(self, rng: random.Random, tables: list[Table]) -> None:
        self.rng = rng
        self.tables = tables
        self.shared: list[tuple[str, list[str]]] = []
        """CTEs in scope: name and kinds of c0, c1, …"""
        self.own: list[tuple[str, list[str]]] = []
        """The user's own views, in the same form."""
        self.results: list[tuple[str, list[str]]] = []
        """Views of Headrace, in the same form."""
        self._aliases = 0

    def text(self, depths: Sequence[int]) -> tuple[str, list[str]]:
        """Return the whole statement, nested one of ``depths``, and the kinds of its columns."""
        sql, kinds = self.block(self.rng.choice(depths), [])
        if self.rng.random() < 0.1 and not any(k in LOOSE for k in kinds):
            sql = f"SELECT * FROM ({sql}) q ORDER BY 1 DESC"
        return sql, kinds

    # ---- choosing

    def alias(self) -> str:
        self._aliases += 1
        return f"x{self._aliases}"

    def maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    def pick(self, *weighted: tuple[float, T]) -> T:
        weights, values = zip(*weighted, strict=True)
        return self.rng.choices(values, weights)[0]

    def of(self, columns: list[Column], *kinds: str) -> list[str]:
        return [c for c, k in columns if k in kinds]

    def some(self, columns: list[Column], least: int, most: int) -> list[Column]:
        most = min(most, len(columns))
        return self.rng.sample(columns, self.rng.randint(min(least, most), most))

    def literal(self, kind: str) -> str:
        return f"({self.rng.choice(POOLS[kind][1])})::{TYPES[kind]}"

    # ---- blocks: SELECT statements whose columns are c0, c1, …

    def block(
        self, depth: int, outer: list[Column], want: list[str] | None = None
    ) -> tuple[str, list[str]]:
        """Return a query that may read ``outer`` columns, with columns of ``want`` kinds."""
        forms: list[tuple[float, Callable[..., tuple[str, list[str]]]]] = [
            (5, self.plain),
            (1.0, self.limited),
            (0.7, self.distinct_on),
        ]
        if want is None:
            forms += [(4, self.grouped), (0.8, self.together)]
        if depth > 0:
            forms += [(1.5, self.set_operation), (1.0, self.with_query)]
            if want is None:
                forms += [(2.5, self.windowed), (0.8, self.recursive)]
        return self.pick(*forms)(depth, outer, want)

    def items(
        self, depth: int, columns: list[Column], outer: list[Column], want: list[str] | None
    ) -> list[Column]:
        if want is None:
            return [self.scalar(depth, columns, outer) for _ in range(self.rng.randint(1, 4))]
        out = []
        for kind in want:
            fit = self.of(columns, kind)
            if fit and self.maybe(0.85):
                out.append((self.rng.choice(fit), kind))
            elif kind in POOLS:
                text = f"NULL::{TYPES[kind]}" if self.maybe(0.3) else self.literal(kind)
                out.append((text, kind))
            else:
                out.append(("NULL::numeric", kind))
        return out

    def plain(
        self, depth: int, outer: list[Column], want: list[str] | None
    ) -> tuple[str, list[str]]:
        source, columns = self.source(depth, outer)
        items = self.items(depth, columns, outer, want)
        keyable = not any(k in LOOSE for _, k in items)
        word = "DISTINCT " if keyable and self.maybe(0.15) else ""
        sql = f"SELECT {word}{named(items)} FROM {source}"
        return sql + self.where(depth, columns, outer, 0.6), kinds(items)

    def where(self, depth: int, columns: list[Column], outer: list[Column], chance: float) -> str:
        parts = []
        if outer and self.maybe(0.7):
            link = self.link(columns, outer)
            if link:
                parts.append(link)
        if self.maybe(chance):
            parts.append(self.predicate(depth, columns, outer))
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def limited(
        self, depth: int, outer: list[Column], want: list[str] | None
    ) -> tuple[str, list[str]]:
        sql, shown = self.plain(depth, outer, want)
        if any(k in LOOSE for k in shown):
            return sql, shown
        if self.maybe(0.25):
            first = self.direction("1")
            return (
                f"{sql} ORDER BY {first} FETCH FIRST {self.rng.randint(1, 4)} ROWS WITH TIES",
                shown,
            )
        return f"{sql} ORDER BY {self.every(len(shown))}{self.window_of_rows()}", shown

    def window_of_rows(self) -> str:
        limit = f" LIMIT {self.rng.randint(1, 6)}" if self.maybe(0.85) else ""
        offset = f" OFFSET {self.rng.randint(0, 3)}" if self.maybe(0.3) else ""
        return limit + offset

    def every(self, count: int, first: int = 0) -> str:
        """Return all column numbers in random order, from ``first`` on."""
        rest = list(range(first + 1, count + 1))
        self.rng.shuffle(rest)
        order = [*range(1, first + 1), *rest]
        return ", ".join(self.direction(str(i)) for i in order)

    def direction(self, what: str) -> str:
        return (
            what
            + self.rng.choice(["", "", " DESC"])
            + self.rng.choice(["", "", " NULLS FIRST", " NULLS LAST"])
        )

    def distinct_on(
        self, depth: int, outer: list[Column], want: list[str] | None
    ) -> tuple[str, list[str]]:
        source, columns = self.source(depth, outer)
        items = self.items(depth, columns, outer, want)
        if any(k in LOOSE for _, k in items):
            return self.plain(depth, outer, want)
        first = self.rng.randint(1, len(items))
        on = ", ".join(str(i + 1) for i in range(first))
        sql = (
            f"SELECT DISTINCT ON ({on}) {named(items)} FROM {source}"
            f"{self.where(depth, columns, outer, 0.5)} ORDER BY {self.every(len(items), first)}"
        )
        return sql, kinds(items)

    def grouped(
        self, depth: int, outer: list[Column], _: list[str] | None
    ) -> tuple[str, list[str]]:
        source, columns = self.source(depth, outer)
        keys = self.some([c for c in columns if c[1] not in LOOSE], 0, 2)
        aggregates = [self.aggregate(depth, columns) for _ in range(self.rng.randint(1, 3))]
        having = ""
        if self.maybe(0.25):
            test = self.rng.choice(
                [
                    f"count(*) {self.rng.choice(['>', '<=', '<>'])} {self.rng.randint(0, 3)}",
                    self.predicate(0, aggregates, outer),
                ]
            )
            having = f" HAVING {test}"
        items = [*keys, *aggregates]
        if self.maybe(0.12):
            # A window over the groups.
            items.append((f"rank() OVER (ORDER BY {self.direction('count(*)')})", "big"))
        by = ""
        if keys:
            names = [c for c, _ in keys]
            by = self.grouping(names, items)
        elif self.maybe(0.1):
            by = " GROUP BY ()"
        end = by + having
        if self.maybe(0.12) and not any(k in LOOSE for _, k in items):
            end += f" ORDER BY {self.every(len(items))}{self.window_of_rows()}"
        sql = f"SELECT {named(items)} FROM {source}"
        return sql + self.where(depth, columns, outer, 0.4) + end, kinds(items)

    def together(
        self, depth: int, outer: list[Column], _: list[str] | None
    ) -> tuple[str, list[str]]:
        """Return aggregates that show the order of their rows, compared as tuples side by side."""
        source, columns = self.source(depth, outer)
        fit = [c for c in columns if c[1] in SHOWN]
        if not fit:
            return self.plain(depth, outer, None)
        keys = self.some([c for c in columns if c[1] not in LOOSE], 0, 2)
        items = list(keys)
        end = self.where(depth, columns, outer, 0.4)
        over = ""
        if keys and self.maybe(0.2):
            names = [c for c, _ in keys]
            by = f"PARTITION BY {', '.join(names)} ORDER BY {self.rng.choice(fit)[0]}"
            whole = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
            order, over = "", f" OVER ({by} {whole})"
        else:
            order = ""
            if self.maybe(0.4):
                order = f" ORDER BY {self.direction(self.rng.choice(fit)[0])}"
            end += self.grouping([c for c, _ in keys], items) if keys else ""
        condition = ""
        if self.maybe(0.3):
            condition = f" FILTER (WHERE {self.predicate(0, columns, [])})"
        calls, taken = [], []
        name = self.alias()
        for number in range(self.rng.choice([2, 2, 3])):
            call, take = self.pick(
                (3, ("array_agg", "unnest")),
                (1, ("jsonb_agg", "jsonb_array_elements")),
                (0.5, ("json_agg", "json_array_elements")),
            )
            column = self.rng.choice(fit)[0]
            calls.append(f"{call}({column}{order}){condition}{over} AS a{number}")
            taken.append(f"{take}({name}.a{number})")
        listed = ", ".join([*([named(items)] if items else []), *calls])
        shown = [f"{name}.c{i} AS c{i}" for i in range(len(items))]
        shown.append(f"{side_by_side(taken)} AS c{len(items)}")
        sql = f"SELECT {', '.join(shown)} FROM (SELECT {listed} FROM {source}{end}) {name}"
        return sql, [*kinds(items), "text"]

    def grouping(self, names: list[str], items: list[Column]) -> str:
        plain = ", ".join(names)
        if self.maybe(0.7):
            return f" GROUP BY {plain}"
        items.append((f"GROUPING({plain})", "int"))
        sets = [f"ROLLUP ({plain})", f"CUBE ({plain})", f"GROUPING SETS (({plain}), ())"]
        if len(names) > 1:
            one, two = names[:2]
            sets += [
                f"GROUPING SETS (({one}), ({two}))",
                f"{one}, ROLLUP ({two})",
                f"GROUPING SETS (({one}), ({one}, {two}), ({one}))",
            ]
        return f" GROUP BY {self.rng.choice(sets)}"

    def aggregate(self, depth: int, columns: list[Column]) -> Column:
        rng = self.rng
        out: list[Column] = [("count(*)", "big")]
        column, kind = rng.choice(columns)
        word = "DISTINCT " if kind not in LOOSE and self.maybe(0.2) else ""
        out.append((f"count({word}{column})", "big"))
        if kind in COMPARED:
            out.append((f"{rng.choice(['min', 'max'])}({column})", kind))
        if kind not in LOOSE and kind != "ints":
            out += [
                (f"array_agg({word}{column} ORDER BY {self.direction(column)})::text", "text"),
                (f"jsonb_agg({word}{column} ORDER BY {self.direction(column)})", "json"),
                (f"mode() WITHIN GROUP (ORDER BY {self.direction(column)})", kind),
                (f"percentile_disc(0.5) WITHIN GROUP (ORDER BY {column})", kind),
                (f"rank({self.literal(kind)}) WITHIN GROUP (ORDER BY {column})", "big"),
            ]  # fmt: skip
        if kind in ("int", "small"):
            out += [
                (f"sum({word}{column})", "big"),
                (f"avg({word}{column})", "num"),
                (f"bit_or({column})", kind),
                (f"stddev_samp({column})", "num"),
                (f"percentile_cont(0.25) WITHIN GROUP (ORDER BY {column})", "double"),
            ]
        if kind in ("money2", "big"):
            out += [(f"{rng.choice(['sum', 'avg', 'var_pop'])}({column})", "num")]
        if kind == "bool":
            out.append((f"{rng.choice(['bool_and', 'bool_or', 'every'])}({column})", kind))  # fmt: skip
        if kind == "text":
            out.append((f"string_agg({word}{column}, ',' ORDER BY {column})", "text"))
            out.append(
                (
                    f"jsonb_object_agg({column} || '', 1 ORDER BY {column})"
                    f" FILTER (WHERE {column} IS NOT NULL)",
                    "json",
                )
            )
            out.append((f"string_agg({column}, '-' ORDER BY {column} DESC)", "text"))
        text, result = rng.choice(out)
        if "FILTER" not in text and not text.endswith("::text") and self.maybe(0.2):
            text += f" FILTER (WHERE {self.predicate(0, columns, [])})"
        return text, result

    def windowed(
        self, depth: int, outer: list[Column], _: list[str] | None
    ) -> tuple[str, list[str]]:
        inner, shown = self.block(depth - 1, outer)
        name = self.alias()
        columns = [(f"{name}.c{i}", k) for i, k in enumerate(shown)]
        sharp = [c for c in columns if c[1] not in LOOSE]
        calls = [self.window(columns, sharp)]
        if self.maybe(0.5):
            # The pairing of two calls' values among equal rows is undefined: only one of the calls
            # may tell equal rows apart.
            calls.append(self.window(columns, sharp, peers=True))
        sql = f"SELECT {named([*columns, *calls])} FROM ({inner}) {name}"
        return sql, kinds([*columns, *calls])

    def window(self, columns: list[Column], sharp: list[Column], *, peers: bool = False) -> Column:
        """Return a window call; with ``peers``, one that is equal for rows equal in its order."""
        rng = self.rng
        parts = [c for c, _ in self.some(sharp, 0, 1)] if self.maybe(0.6) else []
        by = f"PARTITION BY {', '.join(parts)} " if parts else ""
        numbers = self.of(columns, "int", "small")
        added = f"sum({rng.choice(numbers)})" if numbers else "count(*)"
        some = rng.choice(columns)
        if not peers and len(sharp) == len(columns) and self.maybe(0.6):
            order = [self.direction(c) for c, _ in sharp]
            rng.shuffle(order)
            call, kind = rng.choice(
                [
                    ("row_number()", "big"),
                    (f"ntile({rng.randint(1, 3)})", "int"),
                    (f"lag({some[0]})", some[1]),
                    (f"lead({some[0]}, 2)", some[1]),
                    (f"first_value({some[0]})", some[1]),
                    (f"last_value({some[0]})", some[1]),
                    (f"nth_value({some[0]}, 2)", some[1]),
                    (added, "big"),
                    ("count(*)", "big"),
                ]
            )
            framed = call.split("(")[0] not in ("row_number", "ntile", "lag", "lead")
            frame = self.frame(["ROWS", "GROUPS"]) if framed else ""
            return f"{call} OVER ({by}ORDER BY {', '.join(order)}{frame})", kind
        if not sharp:
            return f"count(*) OVER ({by.strip()})", "big"
        one, kind = rng.choice(sharp)
        call, kind_out = rng.choice(
            [
                ("rank()", "big"),
                ("dense_rank()", "big"),
                ("percent_rank()", "double"),
                ("cume_dist()", "double"),
                (added, "big"),
                ("count(*)", "big"),
                (f"max({one})" if kind in COMPARED else "count(*)",
                 kind if kind in COMPARED else "big"),
            ]
        )  # fmt: skip
        ranked = call.split("(")[0] in ("rank", "dense_rank", "percent_rank", "cume_dist")
        if not ranked and self.maybe(0.3):
            return f"{call} OVER ({by.strip()})", kind_out
        frame = "" if ranked else self.frame(["GROUPS"], kind)
        return f"{call} OVER ({by}ORDER BY {self.direction(one)}{frame})", kind_out

    def frame(self, modes: list[str], kind: str = "") -> str:
        if self.maybe(0.5):
            return ""
        rng = self.rng
        mode = rng.choice([*modes, "RANGE"])
        step = str(rng.randint(0, 2))
        starts = ["UNBOUNDED PRECEDING", "CURRENT ROW"]
        ends = ["UNBOUNDED FOLLOWING", "CURRENT ROW"]
        if mode != "RANGE" or kind in WHOLE:
            starts.append(f"{step} PRECEDING")
            ends.append(f"{step} FOLLOWING")
        ties = mode != "ROWS"
        exclude = ["", "", " EXCLUDE CURRENT ROW", " EXCLUDE GROUP", " EXCLUDE TIES"]
        # The current one of several equal rows is undefined.
        out = "" if ties and not kind else rng.choice(exclude)
        return f" {mode} BETWEEN {rng.choice(starts)} AND {rng.choice(ends)}{out}"

    def set_operation(
        self, depth: int, outer: list[Column], want: list[str] | None
    ) -> tuple[str, list[str]]:
        shown = want or [
            self.rng.choice(["int", "text", "big", "bool", "date"])
            for _ in range(self.rng.randint(1, 3))
        ]
        if any(k in LOOSE for k in shown):
            return self.plain(depth, outer, want)
        sql = self.block(depth - 1, outer, shown)[0]
        for _ in range(self.rng.choice([1, 1, 2])):
            op = self.rng.choice(["UNION", "INTERSECT", "EXCEPT"])
            word = self.rng.choice([" ALL", ""])
            other = self.block(depth - 1, outer, shown)[0]
            sql = f"({sql}) {op}{word} ({other})"
        if self.maybe(0.2):
            sql += f" ORDER BY {self.every(len(shown))}{self.window_of_rows()}"
        return sql, shown

    def with_query(
        self, depth: int, outer: list[Column], want: list[str] | None
    ) -> tuple[str, list[str]]:
        inner, shown = self.block(depth - 1, [])
        name = f"q{self.alias()}"
        how = self.rng.choice(["", "", "MATERIALIZED ", "NOT MATERIALIZED "])
        self.shared.append((name, shown))
        body, out = self.block(depth - 1, outer, want)
        self.shared.pop()
        if body.startswith("WITH"):
            body = f"SELECT * FROM ({body}) b"
        return f"WITH {name} AS {how}({inner}) {body}", out

    def recursive(
        self, depth: int, outer: list[Column], _: list[str] | None
    ) -> tuple[str, list[str]]:
        name, seed = f"r{self.alias()}", self.rng.choice(self.tables)
        step = self.rng.choice(self.tables)
        word = self.rng.choice(["UNION", "UNION ALL"])
        wheres = self.where(0, [(f"s.{c}", k) for c, k in seed.columns.items()], [], 0.5)
        if self.maybe(0.5):
            sql = (
                f"WITH RECURSIVE {name}(c0, c1) AS (SELECT s.k::bigint, s.n::bigint FROM {seed.name} s{wheres}"
                f" UNION SELECT {name}.c0, t.n::bigint FROM {name} JOIN {step.name} t ON {name}.c1 = t.k)"
            )
        else:
            sql = (
                f"WITH RECURSIVE {name}(c0, c1) AS (SELECT s.k::bigint, 0::bigint FROM {seed.name} s{wheres}"
                f" {word} SELECT t.n::bigint, {name}.c1 + 1 FROM {name} JOIN {step.name} t ON {name}.c0 = t.k"
                f" WHERE {name}.c1 < 2)"
            )
        self.shared.append((name, ["big", "big"]))
        body, out = self.plain(0, outer, None) if self.maybe(0.3) else (
            f"SELECT c0, c1 FROM {name}", ["big", "big"])  # fmt: skip
        self.shared.pop()
        return f"{sql} {body}", out

    # ---- FROM

    def source(self, depth: int, outer: list[Column]) -> tuple[str, list[Column]]:
        sql, columns = self.item(depth, outer)
        for _ in range(self.pick((5, 0), (4, 1), (1.2, 2))):
            sql, columns = self.joined(depth, sql, columns, outer)
        return sql, columns

    def item(self, depth: int, outer: list[Column]) -> tuple[str, list[Column]]:
        name = self.alias()
        if self.shared and self.maybe(0.6):
            shared, shown = self.rng.choice(self.shared)
            return f"{shared} {name}", [(f"{name}.c{i}", k) for i, k in enumerate(shown)]
        roll = self.rng.random()
        if depth > 0 and roll < 0.3:
            inner, shown = self.block(depth - 1, [])
            return f"({inner}) {name}", [(f"{name}.c{i}", k) for i, k in enumerate(shown)]
        if roll < 0.35:
            rows = ", ".join(
                f"({self.literal('int')}, {self.literal('text')})"
                for _ in range(self.rng.randint(1, 3))
            )
            return f"(VALUES {rows}) {name}(c0, c1)", [
                (f"{name}.c0", "int"),
                (f"{name}.c1", "text"),
            ]
        if self.own and self.maybe(0.08):
            view, shown = self.rng.choice([*self.own, *self.results[-4:]])
            return f"{view} {name}", [(f"{name}.c{i}", k) for i, k in enumerate(shown)]
        table = self.rng.choice(self.tables)
        return f"{table.name} {name}", [(f"{name}.{c}", k) for c, k in table.columns.items()]

    def joined(
        self, depth: int, sql: str, left: list[Column], outer: list[Column]
    ) -> tuple[str, list[Column]]:
        if self.maybe(0.25):
            return self.lateral(depth, sql, left, outer)
        right_sql, right = self.item(depth, outer)
        kind = self.pick((4, "JOIN"), (3, "LEFT JOIN"), (1, "RIGHT JOIN"), (1.5, "FULL JOIN"))
        link = self.link(right, left, equal=kind == "FULL JOIN")
        if link is None:
            return f"{sql} CROSS JOIN {right_sql}", left + right
        if kind != "FULL JOIN" and self.maybe(0.3):
            link += f" AND {self.predicate(depth - 1, left + right, outer)}"
        return f"{sql} {kind} {right_sql} ON {link}", left + right

    def lateral(
        self, depth: int, sql: str, left: list[Column], outer: list[Column]
    ) -> tuple[str, list[Column]]:
        name = self.alias()
        word = self.rng.choice(["CROSS JOIN LATERAL", "LEFT JOIN LATERAL"])
        end = " ON true" if word.startswith("LEFT") else ""
        arrays, whole = self.of(left, "ints"), self.of(left, "int", "small")
        texts, jsons = self.of(left, "text"), self.of(left, "json")
        calls: list[tuple[str, str, list[Column]]] = []
        if arrays:
            calls.append((f"unnest({self.rng.choice(arrays)})", "(u)", [(f"{name}.u", "int")]))
            calls.append(
                (
                    f"unnest({self.rng.choice(arrays)}) WITH ORDINALITY",
                    "(u, o)",
                    [(f"{name}.u", "int"), (f"{name}.o", "big")],
                )
            )
        if whole:
            calls.append(
                (
                    f"generate_series(1, least({self.rng.choice(whole)}, 3))",
                    "(u)",
                    [(f"{name}.u", "int")],
                )
            )
        if texts:
            calls.append(
                (
                    f"regexp_split_to_table({self.rng.choice(texts)}, ' ')",
                    "(u)",
                    [(f"{name}.u", "text")],
                )
            )
        if jsons:
            column = self.rng.choice(jsons)
            calls.append(
                (
                    f"jsonb_each_text(CASE WHEN jsonb_typeof({column}) = 'object' THEN {column} END)",
                    "(u, o)",
                    [(f"{name}.u", "text"), (f"{name}.o", "text")],
                )
            )
        if calls and (depth == 0 or self.maybe(0.5)):
            call, names, columns = self.rng.choice(calls)
            return f"{sql} {word} {call} {name}{names}{end}", left + columns
        inner, shown = self.block(max(depth - 1, 0), left + outer)
        columns = [(f"{name}.c{i}", k) for i, k in enumerate(shown)]
        if end and self.maybe(0.3):
            end = f" ON {self.predicate(0, left + columns, [])}"
        return f"{sql} {word} ({inner}) {name}{end}", left + columns

    def link(self, some: list[Column], others: list[Column], *, equal: bool = False) -> str | None:
        pairs = [
            (a, b)
            for a, ka in some
            for b, kb in others
            if (ka == kb and ka not in LOOSE) or (ka in WHOLE and kb in WHOLE)
        ]
        if not pairs:
            return None
        a, b = self.rng.choice(pairs)
        if equal or self.maybe(0.8):
            out = f"{a} = {b}"
        else:
            out = f"{a} {self.rng.choice(['<', '>=', '<>', 'IS NOT DISTINCT FROM'])} {b}"
        if self.maybe(0.15):
            a, b = self.rng.choice(pairs)
            out += f" AND {a} = {b}"
        return out

    # ---- expressions

    def scalar(self, depth: int, columns: list[Column], outer: list[Column]) -> Column:
        rng = self.rng
        everything = columns + outer if outer and self.maybe(0.3) else columns
        column, kind = rng.choice(everything)
        if self.maybe(0.5):
            return column, kind
        if depth > 0 and self.maybe(0.3):
            return self.subquery(depth, everything)
        whole, texts = self.of(everything, "int", "small"), self.of(everything, "text")
        out: list[Column] = [
            (f"({column} IS NULL)", "bool"),
            (f"({self.predicate(0, everything, [])})", "bool"),
        ]
        if kind in POOLS:
            out.append((f"coalesce({column}, {self.literal(kind)})", kind))
            out.append((f"CASE WHEN {self.predicate(0, everything, [])} THEN {column} END", kind))
        if kind in COMPARED:
            out.append((f"greatest({column}, {self.literal(kind)})", kind))
            out.append((f"nullif({column}, {self.literal(kind)})", kind))
        if kind not in LOOSE and kind not in ("stamp", "date"):
            out.append((f"({column})::text", "text"))
            out.append((f"to_jsonb({column})", "json"))
        if whole:
            a, b = rng.choice(whole), rng.choice(whole)
            out += [
                (f"({a}::bigint {rng.choice('+-*')} {b})", "big"),
                (f"({a} % nullif({b}, 0)::bigint)", "big"),
                (f"ARRAY[{a}, {b}]::int[]", "ints"),
                (f"abs({a}::bigint)", "big"),
            ]
        if texts:
            a = rng.choice(texts)
            out += [
                (f"upper({a})", "text"),
                (f"length({a})", "int"),
                (f"({a} || '!')", "text"),
                (f"concat({a}, '/', {column})" if kind not in LOOSE else a, "text"),
            ]
        arrays, jsons = self.of(everything, "ints"), self.of(everything, "json")
        if arrays:
            a = rng.choice(arrays)
            out += [
                (f"{a}[1]", "int"),
                (f"cardinality({a})", "int"),
                (f"array_append({a}, 1)", "ints"),
            ]
        if jsons:
            out.append((f"({rng.choice(jsons)} ->> 'a')", "text"))
        return rng.choice(out)

    def subquery(self, depth: int, columns: list[Column]) -> Column:
        """Return a scalar subquery that never has two rows."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.55:
            source, inner = self.source(depth - 1, columns)
            text, kind = self.aggregate(0, inner)
            if kind in LOOSE:
                text, kind = "count(*)", "big"
            return (f"(SELECT {text} FROM {source}{self.where(depth - 1, inner, columns, 0.4)})", kind)  # fmt: skip
        kind = rng.choice(["int", "text"])
        plain, _ = self.plain(depth - 1, columns, [kind])
        if roll < 0.8:
            return f"({plain} ORDER BY 1 LIMIT 1)", kind
        array = f"ARRAY({plain} ORDER BY 1)"
        return (array, "ints") if kind == "int" else (f"array_to_string({array}, ',', '*')", "text")

    def predicate(
        self, depth: int, columns: list[Column], outer: list[Column], level: int = 0
    ) -> str:
        rng = self.rng
        everything = columns + outer if outer and self.maybe(0.3) else columns
        roll = rng.random()
        if level < 2 and roll < 0.22:
            parts = [self.predicate(depth, columns, outer, level + 1) for _ in range(2)]
            return f"({rng.choice([' AND ', ' OR ']).join(parts)})"
        if level < 2 and roll < 0.28:
            return f"NOT ({self.predicate(depth, columns, outer, level + 1)})"
        if depth > 0 and roll < 0.28 + 2 * SUBTLE:
            return self.membership(depth, everything)
        column, kind = rng.choice(everything)
        if kind in LOOSE or kind not in POOLS or self.maybe(0.12):
            return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
        if kind == "bool":
            return rng.choice([column, f"{column} IS NOT TRUE"])
        if kind == "ints":
            return rng.choice(
                [f"1 = ANY ({column})", f"{column} && '{{1,3}}'", f"2 <> ALL ({column})"]
            )
        if kind == "json":
            return rng.choice([f"{column} ? 'a'", f"{column} @> '{{\"a\": 1}}'"])
        a, b = self.literal(kind), self.literal(kind)
        same = [c for c, k in everything if k == kind]
        out = [
            f"{column} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {a}",
            f"{column} {rng.choice(['', 'NOT '])}IN ({a}, {b})",
            f"{column} BETWEEN {a} AND {b}",
            f"{column} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {a}",
            f"{column} {rng.choice(['=', '<', '<>'])} {rng.choice(same)}",
            f"({column}, {rng.choice(same)}) {rng.choice(['=', '<', '>='])} ({a}, {b})",
        ]
        if kind in ("text", "vchar"):
            out.append(f"{column} LIKE {rng.choice(['%a%', 'a%', '_'])!r}")
            out.append(f"{column} ~ '^[a-z]+$'")
        return rng.choice(out)

    def membership(self, depth: int, columns: list[Column]) -> str:
        rng = self.rng
        roll = rng.random()
        if roll < 0.4:
            inner = self.block(depth - 1, columns)[0]
            return f"{rng.choice(['', 'NOT '])}EXISTS ({inner})"
        whole = [c for c in columns if c[1] in ("int", "text", "big")]
        if not whole:
            return f"{columns[0][0]} IS NOT NULL"
        column, kind = rng.choice(whole)
        if roll < 0.65:
            inner = self.block(depth - 1, columns, [kind])[0]
            return f"{column} {rng.choice(['', 'NOT '])}IN ({inner})"
        if roll < 0.75:
            other, second = rng.choice(whole)
            inner = self.block(depth - 1, columns, [kind, second])[0]
            return f"({column}, {other}) {rng.choice(['', 'NOT '])}IN ({inner})"
        if roll < 0.88:
            inner = self.block(depth - 1, columns, [kind])[0]
            op = rng.choice(["=", "<", ">=", "<>"])
            return f"{column} {op} {rng.choice(['ANY', 'ALL'])} ({inner})"
        text, result = self.subquery(depth, columns)
        if result == kind:
            return f"{column} {rng.choice(['=', '<', '>='])} {text}"
        return f"{text} IS NOT NULL"


def side_by_side(taken: list[str]) -> str:
    """Return the multiset of tuples of set-returning functions in lockstep, as one text."""
    names = [f"e{n}" for n in range(len(taken))]
    line = f"array_to_string(ARRAY[{', '.join(f'{n}::text' for n in names)}], '|', '~')"
    return (
        f"(SELECT string_agg({line}, ';' ORDER BY {line} COLLATE \"C\")"
        f" FROM ROWS FROM ({', '.join(taken)}) u({', '.join(names)}))"
    )


def named(items: list[Column]) -> str:
    return ", ".join(f"{e} AS c{i}" for i, (e, _) in enumerate(items))


def kinds(items: list[Column]) -> list[str]:
    return [k for _, k in items]
