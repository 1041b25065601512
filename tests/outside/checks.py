"""Checks of each kind of block on a page, and the blocks that need none.

``CHECKS`` has the kinds that are read without an engine, ``FOLLOWED`` those that ``following.py``
executes. A block of any other kind, or one that no test reaches, is an error.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import jinja2
import yaml

from headrace.config import Settings
from tests.outside import pages, shells
from tests.outside.pages import MANUAL, ROOT, Block

HIGH_AVAILABILITY = "docs/manual/high-availability.md"
EXEMPT = {
    ("docs/performance.md", "shown"): "figures of one machine: `make bench` makes others",
    ("docs/ARCHITECTURE.md", "shown"): "what a state does, in words",
    ("docs/ARCHITECTURE.md", "picture"): "a drawing",
    ("docs/manual/how.md", "picture"): "a drawing",
}
"""Page and kind -> why there is nothing to run or compare."""
ELSEWHERE = {
    ("docs/manual/integrations.md", "python"): "test_manual.py: test_integrations",
    ("docs/manual/frameworks.md", "python"): "test_frameworks.py: test_django",
    ("docs/manual/frameworks.md", "ruby"): "test_frameworks.py: test_rails",
    ("docs/manual/frameworks.md", "prisma"): "test_frameworks.py: test_prisma",
    ("docs/manual/frameworks.md", "js"): "test_frameworks.py: test_prisma, test_node",
    ("docs/manual/tools.md", "python"): "test_tools.py: test_airflow",
    ("docs/manual/tools.md", "text"): "test_tools.py: test_pgbouncer",
    ("docs/manual/assertions.md", "python"): "test_assertions_page.py: test_the_receiver",
    ("docs/manual/assertions.md", "json"): "test_assertions_page.py: test_contents",
    ("docs/manual/spark.md", "ini"): "test_spark_masters.py: test_the_file_of_the_manual",
    (HIGH_AVAILABILITY, "sql"): "tests/failover, tests/standby: on a primary and a standby",
    (HIGH_AVAILABILITY, "text"): "the same",
    (HIGH_AVAILABILITY, "ini"): "the same",
    ("docs/manual/reference.md", "signature"): "test_reference.py holds them against Postgres",
}
DBT = ROOT / "integrations" / "dbt"
FOLLOWED = frozenset(("sql", "error", "shown", "ini"))


def is_followed(page: Path) -> bool:
    """Return whether a test sends the page's SQL; ``test_readme.py`` does that for the README."""
    if page.name == "README.md" or (str(page.relative_to(ROOT)), "sql") in ELSEWHERE:
        return False
    return any(
        block.kind == "sql" or re.search(r"^\w+=[>#] ", block.body, re.MULTILINE)
        for block in pages.blocks(page)
    )


def check(block: Block) -> None:
    """Check a block, or that a test follows its page to it.

    Raises: AssertionError: no test does, or the block is wrong.
    """
    at = (str(block.page.relative_to(ROOT)), block.kind)
    if at in EXEMPT or at in ELSEWHERE:
        return
    if block.kind in FOLLOWED:
        assert is_followed(block.page), f"nobody follows {block}"
        return
    assert block.kind in CHECKS, f"nobody checks {block}"
    CHECKS[block.kind](block)


def _shell(block: Block) -> None:
    for typed in pages.session(block.body):
        if typed.is_shell:
            shells.check(typed.words)
            shells.check_answers(typed)
        elif block.page.name != "README.md":
            assert is_followed(block.page), f"nobody follows {block}"


def _settings(block: Block) -> None:
    """Read a file of Headrace's settings."""
    Settings.of(tomllib.loads(block.body))


def _events(block: Block) -> None:
    """Check that lines of the log are events that the page lists, with the listed level."""
    listed = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", block.page.read_text(), re.MULTILINE))
    for line in block.body.split("\n"):
        event = json.loads(line)
        assert listed[event["event"]] == event["level"], line


def _yaml(block: Block) -> None:
    """Check a YAML file by its outermost key: its names must exist."""
    told = yaml.safe_load(block.body)
    [(what, entries), *_] = told.items()
    if what == "packages":
        [package] = entries
        assert (ROOT / package["subdirectory"] / "dbt_project.yml").exists()
    elif what == "models":
        tests = {
            name: set(arguments.replace(" ", "").split(","))
            for path in DBT.glob("headrace/macros/*.sql")
            for name, arguments in re.findall(r"{%-? *test (\w+)\(([^)]*)\)", path.read_text())
        }
        for model in entries:
            for test in model["data_tests"]:
                [(name, options)] = test.items()
                said = {word.split("=")[0] for word in tests[name.removeprefix("headrace.")]}
                assert set(options["arguments"]) <= said, test
    else:
        assert what == "scrape_configs", f"nobody checks {block}"
        [[target], *more] = [s["targets"] for job in entries for s in job["static_configs"]]
        assert more == []
        assert f"--http {target}" in block.page.read_text(), "what is scraped is what is served"
        for file in told["rule_files"]:
            assert (ROOT / "deploy/monitoring" / file).exists()


def dbt_options() -> set[str]:
    """Return the options of a dbt model: those in the page's table, and dbt's own."""
    table = (MANUAL / "integrations.md").read_text().split("| config | does |")[1].split("\n\n")[0]
    first = re.findall(r"^\|([^|]+)\|", table, re.MULTILINE)
    return {"materialized"} | {name for cell in first for name in re.findall(r"`(\w+)", cell)}


def _jinja(block: Block) -> None:
    """Check a model of dbt: rendered, it is a query, and its options are those of the package."""
    said: dict[str, object] = {}

    def source(schema: str, table: str) -> str:
        return f"{schema}.{table}"

    def config(**options: object) -> str:
        said.update(options)
        return ""

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    query = environment.from_string(block.body).render(config=config, source=source)
    assert query.split()[0] == "select"
    assert set(said) <= dbt_options()
    macros = "\n".join(path.read_text() for path in DBT.glob("headrace/macros/*.sql"))
    for name in set(said) - {"grants", "materialized"}:
        assert f"'{name}'" in macros, name


CHECKS: dict[str, Callable[[Block], None]] = {
    "console": _shell,
    "sh": _shell,
    "toml": _settings,
    "json": _events,
    "yaml": _yaml,
    "jinja": _jinja,
}
