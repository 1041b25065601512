"""The demo's shop: its checks must notice a wrong view, its writers must repeat themselves."""

import time
from collections.abc import Iterator

import psycopg
import pytest

from headrace.embedded import shop
from tests.waiting import wait_until


@pytest.fixture
def filled(database: str) -> Iterator[str]:
    shop.load(database, 500)
    with psycopg.connect(database, autocommit=True) as conn:
        for view in shop.VIEWS:
            conn.execute(f"CREATE TABLE {view.name} AS {view.query}".encode())
    return database


def test_a_right_view_does_not_differ(filled: str) -> None:
    for view in shop.VIEWS:
        rows, differing = shop.differing_rows(filled, view)
        assert rows > 0
        assert differing == 0


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM best_customers WHERE ctid = (SELECT min(ctid) FROM best_customers)",
        "INSERT INTO best_customers SELECT * FROM best_customers LIMIT 1",
        "UPDATE best_customers SET spent = spent::numeric(20,3)",
    ],
    ids=["missing", "doubled", "other scale"],
)
def test_a_wrong_view_is_noticed(filled: str, damage: str) -> None:
    with psycopg.connect(filled, autocommit=True) as conn:
        conn.execute(damage.encode())
    assert shop.differing_rows(filled, shop.VIEWS[1])[1] > 0


def test_writer_writes_at_its_rate_and_reports_its_error(filled: str) -> None:
    writer = shop.Writer(dsn=filled, rate=100, orders=500)
    began = time.monotonic()
    writer.start()
    wait_until(lambda: writer.transactions >= 10, "it writes")
    writer.stop()
    assert writer.transactions <= 1 + writer.rate * (time.monotonic() - began)
    with psycopg.connect(filled, autocommit=True) as conn:
        conn.execute("DROP TABLE orders")
    broken = shop.Writer(dsn=filled, rate=100, orders=500)
    broken.start()
    wait_until(lambda: not broken._thread.is_alive(), "it fails")
    with pytest.raises(psycopg.errors.UndefinedTable):
        broken.stop()


def test_probe_gives_up_on_a_view_that_stands_still(filled: str) -> None:
    probe = shop.Probe(dsn=filled, pause_s=0.01, give_up_s=0.2)
    probe.start()
    wait_until(lambda: not probe._thread.is_alive(), "it gives up")
    with pytest.raises(TimeoutError, match="sales_by_country"):
        probe.stop()
    with pytest.raises(TimeoutError):
        shop.wait_caught_up(filled, probe, timeout_s=0.1)


def test_percentile_is_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert shop.percentile(values, 50) == 51
    assert shop.percentile(values, 99) == 100
    assert shop.percentile([7.0], 99) == 7
    assert shop.percentile([], 50) == 0
