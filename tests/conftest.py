"""Fixtures for every test: a Postgres server, a fresh database, a running engine.

``HEADRACE_TEST_DSN`` names a server to use (superuser, ``wal_level=logical``). Otherwise one is
started, of the version in ``HEADRACE_TEST_PG``: 16 (the default) or 18 come from the wheel, 17 from
a package of npm (``server17.py``), other versions from the system's packages. A failed test shows the end of the log of every engine it used.

``HEADRACE_TEST_STREAMED`` makes the server send transactions before they end
(``forwarder/streamed.py``): ``immediate`` sends each change by itself, which is slow; ``64kB``
sends transactions that are larger.

``make test`` runs four processes (pytest-xdist), each with its own server. The tests of one file
stay together and in order, and all tests that need Spark share one session. The files that take
longest start first, so that none is left alone at the end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.embedded import binaries
from headrace.embedded import postgres as servers
from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from tests import server17
from tests import spread as spreading
from tests.amounts import Run
from tests.common_engine import CommonEngine
from tests.databases import Databases
from tests.databases import drop_database as drop_database
from tests.engines import Engine
from tests.waiting import wait_until

if streamed := os.environ.get("HEADRACE_TEST_STREAMED"):
    # Streaming sends transactions that may still be rolled back.
    servers._DEFAULTS.update(
        {"debug_logical_replication_streaming": streamed}
        if streamed == "immediate"
        else {"logical_decoding_work_mem": streamed}
    )

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

binaries.PLACES.insert(0, server17.PLACE)
LOG_LINES_SHOWN = 150
GRAVE = re.compile(r'"level": "(?!info|debug)')
"""Finds a line of an engine's log that is more than information."""
LONGEST = ("spark", "tests/failover/test_failover.py", "tests/standby/test_troubles.py")
"""Groups of tests that start first."""
MEMORY = "/dev/shm"
"""A file system in memory, on Linux."""
MEMORY_BYTES_MIN = 8 << 30
"""Free memory from which on the servers' data are kept in it."""
SERVERS = {"postgres", "engine"}
"""Fixtures of the tests that may be slow."""
UNIT = ("unit", True)
UNIT_S_MAX = 0.25
TOLD = "told"
"""Name of a test's property (``record_property``) that is printed in the summary."""
ENGINES = pytest.StashKey[list[EmbeddedEngine]]()
"""The engines of a test, for its report."""
COMMON = pytest.StashKey[CommonEngine]()
"""The engine of the modules that share one, once there is one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of ``make slow-units``."""
    parser.addoption("--slow-units", action="store_true", help="list slow unit tests")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the measurements of the tests, and the slow ones among the tests without a server."""
    reports = terminalreporter.getreports("passed")
    told = [text for r in reports for name, text in r.user_properties if name == TOLD]
    if told:
        terminalreporter.section("measured by tests")
    for text in told:
        terminalreporter.line(text)
    if not config.getoption("slow_units"):
        return
    slow = [
        (report.duration, report.nodeid)
        for report in reports
        if UNIT in report.user_properties and report.duration > UNIT_S_MAX
    ]
    terminalreporter.section(f"{len(slow)} slow units")
    for seconds, name in sorted(slow, reverse=True):
        terminalreporter.line(f"{seconds:6.2f} s  {name}")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the directory of the servers, and the number of examples of each property."""
    use_memory()
    Run.quick = config.option.markexpr == "not slow"
    if Run.quick:
        hypothesis.settings.register_profile("quick", hypothesis.settings(), max_examples=30)
        hypothesis.settings.load_profile("quick")


