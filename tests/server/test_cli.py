"""The command line with wrong input: it reports the error clearly, and ends."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.server.cli import main
from tests.security.roles import PASSWORD, role
from tests.waiting import PATIENCE_S

CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}


def run(*words: str, program: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``headrace`` in a new process; ``program`` is executed before it starts."""
    code = f"{program}\nimport sys\nfrom headrace.server.cli import main\nsys.exit(main({words!r}))"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=CLEAN | env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], *says: str, status: int = 1) -> None:
    text = done.stdout + done.stderr
    assert "Traceback" not in text, text
    assert done.returncode == status, text
    for words in says:
        assert words in text, text


@pytest.fixture
def source(database: str) -> str:
    return database


@pytest.fixture
def words(database: str, tmp_path: Path) -> list[str]:
    """Arguments with which the engine would start."""
    slot = f"headrace_{conninfo_to_dict(database)['dbname']}"
    return [
        *("--source", database, "--data-dir", str(tmp_path / "d")),
        *("--slot-name", slot, "--listen", "127.0.0.1:0"),
    ]


def but(words: list[str], flag: str, value: str) -> list[str]:
    """Return ``words`` with another value of a flag."""
    out = list(words)
    out[out.index(flag) + 1] = value
    return out


def test_wrong_words():
    refused(run("start"), "no source database given", "HEADRACE_SOURCE", status=2)
    refused(run("start", "--source", "host="), status=1)
    refused(run("start", "--source", "what = = ever"), "is not a connection string", status=2)
    refused(run("start", "--source", "host=nowhere.invalid"), "✗ source", "nowhere.invalid")
    nobody = "host=127.0.0.1 port=1 dbname=x connect_timeout=5"
    refused(run("start", "--source", nobody), "✗ source", "onnection refused")
    refused(run("check", "--source", nobody), "✗ source", "1 problem to fix")
    refused(run("status", "--source", nobody), "onnection refused")
    refused(run("uninstall", "--source", nobody), "onnection refused")
    refused(run("start", "--source", nobody, "--log-format", "loud"), 'cannot be "loud"', status=2)
    refused(
        run("start", "--source", nobody, "--listen", "here"), 'invalid address "here"', status=2
    )


def test_wrong_files(tmp_path):
    binary = tmp_path / "c.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, says in (
        (binary, "could not read configuration file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
    ):
        refused(run("config", "--config", str(path)), says, status=2)
    wrong = tmp_path / "w.toml"
    wrong.write_text("listen = ")
    refused(run("config", "--config", str(wrong)), "invalid configuration file", status=2)
    wrong.write_text("lisen = 'x'")
    refused(run("config", "--config", str(wrong)), 'unrecognized setting "lisen"')
    refused(run("config", HEADRACE_LISEN="x"), "Perhaps HEADRACE_LISTEN is meant")


def test_who_reads_config_may_have_enough():
    code = "import sys\nfrom headrace.server.cli import main\nsys.exit(main(['config']))"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        env=CLEAN,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) in (0, 1)


