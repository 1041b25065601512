"""The pages of the manual about advise and the port: what they say to run runs."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.server import orders
from headrace.server.reload import CHANGEABLE

pytestmark = pytest.mark.shared_engine
MANUAL = Path(__file__).parents[2] / "docs" / "manual"


def test_the_examples_about_advise_run(engine):
    blocks = re.findall(r"```sql\n(.*?)```", (MANUAL / "advisor.md").read_text(), re.DOTALL)
    statements = [s for block in blocks for s in re.split(r";\n", block) if s.strip()]
    answered = 0
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for text in statements:
            found = conn.execute(text.encode())
            if "advi" in text:
                answered += 1
                [first, *_] = found.fetchall()
                assert "create_view would accept it" in str(first)
    assert answered == 4


def test_what_the_page_about_the_port_says_to_type(engine):
    page = (MANUAL / "port.md").read_text()
    lines = re.findall(r"^headrace=> (.*)$", page, re.MULTILINE)
    with psycopg.connect(make_conninfo(engine.dsn, dbname="headrace"), autocommit=True) as conn:
        for line in lines:
            assert conn.execute(line.encode()).fetchall(), line
    assert len(lines) == 5
    for what in orders.SHOWN:
        assert f"SHOW {what}" in page, what
    for name in CHANGEABLE:
        assert f"`{name}`" in page, name