def use_memory() -> None:
    """Have the servers' data in memory if there is enough.

    Most tests create and drop tables and databases, and so thousands of files: on a disk that takes
    a quarter of their processor time. ``TMPDIR`` names another directory.
    """
    if "TMPDIR" in os.environ or not os.path.ismount(MEMORY):
        return
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if "MemAvailable" in line)
    if min(available, shutil.disk_usage(MEMORY).free) < MEMORY_BYTES_MIN:
        return
    # The directories of tests stay where they are: their engines' sockets need short paths.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    tempfile.tempdir = MEMORY


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group the tests by file for pytest-xdist, the longest first.

    The Spark tests of all files are one group.
    """
    for item in items:
        if not SERVERS & set(getattr(item, "fixturenames", ())):
            item.user_properties.append(UNIT)
    if not config.pluginmanager.hasplugin("xdist"):
        return
    ranks = []
    for item in items:
        spark = "spark" in getattr(item, "fixturenames", ())
        name = "spark" if spark else item.path.relative_to(config.rootpath).as_posix()
        item.add_marker(pytest.mark.xdist_group(name))
        ranks.append(LONGEST.index(name) if name in LONGEST else len(LONGEST))
    items[:] = [items[n] for n in sorted(range(len(items)), key=ranks.__getitem__)]


@pytest.hookimpl(trylast=True)  # after pytest-xdist has put the groups into the names
def pytest_collection_finish(session: pytest.Session) -> None:
    """End the run if pytest-xdist does not understand this pytest.

    Otherwise files would be torn apart silently: module fixtures made twice, and tests without the
    tests that must run before them.
    """
    grouped = session.config.getoption("loadgroup", False)
    if grouped and session.items and "@" not in session.items[0].nodeid:
        raise pytest.UsageError("pytest-xdist gives groups to no test of this pytest")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the engines that a failed test used."""
    report = yield
    if report.failed:
        for engine in item.stash.get(ENGINES, []):
            lines = engine.log.splitlines()
            # First, because CI shows the beginning of a long report.
            grave = [line for line in lines if GRAVE.search(line)]
            for what, shown in (("warnings", grave), ("log", lines)):
                title = f"{what} of engine {engine.data_dir}, {len(shown)} lines"
                report.sections.append((title, "\n".join(shown[-LOG_LINES_SHOWN:])))
    return report


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give Python a cache directory if it may not write byte code beside the sources."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.mktemp("pycache"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The DSN of a server's ``postgres`` database, as superuser."""
    given = os.environ.get("HEADRACE_TEST_DSN")
    if given:
        yield given
        return
    version = int(os.environ.get("HEADRACE_TEST_PG", "16"))
    with EmbeddedPostgres(None, version, durable=False) as server:
        yield server.dsn()


@pytest.fixture(scope="session")
def databases(postgres: str) -> Iterator[Databases]:
    """The server's databases, each used by one test at a time."""
    made = Databases(postgres)
    yield made
    made.close()


@pytest.fixture
def database(databases: Databases, request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a database under a new name, for this test alone.

    It is empty, or has Headrace's catalog if the test or a fixture of it asks for ``catalog``.
    """
    name = databases.take(installed="catalog" in request.fixturenames)
    yield make_conninfo(databases.server, dbname=name)
    databases.give_back(name)


@pytest.fixture
def catalog() -> None:
    """Have ``database`` made with Headrace's catalog, as ``install`` leaves it."""


def environment(database: str) -> dict[str, str]:
    """Return the default settings of an engine on ``database``."""
    return {
        # Slots belong to the whole server: one name per database.
        "HEADRACE_SLOT_NAME": f"headrace_{database}",
        "HEADRACE_SPARK_WARM": "false",
        # A busy machine may be ten times slower: no view must be taken out for that.
        "HEADRACE_VIEW_TIME_MS_MAX": "20000",
        **spreading.environment(),
    }


@pytest.fixture
def start_engine(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., EmbeddedEngine]]:
    """A function ``(source_dsn, **env) -> Engine``; the engines are stopped at the end."""
    engines: list[EmbeddedEngine] = request.node.stash.setdefault(ENGINES, [])
    spread = contextlib.ExitStack()

    def start(source: str, *args: str, **env: str) -> EmbeddedEngine:
        dbname = psycopg.conninfo.conninfo_to_dict(source)["dbname"]
        engine = Engine(
            source,
            tmp_path / f"engine{len(engines)}",
            env=environment(str(dbname)) | env,
            args=args,
        )
        engines.append(engine)
        engine.start()
        spread.enter_context(spreading.spread(engine, tmp_path))
        return engine

    with spread:
        yield start
    for engine in engines:
        engine.kill9()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> EmbeddedEngine:
    """A running ``headrace start`` on a fresh database, or the module's engine (``shared_engine``).

    Mark ``engine_with`` gives its arguments and environment.
    """
    if request.node.get_closest_marker("shared_engine"):
        shared: EmbeddedEngine = request.getfixturevalue("shared_engine")
        return shared
    database: str = request.getfixturevalue("database")
    start: Callable[..., EmbeddedEngine] = request.getfixturevalue("start_engine")
    given = request.node.get_closest_marker("engine_with")
    return start(database, *given.args, **given.kwargs) if given else start(database)


