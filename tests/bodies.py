"""Functions whose bodies the planner analyses, and functions that it refuses, by name."""

from __future__ import annotations

SCHEMA = """
CREATE SEQUENCE q;
CREATE FUNCTION dice_sum(a int, b int) RETURNS int LANGUAGE plpgsql AS
  'BEGIN RETURN a + b * random(); END';
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN timely AS timestamptz CHECK (VALUE < now());
CREATE TABLE one (id int PRIMARY KEY, s text, at timestamptz, n numeric, tags text[]);
CREATE TABLE other (id int PRIMARY KEY, s text);
CREATE FUNCTION dice(x int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN x * random(); END';
CREATE FUNCTION doubled(x int) RETURNS int LANGUAGE sql AS 'SELECT x * 2';
CREATE FUNCTION defaulted(x int, y float DEFAULT random()) RETURNS float LANGUAGE sql AS 'SELECT x + y';
CREATE OPERATOR ### (FUNCTION = dice, RIGHTARG = int);
CREATE FUNCTION to_pair(x int) RETURNS pair LANGUAGE sql AS 'SELECT x + random()::int, ''''::text';
CREATE CAST (int AS pair) WITH FUNCTION to_pair(int) AS ASSIGNMENT;
CREATE AGGREGATE lottery (int) (SFUNC = dice_sum, STYPE = int);
"""
ACCEPTED = {
    "arithmetic": ("sql", "x int", "int", "SELECT x + 1"),
    "positional": ("sql", "int", "int", "SELECT $1 * 2;"),
    "casts": ("sql", "x int", "text", "SELECT x::text || '-' || x::numeric::text -- a comment"),
    "assigned": ("sql", "x int", "numeric", "SELECT x"),
    "nested": ("sql", "x int", "int", "SELECT doubled(doubled(x)) + f.x"),
    "patterns": ("sql", "s text", "text", "SELECT regexp_replace(lower(s), '[^a-z]+', '-', 'g')"),
    "arrays": ("sql", "tags text[]", "text", "SELECT string_agg(upper(t), '{,}' ORDER BY t) FROM unnest(tags) t"),
    "subquery": ("sql", "x int", "int", "WITH w AS (SELECT x AS y UNION ALL VALUES (2)) SELECT max(y) FROM w"),
    "ranked": ("sql", "x int", "bigint", "SELECT row_number() OVER (ORDER BY y) FROM (VALUES (x)) v (y)"),
    "enum": ("sql", "x int", "mood", "SELECT CASE WHEN x > 1 THEN 'ok'::mood ELSE 'sad' END"),
    "row": ("sql", "x int", "pair", "SELECT x, 'b'::text"),
    "domain": ("sql", "x int", "int", "SELECT (abs(x) + 1)::positive"),
    "zone": ("sql", "at timestamptz", "text", "SELECT to_char(at, 'YYYY') || at::text"),
    "document": ("sql", "s text", "tsvector", "SELECT to_tsvector('english', s)"),
    "own_path": ("sql", "x int", "int SET search_path = ''", "SELECT public.doubled(x)"),
    "returned": ("plpgsql", "x int", "int", "BEGIN RETURN x + 1; END"),
    "branches": (
        "plpgsql", "x int", "text",
        """DECLARE r text := ''; y CONSTANT numeric(10,2) DEFAULT x;
        BEGIN
          IF x IS NULL THEN RETURN NULL; ELSIF y > 5 THEN r = 'large'; ELSE r := 'small' || y; END IF;
          CASE x WHEN 1, 2 THEN r := r || '!'; ELSE NULL; END CASE;
          CASE WHEN x > 0 THEN r := upper(r); ELSE r := r; END CASE;
          RETURN r;
        END;""",
    ),
    "loops": (
        "plpgsql", "tags text[]", "int",
        """DECLARE n int := 0; t text; i int := 0;
        BEGIN
          FOR i IN REVERSE cardinality(tags)..1 BY 1 LOOP n := n + i; CONTINUE WHEN n > 5; END LOOP;
          FOREACH t IN ARRAY tags LOOP n := n + length(t); END LOOP;
          WHILE i < 3 LOOP i := i + 1; END LOOP;
          LOOP EXIT WHEN i > 5; i := i + 1; END LOOP;
          RETURN n + i;
        END""",
    ),
    "into": (
        "plpgsql", "s text", "text",
        "DECLARE a text; b text; BEGIN SELECT left(v, 1), v INTO STRICT a, b FROM (VALUES (s)) t (v);"
        " IF NOT FOUND THEN RETURN ''; END IF; RETURN a || b; END",
    ),
    "checked": (
        "plpgsql", "x int", "int",
        "BEGIN IF x < 0 THEN RAISE EXCEPTION 'negative: %, %', x, x + 1"
        " USING ERRCODE = '22023', HINT = 'no'; END IF; RETURN x; END",
    ),
    "out": ("plpgsql", "x int, OUT y int", "int", "BEGIN y := x * 2; END"),
}  # fmt: skip
REFUSED = {
    "chance": ("sql", "x int", "float", "SELECT x * random()"),
    "clock": ("sql", "at timestamptz", "bool", "SELECT at < now()"),
    "clock_word": ("sql", "at timestamptz", "bool", "SELECT at < 'today'::date"),
    "clock_word_hidden": ("sql", "at timestamptz", "bool", r"SELECT at < E'to\x64ay'::date"),
    "clock_text": ("sql", "s text", "date", "SELECT s::date"),
    "clock_json": ("sql", "s text", "date", "SELECT d FROM json_to_record(s::json) r (d date)"),
    "session": ("sql", "x int", "text", "SELECT current_setting('work_mem')"),
    "role": ("sql", "x int", "name", "SELECT current_user"),
    "settings": ("sql", "x int", "text", "SELECT set_config('a.b', x::text, true)"),
    "sequence": ("sql", "x int", "bigint", "SELECT nextval('q')"),
    "nested": ("sql", "x int", "int", "SELECT dice(x)"),
    "operator": ("sql", "x int", "int", "SELECT ### x"),
    "default": ("sql", "x int", "float", "SELECT defaulted(x)"),
    "default_nested": ("sql", "x int", "float", "SELECT y FROM defaulted(x) y"),
    "aggregate": ("sql", "x int", "int", "SELECT lottery(y) FROM (VALUES (x)) v (y)"),
    "assignment": ("sql", "x int", "SETOF pair", "SELECT x::pair"),
    "domain": ("sql", "at timestamptz", "timestamptz", "SELECT at::timely"),
    "domain_argument": ("sql", "x timely", "int", "SELECT 1"),
    "catalogs": ("sql", "s text", "oid", "SELECT s::regclass::oid"),
    "relation": ("sql", "x int", "oid", "SELECT 'one'::regclass::oid"),
    "polymorphic": ("sql", "x anyelement", "anyelement", "SELECT x"),
    "writes": ("sql", "x int", "int", "INSERT INTO other VALUES (x) RETURNING id"),
    "writes_in_with": ("sql", "x int", "int", "WITH w AS (DELETE FROM other RETURNING id) SELECT id FROM w"),
    "several": ("sql", "x int", "int", "SELECT 1; SELECT x"),
    "definer": ("sql", "x int", "int SECURITY DEFINER", "SELECT x"),
    "set_clause": ("sql", "x int", "int SET work_mem = '1MB'", "SELECT x"),
    "user_path": ("sql", "x int", """int SET search_path = '$user', public""", "SELECT doubled(x)"),
    "itself": ("sql", "x int", "int", "SELECT CASE WHEN x > 0 THEN f(x - 1) END"),
    "xml": ("sql", "s text", "date", "SELECT d FROM xmltable('/a' PASSING (s::xml) COLUMNS d date PATH 'b')"),
    "temporary": ("plpgsql", "x int", "int", "BEGIN CREATE TEMP TABLE y (); RETURN x; END"),
    "dynamic": ("plpgsql", "x int", "int", "DECLARE r int; BEGIN EXECUTE 'SELECT 1' INTO r; RETURN r; END"),
    "handler": ("plpgsql", "x int", "int", "BEGIN RETURN 1 / x; EXCEPTION WHEN OTHERS THEN RETURN 0; END"),
    "performs": ("plpgsql", "x int", "int", "BEGIN PERFORM dice(x); RETURN x; END"),
    "plpgsql_nested": ("plpgsql", "x int", "int", "BEGIN IF x > 1 THEN RETURN dice(x); END IF; RETURN x; END"),
    "plpgsql_clock": ("plpgsql", "x int", "date", "DECLARE d date := 'today'; BEGIN RETURN d; END"),
    "plpgsql_returns": ("plpgsql", "s text", "date", "BEGIN RETURN s; END"),
    "plpgsql_casts": ("plpgsql", "x int", "pair", "DECLARE p pair; BEGIN p := x; RETURN p; END"),
    "plpgsql_domain": ("plpgsql", "at timestamptz", "text", "DECLARE d timely := at; BEGIN RETURN d; END"),
    "plpgsql_row": ("plpgsql", "x int", "text", "DECLARE r other%ROWTYPE; BEGIN RETURN r.s; END"),
    "plpgsql_record": ("plpgsql", "x int", "text", "DECLARE r record; BEGIN RETURN x; END"),
    "plpgsql_cursor": ("plpgsql", "x int", "int", "DECLARE c CURSOR FOR SELECT 1; BEGIN RETURN x; END"),
    "plpgsql_option": ("plpgsql", "x int", "int", "#variable_conflict use_column\nBEGIN RETURN x; END"),
    "plpgsql_label": ("plpgsql", "x int", "int", "<<a>> BEGIN RETURN a.x; END"),
    "plpgsql_loop": ("plpgsql", "x int", "int", "DECLARE i int; BEGIN FOR i IN SELECT id FROM other LOOP NULL; END LOOP; RETURN x; END"),
    "plpgsql_diagnostics": ("plpgsql", "x int", "int", "DECLARE n int; BEGIN GET DIAGNOSTICS n = ROW_COUNT; RETURN n; END"),
    "plpgsql_definer": ("plpgsql", "x int", "int SECURITY DEFINER", "BEGIN RETURN x; END"),
}  # fmt: skip


