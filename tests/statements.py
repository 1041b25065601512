"""PL/pgSQL functions that read tables: some become one expression, the others are refused.

They read the tables of ``bodies.TABLES``.
"""

from __future__ import annotations

import random

SCHEMA = """
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE setting (k text NOT NULL, region int NOT NULL, v numeric(10,3), PRIMARY KEY (k, region));
INSERT INTO setting SELECT k, r, r + 0.125 FROM unnest(ARRAY['a', 'b']) k, generate_series(0, 3) r;
"""
ACCEPTED = {
    "returned": ("c int", "numeric", "BEGIN RETURN (SELECT sum(amount) FROM sale WHERE client = c); END"),
    "from": ("c int", "bigint", "BEGIN RETURN count(*) FROM sale WHERE client = c; END"),
    "assigned": ("c int", "text", "DECLARE n int; r text := 'n'; BEGIN n := (SELECT count(*) FROM sale s WHERE s.client = c); r := r || n; RETURN r; END"),
    "into": ("c int", "text", "DECLARE n text; BEGIN SELECT k.name INTO n FROM client k WHERE k.id = c; RETURN coalesce(n, 'none'); END"),
    "into_two": ("c int", "text", "DECLARE n text; r int; BEGIN SELECT name, region INTO n, r FROM client WHERE id = c; RETURN n || '/' || r; END"),
    "found": ("c int", "text", "DECLARE n text; BEGIN SELECT name INTO n FROM client WHERE id = c; IF NOT FOUND THEN RETURN 'unknown'; END IF; RETURN n; END"),
    "performed": ("c int", "bool", "BEGIN PERFORM 1 FROM sale WHERE client = c; IF FOUND THEN RETURN true; END IF; RETURN found; END"),
    "last": ("c int", "numeric", "DECLARE a numeric; BEGIN SELECT s.amount INTO a FROM sale s WHERE s.client = c ORDER BY s.at DESC, s.id DESC LIMIT 1; RETURN a; END"),
    "last_two": ("c int", "text", "DECLARE a numeric; d date; BEGIN SELECT s.amount, s.at INTO a, d FROM sale s WHERE s.client = c ORDER BY s.at, s.id LIMIT 1; RETURN d::text || a; END"),
    "modifier": ("c int", "text", "DECLARE a numeric(10,1); BEGIN SELECT sum(amount) INTO a FROM sale WHERE client = c; RETURN a::text; END"),
    "rounded": ("c int", "int", "BEGIN RETURN (SELECT sum(amount) FROM sale WHERE client = c); END"),
    "char": ("c int", "text", "DECLARE n char(12); BEGIN n := (SELECT name FROM client WHERE id = c); RETURN '<' || n || '>' || length(n); END"),
    "literal": ("c int", "date", "DECLARE d date := '2024-01-03'; BEGIN SELECT max(at) INTO d FROM sale WHERE client = c; IF d IS NULL THEN RETURN '2020-02-02'; END IF; RETURN d; END"),
    "null": ("c int", "text", "DECLARE n text := NULL; BEGIN IF c > 4 THEN n := (SELECT name FROM client WHERE id = c); ELSE n := NULL; END IF; RETURN n; END"),
    "branches": ("c int, d int", "text",
        """DECLARE n bigint; r text;
        BEGIN
          SELECT count(*) INTO n FROM sale WHERE client = c;
          IF n = 0 THEN RETURN 'none'; ELSIF n = d THEN r := 'equal'; ELSE r := 'of ' || n; END IF;
          CASE WHEN n > 3 THEN r := r || '!'; n := n * 2; ELSE NULL; END CASE;
          IF EXISTS (SELECT FROM client k WHERE k.id = c AND k.region = d) THEN RETURN r || n; END IF;
          RETURN r;
        END"""),
    "untaken": ("c int", "numeric", "DECLARE n bigint; BEGIN SELECT count(*) INTO n FROM sale WHERE client = c; IF n = 0 THEN RETURN 0; END IF; RETURN 100 / n; END"),
    "guarded": ("c int", "int", "DECLARE n int; BEGIN IF c IS NULL OR c > 7 THEN RETURN -1; END IF; n := 10 / (8 - c); RETURN n + (SELECT count(*) FROM sale WHERE client = c); END"),
    "key_of_two": ("r int", "numeric", "DECLARE x numeric; BEGIN SELECT v INTO x FROM setting WHERE region = r AND k = 'b'; RETURN x; END"),
    "joined": ("s int", "text", "DECLARE n text; BEGIN SELECT k.name INTO n FROM sale LEFT JOIN client k ON k.id = sale.client WHERE sale.id = s; IF FOUND THEN RETURN coalesce(n, 'nobody'); END IF; RETURN n; END"),
    "nested_call": ("c int", "text", "DECLARE n text := client_name(c); BEGIN IF n LIKE 'c%' THEN RETURN upper(n); END IF; RETURN total(c)::text; END"),
    "numbered": ("int", "bigint", "BEGIN RETURN (SELECT count(*) FROM sale WHERE client = $1); END"),
    "qualified": ("id int", "text", "BEGIN RETURN (SELECT k.name FROM client k WHERE k.id = f.id); END"),
    "labelled": ("c int", "bigint", "DECLARE n bigint; BEGIN SELECT count(*) AS n INTO n FROM sale WHERE client = c; RETURN n; END"),
    "function_name": ("c int", "bigint", "DECLARE count bigint; BEGIN SELECT count(*) INTO count FROM sale WHERE client = c; RETURN count + 1; END"),
    "collation": ("c int", "bool", """DECLARE n text; m text := 'C5'; BEGIN n := (SELECT upper(left(name, 1)) || id FROM client WHERE id = c) COLLATE "C"; RETURN n < m; END"""),
    "from_words": ("c int", "int", "DECLARE d date; k int; BEGIN SELECT max(at) INTO d FROM sale WHERE client = c; k := extract(day FROM d); IF k IS DISTINCT FROM c THEN RETURN k; END IF; RETURN -k; END"),
    "out": ("c int, OUT total numeric", "numeric", "BEGIN SELECT sum(amount) INTO total FROM sale WHERE client = c; IF total IS NULL THEN total := -1; RETURN; END IF; total := total + 1; END"),
    "inout": ("INOUT c int", "int", "BEGIN c := c + (SELECT count(*) FROM sale WHERE client = c); END"),
    "parameter": ("c int", "text", "BEGIN c := c + 1; RETURN (SELECT name FROM client WHERE id = c); END"),
    "strict": ("c int, d int", "bigint STRICT", "BEGIN RETURN (SELECT count(*) FROM sale WHERE client = c OR client = d); END"),
    "strict_into": ("c int", "bigint", "DECLARE n bigint; BEGIN SELECT count(*) INTO STRICT n FROM sale WHERE client = c; RETURN n; END"),
    "domain": ("c int", "int", "DECLARE p positive := 1; BEGIN p := (SELECT 1 + count(*) FROM sale WHERE client = c); RETURN p * 2; END"),
    "blocks": ("c int", "bigint", "BEGIN DECLARE a bigint := c; BEGIN a := a + (SELECT count(*) FROM sale WHERE client = c); RETURN a; END; END"),
    "path": ("c int", "bigint SET search_path = public", "BEGIN RETURN (SELECT count(*) FROM sale WHERE client = c); END"),
    "stable": ("c int", "bigint STABLE", "BEGIN RETURN (SELECT count(*) FROM sale WHERE client = c); END"),
    "rows": ("c int", "TABLE (sale int, worth numeric)", "BEGIN RETURN QUERY SELECT s.id, s.amount FROM sale s WHERE s.client = c; END"),
    "rows_of_table": ("r int", "SETOF client", "BEGIN RETURN QUERY SELECT * FROM client k WHERE k.region = r; RETURN; END"),
    "values": ("c int", "SETOF numeric", "BEGIN RETURN QUERY SELECT s.amount FROM sale s WHERE s.client = c AND s.amount > 5; END"),
}  # fmt: skip
REFUSED = {
    "several": ("c int", "text", "DECLARE n text; BEGIN SELECT name INTO n FROM client WHERE region = c; RETURN n; END", "several rows"),
    "first": ("c int", "numeric", "DECLARE a numeric; BEGIN SELECT amount INTO a FROM sale WHERE client = c ORDER BY at LIMIT 1; RETURN a; END", "several rows"),
    "half_key": ("c int", "numeric", "DECLARE x numeric; BEGIN SELECT v INTO x FROM setting WHERE region = c; RETURN x; END", "several rows"),
    "own_key": ("c int", "int", "DECLARE x int; BEGIN SELECT region INTO x FROM client WHERE id = id; RETURN x; END", "several rows"),
    "kept_side": ("c int", "int", "DECLARE x int; BEGIN SELECT k.region INTO x FROM client k LEFT JOIN sale s ON s.id = c AND k.id = c; RETURN x; END", "several rows"),
    "or": ("c int", "int", "DECLARE x int; BEGIN SELECT region INTO x FROM client WHERE id = c OR id = 1; RETURN x; END", "several rows"),
    "less": ("c int", "int", "DECLARE x int; BEGIN SELECT region INTO x FROM client WHERE id <= c; RETURN x; END", "several rows"),
    "grouped": ("c int", "bigint", "DECLARE x bigint; BEGIN SELECT count(*) INTO x FROM sale WHERE client = c GROUP BY at; RETURN x; END", "several rows"),
    "strict": ("c int", "text", "DECLARE n text; BEGIN SELECT name INTO STRICT n FROM client WHERE id = c; RETURN n; END", "STRICT may find no row"),
    "conflict": ("id int", "text", "BEGIN RETURN (SELECT name FROM client WHERE client.id = id); END", "a variable or a column"),
    "conflict_local": ("c int", "text", "DECLARE name text; BEGIN SELECT name INTO name FROM client WHERE id = c; RETURN name; END", "a variable or a column"),
    "conflict_out": ("c int", "TABLE (id int)", "BEGIN RETURN QUERY SELECT id FROM sale WHERE client = c; END", "a variable or a column"),
    "local_qualified": ("c int", "int", "DECLARE n int := 1; BEGIN RETURN (SELECT f.n FROM client WHERE id = c); END", "a variable or a column"),
    "no_return": ("c int", "int", "BEGIN IF c > 1 THEN RETURN (SELECT count(*) FROM sale); END IF; END", "without RETURN"),
    "raises": ("c int", "bigint", "BEGIN IF c > 1 THEN RAISE EXCEPTION 'no'; END IF; RETURN (SELECT count(*) FROM sale); END", "statement RAISE"),
    "loop": ("c int", "int", "DECLARE n int := 0; BEGIN FOR i IN 1..3 LOOP n := n + (SELECT count(*) FROM sale WHERE client = i); END LOOP; RETURN n; END", "statement FOR"),
    "case": ("c int", "int", "BEGIN CASE WHEN c > 1 THEN RETURN (SELECT count(*) FROM sale); END CASE; END", "CASE without ELSE"),
    "compared_case": ("c int", "int", "BEGIN CASE c WHEN 1 THEN RETURN (SELECT count(*) FROM sale); ELSE RETURN 1; END CASE; END", "statement CASE"),
    "not_null": ("c int", "bigint", "DECLARE n bigint NOT NULL := 1; BEGIN n := (SELECT max(id) FROM sale WHERE client = c); RETURN n; END", "NOT NULL"),
    "shadowed": ("c int", "bigint", "DECLARE n bigint := 1; BEGIN DECLARE n bigint := 2; BEGIN n := (SELECT count(*) FROM sale); END; RETURN n; END", "twice"),
    "by_text": ("c int", "int", "DECLARE n int; BEGIN SELECT name INTO n FROM client WHERE id = c; RETURN n; END", "assigns a value of type text"),
    "returned_by_text": ("c int", "date", "BEGIN RETURN (SELECT name FROM client WHERE id = c); END", "assigns a value of type text"),
    "interval": ("c int", "interval", "DECLARE i interval(0); BEGIN i := (SELECT max(at) - min(at) FROM sale) * interval '1 d'; RETURN i; END", "variable of type interval"),
    "record": ("c int, OUT a int, OUT b text", "record", "BEGIN SELECT region, name INTO a, b FROM client WHERE id = c; END", "several OUT parameters"),
    "columns": ("c int", "int", "DECLARE a int; BEGIN SELECT region, name INTO a FROM client WHERE id = c; RETURN a; END", "another number"),
    "performed": ("c int", "bool", "BEGIN PERFORM 1 / amount FROM sale WHERE client = c; RETURN found; END", "PERFORM"),
    "queries": ("c int", "SETOF int", "BEGIN RETURN QUERY SELECT id FROM sale; RETURN QUERY SELECT id FROM client; END", "single RETURN QUERY"),
    "next": ("c int", "SETOF int", "BEGIN RETURN NEXT (SELECT count(*) FROM sale); END", "single RETURN QUERY"),
    "types": ("c int", "SETOF bigint", "BEGIN RETURN QUERY SELECT id FROM sale; END", "other types"),
    "branches": ("c int", "bigint", "DECLARE n bigint := 0; BEGIN " + "IF c > 1 THEN IF n > 3 THEN RETURN n; END IF; END IF; n := n + (SELECT count(*) FROM sale); " * 16 + "RETURN n; END", "too many branches"),
    "hidden": ("c int", "bigint SET search_path = apart, public", "BEGIN RETURN (SELECT count(*) FROM client); END", "without its schema"),
}  # fmt: skip
"""The last element of each is a part of the error message."""


