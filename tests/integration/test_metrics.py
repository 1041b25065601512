"""/metrics: its content is complete and right, and dashboard and alerts use nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import make_conninfo

from headrace.server import metrics
from tests.integration.test_sources import at
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(HEADRACE_HTTP="127.0.0.1:0", HEADRACE_METRICS_VIEWS_MAX="2"),
]

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "deploy" / "monitoring" / "grafana-board.json"
RULES = ROOT / "deploy" / "monitoring" / "headrace.rules.yml"
MANUAL = ROOT / "docs" / "manual" / "monitoring.md"
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
INSERT INTO items SELECT i, i % 3 FROM generate_series(1, 30) i;
"""
SUMS = "SELECT g, count(*) AS n FROM items GROUP BY g"
FEW = "SELECT id, g FROM items WHERE g < 3"
NEGATIVE = "SELECT id FROM items WHERE g < 0"
NAMED = re.compile(r"\bheadrace_\w+")

Page = dict[str, dict[frozenset[tuple[str, str]], float]]


def text(engine) -> str:
    found = re.findall(r'"address": ?"(127.0.0.1:\d+)"', engine.log)
    with urllib.request.urlopen(f"http://{found[-1]}/metrics", timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.read().decode()


def page(engine) -> Page:
    """Return samples by name and labels, as Prometheus' own parser reads them."""
    out: Page = {}
    for family in text_string_to_metric_families(text(engine)):
        for sample in family.samples:
            out.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return out


def value(found: Page, name: str, **labels: str) -> float:
    return found[f"headrace_{name}"][frozenset(labels.items())]


def one(conn: psycopg.Connection, key: int) -> None:
    """Add a row to an existing group, in a transaction that is alone in its batch."""
    conn.execute("INSERT INTO items VALUES (%s, %s)", (key, key % 3))


def covered(conn: psycopg.Connection, *views: str) -> None:
    for view in views:
        conn.execute("CALL headrace.wait_for(%s)", (view,))


def test_each_has_help_and_type_and_stands_in_the_table(engine, commander):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    meanings = {f"headrace_{m.name}": m for m in metrics.TABLE}
    for family in text_string_to_metric_families(text(engine)):
        name = family.name + ("_total" if family.type == "counter" else "")
        meaning = meanings[name]
        assert (family.type, family.documentation) == (meaning.kind, meaning.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(meaning.labels)


def test_the_numbers_are_those_of_what_was_done(engine, commander, source):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.create_view('few', %s)", (FEW,))
    covered(commander, "sums", "few")
    before = page(engine)
    for key in range(101, 106):
        one(source, key)
        covered(commander, "sums", "few")
    after = page(engine)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("transactions_total") == 5
    sums, few = {"view": "public.sums"}, {"view": "public.few"}
    # A group's row is replaced by another; in the other view a row is added.
    assert grown("view_rows_written_total", **sums) == 10
    assert grown("view_rows_written_total", **few) == 5
    assert grown("rows_written_total") == 15
    assert grown("view_rows_read_total", **sums) == 5
    assert grown("view_rows_read_total", **few) == 5
    for name in ("view_batches_total", "view_commit_visible_seconds_count"):
        assert [grown(name, **view) for view in (sums, few)] == [5, 5]
    assert grown("commit_visible_seconds_count") == 5
    assert 0 < grown("commit_visible_seconds_sum") < 5 * PATIENCE_S
    for phase in ("process", "wait", "write"):
        assert grown("batch_phase_seconds_count", phase=phase) == grown("batches_total")
    assert grown("sink_transaction_seconds_count") == 5, "both views in one transaction"
    # Buckets are cumulative.
    buckets = {
        float(dict(labels)["le"]): number
        for labels, number in after["headrace_commit_visible_seconds_bucket"].items()
    }
    counted = [buckets[le] for le in sorted(buckets)]
    assert counted == sorted(counted)
    assert counted[-1] == value(after, "commit_visible_seconds_count")
    # The counters of the collections add up to the rows that the views wrote.
    collections = {
        dict(labels)["collection"]
        for labels in after["headrace_collection_rows_in_total"]
        if ("view", "public.sums") in labels
    }
    assert {"source", "reduce"} <= collections
    states = after["headrace_collection_state_bytes"]
    assert max(v for labels, v in states.items() if ("view", "public.sums") in labels) > 0
    wait_until(lambda: value(page(engine), "checkpoint_seconds_count") > 0, "a checkpoint")


def test_of_many_views_only_sums_are_told(engine, commander, source):
    for name in ("c", "b", "a"):
        commander.execute(f"CALL headrace.create_view('{name}', %s)", (FEW,))
    covered(commander, "a", "b", "c")
    before = page(engine)
    one(source, 200)
    covered(commander, "a", "b", "c")
    after = page(engine)
    for name, samples in after.items():
        told = {dict(labels).get("view", "") for labels in samples}
        assert not any(view.endswith(".a") for view in told), f"the last one made, in {name}"
    assert value(after, "views_left_out") == 1
    assert value(after, "views", state="running") == 3
    assert value(after, "rows_written_total") - value(before, "rows_written_total") == 3
    assert value(after, "collections_left_out") > 0
    assert value(after, "view_state", view="public.b", state="running") == 1


@pytest.mark.slow
def test_assertions_are_told_by_state(engine, commander, source):
    def shown() -> dict[str, float]:
        found = page(engine)
        one = {dict(k)["assertion"]: v for k, v in found["headrace_assertion_violated"].items()}
        states = {dict(k)["state"]: v for k, v in found["headrace_assertions"].items()}
        return one | {state: number for state, number in states.items() if number}

    for name, options in (("a", "{}"), ("b", '{"grace": "1 hour"}'), ("c", "{}")):
        commander.execute("CALL headrace.create_assertion(%s, %s, %s)", (name, NEGATIVE, options))
    # Two of them have their own series (metrics_views_max).
    holding = {"public.a": 0, "public.b": 0, "holds": 3}
    wait_until(lambda: shown() == holding, lambda: f"{shown()}")
    commander.execute("CALL headrace.pause_view('c')")
    source.execute("UPDATE items SET g = -1 WHERE id = 1")
    mixed = {"public.a": 1, "public.b": 0, "violated": 1, "pending": 1, "unknown": 1}
    wait_until(lambda: shown() == mixed, lambda: f"{shown()}")
    commander.execute("CALL headrace.resume_view('c')")
    source.execute("UPDATE items SET g = 1 WHERE id = 1")
    wait_until(lambda: shown() == holding, lambda: f"{shown()}")


def test_errors_and_restarts_are_counted(engine, commander, source):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    covered(commander, "sums")
    before = page(engine)

    def grown(name: str) -> float:
        now = page(engine)
        found = value(now, f"view_{name}", view="public.sums")
        assert value(now, name) - value(before, name) == found
        return found

    with psycopg.connect(engine.source) as blocker:
        blocker.execute("LOCK TABLE sums IN SHARE MODE")
        one(source, 300)
        wait_until(lambda: grown("errors_total") >= 1, "it is stopped")
        assert value(page(engine), "view_state", view="public.sums", state="sink_error") == 1
        assert grown("restarts_total") == 0
    wait_until(lambda: grown("restarts_total") == 1, "it goes on")
    covered(commander, "sums")


@pytest.mark.slow
def test_counters_begin_anew_with_the_worker(engine, commander, source):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    one(source, 400)
    covered(commander, "sums")
    before = page(engine)
    assert value(before, "view_batches_total", view="public.sums") >= 1
    pid = engine.child("headrace.runtime.worker")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        stopped = page(engine)  # the page comes, without the worker's numbers
        assert value(stopped, "worker_told") == 0
        assert "headrace_batches_total" not in stopped
        assert value(stopped, "view_txid", view="public.sums") > 0
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "headrace_batches_total" in page(engine), "another worker")
    after = page(engine)
    restarts = {"process": "worker"}
    assert value(after, "process_restarts_total", **restarts) == 1 + value(
        before, "process_restarts_total", **restarts
    )
    assert value(after, "view_batches_total", view="public.sums") == 0


# --- the dashboard and the alerts


def board() -> dict[str, list[str]]:
    """Return the expressions of the dashboard, by panel."""
    whole = json.loads(BOARD.read_text())
    panels = [panel for panel in whole["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in whole["panels"]}) == len(whole["panels"])
    asked = {p["title"]: [target["expr"] for target in p["targets"]] for p in panels}
    asked |= {
        f"variable {v['name']}": [v["query"]["query"]]
        for v in whole["templating"]["list"]
        if v["type"] == "query"
    }
    return asked


def rules() -> list[dict[str, object]]:
    whole = yaml.safe_load(RULES.read_text())
    return [rule for group in whole["groups"] for rule in group["rules"]]


@pytest.fixture
def limited(postgres: str) -> Iterator[None]:
    """Limit the WAL that the server retains, because only then it reports how much is left."""
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'")
        conn.execute("SELECT pg_reload_conf()")
        yield
        conn.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        conn.execute("SELECT pg_reload_conf()")


@pytest.fixture
def another(databases, commander) -> Iterator[None]:
    """Add another source."""
    name = databases.take()
    dsn = make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE items (id int PRIMARY KEY, g int)")
        commander.execute("CALL headrace.add_source('eu', %s)", (at(conn),))
    yield
    commander.execute("CALL headrace.drop_source('eu')")
    databases.give_back(name)


def samples_of(meaning: metrics.Meaning) -> list[str]:
    """Return the names of a metric's samples."""
    name = f"headrace_{meaning.name}"
    if meaning.kind is metrics.MetricKind.HISTOGRAM:
        return [f"{name}_{part}" for part in ("bucket", "sum", "count")]
    return [name]


@pytest.mark.usefixtures("limited", "another")
def test_board_and_alerts_name_only_what_is_exported(engine, commander, source):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.create_assertion('none', %s)", (NEGATIVE,))
    asked = {word for exprs in board().values() for e in exprs for word in NAMED.findall(e)}
    asked |= {word for rule in rules() for word in NAMED.findall(str(rule["expr"]))}
    assert len(asked) > 40
    keys = iter(range(1000, 100_000))

    def missing() -> set[str]:
        one(source, next(keys))  # some exist only when something happens
        return asked - page(engine).keys()

    wait_until(lambda: not missing(), lambda: f"not exported: {sorted(missing())}", every_s=0.2)
    # Every metric of the table has been exported meanwhile.
    exported = {name for m in metrics.TABLE for name in samples_of(m)}
    seen: set[str] = set()

    def unseen() -> set[str]:
        one(source, next(keys))
        seen.update(page(engine))
        return exported - seen

    wait_until(lambda: not unseen(), lambda: f"never exported: {sorted(unseen())}", every_s=0.2)


def test_each_alert_says_what_it_means_and_what_to_do():
    manual = MANUAL.read_text()
    names = [str(rule["alert"]) for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        notes = rule["annotations"]
        for note in ("summary", "description", "runbook"):
            assert len(notes[note].split()) >= 4, (rule["alert"], note)
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert f"`{rule['alert']}`" in manual, "in docs/manual/monitoring.md"
    assert all(len(exprs) > 0 for exprs in board().values())


def test_each_metric_stands_in_the_manual():
    told = set(re.findall(r"^\| `(headrace_\w+)`", MANUAL.read_text(), re.MULTILINE))
    assert told == {f"headrace_{meaning.name}" for meaning in metrics.TABLE}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_reads_page_and_rules(engine, commander):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True)
    # promtool also criticises names; only parse errors and missing help texts count here.
    found = subprocess.run(
        ["promtool", "check", "metrics"],
        check=False,
        input=text(engine),
        capture_output=True,
        text=True,
    )
    assert "error while linting" not in found.stderr, found.stderr
    wrong = [line for line in found.stderr.splitlines() if "no help text" in line]
    assert wrong == []
