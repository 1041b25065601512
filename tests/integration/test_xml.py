"""Values of type xml, which Postgres prints without their declaration and a leading newline."""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE DOMAIN box_of_xml AS xml;
CREATE TABLE letters (id int PRIMARY KEY, g int NOT NULL, doc xml, docs xml[], t text NOT NULL,
    boxed box_of_xml);
"""
DOCUMENTS = (
    '<?xml version="1.0"?><a>1</a>',
    "\n<a>2</a>",
    '<?xml version="1.0"?>\n<a>\n3</a>',
    '<?xml version="1.1"?><a/>',
    '<?xml version="1.0" standalone="yes"?><a/>',
    "<a/>",
    "\n\n<a/>",
    "\n\n\n<x/>",
    '<?xml version="1.0"?>\n\n<a/>',
)
EXACT = [
    "SELECT id, g, doc FROM letters",
    "SELECT doc FROM letters",
    "SELECT id, g, boxed AS doc FROM letters",
    "SELECT id, CASE WHEN g > 0 THEN coalesce(doc, '<b/>') ELSE '\n\n<c/>' END AS x FROM letters",
    "SELECT l.id, m.doc FROM letters l LEFT JOIN letters m ON m.id = l.id + 1",
    "SELECT id, lag(doc) OVER (ORDER BY id) AS x FROM letters",
    "SELECT id, xmlparse(content t) AS x FROM letters",
    "SELECT id, E'\\n<c/>'::xml AS x, E'\\n\\n<c/>'::xml AS y FROM letters",
    "SELECT id, CASE WHEN g = 1 THEN doc ELSE E'\\n\\n<c/>' END AS x FROM letters",
    "SELECT id, coalesce(CASE WHEN g > 1 THEN doc END, E'\\n\\n<c/>') AS x FROM letters",
    "SELECT id, x FROM letters, (VALUES (E'\\n\\n<c/>'::xml), ('<d/>')) v (x)",
    "SELECT id, lag(doc, 1, E'\\n\\n<c/>'::xml) OVER (ORDER BY id) AS x FROM letters",
    "SELECT id, E'\\n\\n<c/>'::xml::text AS x FROM letters",
    "SELECT id, g, doc IS NULL AS n, doc IS DOCUMENT AS d, xpath_exists('/a', doc) AS x FROM letters",
    "SELECT id, g, (xpath('/a/text()', doc))[1]::text AS x FROM letters",
    "SELECT g, count(doc) AS n FROM letters GROUP BY g",
    "SELECT id, g, xmlelement(name e, t)::text AS x FROM letters",
    "SELECT id, g, xmlserialize(content xmlparse(content t) AS text) AS x FROM letters",
    "SELECT id, xmlparse(content '<?xml version=\"1.0\"?><a/>')::text AS x FROM letters",
    "SELECT id, g, '<?xml version=\"1.0\"?><a/>'::xml::text AS x FROM letters",
    "SELECT g, xmlagg(xmlelement(name e, t) ORDER BY id)::text AS x FROM letters GROUP BY g",
]
REFUSED = [
    "SELECT id, doc::text AS x FROM letters",
    "SELECT id FROM letters WHERE doc::text LIKE '<?xml%'",
    "SELECT id, doc || 'x' AS x FROM letters",
    "SELECT id, concat(doc) AS x FROM letters",
    "SELECT id, to_json(doc)::text AS x FROM letters",
    "SELECT id, ROW(doc)::text AS x FROM letters",
    "SELECT id, docs[1]::text AS x FROM letters",
    "SELECT id, docs[1] AS x FROM letters",
    "SELECT id, boxed::text AS x FROM letters",
    "SELECT id, docs::text[] AS x FROM letters",
    "SELECT id, coalesce(doc, '<b/>')::text AS x FROM letters",
    "SELECT id, xmlconcat('<b/>', doc) AS x FROM letters",
    "SELECT id, xmlelement(name e, doc) AS x FROM letters",
    "SELECT id, xmlserialize(content doc AS text) AS x FROM letters",
    "SELECT g, xmlagg(doc ORDER BY id) AS x FROM letters GROUP BY g",
    "SELECT g, xmlagg(xmlparse(content t) ORDER BY id) AS x FROM letters GROUP BY g",
    "SELECT id, xmlagg(doc) OVER (ORDER BY id) AS x FROM letters",
    "SELECT g, string_agg(doc::text, ',' ORDER BY id) AS x FROM letters GROUP BY g",
]


@pytest.fixture
def filled(source):
    try:
        source.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("the server has no libxml")
    for number, text in enumerate(DOCUMENTS):
        source.execute(
            "INSERT INTO letters VALUES (%(n)s, 1, %(t)s::xml, ARRAY[%(t)s::xml], %(t)s, %(t)s)",
            {"n": number, "t": text},
        )
    return source


@pytest.mark.parametrize("query", EXACT)
def test_a_view_shows_what_postgres_shows(commander, filled, query):
    commander.execute("CALL headrace.create_view('v', %s)", (query,))
    assert differs(filled, "v", query) == []
    moved = "doc = m.doc, boxed = m.boxed, t = m.t, g = l.g + l.id % 2 FROM letters m"
    new = "doc = x::xml, boxed = x::xml, t = x FROM (SELECT E'\\n\\n\\n<c/>' AS x) n"
    for change in (
        f"UPDATE letters l SET {moved} WHERE m.id = (l.id + 2) % {len(DOCUMENTS)}",
        f"UPDATE letters l SET {new} WHERE l.id = 1",
        "INSERT INTO letters SELECT 99, g, doc, docs, t, boxed FROM letters WHERE id = 1",
        "DELETE FROM letters WHERE id = 1",
    ):
        filled.execute(change)
        commander.execute("CALL headrace.wait_for('v')")
        assert differs(filled, "v", query) == [], change


@pytest.mark.parametrize("query", REFUSED)
def test_what_depends_on_the_missing_part_is_refused(commander, filled, query):
    filled.execute(f"SELECT * FROM ({query}) q")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        commander.execute("CALL headrace.check_view(%s)", (query,))
    assert "how a value of type xml is stored" in str(caught.value)
    assert "xpath" in (caught.value.diag.message_hint or "")


@pytest.mark.parametrize("shown", ["docs", "l", "ARRAY[doc]"])
def test_arrays_and_rows_with_xml_are_refused(commander, filled, shown):
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="xml"):
        commander.execute(
            "CALL headrace.check_view(%s)", (f"SELECT id, {shown} AS x FROM letters l",)
        )
