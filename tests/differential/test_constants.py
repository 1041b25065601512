"""Constants of many types, in every place where an expression may stand."""

from __future__ import annotations

from tests.compared import create_view, follow
from tests.waiting import create_marker

DDL = """
    CREATE TABLE c (id int PRIMARY KEY, k int);
    INSERT INTO c VALUES (1, 1), (2, 1), (3, NULL);
    CREATE TYPE tone AS ENUM ('low', 'high');
    CREATE TYPE item AS (n numeric, j jsonb, t tone);
    CREATE DOMAIN document AS jsonb CHECK (value <> '0');
"""
CONSTANTS = (
    """'{"a": 1.0}'::jsonb""",
    """'{"{}", NULL, "[1.50]"}'::jsonb[]""",
    """'{"b": [2]}'::document""",
    "'[1,5)'::int4range",
    """'{"[1,5)","[7,)"}'::int4range[]""",
    "'{[1.0,5.00),[7,)}'::nummultirange",
    "'(1,2.5)'::point",
    "'((0,0),(1,1))'::box",
    "'1 2 3'::int2vector",
    "'23 25'::oidvector",
    "'{{a,b},{c,NULL}}'::text[]",
    "'[2:3]={1.50,NaN}'::numeric[]",
    "'a:1 b:2A'::tsvector",
    "'$.a ? (@ > 1)'::jsonpath",
    """'(1.50,"{""a"": 1}",high)'::item""",
    """'{"(1.0,,low)"}'::item[]""",
    "'{low,high}'::tone[]",
    "'{1 mon -1 days,00:00:01}'::interval[]",
    "'{127.0.0.1/8,::1}'::inet[]",
    "'2 days'::interval",
    "B'1010'",
    r"'\x00ff'::bytea",
    "'0/16B3748'::pg_lsn",
)
OBJECTS = (
    "'pg_class'::regclass::text",
    "1259::regclass::text || k",
    "'pg_backend_pid'::regproc::text",
    "23::regtype::text",
    "pg_typeof(k + 1)::text",
    "pg_typeof(1 / (k * k + 1)) = 'int4'::regtype",
    "pg_typeof(current_date)::text || format_type(0, NULL)",
    "pg_typeof((SELECT 1.5))::text || pg_typeof(ROW(k))::text",
    "'lower(text)'::regprocedure::text",
    "'+(int4,int4)'::regoperator::text",
    "'pg_catalog'::regnamespace::text",
    "'english'::regconfig::text || 'simple'::regdictionary::text",
    """'"C"'::regcollation::text""",
    "23::oid::regtype::varchar(3)",
    "'c'::regclass = 'pg_class'::regclass",
    "'c'::regclass",
    "'int4'::regtype::int",
    "(-1)::regclass::oid",
    "4294967295::oid::regclass::int",
    "2147483648::oid::regclass::int",
    "NULL::int::regclass",
    "format_type(pg_typeof(k), NULL)",
)
"""Catalog look-ups whose results cannot change."""
FOLDED = "(ARRAY[{}])[1]"
PLACES = {
    "selected": ("{}", "FROM c"),
    "folded": (FOLDED, "FROM c"),
    "conditional": (f"CASE WHEN k = 1 THEN {FOLDED} END", "FROM c"),
    "nth": (f"nth_value({FOLDED}, 2) OVER w", "FROM c WINDOW w AS (ORDER BY id)"),
    "filtered": (
        f"jsonb_agg({FOLDED}) FILTER (WHERE k = 1) OVER w",
        "FROM c WINDOW w AS (ORDER BY id)",
    ),
    "aggregated": (f"jsonb_agg({FOLDED} ORDER BY k, id)", "FROM c GROUP BY id"),
    "elements": (f"jsonb_array_elements(jsonb_build_array(k, {FOLDED}))", "FROM c"),
    "scalar": (f"(SELECT {FOLDED} FROM c AS d WHERE d.id = c.k)", "FROM c"),
}


def test_constants_of_every_type_stand_everywhere(source, commander):
    source.execute(DDL)
    views = {}
    for place, (written, rest) in PLACES.items():
        items = ", ".join(f"{written.format(x)} AS c{i}" for i, x in enumerate(CONSTANTS))
        views[place] = f"SELECT id, {items} {rest}"
        create_view(commander, place, views[place])
    items = ", ".join(f"{x} AS c{i}" for i, x in enumerate(OBJECTS))
    views["objects"] = f"SELECT id, {items} FROM c"
    create_view(commander, "objects", views["objects"])
    create_marker(source, commander)
    transactions = (["INSERT INTO c VALUES (4, 2), (5, 1)", "UPDATE c SET k = id WHERE id < 3"],)
    follow(source, views, transactions, "constants")
