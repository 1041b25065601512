"""Builds and runs the image with Debian's podman, without a registry of images.

The Dockerfile is built as it is. Its base image cannot be had here, so mmdebstrap makes one of that
name from Debian's packages: the same release of Debian and of Python.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from tests.compared import differs
from tests.packages.instructions import stages
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".bench" / "image"
BASE = "python:3.11-slim-bookworm"
PACKAGES = "ca-certificates,python3,python3-venv,python3-pip,libpython3-dev"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
TOOLS = ("podman", "mmdebstrap", "runc")
NAME = "localhost/headrace:tested"
CONFIGURATION = """
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
"""No systemd is needed. Root without CAP_SYS_RESOURCE may not raise limits, as podman would."""
TABLES = """
    CREATE TABLE items (id int PRIMARY KEY, g int NOT NULL);
    INSERT INTO items SELECT i, i % 7 FROM generate_series(1, 1000) i;
"""
QUERY = "SELECT g, count(*) AS n FROM items GROUP BY g"
HOOKS = (
    # As in the base image: `python`, and a pip that may install for the whole system.
    'ln -s /usr/bin/python3.11 "$1/usr/local/bin/python"',
    'rm "$1/usr/lib/python3.11/EXTERNALLY-MANAGED"',
    # This machine's certificates, in case that it reaches the package registry through a proxy.
    f"upload {CERTIFICATES} /etc/machine.crt",
    'printf "[global]\\ncert = /etc/machine.crt\\ntimeout = 180\\n" > "$1/etc/pip.conf"',
)


def podman(*words: str | Path, fails: bool = False, seconds: float = 120) -> str:
    """Run podman with a store of its own, and return its output."""
    PLACE.mkdir(parents=True, exist_ok=True)
    conf = PLACE / "containers.conf"
    conf.write_text(CONFIGURATION.format(files=_limit(resource.RLIMIT_NOFILE)))
    done = subprocess.run(
        ["podman", "--root", PLACE / "storage", "--runroot", PLACE / "run", *words],
        env=os.environ | {"CONTAINERS_CONF": str(conf)},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert fails or done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@functools.cache
def build() -> str:
    """Build the image from the Dockerfile, once, and return its name; skip without the tools."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing or os.geteuid():
        pytest.skip(f"needs root and {', '.join(missing or TOOLS)}")
    assert {rest.split()[0] for [(_, rest), *_] in stages()} == {BASE}
    if not podman("images", "--quiet", BASE):
        tar = PLACE / "base.tar"
        hooks = [f"--customize-hook={hook}" for hook in HOOKS]
        _run(["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", *hooks, "bookworm", tar])
        podman("import", tar, f"docker.io/library/{BASE}", seconds=300)
        tar.unlink()
    words = ("--pull=never", "--format=docker", "--isolation=chroot", f"--tag={NAME}")
    podman("build", *words, ROOT, seconds=3000)
    return NAME


def assert_works(database: str, port: int) -> None:
    """Check a view whose first rows Spark computes, at the port of a server in a container."""
    with psycopg.connect(database, host="127.0.0.1", port=port, autocommit=True) as conn:
        conn.execute(TABLES)
        said: list[str] = []
        conn.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        call = "CALL headrace.create_view('counted', %s, '{\"population\": \"spark\"}')"

        def by_spark() -> bool:
            """Return whether Spark has computed the view; it may not have started yet."""
            said.clear()
            conn.execute("CALL headrace.drop_view('counted', if_exists => true)")
            conn.execute(call.encode(), (QUERY,))
            return any("population: on Spark" in text for text in said)

        wait_until(by_spark, lambda: f"Spark has started: {said}", seconds=2 * PATIENCE_S)
        conn.execute("INSERT INTO items VALUES (1001, 3)")
        conn.execute("CALL headrace.wait_for('counted')")
        assert differs(conn, "counted", QUERY) == []
        conn.execute("CALL headrace.drop_view('counted')")
        conn.execute("DROP TABLE items")


def _limit(which: int) -> int:
    hard = resource.getrlimit(which)[1]
    return 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)


def _run(words: Sequence[str | Path]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