VARIABLES = {
    "i": "int", "j": "bigint", "n": "numeric(12,1)", "m": "numeric",
    "s": "text", "u": "varchar", "p": "char(6)", "d": "date", "b": "boolean",
}  # fmt: skip
"""Variables of the generated bodies; their parameters are ``c int`` and ``e int``."""

DEFAULTS = {
    "i": "c", "j": "(SELECT count(*) FROM sale WHERE client = e)", "n": "c / 7.0", "m": "latest(c)",
    "s": "client_name(e)", "u": "'word'", "p": "'abcdef'", "d": "'2024-02-29'", "b": "c > e",
}  # fmt: skip


class Generator:
    """A generator of bodies whose statements can be written as one expression."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def body(self) -> tuple[str, str, str]:
        """Return parameters, result and text."""
        rng = self._rng
        declared = "".join(
            f"{name} {kind}{rng.choice(('', f' := {DEFAULTS[name]}'))};"
            for name, kind in VARIABLES.items()
        )
        result = rng.choice(list(VARIABLES))
        kind = VARIABLES[result].split("(")[0]
        inside = self._statements(rng.randint(2, 4), 0)
        text = f"DECLARE {declared} BEGIN {inside} RETURN {self._value(result)}; END"
        return "c int, e int", kind.replace("char", "text") if result == "p" else kind, text

    def _statements(self, number: int, depth: int) -> str:
        return " ".join(self._statement(depth) for _ in range(number))

    def _statement(self, depth: int) -> str:
        """Return a statement at nesting depth ``depth``."""
        simple = (self._assignment, self._into, self._two, self._divided)
        nested = (self._if, self._if, self._case) if depth < 1 else ()
        at = self._rng.randrange(len(simple) + len(nested))
        return simple[at]() if at < len(simple) else nested[at - len(simple)](depth)

    def _assignment(self) -> str:
        name = self._rng.choice(list(VARIABLES))
        return f"{name} := {self._value(name)};"

    def _into(self) -> str:
        rng = self._rng
        query, name = rng.choice([
            ("SELECT count(*) INTO {} FROM sale WHERE client = {}", rng.choice("jnms")),
            ("SELECT sum(amount) INTO {} FROM sale WHERE client = {}", rng.choice("nmjs")),
            ("SELECT max(at) INTO {} FROM sale WHERE client = {}", rng.choice("ds")),
            ("SELECT k.region INTO {} FROM client k WHERE k.id = {}", rng.choice("ijnms")),
            ("SELECT left(k.name, 5) INTO {} FROM client k WHERE k.id = {}", rng.choice("sup")),
            ("SELECT q.amount INTO {} FROM sale q WHERE q.client = {} ORDER BY q.amount, q.id LIMIT 1", rng.choice("nmj")),
            ("SELECT k.name INTO {} FROM sale q JOIN client k ON k.id = q.client WHERE q.id = {}", rng.choice("su")),
        ])  # fmt: skip
        return query.format(name, self._value("i")) + ";"

    def _two(self) -> str:
        value = self._value("i")
        return self._rng.choice([
            f"SELECT k.name, k.region INTO s, i FROM client k WHERE k.id = {value};",
            f"SELECT q.at, q.amount INTO d, n FROM sale q WHERE q.id = {value};",
            f"SELECT count(*), min(q.amount) INTO j, m FROM sale q WHERE q.client = {value};",
            f"PERFORM 1 FROM sale q WHERE q.client = {value};",
        ])  # fmt: skip

    def _divided(self) -> str:
        name = self._rng.choice("ij")
        return f"IF {name} <> 0 THEN m := 60 / {name}; ELSE m := -1; END IF;"

    def _if(self, depth: int) -> str:
        rng = self._rng
        arms = " ELSIF ".join(
            f"{self._value('b')} THEN {self._inside(depth)}" for _ in range(rng.randint(1, 2))
        )
        last = f"ELSE {self._inside(depth)}" if rng.random() < 0.5 else ""
        return f"IF {arms} {last} END IF;"

    def _case(self, depth: int) -> str:
        arm = f"WHEN {self._value('b')} THEN {self._inside(depth)}"
        return f"CASE {arm} ELSE {self._inside(depth)} END CASE;"

    def _inside(self, depth: int) -> str:
        returned = "RETURN NULL;" if self._rng.random() < 0.15 else ""
        return self._statements(self._rng.randint(1, 2), depth + 1) + returned

    def _value(self, name: str) -> str:
        return self._rng.choice({
            "i": ["c", "e", "i", "c + 1", "coalesce(i, 2)", "e - c", "length(s)", "3"],
            "j": ["j", "c", "j + 1", "(SELECT count(*) FROM sale WHERE client = e)", "7"],
            "n": ["n", "m", "n * 1.37", "c / 7.0", "total(e)", "2.25"],
            "m": ["m", "n", "m - n", "c", "latest(c)", "CASE WHEN c <> 0 THEN 9.0 / c END"],
            "s": ["s", "u", "s || c", "coalesce(u, 'no')", "client_name(e)", "'text'", "d::text"],
            "u": ["u", "left(s, 4)", "'word'", "upper(u)"],
            "p": ["p", "left(s, 3)", "'ab'"],
            "d": ["d", "d + e", "'2024-02-29'", "(SELECT min(at) FROM sale WHERE client = c)", "NULL"],
            "b": ["found", "NOT found", "c > e", "s IS NULL", "n > 10", "j = c OR b", "m < n", "p = 'ab'",
                  "EXISTS (SELECT FROM sale WHERE client = c AND amount > n)", "s < u", "b"],
        }[name])  # fmt: skip


def define(name: str, parameters: str, result: str, body: str) -> str:
    """Return the statement that creates a function; ``f.`` in its body stands for its own name."""
    first, *rest = result.split(" ")
    returns, clauses = (result, "") if first in ("TABLE", "SETOF") else (first, " ".join(rest))
    text = body.replace("f.", f"{name}.")
    return f"CREATE FUNCTION {name}({parameters}) RETURNS {returns} LANGUAGE plpgsql {clauses} AS $f${text}$f$"


def call(name: str, parameters: str, result: str) -> str:
    """Return a query over all clients that calls the function."""
    arguments = "k.id, k.region" if ", " in parameters and "OUT" not in parameters else "k.id"
    if result.startswith(("TABLE", "SETOF")):
        return f"SELECT k.id, ROW(r.*)::text AS r FROM client k, {name}({arguments}) r"
    return f"SELECT k.id, {name}({arguments})::text AS r FROM client k"