def define(name: str, body: tuple[str, str, str, str]) -> tuple[str, str]:
    """Return the statement that creates a function above, and a query that calls it."""
    language, parameters, result, text = body
    returns, _, clauses = result.partition(" ") if "SETOF" not in result else (result, "", "")
    statement = (
        f"CREATE FUNCTION {name}({parameters}) RETURNS {returns} LANGUAGE {language} {clauses}"
        f" AS $f${text.replace('f.', f'{name}.')}$f$"
    )
    first, *rest = parameters.split(",")[0].split()
    argument = {"int": "id", "x": "id"}.get(first, first)
    call = f"{name}({'at::timely' if rest == ['timely'] else argument})"
    if "SETOF" in result:
        return statement, f"SELECT id, y::text FROM one, {call} y"
    return statement, f"SELECT id, {call}::text AS y FROM one"


TABLES = """
CREATE TABLE client (id int PRIMARY KEY, name text, region int);
CREATE TABLE sale (id int PRIMARY KEY, client int, amount numeric, at date);
CREATE FUNCTION client_name(c int) RETURNS text LANGUAGE sql AS
  'SELECT name FROM client WHERE client.id = c';
CREATE FUNCTION total(c int) RETURNS numeric LANGUAGE sql STABLE
  BEGIN ATOMIC SELECT coalesce(sum(amount), 0.5) FROM sale WHERE client = c; END;
CREATE FUNCTION latest(c int) RETURNS numeric LANGUAGE sql AS
  'SELECT s.amount FROM public.sale s WHERE s.client = $1 ORDER BY s.at DESC, s.id DESC;';
CREATE FUNCTION strictly(c int, d int) RETURNS bigint STRICT LANGUAGE sql AS
  'SELECT count(*) FROM sale WHERE client = c OR client IS NOT DISTINCT FROM d';
CREATE FUNCTION paired(c int) RETURNS text LANGUAGE sql AS
  'SELECT client_name(c) || '':'' || total(c)::text FROM client k WHERE k.id = c';
CREATE FUNCTION sales_of(c int, lowest numeric) RETURNS TABLE (sale int, amount numeric) LANGUAGE sql AS
  'WITH w AS (SELECT * FROM sale s WHERE s.client = c) SELECT w.id, w.amount FROM w WHERE w.amount >= lowest';
CREATE FUNCTION clients(r int) RETURNS SETOF client LANGUAGE sql AS
  'SELECT * FROM client WHERE region = r';
CREATE FUNCTION one_client(c int) RETURNS client LANGUAGE sql AS
  'SELECT * FROM client WHERE id = c';
CREATE TYPE worth AS (sale int, amount numeric);
CREATE FUNCTION last_sale(c int) RETURNS worth LANGUAGE sql AS
  'SELECT id, amount FROM sale WHERE client = c ORDER BY at DESC, id DESC';
CREATE FUNCTION doubles(c int) RETURNS SETOF worth LANGUAGE sql IMMUTABLE AS
  'SELECT i, NULLIF(i * 2, 4) FROM generate_series(1, c % 4) i';
CREATE FUNCTION triples(c int) RETURNS SETOF worth LANGUAGE plpgsql IMMUTABLE AS
  'BEGIN RETURN NEXT NULL; RETURN QUERY SELECT i, i * 3.0 FROM generate_series(1, c % 3) i; END';
CREATE TABLE narrowed (a int, x int, b text, e int);
ALTER TABLE narrowed DROP COLUMN x;
CREATE FUNCTION narrow(c int) RETURNS SETOF narrowed LANGUAGE plpgsql IMMUTABLE AS
  'BEGIN RETURN QUERY SELECT c, ''b'' || c, c + 1; END';
CREATE FUNCTION has_sales(c int) RETURNS bool LANGUAGE sql AS
  'SELECT EXISTS (SELECT FROM sale WHERE sale.client = (SELECT k.id FROM client k WHERE k.id = c))';
"""
READING = {
    "value": "SELECT id, client_name(client) AS n FROM sale",
    "unknown": "SELECT id, client_name(client + 2) AS n FROM sale",
    "aggregate": "SELECT id, total(id) AS n FROM client",
    "first": "SELECT id, latest(id) AS n FROM client",
    "strict": "SELECT id, strictly(client, NULLIF(id, 3)) AS n FROM sale",
    "nested": "SELECT id, paired(id) AS n FROM client",
    "nested call": "SELECT id, upper(client_name((SELECT max(s.client) FROM sale s WHERE s.id <= c.id))) AS n FROM client c",
    "condition": "SELECT id FROM client WHERE total(id) > 20 AND has_sales(id)",
    "grouped": "SELECT client_name(client) AS n, count(*) AS k, sum(total(client)) AS t FROM sale GROUP BY client_name(client)",
    "joined": "SELECT s.id, c.name FROM sale s JOIN client c ON client_name(s.client) = c.name",
    "in a subquery": "SELECT c.id, (SELECT count(*) FROM sale s WHERE client_name(s.client) = client_name(c.id)) AS n FROM client c",
    "rows": "SELECT c.id, s.sale, s.amount FROM client c, sales_of(c.id, 10) s",
    "outer rows": "SELECT c.id, s.* FROM client c LEFT JOIN LATERAL sales_of(c.id, c.id * 7) s ON true",
    "table's rows": "SELECT r, k.id, k.name FROM generate_series(1, 3) r, clients(r) k",
    "whole rows": "SELECT r, k FROM generate_series(1, 3) r, clients(r) k",
    "rows as values": "SELECT id, doubles(id) AS d FROM client",
    "view": "SELECT * FROM reading_view",
    "case": "SELECT id, CASE WHEN id > 2 THEN total(id) ELSE latest(id) END AS n FROM client",
}  # fmt: skip
"""Queries that call functions which read tables."""
ROWS = {
    "outer whole rows": "SELECT c.id, k FROM client c LEFT JOIN LATERAL clients(c.region + 2) k ON k.id > 1",
    "one row": "SELECT id, one_client(client) AS k, (one_client(client)).name, last_sale(id) IS NULL AS n FROM sale",
    "first row": "SELECT id, last_sale(id) AS s, (last_sale(id)).amount AS a FROM client",
    "texts of rows as values": "SELECT id, triples(id)::text AS d FROM client",
    "rows beside a dropped column": "SELECT id, n.b, n.e, n.a, n FROM client, narrow(id) n",
    "fields beside a dropped column": "SELECT id, (narrow(id)).e, (narrow(id)).b FROM client",
    "joined rows": "SELECT id, f.* FROM client, ROWS FROM (narrow(id), doubles(id)) f",
}  # fmt: skip
"""Queries that use rows of functions as values."""