@pytest.fixture(scope="session")
def common_engine(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[CommonEngine]:
    """The engine of the modules that share one and need no settings."""
    common = CommonEngine(functools.partial(started, databases, tmp_path_factory))
    request.session.stash[COMMON] = common
    yield common
    common.close()


@pytest.fixture(scope="module")
def running_engine(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[EmbeddedEngine]:
    """One engine for a whole module; tests use it through ``shared_engine``."""
    given = request.node.get_closest_marker("engine_with")
    if given is None:
        common: CommonEngine = request.getfixturevalue("common_engine")
        yield common.take()
        common.release()
        return
    with started(databases, tmp_path_factory, given) as engine:
        yield engine


@pytest.fixture(scope="module", autouse=True)
def idle_engine_ends(request: pytest.FixtureRequest) -> None:
    """Stop the common engine before a module if it has not been used for a while."""
    common = request.session.stash.get(COMMON, None)
    if common is not None:
        common.close_if_idle()


@contextlib.contextmanager
def started(
    databases: Databases, folders: pytest.TempPathFactory, given: pytest.Mark | None = None
) -> Iterator[EmbeddedEngine]:
    """Start an engine on a new database, with the settings of mark ``engine_with``."""
    name, folder = databases.take(), folders.mktemp("engine")
    engine = Engine(
        make_conninfo(databases.server, dbname=name),
        folder / "data",
        env=environment(name) | dict(given.kwargs if given else {}),
        args=given.args if given else (),
    )
    try:
        engine.start()
        with spreading.spread(engine, folder):
            yield engine
    finally:
        engine.kill9()
    databases.give_back(name)


def dropped(conn: psycopg.Connection, name: str) -> bool:
    """Drop a view, unless it is just being populated again."""
    try:
        conn.execute("CALL headrace.drop_view(%s)", (name,))
    except psycopg.errors.ObjectInUse:
        return False
    return True


@pytest.fixture
def shared_engine(
    running_engine: EmbeddedEngine, request: pytest.FixtureRequest
) -> Iterator[EmbeddedEngine]:
    """The module's engine; its views and the tables of its database are dropped after each test.

    For tests that damage neither engine nor settings: ``pytest.mark.shared_engine`` makes it their
    ``engine``.
    """
    request.node.stash.setdefault(ENGINES, []).append(running_engine)
    yield running_engine
    with psycopg.connect(running_engine.dsn, autocommit=True) as conn:
        names = conn.execute(
            # A view uses every table that the views below it use: the last views use most.
            "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views"
            " ORDER BY (SELECT count(*) FROM headrace.view_uses WHERE view_id = id) DESC"
        ).fetchall()
        for (name,) in names:
            wait_until(functools.partial(dropped, conn, name), f"{name} is dropped")
        for (name,) in conn.execute(
            "SELECT format('%I', nspname) FROM pg_namespace WHERE oid >= 16384"
            " AND nspname <> 'headrace' AND nspname !~ '^pg_' OR nspname = 'public'"
        ).fetchall():
            conn.execute(f"DROP SCHEMA {name} CASCADE")
        conn.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
        conn.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
