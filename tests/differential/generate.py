"""Random schemas, queries of the supported subset and random transactions, all from one seed.

No expected value is computed here: the same query in Postgres is the reference. Columns are drawn
so that Postgres itself has one answer only. Numeric columns that are grouped, compared or minimised
have a fixed scale (an equal value has one text). Unconstrained ones are only summed, averaged,
counted or shown.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

# type -> (SQL type, small pool of literals).  Pools are small so that groups, join matches,
# duplicates and retractions to empty happen all the time.
POOLS: dict[str, tuple[str, list[str]]] = {
    "int": ("integer", ["0", "1", "2", "3", "4", "7", "-1", "-5", "1000"]),
    "small": ("smallint", ["0", "1", "2", "3", "-2", "32767", "-32768"]),
    "big": ("bigint", ["0", "1", "2", "9007199254740993", "-3", "4000000000"]),
    "text": (
        "text",
        ["''", "'a'", "'b'", "'A'", "'abc'", "'ä'", "'a b'", "E'x\\ty'", "'%_'", "'zz'"],
    ),
    "vchar": ("varchar(8)", ["''", "'a'", "'b'", "'abc'", "'q\"x'"]),
    "char": ("char(3)", ["'a'", "'b'", "'abc'", "''"]),
    "money2": ("numeric(10,2)", ["0", "1.50", "-2.25", "99999999.99", "0.01", "3"]),
    "num": (
        "numeric",
        ["0", "1", "1.0", "1.00", "-0.5", "123456789012345678901234567890.5", "0.000001"],
    ),
    "double": (
        "double precision",
        ["0", "1.5", "-2.25", "1e10", "0.1", "0.2", "'NaN'", "'Infinity'"],
    ),
    "bool": ("boolean", ["true", "false"]),
    "date": (
        "date",
        ["'2024-01-31'", "'2024-02-29'", "'1999-12-31'", "'infinity'", "'0044-03-15 BC'"],
    ),
    "stamp": (
        "timestamp",
        ["'2024-01-31 10:00'", "'2024-01-31 10:00:00.5'", "'1969-12-31 23:59:59.999999'"],
    ),
    "stamptz": ("timestamptz", ["'2024-01-31 10:00+00'", "'2024-07-01 00:00+02'", "'-infinity'"]),
    "uuid": (
        "uuid",
        ["'00000000-0000-0000-0000-000000000001'", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    ),
    "bytea": ("bytea", ["'\\x'", "'\\x00ff'", "'\\x6162'"]),
    "json": ("jsonb", ["'{}'", "'{\"a\": 1}'", "'[1, 2.50, null]'", "'\"s\"'"]),
    "time": ("time", ["'00:00'", "'24:00'", "'10:30:00.000001'"]),
    "timetz": ("timetz", ["'10:00+00'", "'12:00+02'", "'23:59:59.5-08:30'", "'24:00+00'"]),
    "span": (
        "interval",
        [
            "'1 mon'",
            "'2 days'",
            "'03:00'",
            "'-1 day -00:00:01'",
            "'1 year 5 days'",
            "'1 day'",
            "'-1 day'",
            "'1 mon 1 day'",
            "'2 mons 1 day'",
            "'1 year 1 day'",
            "'-1 mon +1 day'",
            "'-2 years 1 day'",
            "'1 year 2 mons 3 days 04:05:06.7'",
            "'-00:00:00.000001'",
            "'0'",
            "'40 days'",
        ],
    ),
    "float4": ("real", ["0", "0.1", "1.5", "'NaN'", "'-Infinity'"]),
    "inet": ("inet", ["'10.0.0.1'", "'10.0.0.0/8'", "'::1'", "'fe80::1/64'"]),
    "bits": ("bit(3)", ["B'000'", "B'101'", "B'111'"]),
    "name": ("name", ["'a'", "'B'", "'a b'"]),
    "money": ("money", ["0", "1.5", "-2", "12345.67"]),
    "range": ("int4range", ["'empty'", "'[1,5)'", "'[3,)'", "'[1,4]'"]),
    "words": ("text[]", ["'{}'", "'{a,NULL}'", '\'{"NULL","x y"}\'']),
    "ints": ("integer[]", ["'{}'", "'{1,2}'", "'{1,NULL}'", "'{3}'"]),
}
KEYS = [
    "int", "small", "big", "text", "vchar", "money2", "bool", "date", "stamp", "uuid", "bytea", "char", "time", "timetz",
    "span", "inet", "bits", "name", "money", "range", "words", "ints",
]  # fmt: skip
ORDERED = [
    "int", "small", "big", "money2", "date", "stamp", "stamptz", "double", "text", "vchar", "time", "timetz",
    "span", "inet", "money", "float4",
]  # fmt: skip
JOINABLE = [
    "int",
    "small",
    "big",
    "text",
    "date",
    "money2",
    "span",
    "inet",
    "timetz",
    "vchar",
    "char",
    "range",
]
NUMERIC = ["int", "small", "big", "money2", "num", "double"]


ANY = list(POOLS)
COMPARED = [k for k in ANY if k not in ("json", "num", "double", "float4", "char")]
# kinds of the column, SQL over column {c}, another one of the kind {o}, a literal {l}; kind
FUNCTIONS: list[tuple[list[str], str, str]] = [
    (ANY, "({c})::text", "text"),
    (ANY, "concat({c}, {o})", "text"),
    (ANY, "format('%s/%s', {c}, {o})", "text"),
    (ANY, "num_nulls({c}, {o})", "int"),
    (COMPARED, "greatest({c}, {o}, {l})", "same"),
    (COMPARED, "least({c}, {l})", "same"),
    (COMPARED, "nullif({c}, {l})", "same"),
    (COMPARED, "({c} = {o}) IS NOT TRUE", "bool"),
    (COMPARED, "({c} < {o}) IS UNKNOWN", "bool"),
    (COMPARED, "({c} IS DISTINCT FROM {o})", "bool"),
    (COMPARED, "CASE {c} WHEN {l} THEN 'x' WHEN {o} THEN 'y' END", "text"),
    (["text", "vchar", "char", "name"], "regexp_replace({c}, '[ab]', '<\\\\&>', 'g')", "text"),
    (["text", "vchar", "char", "name"], "({c} ~ '^[a-z]+$')", "bool"),
    (["text", "vchar", "char", "name"], "({c} ILIKE 'A%')", "bool"),
    (["text", "vchar", "char"], "({c} SIMILAR TO '(a|b)%')", "bool"),
    (["text", "vchar", "char"], "octet_length({c})", "int"),
    (["text", "vchar"], "string_to_array({c}, ' ')", "words"),
    (["date", "stamp", "stamptz"], "date_trunc('month', {c})::text", "text"),
    (["date", "stamp", "stamptz"], "to_char({c}, 'YYYY-MM-DD BC Dy')", "text"),
    (["stamp", "stamptz"], "({c} AT TIME ZONE 'America/New_York')::text", "text"),
    (["stamp", "stamptz"], "({c})::date", "date"),
    (["time", "timetz"], "extract(epoch FROM {c})::text", "text"),
    (["span"], "({c} * 2)", "span"),
    (["span"], "justify_hours({c})::text", "text"),
    (["int", "small", "big", "money2"], "to_char({c}, 'S9990.99')", "text"),
    (["int", "small", "big", "money2"], "round({c}::numeric, 1)::numeric(20,1)::text", "text"),
    (["int", "small"], "({c}::bigint & 5)", "big"),
    (["double", "float4"], "({c} > 1 OR {c} = 'NaN')", "bool"),
    (["money"], "({c})::numeric::text", "text"),
    (["inet"], "host({c})", "text"),
    (["inet"], "({c} << '10.0.0.0/8')", "bool"),
    (["range"], "upper({c})", "int"),
    (["range"], "({c} && '[2,3)')", "bool"),
    (["ints"], "array_append({c}, 1)", "ints"),
    (["ints"], "(1 = ANY ({c}))", "bool"),
    (["words"], "array_to_string({c}, ',', '*')", "text"),
    (["words", "ints"], "cardinality({c})", "int"),
    (["json"], "({c} ->> 'a')", "text"),
    (["json"], "jsonb_typeof({c})", "text"),
    (["bytea"], "encode({c}, 'hex')", "text"),
]  # fmt: skip


@dataclass
class Table:
    name: str
    columns: dict[str, str]  # name -> kind
    identity: str  # 'pk', 'pk2' or 'full'
    # 'plain', 'parts' (partitioned), 'deep' or 'view' (over a table); not determined by the seed
    form: str = field(default="plain", repr=False)

    @property
    def key(self) -> list[str]:
        return {"pk": ["id"], "pk2": ["id", "id2"], "full": []}[self.identity]

    def ddl(self) -> list[str]:
        """Return the DDL; rows are written through ``name`` and truncated at ``base``."""
        columns = [f"{c} {POOLS[k][0]}" for c, k in self.columns.items()]
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(self.key)})")
        by = self.key[0] if self.key else "k"
        split = f" PARTITION BY HASH ({by})" if self.form in ("parts", "deep") else ""
        out = [f"CREATE TABLE {self.base} ({', '.join(columns)}){split}"]
        leaves = [self.base]
        if split:
            out += [
                f"CREATE TABLE {self.name}_{i} PARTITION OF {self.name}"
                f" FOR VALUES WITH (MODULUS 2, REMAINDER {i})"
                for i in range(2)
            ]
            leaves = [f"{self.name}_{i}" for i in range(2)]
        if self.form == "deep":
            out[2] += " PARTITION BY RANGE (n)" if not self.key else f" PARTITION BY HASH ({by})"
            bounds = (
                ("DEFAULT",)
                if not self.key
                else (
                    "FOR VALUES WITH (MODULUS 4, REMAINDER 1)",
                    "FOR VALUES WITH (MODULUS 4, REMAINDER 3)",
                )
            )
            inner = [f"{self.name}_1_{i}" for i in range(len(bounds))]
            out += [
                f"CREATE TABLE {leaf} PARTITION OF {self.name}_1 {bound}"
                for leaf, bound in zip(inner, bounds, strict=True)
            ]
            leaves = [leaves[0], *inner]
        if not self.key:
            out += [f"ALTER TABLE {leaf} REPLICA IDENTITY FULL" for leaf in leaves]
        if self.form == "view":
            out.append(f"CREATE VIEW {self.name} AS SELECT * FROM {self.base}")
        return out

    @property
    def base(self) -> str:
        return f"{self.name}_base" if self.form == "view" else self.name


@dataclass
class Scope:
    """The columns of a FROM clause: (expression, kind) pairs."""

    sql: str
    columns: list[tuple[str, str]] = field(default_factory=list)

    def of(self, kinds: list[str]) -> list[tuple[str, str]]:
        return [c for c in self.columns if c[1] in kinds]


class Generator:
    """Random schema, queries and transactions of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.rng = random.Random(seed)
        self.tables = [self._table(i) for i in range(self.rng.randint(2, 3))]
        self._next_id = 1000

    # ---- schema

    def _table(self, number: int) -> Table:
        rng = self.rng
        identity = rng.choice(["pk", "pk", "pk2", "full"])
        columns: dict[str, str] = {}
        if identity != "full":
            columns["id"] = "int"
        if identity == "pk2":
            columns["id2"] = rng.choice(["int", "text", "date"])
        columns["k"] = rng.choice(["int", "int", "big"])
        columns["n"] = rng.choice(["int", "small"])
        for i in range(rng.randint(3, 6)):
            columns[f"c{i}"] = rng.choice(list(POOLS))
        return Table(f"t{number}", columns, identity, self._form(number))

    def _form(self, number: int) -> str:
        # A separate generator: the schema and the queries of a seed stay the same.
        return random.Random(f"{self._seed}/{number}").choice(
            ("plain", "plain", "plain", "parts", "deep", "view")
        )

    def ddl(self) -> list[str]:
        return [statement for t in self.tables for statement in t.ddl()]

    # ---- data

    def _literal(self, kind: str, null: float = 0.15) -> str:
        if self.rng.random() < null:
            return "NULL"
        return self.rng.choice(POOLS[kind][1])

    def insert(self, t: Table, rows: int) -> str:
        out = []
        for _ in range(rows):
            values = []
            for c, k in t.columns.items():
                if c == "id":
                    self._next_id += 1
                    values.append(
                        str(self._next_id if self.rng.random() < 0.6 else self.rng.randint(1, 40))
                    )
                else:
                    values.append(self._literal(k, 0.0 if c in t.key else 0.15))
            out.append(f"({', '.join(values)})")
        if not t.key and out and self.rng.random() < 0.4:
            out.append(out[0])
        tail = f" ON CONFLICT ({', '.join(t.key)}) DO NOTHING" if t.key else ""
        return f"INSERT INTO {t.name} ({', '.join(t.columns)}) VALUES {', '.join(out)}{tail}"

    def transaction(self) -> list[str]:
        rng = self.rng
        out = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            t = rng.choice(self.tables)
            kind = rng.random()
            n = rng.randint(-2, 4)
            plain = [c for c in t.columns if c not in t.key]
            col = rng.choice(plain)
            if kind < 0.40:
                out.append(self.insert(t, rng.randint(1, 6)))
            elif kind < 0.62:
                out.append(
                    f"UPDATE {t.name} SET {col} = {self._literal(t.columns[col])} "
                    f"WHERE n = {n} OR k = {rng.randint(0, 4)}"
                )
            elif kind < 0.70 and t.key:
                out.append(f"UPDATE {t.name} SET id = id + 5000 WHERE n = {n} AND id < 5000")
            elif kind < 0.88:
                out.append(f"DELETE FROM {t.name} WHERE k = {rng.randint(0, 7)} AND n IS NOT NULL")
            elif kind < 0.91:
                out.append(f"TRUNCATE {t.base}")
            elif kind < 0.94:
                out.append(f"DELETE FROM {t.name}")
            else:
                out.append(f"SAVEPOINT s; {self.insert(t, 2)}; ROLLBACK TO s; {self.insert(t, 1)}")
        return out

    # ---- queries

    def scope(self, depth: int = 0) -> Scope:
        rng = self.rng
        count = rng.choice([1, 1, 2, 2, 3])
        scope = self._item(rng.choice(self.tables), "a", depth)
        for alias in ["b", "c"][: count - 1]:
            other = self._item(rng.choice(self.tables), alias, depth)
            condition = self._join(scope, other)
            if condition is None or rng.random() < 0.06:
                sql = f"{scope.sql} CROSS JOIN (SELECT * FROM {other.sql} WHERE {other.columns[0][0]} IS NOT NULL AND {alias}.n = 1) {alias}"
                if "SELECT" in other.sql:
                    return scope
            else:
                sql = f"{scope.sql} JOIN {other.sql} ON {condition}"
            scope = Scope(sql, scope.columns + other.columns)
        return scope

    def _item(self, t: Table, alias: str, depth: int) -> Scope:
        columns = [(f"{alias}.{c}", k) for c, k in t.columns.items()]
        if depth < 1 and self.rng.random() < 0.2:
            inner = Scope(f"{t.name} x", [(f"x.{c}", k) for c, k in t.columns.items()])
            sql = f"(SELECT {self.rng.choice(['', 'DISTINCT '])}x.* FROM {t.name} x WHERE {self.predicate(inner)}) {alias}"
            if "DISTINCT" in sql and any(
                k in ("json", "num", "double", "float4") for k in t.columns.values()
            ):
                sql = sql.replace("(SELECT DISTINCT ", "(SELECT ")
            return Scope(sql, columns)
        return Scope(f"{t.name} {alias}", columns)

    def _join(self, left: Scope, right: Scope) -> str | None:
        rng = self.rng
        pairs = [
            (lc, rc) for lc, lk in left.of(JOINABLE) for rc, rk in right.of(JOINABLE)
            if lk == rk or {lk, rk} <= {"int", "small", "big"}
        ]  # fmt: skip
        if not pairs:
            return None
        lc, rc = rng.choice(pairs)
        out = f"{lc} = {rc}"
        if rng.random() < 0.25:
            lc, rc = rng.choice(pairs)
            out += f" AND {lc} {rng.choice(['=', '<', '<>', '>='])} {rc}"
        if rng.random() < 0.2:
            out += f" AND {self.predicate(right)}"
        return out

    def scalar(self, scope: Scope) -> tuple[str, str]:
        """Return an expression that never raises, and its kind."""
        rng = self.rng
        column, kind = rng.choice(scope.columns)
        roll = rng.random()
        ints = scope.of(["int", "small"])
        texts = scope.of(["text", "vchar"])
        if roll < 0.5:
            return column, kind
        if roll < 0.62 and ints:
            a, b = rng.choice(ints)[0], rng.choice(ints)[0]
            op = rng.choice(["+", "-", "*"])
            return f"({a}::bigint {op} {b})", "big"
        if roll < 0.68 and ints:
            a, b = rng.choice(ints)[0], rng.choice(ints)[0]
            return f"({a} {rng.choice(['/', '%'])} nullif({b}, 0)::bigint)", "big"
        if roll < 0.76 and texts:
            a = rng.choice(texts)[0]
            f = rng.choice(
                ["upper({})", "length({})", "({} || '!')", "substr({}, 2, 2)", "coalesce({}, '?')"]
            )
            return f.format(a), "int" if f.startswith("length") else "text"
        if roll < 0.84 and ints:
            a = rng.choice(ints)[0]
            return (f"CASE WHEN {self.predicate(scope)} THEN {a} ELSE -{a}::int END", "int")
        if roll < 0.9:
            return (
                f"coalesce({column}, ({rng.choice(POOLS[kind][1])})::{POOLS[kind][0]})",
                kind if kind != "char" else "text",
            )
        if roll < 0.97:
            return self.function(scope)
        if scope.of(["date"]):
            return (f"extract(year FROM {rng.choice(scope.of(['date']))[0]})::text", "text")
        return f"({column} IS NULL)", "bool"

    def function(self, scope: Scope) -> tuple[str, str]:
        """Return a function that never raises, mostly one that Postgres evaluates, and its kind."""
        rng = self.rng
        column, kind = rng.choice(scope.columns)
        other = rng.choice([c for c, k in scope.columns if k == kind])
        literal = f"({rng.choice(POOLS[kind][1])})::{POOLS[kind][0]}"
        forms = [(f, k) for kinds, f, k in FUNCTIONS if kind in kinds]
        form, result = rng.choice(forms)
        sql = form.format(c=column, o=other, l=literal)
        return sql, kind if result == "same" else result

    def predicate(self, scope: Scope, depth: int = 0) -> str:
        rng = self.rng
        roll = rng.random()
        if depth < 2 and roll < 0.25:
            op = rng.choice(["AND", "OR"])
            return f"({self.predicate(scope, depth + 1)} {op} {self.predicate(scope, depth + 1)})"
        if depth < 2 and roll < 0.32:
            return f"NOT ({self.predicate(scope, depth + 1)})"
        column, kind = rng.choice(scope.columns)
        if roll < 0.45 or kind in ("json", "ints", "words"):
            return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
        literal = f"({rng.choice(POOLS[kind][1])})::{POOLS[kind][0]}"
        if roll < 0.55 and kind != "range":
            more = f"({rng.choice(POOLS[kind][1])})::{POOLS[kind][0]}"
            return f"{column} {rng.choice(['', 'NOT '])}IN ({literal}, {more})"
        if roll < 0.62 and kind in ORDERED:
            more = f"({rng.choice(POOLS[kind][1])})::{POOLS[kind][0]}"
            return f"{column} BETWEEN {literal} AND {more}"
        if roll < 0.68 and kind in ("text", "vchar"):
            pattern = rng.choice(["'a%'", "'%b%'", "'_'"])
            return f"{column} LIKE {pattern}"
        if roll < 0.74:
            return f"{column} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {literal}"
        if kind == "bool":
            return column
        return f"{column} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {literal}"

    def aggregate(self, scope: Scope) -> tuple[str, str]:
        rng = self.rng
        roll = rng.random()
        suffix = f" FILTER (WHERE {self.predicate(scope)})" if rng.random() < 0.25 else ""
        numbers, ordered = scope.of(NUMERIC), scope.of(ORDERED)
        if roll < 0.25:
            return f"count(*){suffix}", "big"
        if roll < 0.4:
            return f"count({rng.choice(scope.columns)[0]}){suffix}", "big"
        if roll < 0.7 and numbers:
            column, kind = rng.choice(numbers)
            function = rng.choice(["sum", "avg"])
            out = "double" if kind == "double" else "num"
            return f"{function}({column}){suffix}", out
        if ordered:
            column, kind = rng.choice(ordered)
            return f"{rng.choice(['min', 'max'])}({column}){suffix}", kind
        return f"count(*){suffix}", "big"

    def _grouped(self) -> str:
        rng = self.rng
        scope = self.scope()
        keys = [
            c for c, _ in rng.sample(scope.of(KEYS), min(rng.randint(0, 2), len(scope.of(KEYS))))
        ]
        if keys and rng.random() < 0.2:
            keys[0] = f"({keys[0]} IS NULL)"
        aggregates = [self.aggregate(scope)[0] for _ in range(rng.randint(1, 3))]
        items = [f"{e} AS o{i}" for i, e in enumerate(keys + aggregates)]
        sql = f"SELECT {', '.join(items)} FROM {scope.sql}"
        if rng.random() < 0.5:
            sql += f" WHERE {self.predicate(scope)}"
        if keys:
            sql += f" GROUP BY {', '.join(keys)}"
        if rng.random() < 0.25:
            sql += f" HAVING count(*) {rng.choice(['>', '<=', '<>'])} {rng.randint(0, 3)}"
        return sql

    def _flat(self, fixed: list[tuple[str, str]] | None = None) -> str:
        rng = self.rng
        scope = self.scope()
        items = fixed or [self.scalar(scope) for _ in range(rng.randint(1, 4))]
        distinct = rng.random() < 0.25 and all(
            k not in ("json", "num", "double", "float4", "ints") for _, k in items
        )
        select = ", ".join(f"{e} AS o{i}" for i, (e, _) in enumerate(items))
        sql = f"SELECT {'DISTINCT ' if distinct else ''}{select} FROM {scope.sql}"
        if rng.random() < 0.6:
            sql += f" WHERE {self.predicate(scope)}"
        return sql

    def _union(self) -> str:
        arms = []
        for _ in range(self.rng.randint(2, 3)):
            scope = self.scope()
            ints = scope.of(["int", "small", "big"])
            items = [
                self.rng.choice(ints)[0] + "::bigint AS o0",
                f"{self.rng.choice(ints)[0]}::text AS o1",
            ]
            arms.append(f"SELECT {', '.join(items)} FROM {scope.sql} WHERE {self.predicate(scope)}")
        return " UNION ALL ".join(arms)

    def query(self) -> str:
        rng = self.rng
        roll = rng.random()
        if roll < 0.42:
            return self._grouped()
        if roll < 0.78:
            return self._flat()
        if roll < 0.88:
            return self._union()
        inner = self._grouped()
        if rng.random() < 0.5:
            return (
                f"WITH q AS ({inner}) SELECT q.o0, count(*) AS n FROM q GROUP BY q.o0"
                if self._keyable(inner)
                else inner
            )
        return f"SELECT * FROM ({inner}) s WHERE s.o0 IS NOT NULL"

    @staticmethod
    def _keyable(sql: str) -> bool:
        """Return whether the first output column has one text per value (see the module text)."""
        first = sql.split(" AS o0")[0]
        return not any(f in first for f in ("sum(", "avg(", "min(", "max("))