@pytest.mark.slow
def test_data_directories_that_are_none(words, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for path, says in (
        (file, f'"{file}" is not a directory'),
        (file / "below", f'"{file}" is not a directory'),
        (Path("/proc/d"), '"/proc" cannot be written' if os.getuid() else "cannot be created"),
        (tmp_path / ("x" * 120), "too long"),
    ):
        refused(run("start", *but(words, "--data-dir", str(path))), says)
    assert file.read_text() == ""


@pytest.mark.skipif(os.getuid() != 0 or sys.platform != "linux", reason="it mounts")
def test_a_disk_that_is_read_only(words, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        refused(run("start", *but(words, "--data-dir", str(disk / "d"))), "cannot be written")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_port_that_is_taken(words):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(run("start", *but(words, "--listen", where)), f"cannot listen on {where}")
        refused(run("start", *words, "--http", where), f"cannot listen on {where}", "--http")
        # The address is taken after it was checked.
        blind = "from headrace.server import doctor\ndoctor.look = lambda settings: []"
        done = run("start", *but(words, "--listen", where), program=blind)
        refused(done, "ddress already in use")
    refused(run("start", *but(words, "--listen", "nowhere.invalid:1")), "cannot listen")


@pytest.mark.slow
def test_a_role_without_rights(words, source):
    with psycopg.connect(source, autocommit=True) as conn, role(conn, "poor") as poor:
        conn.execute(f"REVOKE CREATE ON DATABASE {conn.info.dbname} FROM PUBLIC")
        dsn = make_conninfo(source, user=poor, password=PASSWORD)
        mine = but(words, "--source", dsn)
        refused(run("start", *mine), "REPLICATION", "GRANT CREATE ON DATABASE", "2 problems to fix")
        refused(run("check", "--source", dsn), "✗ rights", "✗ server")
        refused(run("status", "--source", dsn), "headrace is not installed")
        wrong = make_conninfo(source, user=poor, password="wrong", host="127.0.0.1")
        done = run("start", *but(words, "--source", wrong))
        assert "wrong" not in done.stderr.replace(poor, ""), "passwords are not shown"
        nobody = but(words, "--source", make_conninfo(source, dbname="not there"))
        refused(run("start", *nobody), 'database "not there" does not exist')
        conn.execute(f"ALTER ROLE {poor} NOLOGIN")
        refused(run("start", *mine), "is not permitted to log in")
        made = conn.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'headrace'")
        assert made.fetchone() == (0,), "nothing was made"


class Older:
    """A proxy of a server that reports another version."""

    def __init__(self, dsn: str, version: bytes) -> None:
        found = conninfo_to_dict(dsn)
        self._to = (str(found["host"]), int(found["port"]))
        self._version = version
        self._server = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(
            dsn, host="127.0.0.1", port=self._server.getsockname()[1], sslmode="disable"
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if self._to[0].startswith("/"):
                    upstream = socket.socket(socket.AF_UNIX)
                    upstream.connect(f"{self._to[0]}/.s.PGSQL.{self._to[1]}")
                else:
                    upstream = socket.create_connection(self._to)
                for pair in ((client, upstream), (upstream, client)):
                    threading.Thread(target=self._relay, args=pair, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(re.sub(rb"(?<=server_version\0)[\d.]{5}", self._version, data))
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def older(source: str) -> Iterator[Older]:
    made = Older(source, b"13.14")
    yield made
    made.close()


@pytest.mark.slow
def test_a_server_that_is_too_old(words, older):
    refused(run("start", *but(words, "--source", older.dsn)), "✗ server", "15")
    refused(run("check", "--source", older.dsn), "✗ server", "15")


@pytest.mark.slow
def test_a_server_in_recovery(words, tmp_path):
    with EmbeddedPostgres(tmp_path / "standby", durable=False) as server:
        server.stop()
        (server.data_dir / "standby.signal").touch()
        server.start()
        dsn = server.dsn()
        refused(run("start", *but(words, "--source", dsn)), "is a standby", "primary")
        refused(run("check", "--source", dsn), "is a standby")
        refused(run("status", "--source", dsn), "headrace is not installed")
        refused(run("uninstall", "--source", dsn), "read-only transaction")


def test_a_bug_is_told_in_a_line(words):
    bug = (
        "from headrace.server import doctor\n"
        "def look(settings): raise KeyError('x')\n"
        "doctor.look = look"
    )
    done = run("start", *words, program=bug)
    refused(done, "headrace: internal error: KeyError('x') at", "--log-level debug", status=70)
    told = run("start", *words, "--log-level", "debug", program=bug)
    assert "KeyError: 'x'" in told.stderr


@pytest.mark.slow
def test_interrupted(words):
    stopped = (
        "from headrace.server import doctor\n"
        "def look(settings): raise KeyboardInterrupt\n"
        "doctor.look = look"
    )
    refused(run("start", *words, program=stopped), status=130)


def test_config_says_all(capsys, monkeypatch):
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADRACE_SLOW_BATCH_MS", "7")
    assert main(["config", "--source", "host=x password=s3cret"]) == 0
    out = capsys.readouterr().out
    assert "slow_batch_ms = 7 ms  (HEADRACE_SLOW_BATCH_MS)" in out
    assert "http = (empty)  (default)" in out
    assert "``" not in out
    assert "s3cret" not in out
    assert "password=***" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("uninstall", "--drop-tables" if shell != "fish" else "drop-tables", "top"):
        assert word in script, word


def test_bash_completes_a_command(capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out
    ask = (
        "COMP_WORDS=(headrace un) COMP_CWORD=1 COMP_LINE='headrace un' COMP_POINT=11;"
        " $(complete -p headrace | sed 's/.* -F \\([^ ]*\\) .*/\\1/'); echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["uninstall"], done.stderr


def test_completion_of_another_shell(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "cmd"])
    assert ended.value.code == 2
    assert "invalid choice: 'cmd'" in capsys.readouterr().err
