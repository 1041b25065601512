"""A population from the rows of another view, and the plan that is used where that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import (
    DefiniteFailure,
    TransientError,
    UndefinedError,
    UnsupportedError,
)
from headrace.population import populate, stacking
from headrace.sql import views
from headrace.sql.verbs import AlterView, ResyncView
from headrace.views import alter, resync
from tests.population.conftest import Bench

BELOW = "SELECT region, count(*) AS n FROM customers GROUP BY region"
OVER = "SELECT n, count(*) AS c FROM v GROUP BY n"
WHOLE = f"WITH v AS ({BELOW}) {OVER}"
FEEDER = -64


class Below:
    """The worker's answers about a view below, which has written nothing since its population."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, Callable[[Any], Any]] = {}
        """By method: functions of the bench's answer, in place of the usual answer."""
        self.manifest: dict[str, Any] = {}
        self.written = b""
        """Rows that the view has written up to the snapshot, as a tap captures them."""
        tap = bench.settings.data_dir / "tap"
        tap.parent.mkdir(parents=True, exist_ok=True)
        call = bench.worker.call

        def answered(method: str, params: dict[str, Any], job: Any = None, **given: Any) -> Any:
            found = call(method, params, job, **given)
            if method in self.answers:
                return self.answers[method](found)
            tap.write_bytes(self.written)
            if method == "adopt":
                path = bench.settings.staging_dir / str(params["view_id"]) / "manifest.json"
                self.manifest = json.loads(path.read_bytes())
            usual = {
                "attach": {"feeder": FEEDER},
                "attached": True,
                "tap": {"path": str(tap)},
                "tapped": {"txid": 8, "instant": 0},
            }
            return usual.get(method, found)

        monkeypatch.setattr(bench.worker, "call", answered)


@pytest.fixture
def below(bench, monkeypatch) -> Below:
    made = Below(bench, monkeypatch)
    bench.create("v", BELOW)
    bench.worker.calls.clear()
    monkeypatch.setattr(stacking, "_PATIENCE_S", 0.0)
    return made


def over(bench, **options: object) -> tuple[bool, str]:
    """Create the view above; return whether its plan is stacked, and the line about it."""
    bench.create("w", OVER, options={"first_rows": "views", **options})
    assert bench.rows("TABLE w") == bench.rows(WHOLE)
    row = bench.conn.execute(
        "SELECT plan ? 'filled', explain ->> 'first_rows' FROM headrace.views WHERE view_name = 'w'"
    ).fetchone()
    assert row is not None
    return row


def test_the_worker_gets_states_of_the_upper_plan_only(bench, below):
    assert over(bench) == (True, 'first rows: from view "public"."v"')
    methods = ["hold", "hold", "attach", "tap", "tapped", "attached", "untap", "adopt", "release"]
    assert bench.worker.methods == methods
    [lower] = bench.conn.execute("SELECT id FROM headrace.views WHERE view_name = 'v'").fetchone()
    assert below.manifest["feeds"] == {"feed_1": FEEDER}
    assert below.manifest["fed_by"] == [lower]
    assert below.manifest["doubted"] is False
    # The tables below are published for it, as it depends on them.
    read = "SELECT table_name FROM headrace.view_tables t JOIN headrace.views v ON v.id = t.view_id"
    assert bench.conn.execute(f"{read} WHERE v.view_name = 'w'").fetchall() == [("customers",)]


@pytest.mark.parametrize(
    "error",
    [
        TransientError("the view has not caught up", sqlstate="55006"),
        DefiniteFailure("it is paused"),
        UnsupportedError("it is on another worker"),
        UndefinedError("it is gone"),
    ],
)
def test_a_view_that_cannot_be_attached_to(bench, below, error):
    def fail(_: object) -> Any:
        raise error

    below.answers["attach"] = fail
    stacked, said = over(bench)
    assert not stacked
    assert said.startswith("first rows: from the tables, because ")
    assert below.manifest["feeds"] == {}
    assert below.manifest["fed_by"] == []


def test_a_table_that_lacks_rows_which_were_written(bench, below):
    below.written = b"8\t-1\tnowhere\t5\n"
    stacked, said = over(bench)
    assert not stacked
    assert "lacks rows that the view has written" in said
    assert below.manifest["feeds"] == {}


