"""``headrace capture`` of a running engine, and ``headrace replay`` in another process."""

from __future__ import annotations

import pytest

from tests.replay.bundles import batches, captured, replayed, writing

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE rb_customers (id int PRIMARY KEY, name text, country text);
CREATE TABLE rb_orders (id int PRIMARY KEY, customer int, amount numeric(12, 2), ratio float8,
  note text, secret text, due timestamptz);
INSERT INTO rb_customers SELECT i, 'c' || i, CASE i % 3 WHEN 0 THEN 'NO' WHEN 1 THEN 'SE' END
  FROM generate_series(0, 9) i;
INSERT INTO rb_orders SELECT i, i % 10, i * 1.50, i / 7.0, 'n' || i % 4, 'hidden ' || i,
  now() + i * interval '0.2 s' FROM generate_series(1, 60) i;
"""
VIEWS = {
    "rb_sums": "SELECT c.country, count(*) AS n, sum(o.amount) AS total, avg(o.ratio) AS ratio"
    " FROM rb_orders o JOIN rb_customers c ON c.id = o.customer GROUP BY c.country",
    "rb_joined": "SELECT c.country, max(o.amount) AS most FROM rb_orders o"
    " JOIN rb_customers c ON c.id = o.customer GROUP BY c.country",
    "rb_ranks": "SELECT customer, id, rank() OVER (PARTITION BY customer ORDER BY amount DESC) AS r"
    " FROM rb_orders",
    "rb_distinct": "SELECT DISTINCT note FROM rb_orders",
    "rb_top": "SELECT id, amount FROM rb_orders ORDER BY amount DESC, id LIMIT 5",
    "rb_late": "SELECT id FROM rb_orders WHERE due < now()",
    "rb_asked": "SELECT id, to_char(due, 'YYYY-MM-DD') AS day, md5(note) AS m FROM rb_orders",
}
WRITE = """
INSERT INTO rb_orders SELECT %(n)s, %(n)s % 10, %(n)s % 97 * 1.25, 1.0 / %(n)s, 'n' || %(n)s % 5,
  'hidden ' || %(n)s, now() + interval '1 s'
ON CONFLICT (id) DO UPDATE SET amount = rb_orders.amount + 1
""".replace("% 10", "%% 10").replace("% 97", "%% 97").replace("% 5", "%% 5")


def test_the_states_of_a_replay_are_those_of_the_engine(engine, commander, tmp_path):
    bundle = tmp_path / "bundle.zip"
    with writing(engine.source, WRITE):
        said = captured(engine, bundle, "--rows", "--next", "4s")
    print(said)
    told = replayed(bundle)
    print(told)
    assert batches(told) > 10
    assert "✗" not in told
    assert bundle.stat().st_mode & 0o777 == 0o600
