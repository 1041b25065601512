"""The manual's page on application frameworks: its examples, run by the frameworks themselves.

Django runs in ``make test``. Rails is Debian's package; libraries of Node.js get a folder of their
own at the first run (``.bench/node``).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.compared import differs
from tests.outside import pages
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

PAGE = "frameworks"
TABLES = """
    CREATE TABLE customers (id int PRIMARY KEY, country text NOT NULL);
    CREATE TABLE orders (id int PRIMARY KEY, customer_id int NOT NULL REFERENCES customers,
                         amount numeric(9, 2) NOT NULL);
    INSERT INTO customers SELECT i, 'c' || i % 3 FROM generate_series(1, 9) i;
    INSERT INTO orders SELECT i, 1 + i % 9, i FROM generate_series(1, 50) i;
"""
REVENUE = (
    "SELECT c.country, count(*) AS orders, sum(o.amount) AS amount"
    " FROM orders o JOIN customers c ON c.id = o.customer_id GROUP BY c.country"
)
BIG_ORDERS = "SELECT id, customer_id, amount FROM orders WHERE amount > 40"
NODE = pages.ROOT / ".bench" / "node"
NODE_PACKAGES = (
    *("pg@8", "knex@3", "drizzle-orm@0.45", "drizzle-kit@0.31"),
    *("prisma@7.10", "@prisma/client@7.10", "@prisma/adapter-pg@7.10"),
)


@pytest.fixture(params=["port", "direct"])
def dsn(request, engine) -> str:
    """Where the framework connects: a database without tables, which is emptied afterwards."""
    yield engine.dsn if request.param == "port" else engine.source
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for name in views(conn):
            conn.execute("CALL headrace.drop_view(%s)", (name,))
        conn.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture
def conn(engine):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        yield conn


def views(conn: psycopg.Connection) -> list[str]:
    return [name for (name,) in conn.execute("SELECT name FROM headrace.list_views()")]


def url(dsn: str) -> str:
    parts = conninfo_to_dict(dsn)
    at = f"{parts['user']}@{parts.get('host', '127.0.0.1')}:{parts['port']}"
    return f"postgresql://{at}/{parts['dbname']}"


def run(words: list[str | Path], folder: Path, seconds: int = 120, **env: str) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def written(places: dict[str, str], folder: Path) -> Path:
    for name, body in places.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{body}\n")
    return folder


SETTINGS = """
import os
from psycopg.conninfo import conninfo_to_dict
parts = conninfo_to_dict(os.environ["DSN"])
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts["user"],
    "HOST": parts.get("host", "127.0.0.1"), "PORT": parts["port"],
}}
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
"""
BEGIN = """
import io
import json
import shutil
import django
from django.core.management import call_command
django.setup()
call_command("makemigrations", "shop", verbosity=0)
shutil.copy("later/0002_views.py", "shop/migrations")
said = io.StringIO()
call_command("makemigrations", check_changes=True, dry_run=True, stdout=said)
assert "No changes" in said.getvalue()
call_command("migrate", verbosity=0)
from django.db import connection, transaction
from shop import sales
from shop.models import BigOrder, Customer, Order, Revenue
"""
SOLD = """
customer = Customer.objects.create(country="c1")
told = [int(sales.sell(customer, amount).amount) for amount in (50, 5)]
with transaction.atomic():
    Order.objects.create(customer=customer, amount=60)

    def committed():
        with connection.cursor() as cursor:
            cursor.execute("CALL headrace.wait_for('big_orders')")
        told.append(BigOrder.objects.filter(customer__country="c1").count())

    transaction.on_commit(committed)
print(json.dumps(told))
"""
ROWS = """
customer = Customer.objects.create(country="c1")
Order.objects.create(customer=customer, amount=45)
with connection.cursor() as cursor:
    cursor.execute("SELECT relkind FROM pg_class WHERE relname IN ('revenue', 'big_orders')")
    told = [kind for (kind,) in cursor.fetchall()]
print(json.dumps([*told, Revenue.objects.get().orders, BigOrder.objects.get().customer.country]))
"""


def django(folder: Path, dsn: str, script: str) -> list:
    """Run a script in the page's project; return the JSON that it prints."""
    models, operations, migration, sales = pages.fences(PAGE, "python")
    places = {
        "settings.py": SETTINGS,
        "shop/__init__.py": "",
        "shop/models.py": models,
        "shop/operations.py": operations,
        "shop/sales.py": sales,
        "shop/migrations/__init__.py": "",
        "later/0002_views.py": migration,
        "run.py": script,
    }
    env = {"DSN": dsn, "PYTHONPATH": str(folder), "DJANGO_SETTINGS_MODULE": "settings"}
    return json.loads(run([sys.executable, "run.py"], written(places, folder), **env))


def test_django(dsn, conn, tmp_path):
    assert django(tmp_path, dsn, BEGIN + SOLD) == [50, 55, 2]
    assert differs(conn, "revenue", REVENUE) == []
    assert differs(conn, "big_orders", BIG_ORDERS) == []
    shutil.rmtree(tmp_path / "shop")
    django(tmp_path, dsn, BEGIN + 'call_command("migrate", "shop", "zero", verbosity=0)\nprint(0)')
    wait_until(lambda: views(conn) == [], "the views are dropped")


def test_django_without_headrace(databases, tmp_path):
    """The operation creates plain views, as in the database of a project's own tests."""
    name = databases.take()
    script = f'{BEGIN}{ROWS}call_command("migrate", "shop", "zero", verbosity=0)'
    try:
        told = django(tmp_path, make_conninfo(databases.server, dbname=name), script)
        assert told == ["v", "v", 1, "c1"]
    finally:
        databases.give_back(name)


