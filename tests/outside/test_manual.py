"""Pages of the manual about other tools: their examples in order, literally."""

import re

import pytest
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, MetaData

from tests.compared import differs
from tests.outside import pages
from tests.outside.following import Follower, emptied
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine


def url_of(dsn: str) -> str:
    parts = conninfo_to_dict(dsn)
    return URL.create(
        "postgresql+psycopg",
        username=str(parts["user"]),
        host=str(parts.get("host", "127.0.0.1")),
        port=int(parts["port"]),
        database=str(parts["dbname"]),
    ).render_as_string(hide_password=False)


@pytest.mark.parametrize("page", pages.documents(), ids=lambda page: page.stem)
def test_each_page_begins_with_its_title_and_its_links_lead_somewhere(page):
    text = page.read_text()
    assert re.match(r"# \S", text)
    shown = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", shown):
        path, _, anchor = "".join(target).partition("#")
        if "://" in path:
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if file.suffix != ".md":
            continue
        heads = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
        names = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert not anchor or anchor in names, target


def test_integrations(engine):
    """SQL, SQLAlchemy and Alembic over the same tables."""
    with emptied(engine.dsn) as conn:
        assert Follower(conn, engine.source).follow(pages.page_of("integrations")) > 12
        conn.execute("DELETE FROM orders WHERE id = 100")
        page: dict = {"url": url_of(engine.dsn)}
        for body in pages.fences("integrations", "python"):
            exec(compile(body, "integrations.md", "exec"), page)  # as a user would paste it
        database = page["engine"]
        with database.connect() as connection:
            wanted = MetaData()
            wanted.reflect(connection, only=["customers", "orders"])
            plain = MigrationContext.configure(connection, opts={})
            told = {step[1].name for step in compare_metadata(plain, wanted)}
            assert told == {"revenue", "big_orders"}, "what Alembic would drop"
            tables = page["result_tables"](connection)
            opts = {"include_object": page["leave_out"](tables)}
            careful = MigrationContext.configure(connection, opts=opts)
            assert compare_metadata(careful, wanted) == []
            # Other tables are still seen.
            connection.rollback()
            conn.execute("CREATE TABLE forgotten (id int)")
            assert [s[1].name for s in compare_metadata(careful, wanted)] == ["forgotten"]
        with database.connect() as connection:
            context = MigrationContext.configure(connection)
            with context.begin_transaction(), Operations.context(context):
                page["upgrade"]()
        query = "SELECT customer_id, sum(amount) AS amount FROM orders GROUP BY customer_id"
        conn.execute("CALL headrace.wait_for('by_customer')")
        assert differs(conn, "by_customer", query) == []
        with database.connect() as connection:
            context = MigrationContext.configure(connection)
            with context.begin_transaction(), Operations.context(context):
                page["downgrade"]()
        left = "SELECT to_regclass('by_customer')"
        wait_until(lambda: conn.execute(left).fetchone() == (None,), "it is dropped")
        database.dispose()
