"""Handling of errors while a view is planned, for the first time or again."""

from __future__ import annotations

import pytest

from headrace.errors import HeadraceError, QueryCancelled, UserError
from headrace.population.populate import planning
from headrace.sql.verbs import AlterView, ResyncView, SetOwner
from headrace.views import alter, owners, resync

PATH = {"search_path": "public"}
WRONG = "SELECT id, region + 1 AS n FROM customers"


def position(work):
    with pytest.raises(HeadraceError) as caught:
        work()
    assert caught.value.code == "42883"
    return caught.value.position


def test_a_place_is_told_only_in_a_text_that_somebody_has_written(bench):
    context, conn = bench.context, bench.conn
    conn.execute("ALTER TABLE customers ADD n int")
    bench.create("v", "SELECT id, n + 1 AS n FROM customers")
    conn.execute("ALTER TABLE customers ALTER n TYPE text")
    asked = ResyncView("v", settings=PATH)
    to_all = SetOwner("v", "pg_database_owner", settings=PATH)
    wrong = AlterView("v", WRONG, settings=PATH)
    assert position(lambda: resync.resync_view(context, bench.job(), asked)) is None
    assert position(lambda: owners.set_owner(context, bench.job(), to_all)) is None
    altered = position(lambda: alter.alter_view(context, bench.job(), wrong))
    created = position(lambda: bench.create("w", WRONG))
    assert altered == created == WRONG.index("+") + 1


def test_errors_of_postgres_are_ours(bench):
    with (
        pytest.raises(UserError, match="division by zero") as caught,
        planning(bench.context, bench.job()) as conn,
    ):
        conn.execute("SELECT 1 / 0")
    assert caught.value.code == "22012"


def test_whatever_fails_after_a_cancel_means_that(bench):
    job = bench.job()

    def fail():
        with planning(bench.context, job) as conn:
            job.cancel()
            conn.execute("SELECT 1 / 0")

    with pytest.raises(QueryCancelled):
        fail()
