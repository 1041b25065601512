"""A wheel as its users get it: built from the source distribution, installed without a compiler."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from headrace.embedded.engine import EmbeddedEngine
from tests.conftest import environment
from tests.outside import pages
from tests.outside.machine import Machine
from tests.packages.test_contents import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
BUILD_S = 1200


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """The folder with wheel and source distribution, built from a copy of the source."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, timeout=BUILD_S
    )
    return folder


@pytest.fixture(scope="module")
def machine(dist, tmp_path_factory) -> Iterator[Machine]:
    """A machine with Headrace installed as the page says."""
    (wheel,) = dist.glob("*.whl")
    with Machine(tmp_path_factory.mktemp("clean") / "machine", wheel) as one:
        [block] = [b for b in pages.blocks(pages.page_of("install")) if "-m venv" in b.body]
        for typed in pages.session(block.body):
            one.typed(typed)
        yield one


@pytest.fixture(scope="module")
def installed(machine) -> Path:
    """A clean environment with the wheel, made without a compiler."""
    return machine.venv


def test_the_wheel_is_of_this_platform_and_has_no_sources_in_c(dist):
    (wheel,) = dist.glob("*.whl")
    assert "-none-any" not in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert not [n for n in names if n.endswith((".c", ".pyc", "README.md"))]
    assert any(n.endswith(".so") for n in names)
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"headrace"}


def test_the_source_distribution_has_no_results_of_a_build(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert not [n for n in names if n.endswith((".c", ".so", ".pyc"))]


def test_every_kernel_is_compiled_and_the_program_runs(installed):
    told = subprocess.run(
        [installed / "bin/headrace", "version"],
        cwd=installed,
        env={"PATH": str(installed / "bin")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith("headrace 0.")
    script = Path(__file__).with_name("kernels.py")
    subprocess.run([installed / "bin/python", "-I", script], cwd=installed, check=True)


def test_a_view_follows(installed, database, tmp_path, monkeypatch):
    """``headrace check``, ``start``, create_view, a write, and the rows of the table."""
    monkeypatch.chdir(tmp_path)  # modules would be searched here first
    monkeypatch.delenv("PYTHONPATH", raising=False)
    name = str(conninfo_to_dict(database)["dbname"])
    checked = subprocess.run(
        [installed / "bin/headrace", "check"],
        env={
            "PATH": str(installed / "bin"),
            "HOME": str(tmp_path),
            "HEADRACE_SOURCE": database,
            "HEADRACE_SLOT_NAME": f"headrace_{name}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE o (id int PRIMARY KEY, c text, a numeric(9,2))")
        conn.execute("INSERT INTO o SELECT i, 'c' || i % 3, i FROM generate_series(1, 300) i")
        with EmbeddedEngine(
            database,
            tmp_path / "engine",
            env=environment(name),
            python=str(installed / "bin/python"),
        ) as engine:
            query = "SELECT c, count(*) AS n, sum(a) AS s FROM o GROUP BY c"
            with psycopg.connect(engine.dsn, autocommit=True) as client:
                client.execute("CALL headrace.create_view('v', %s)", (query,))
                client.execute("UPDATE o SET a = a + 0.5 WHERE id % 2 = 0")
                client.execute("DELETE FROM o WHERE c = 'c1' AND id > 100")
                client.execute("CALL headrace.wait_for('v')")
            same = conn.execute(f"SELECT count(*) FROM (({query}) EXCEPT ALL TABLE v) d").fetchone()
            assert same == (0,)
            assert conn.execute("SELECT count(*) FROM v").fetchone() == (3,)


def test_the_pages_are_followed_as_they_stand(machine):
    """Install, check, start, create a view, uninstall; then the first steps, from the beginning."""
    with psycopg.connect(machine.server.dsn("shop"), autocommit=True) as conn:
        script = "import headrace; print(headrace.__file__)"
        where = machine.run([str(machine.venv / "bin/python"), "-c", script])
        assert where.startswith(str(machine.venv)), "it is not that of the repository"

        source = f"host=127.0.0.1 port={machine.server.port} dbname=shop user=headrace"
        program = str(machine.venv / "bin/headrace")
        assert machine.follow("install", "app_owner") > 4
        answer = machine.run([program, "status"], {"HEADRACE_SOURCE": source})
        assert "✓ engine" in answer
        machine.end()
        answer = machine.run([program, "uninstall", "--drop-tables"], {"HEADRACE_SOURCE": source})
        assert answer == 'result table "public"."totals" dropped\nheadrace removed\n'
        assert conn.execute("SELECT to_regclass('totals')").fetchone() == (None,)
        conn.execute("DROP TABLE orders")
        shutil.rmtree(machine.data)
        machine.follow("start", "app_owner")
        assert conn.execute("SELECT count(*) FROM headrace.views").fetchone() == (0,)
