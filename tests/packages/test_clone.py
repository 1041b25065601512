"""A fresh clone, used as the README says: ``make demo``; then on the user's own database."""

import subprocess
import urllib.request

import psycopg
import pytest

from tests.embedded.terminal import Terminal
from tests.outside import pages, test_readme
from tests.outside.machine import Machine
from tests.packages.test_contents import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
SETUP_S = 1800


def test_a_fresh_clone(tmp_path):
    clone = tmp_path / "headrace"
    done = subprocess.run(
        ["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this is no checkout")
    demo, start, *_ = [b for b in pages.blocks(clone / "README.md") if b.kind == "console"]
    assert demo.body == "make demo"
    with Machine(tmp_path / "machine", clone=clone) as machine:
        terminal = Terminal(demo.body.split(), clone, machine.environment)
        try:
            terminal.wait_for("Headrace demo", SETUP_S)
            terminal.wait_for("sales_by_country    \x1b[0m running")
            terminal.press("k")
            terminal.wait_for("kill -9 ")
            terminal.press("v")
            for view in ("best_customers", "sales_by_country"):
                terminal.wait_for(f"verify public.{view}: no row differs")
            terminal.press("q")
            assert terminal.end() == 0
        finally:
            terminal.close()

        with psycopg.connect(machine.server.dsn("shop"), autocommit=True) as conn:
            conn.execute("CREATE ROLE headrace LOGIN REPLICATION IN ROLE app_owner")
            conn.execute("GRANT CREATE ON DATABASE shop TO headrace")
        for typed in pages.session(start.body):
            machine.typed(typed)
        with psycopg.connect(machine.dsn("app_owner"), autocommit=True) as conn:
            conn.execute(test_readme.TABLES)
            for statement, _ in test_readme.session():
                last = conn.execute(statement.encode())
            assert last.fetchall() == [], "no row differs"
            assert conn.execute("SELECT count(*) FROM revenue").fetchone() == (2,)
        with urllib.request.urlopen(machine.console, timeout=30) as page:
            assert b"Headrace" in page.read()
        machine.end()
