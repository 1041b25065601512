"""The order of joins by Postgres' statistics; without them, as written (``rules/order_joins.spec``)."""

from __future__ import annotations

import psycopg
import pytest

from headrace.planner import PlanRequest, explain_logical, plan
from headrace.planner.logical.estimates import Estimates
from headrace.planner.logical.nodes import JoinNode, Node, ScanNode, children

TABLES = """
CREATE TABLE many (id int PRIMARY KEY, few_id int, k int, s text);
CREATE TABLE few (id int PRIMARY KEY, k int);
CREATE TABLE other (id int PRIMARY KEY, k int);
INSERT INTO many SELECT i, i % 10, i % 1000, 'x' FROM generate_series(1, 20000) i;
INSERT INTO few SELECT i, i FROM generate_series(1, 10) i;
INSERT INTO other SELECT i, i % 4 FROM generate_series(1, 2000) i;
ANALYZE many, few, other;
CREATE TABLE unknown (id int PRIMARY KEY, k int);
"""


@pytest.fixture(scope="module")
def data(planner_dsn):
    with psycopg.connect(planner_dsn, autocommit=True) as conn:
        conn.execute(TABLES)
        yield conn
        conn.execute("DROP TABLE many, few, other, unknown")


def optimised(conn, query: str) -> Node:
    return plan(conn, PlanRequest(query)).optimised


def order(node: Node) -> object:
    """Return the tree of joins over table names."""
    if isinstance(node, JoinNode):
        return (order(node.left), order(node.right))
    if isinstance(node, ScanNode):
        return node.table.name
    return order(children(node)[0])


@pytest.mark.parametrize(
    ("query", "want"),
    [
        # Joining 20 000 and 2 000 rows by 4 values, or first the 2 rows that few leaves.
        (
            "SELECT m.id FROM many m JOIN other o ON m.few_id = o.k JOIN few f ON f.id = m.id"
            " WHERE f.k = 3",
            (("many", "few"), "other"),
        ),
        # As written, because the sizes are equal.
        (
            "SELECT a.id FROM few a JOIN few b ON a.id = b.id JOIN few c ON c.id = b.id",
            (("few", "few"), "few"),
        ),
        # A cross product is made last.
        ("SELECT m.id FROM many m, few f, other o WHERE m.k = o.id", (("many", "other"), "few")),
        # One unknown table: as written.
        (
            "SELECT m.id FROM many m JOIN other o ON m.few_id = o.k JOIN unknown f"
            " ON f.id = m.id WHERE f.k = 3",
            (("many", "other"), "unknown"),
        ),
        # Outer joins stay where they are.
        (
            "SELECT m.id FROM many m LEFT JOIN other o ON m.few_id = o.k LEFT JOIN few f"
            " ON f.id = m.id",
            (("many", "other"), "few"),
        ),
        # A condition that may fail on rows of many and other must not see rows that few removes.
        (
            "SELECT m.id FROM (many m JOIN few f ON f.id = m.id) JOIN other o"
            " ON 10 / (m.k - o.k) = o.k AND m.id = o.id",
            (("many", "few"), "other"),
        ),
    ],
)
def test_order(data, query, want):
    found = optimised(data, query)
    assert order(found) == want, explain_logical(found)


@pytest.mark.parametrize(
    ("query", "least", "most"),
    [
        ("SELECT id FROM many", 20000, 20000),
        ("SELECT id FROM many WHERE few_id = 3", 1900, 2100),
        ("SELECT id FROM many WHERE id = 3", 1, 1),
        ("SELECT few_id, count(*) FROM many GROUP BY few_id", 10, 10),
        ("SELECT DISTINCT few_id, k FROM many", 9000, 11000),
        ("SELECT m.id FROM many m JOIN few f ON f.id = m.few_id", 19000, 21000),
        ("SELECT m.id FROM few f LEFT JOIN many m ON f.id = m.id", 10, 10),
        ("SELECT id FROM many UNION ALL SELECT id FROM few", 20010, 20010),
        ("SELECT id FROM many ORDER BY k LIMIT 7", 7, 7),
        ("SELECT count(*) FROM many", 1, 1),
    ],
)
def test_estimates(data, query, least, most):
    found = Estimates().rows(optimised(data, query))
    assert found is not None
    assert least <= found <= most


def test_sixteen_tables_are_estimated_in_no_time(data):
    """Earlier each join more than doubled the time: ten tables took a minute."""
    tables = ", ".join(f"many t{i}" for i in range(16))
    pairs = " AND ".join(f"t{i}.id = t{i + 1}.few_id AND t{i}.k = t{i + 1}.k" for i in range(15))
    tree = optimised(data, f"SELECT t0.s FROM {tables} WHERE {pairs}")
    assert Estimates().rows(tree) == pytest.approx(20)


def test_nothing_is_known_of_what_was_never_analysed(data):
    assert Estimates().rows(optimised(data, "SELECT id FROM unknown")) is None


def test_explain_says_how_large_the_state_will_be(data):
    query = "SELECT f.k, count(*) AS c FROM many m JOIN few f ON f.id = m.few_id GROUP BY f.k"
    text = plan(data, PlanRequest(query)).explain["physical"]
    lines = {line.split()[1]: line for line in text.splitlines()}
    # 4 bytes per integer.
    assert "keeps rows of both sides, about 20010 rows of 78 kB; O" in lines["Join"]
    assert "keeps groups, about 10 rows of 0 kB; O" in lines["Reduce"]
    assert lines["Source"].count("about") == 1
    text = plan(data, PlanRequest("SELECT DISTINCT k FROM unknown")).explain["physical"]
    assert "about" not in text
