"""The manual's pictures of the console: a shop with writers, at three widths.

``REWRITE=1 … -m slow`` makes them again, in minutes: the curves need a history.
"""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.embedded import shop
from tests.console.browser import WIDTHS, appears, browser_only, make_browser, press, resize
from tests.console.web import port_of, token_of
from tests.waiting import wait_until

PICTURES = Path(__file__).parents[2] / "docs" / "manual" / "img"
BYTES_MAX = 600_000
ORDERS = 60_000
PAST_S = 200.0
FREE = "SELECT id, name, 100 / price AS per_100 FROM products WHERE category = 'Gifts'"
MORE = {
    "open_orders": "SELECT status, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY 1",
    "top_products": "SELECT p.id, p.name, count(*) AS sold, sum(o.amount) AS revenue FROM orders o"
    " JOIN products p ON p.id = o.product_id WHERE o.status <> 'cancelled'"
    " GROUP BY p.id, p.name ORDER BY revenue DESC, p.id LIMIT 20",
    "big_markets": f"SELECT s.* FROM ({shop.VIEWS[0].query}) s WHERE s.revenue > 1000",
    "daily_revenue": "SELECT date_trunc('day', placed_at) AS day, sum(amount) AS revenue"
    " FROM orders WHERE status = 'paid' GROUP BY 1",
}


def test_there_are_three_and_they_are_small():
    found = {}
    for name in WIDTHS:
        data = (PICTURES / f"console-{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        width, _ = struct.unpack(">II", data[16:24])
        found[name] = (width, len(data))
    assert {name: width for name, (width, _) in found.items()} == {
        name: width for name, (width, _) in WIDTHS.items()
    }
    assert sum(size for _, size in found.values()) < BYTES_MAX


@browser_only
@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.skipif(not os.environ.get("REWRITE"), reason="pictures are made with REWRITE=1")
def test_make_them(postgres, start_engine):
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute("CREATE DATABASE shop")  # its name is in the picture
    database = make_conninfo(postgres, dbname="shop")
    shop.load(database, ORDERS)
    engine = start_engine(database, "--http", "127.0.0.1:0")
    with (
        psycopg.connect(database, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as conn,
    ):
        views = {view.name: view.query for view in shop.VIEWS} | MORE | {"gifts": FREE}
        for name, query in views.items():
            conn.execute("CALL headrace.create_view(%s, %s)", (name, query))
        conn.execute("CALL headrace.create_index('sales_by_country', '(country)')")
        conn.execute("CALL headrace.pause_view('daily_revenue')")
        source.execute("INSERT INTO products VALUES (5000, 'Sticker', 'Gifts', 0)")
        stopped = "SELECT count(*) FROM headrace.list_views() WHERE status = 'error'"
        wait_until(lambda: source.execute(stopped).fetchone() == (1,), "it stops")
        writers = [shop.Writer(dsn=database, number=n, rate=6, orders=ORDERS) for n in range(2)]
        for writer in writers:
            writer.start()
        try:
            threading.Event().wait(PAST_S)  # a history takes time
            _shoot(f"http://127.0.0.1:{port_of(engine)}/#token={token_of(engine)}")
        finally:
            for writer in writers:
                writer.stop()


def _shoot(link):
    driver = make_browser()
    PICTURES.mkdir(parents=True, exist_ok=True)
    try:
        driver.get(link)
        for name, theme, page, selector in (
            ("desktop", "light", "#/", ".views svg.spark"),
            ("tablet", "dark", "#/view/public.sales_by_country", ".wire.flows"),
            ("phone", "light", "#/", ".views svg.spark"),
        ):
            width, height = WIDTHS[name]
            resize(driver, width, height)
            dark = "return document.documentElement.dataset.theme === 'dark'"
            if (theme == "dark") != driver.execute_script(dark):
                press(driver, "t")
            press(driver, "Escape")
            driver.execute_script("location.hash = arguments[0]", page)
            appears(driver, selector)
            if name == "tablet":
                appears(driver, ".u-legend")
                driver.execute_script(
                    "[...document.querySelectorAll('g.node')].find((g) =>"
                    " g.getAttribute('aria-label').startsWith('Reduce'))"
                    ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
                )
                appears(driver, ".node-facts")
            whole = driver.execute_script("return document.documentElement.scrollHeight")
            resize(
                driver, width, min(whole, {"desktop": 1150, "tablet": 1480, "phone": 1180}[name])
            )
            driver.execute_script("scrollTo(0, 0)")
            threading.Event().wait(3.0)  # until it has been drawn and polled once more
            driver.save_screenshot(str(PICTURES / f"console-{name}.png"))
    finally:
        driver.quit()