def test_rows_that_were_written_after_the_tables_snapshot(bench, below):
    """They are added; the view has removed one of its rows, too."""
    bench.conn.execute("INSERT INTO customers VALUES (9999, 'nowhere', 'x')")
    [region, n] = bench.conn.execute("SELECT region, n FROM v ORDER BY 1 LIMIT 1").fetchone()
    bench.conn.execute("DELETE FROM customers WHERE region = %s", (region,))
    # The last line is a write beyond the boundary, half of which is there.
    below.written = f"8\t1\tnowhere\t1\n8\t-1\t{region}\t{n}\n9\t1\tbeyo".encode()
    assert over(bench)[0]


def test_output_that_was_not_kept(bench, below):
    """It is tried once more, and then without the view below."""
    below.answers["attached"] = lambda _: False
    assert not over(bench)[0]
    assert bench.worker.methods.count("attach") == 2
    assert below.manifest["feeds"] == {}


def test_a_plan_below_that_has_changed_since(bench, below):
    """It reads another table since then, as after a partition has come."""
    had = "'\"table_oid\": ' || 'customers'::regclass::oid::bigint"

    def change(found: Any) -> Any:
        bench.conn.execute(
            f"UPDATE headrace.views SET plan = replace(plan::text, {had}, '\"table_oid\": 1')::jsonb"
            " WHERE view_name = 'v'"
        )
        return found

    below.answers["hold"] = change
    stacked, said = over(bench)
    assert not stacked
    assert said.endswith("was rebuilt, or its tables have changed")


def test_a_view_below_that_is_replaced_before_the_end(bench, below, monkeypatch):
    """Its rows were read, but they may have been wrong: a call may have asked for the resync."""
    real, later = views.of_table, 0
    monkeypatch.setattr(views, "of_table", lambda conn, oid: real(conn, oid) + later)

    def replace(_: object) -> Any:
        nonlocal later
        later = 1000
        return {"txid": 7, "instant": 0}

    below.answers["tapped"] = replace
    assert not over(bench)[0]
    assert below.manifest["feeds"] == {}
    assert bench.worker.methods.count("attached") == 0


@pytest.mark.parametrize(
    ("asked", "status", "right"),
    [(False, "running", True), (False, "error", False), (True, "running", False)],
    ids=["it lagged", "it had stopped", "a call"],
)
def test_a_resync_tells_whether_the_rows_before_were_right(bench, below, asked, status, right):
    bench.conn.execute("UPDATE headrace.views SET status = %s", (status,))
    [before] = bench.conn.execute("SELECT id FROM headrace.views").fetchone()
    because = None if asked else "it lagged"
    request = ResyncView("public.v", because=because, unasked=not asked)
    resync.resync_view(bench.context, bench.job(), request)
    assert below.manifest.get("replaces", 0) == (before if right else 0)
    assert below.manifest["doubted"] is asked


def test_an_altered_view_has_other_rows(bench, below):
    query = "SELECT region, 0 AS n FROM public.customers GROUP BY region"
    request = AlterView("public.v", query)
    alter.alter_view(bench.context, bench.job(), request)
    [now] = bench.conn.execute("SELECT id FROM headrace.views").fetchone()
    assert below.manifest["view_id"] == now, "it is that of the altered view"
    assert "replaces" not in below.manifest


def test_a_view_below_that_cannot_be_written_meanwhile(bench, below, monkeypatch):
    """Its table is locked, for example: the population does not wait for the end of that."""
    monkeypatch.setattr(populate, "_PATIENCE_S", 0.0)
    below.answers["tapped"] = lambda _: None
    stacked, said = over(bench)
    assert not stacked
    assert said.endswith("has not reached the snapshot in time")
    assert bench.worker.methods.count("attach") == 2
    assert below.manifest["feeds"] == {}


def test_a_view_below_that_stops_meanwhile(bench, below):
    def stop(_: object) -> Any:
        raise DefiniteFailure("view v has stopped")

    below.answers["tapped"] = stop
    stacked, said = over(bench)
    assert not stacked
    assert said.startswith("first rows: from the tables, because ")
    assert bench.worker.methods.count("attach") == 2