RAILS = """
require "active_record"
require "stringio"
ActiveRecord::Base.establish_connection(ENV["URL"])
ActiveRecord::Migration.verbose = false
class Customer < ActiveRecord::Base; end
class Order < ActiveRecord::Base; end
context = ActiveRecord::MigrationContext.new("db/migrate", ActiveRecord::SchemaMigration)
context.migrate
ActiveRecord::Base.connection.execute("CALL headrace.wait_for('revenue')")
load "model.rb"
Customer.create!(id: 1, country: "c1")
puts eval(File.read("read.rb")).to_s("F")
puts Revenue.primary_key
begin
  Revenue.create!(country: "c9")
rescue ActiveRecord::ReadOnlyRecord
  puts "read only"
end
dumped = lambda do
  out = StringIO.new
  ActiveRecord::SchemaDumper.dump(ActiveRecord::Base.connection, out)
  out.string.include?("create_table \\"revenue\\"")
end
puts dumped.call
load "dumper.rb"
puts dumped.call
context.rollback(1)
"""
SHOP_RB = """
class CreateShop < ActiveRecord::Migration[6.1]
  def change
    create_table(:customers) { |t| t.text :country, null: false }
    create_table :orders do |t|
      t.references :customer, null: false
      t.decimal :amount, precision: 9, scale: 2, null: false
    end
  end
end
"""


@pytest.mark.slow  # needs Debian's packages
def test_rails(dsn, conn, tmp_path):
    found = shutil.which("ruby") and subprocess.run(
        ["ruby", "-e", 'require "active_record"; require "pg"'], capture_output=True, check=False
    )
    if not found or found.returncode:
        pytest.skip("needs Debian's ruby-activerecord and ruby-pg")
    migration, model, read, dumper = pages.fences(PAGE, "ruby")
    places = {
        "db/migrate/1_create_shop.rb": SHOP_RB,
        "db/migrate/2_create_revenue.rb": migration,
        "model.rb": model,
        "read.rb": read,
        "dumper.rb": dumper,
        "run.rb": RAILS,
    }
    told = run(["ruby", "run.rb"], written(places, tmp_path), URL=url(dsn))
    assert told.split("\n")[:-1] == ["10.0", "country", "read only", "true", "false"]
    wait_until(lambda: views(conn) == [], "the rollback has dropped the view")


@pytest.fixture
def node(tmp_path) -> Path:
    """A folder in which Node.js finds the packages."""
    if not shutil.which("npm"):
        pytest.skip("needs Node.js with npm")
    if not (NODE / "node_modules" / "prisma").exists():
        NODE.mkdir(parents=True, exist_ok=True)
        (NODE / "package.json").write_text('{"private": true}')
        # Not their scripts, which would download programs.
        run(["npm", "install", "--ignore-scripts", *NODE_PACKAGES], NODE, seconds=900)
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    return tmp_path


@pytest.mark.slow  # installs 500 MB of packages
@pytest.mark.timeout(1200)
def test_prisma(node, dsn, conn):
    conn.execute(TABLES)
    [model] = pages.fences(PAGE, "prisma")
    program = next(body for body in pages.fences(PAGE, "js") if "prisma" in body)
    config = 'export default { schema: "schema.prisma", datasource: { url: "postgresql://x" } };'
    written({"schema.prisma": model, "prisma.config.ts": config, "run.js": program}, node)
    # A client without the engine of `prisma migrate`, which npm's package would download.
    none = {"PRISMA_SCHEMA_ENGINE_BINARY": "/bin/true", "CHECKPOINT_DISABLE": "1"}
    run([node / "node_modules/.bin/prisma", "generate"], node, **none)
    assert run(["node", "run.js"], node, DATABASE_URL=url(dsn)) == "c1\n"
    assert differs(conn, "revenue", REVENUE) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_node(node, dsn, conn):
    conn.execute(TABLES)
    conn.execute("CALL headrace.create_view('revenue', %s)", (REVENUE,))
    plain, knex, drizzle = (body for body in pages.fences(PAGE, "js") if "prisma" not in body)
    places = {"plain.js": plain, "migrations/1_views.js": knex, "drizzle.js": drizzle}
    written(places, node)
    at = {"DATABASE_URL": url(dsn)}
    told = run(["node", "plain.js"], node, **at)
    assert told == "create_view is carried out after this transaction commits\n1\n"
    assert differs(conn, "big_orders", BIG_ORDERS) == []
    # Drizzle: the rows, and a schema file in which the view is left out.
    best = f"SELECT orders FROM ({REVENUE}) r ORDER BY amount DESC LIMIT 1"
    told = run(["node", "drizzle.js"], node, **at)
    assert conn.execute(best.encode()).fetchone() == (int(told),)
    schema = (
        drizzle[: drizzle.index("const db")]
        + "\nexport const other = pgTable('other', {a: text()});"
    )
    written({"schema.js": schema.replace("pgView, text", "pgTable, pgView, text")}, node)
    words = ["generate", "--dialect", "postgresql", "--schema", "schema.js"]
    run([node / "node_modules/.bin/drizzle-kit", *words], node)
    [made] = (node / "drizzle").glob("*.sql")
    assert "other" in made.read_text()
    assert "revenue" not in made.read_text()
    # Knex: up, and down.
    config = "export default {client: 'pg', connection: process.env.DATABASE_URL};"
    written({"knexfile.js": config}, node)
    program = node / "node_modules/.bin/knex"
    run([program, "migrate:latest"], node, **at)
    conn.execute("CALL headrace.wait_for('by_customer')")
    summed = "SELECT customer_id, sum(amount) AS amount FROM orders GROUP BY customer_id"
    assert differs(conn, "by_customer", summed) == []
    run([program, "migrate:rollback"], node, **at)
    wait_until(lambda: "public.by_customer" not in views(conn), "Knex has dropped it")
