"""``headrace capture`` of a running engine, and ``headrace replay`` in another process."""

from __future__ import annotations

import re

import pytest

from headrace.replay.bundle import Bundle
from headrace.replay.command import replayed as replayed_here
from tests.replay.bundles import (
    batches,
    captured,
    entries,
    everything,
    keys_of,
    recording,
    replayed,
    rewritten,
    with_other_value,
    without_inserts,
    writing,
)
from tests.waiting import time_passes

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
WRITE = (
    """
INSERT INTO rb_orders SELECT %(n)s, %(n)s % 10, %(n)s % 97 * 1.25, 1.0 / %(n)s, 'n' || %(n)s % 5,
  'hidden ' || %(n)s, now() + interval '1 s'
ON CONFLICT (id) DO UPDATE SET amount = rb_orders.amount + 1
""".replace("% 10", "%% 10")
    .replace("% 97", "%% 97")
    .replace("% 5", "%% 5")
)


def test_the_states_of_a_replay_are_those_of_the_engine(engine, commander, tmp_path):
    bundle = tmp_path / "bundle.zip"
    with writing(engine.source, WRITE):
        captured(engine, bundle, "--rows", "--next", "2s")
    told = replayed(bundle)
    assert batches(told) > 1
    assert "✗" not in told
    assert bundle.stat().st_mode & 0o777 == 0o600


def test_a_bundle_begins_in_the_past_if_that_was_recorded(engine, commander, tmp_path):
    bundle = tmp_path / "bundle.zip"
    with recording(engine, "4s"):
        with writing(engine.source, WRITE):
            time_passes(3)  # the first base is then older than the requested time
        said = captured(engine, bundle, "--rows", "--last", "3s", "--next", "0")
    assert "not retained" not in said
    told = replayed(bundle)
    assert batches(told) > 0
    assert not list((engine.data_dir / "captures").iterdir())
    assert not list((engine.data_dir / "pins").iterdir())
    bundle.unlink()
    said = captured(engine, bundle, "--last", "1h", "--next", "0")
    assert "others of the last 3600 s were not retained" in said


def test_without_rows_a_bundle_has_no_value_of_any_row(engine, commander, source, tmp_path):
    bundle = tmp_path / "bundle.zip"
    with writing(engine.source, WRITE):
        captured(engine, bundle, "--next", "1s")
    told = replayed(bundle, 2)
    assert "no values of rows" in told
    assert "public.rb_sums" in told
    found = everything(bundle)
    rows = source.execute("SELECT secret, note || '-', amount::text FROM rb_orders").fetchall()
    assert not any(value.encode() in found for secret, *_ in rows for value in [secret])
    assert b"hidden" not in found
    assert entries(bundle) == {"manifest.json", "batches.json", "events.jsonl"}


def test_a_masked_column_is_nowhere_in_a_bundle(engine, commander, source, tmp_path):
    commander.execute("CALL headrace.create_view('rb_shown', 'SELECT id, secret FROM rb_orders')")
    bundle = tmp_path / "bundle.zip"
    mask = ("--mask", "public.rb_orders.secret")
    views = ("--view", "rb_sums", "--view", "public.rb_shown")
    with writing(engine.source, WRITE):
        said = captured(engine, bundle, "--rows", *mask, "--next", "1s", *views)
    assert "left out: view public.rb_shown: it reads a masked column" in said
    told = replayed(bundle)
    assert batches(told) > 0
    assert "public.rb_sums" in told
    assert b"hidden" not in everything(bundle)
    with writing(engine.source, WRITE):
        captured(engine, tmp_path / "other.zip", "--rows", "--next", "1s", *views[2:])
    assert b"hidden" in everything(tmp_path / "other.zip"), "the search finds what is there"
    with writing(engine.source, WRITE):
        captured(engine, tmp_path / "least.zip", "--rows", "--next", "1s", "--view", "rb_top")
    assert b"hidden" not in everything(tmp_path / "least.zip"), "no view of the bundle reads it"
    said = captured(
        engine, tmp_path / "x.zip", "--rows", "--mask", "public.rb_orders.nothing", expected=1
    )
    assert 'column "public.rb_orders.nothing" does not exist' in said
    assert "no meaning" in captured(
        engine, tmp_path / "x.zip", "--mask", "public.rb_orders.secret", expected=2
    )
    assert not (tmp_path / "x.zip").exists()
    commander.execute("CALL headrace.drop_view('rb_shown')")


def test_a_replay_says_where_it_differs(engine, commander, tmp_path):
    bundle = tmp_path / "bundle.zip"
    with writing(engine.source, WRITE):
        said = captured(engine, bundle, "--rows", "--next", "2s", "--view", "rb_sums")
    assert "same" in said
    found = Bundle(bundle)
    [unit] = found.manifest.units

    def outcome(changes: dict[str, bytes | None]) -> str:
        made = rewritten(bundle, tmp_path / "other.zip", changes)
        report, _ = replayed_here(made)
        assert report.status == 1, list(report.lines())
        return "\n".join(report.lines())

    # Another value in the last states; in the first ones; a batch without its rows.
    name = f"states/{unit.id}.end"
    changed = with_other_value(found.end(unit))
    assert re.search("keys? differs?", outcome({name: changed, "results.json": None}))
    name = f"states/{unit.id}.begin"
    changed = with_other_value(found.begin(unit), keys_of(found.end(unit)))
    told = outcome({name: changed})
    assert "first differs in txid" in told or re.search("keys? differs?", told)
    told = outcome({"batches.bin": without_inserts(found)})
    assert "first differs in txid" in told
    assert re.search(
        r"state \S+ \((?:join|reduce|source)\) after txid \d+: \d+ keys? differs?", told
    )
    assert "the batches end before txid" in outcome({"batches.bin": b"", "results.json": None})
    assert "first differs" not in outcome(
        {"batches.bin": without_inserts(found), "results.json": None}
    )
