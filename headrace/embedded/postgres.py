"""An embedded Postgres server, run from the programs in a wheel, for the demo and the tests.

It listens on 127.0.0.1 with trust authentication, user ``postgres`` and ``wal_level=logical``.  It
never outlives the process that started it.

    with EmbeddedPostgres(path) as server:
        psycopg.connect(server.dsn())
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from headrace import clock
from headrace.embedded.binaries import Account, account, install_dir
from headrace.embedded.watchdog import Watchdog
from headrace.errors import PrerequisiteError, TransientError

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: Final[dict[str, signal.Signals]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_DEFAULTS: Final[dict[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "200",
    "lc_messages": "C",
    "log_timezone": "UTC",
}
_UNSAFE_BUT_FAST: Final[dict[str, str]] = {
    # synchronous_commit stays on: walsenders send only flushed WAL, and the background flush
    # of asynchronous commits would add 200 ms to every change.
    "fsync": "off",
    "full_page_writes": "off",
}
_PORT_TRIES: Final = 5
_POLL_S: Final = 0.02


class EmbeddedPostgres:
    """One server on one data directory, which can be stopped, killed and restarted.

    ``data_dir`` is created if it is missing.  ``None``: a temporary one, removed by ``destroy`` and
    at the end of the ``with`` block.  If Headrace runs as root and the server's user cannot reach
    ``data_dir``, the data is in ``/var/tmp`` and ``data_dir`` is a symbolic link to it.
    ``port`` 0 takes a free port at the first start and keeps it.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        version: int = 16,
        settings: dict[str, str] | None = None,
        *,
        port: int = 0,
        locale: str = "C.UTF-8",
        durable: bool = True,
        start_timeout_s: float = 60.0,
    ) -> None:
        """Prepare a server; without ``durable`` (fsync) data survives ``kill``, not a power cut."""
        self.version = version
        self.port = port
        self.locale = locale
        self._account: Account = account()
        self._install = install_dir(version, self._account)
        self._temporary = data_dir is None
        self._given = data_dir or Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        self._settings = _DEFAULTS | ({} if durable else _UNSAFE_BUT_FAST)
        self._settings |= settings or {}
        self._start_timeout_s = start_timeout_s
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None

    @property
    def data_dir(self) -> Path:
        """The directory of the data, with symbolic links resolved."""
        return self._given.resolve()

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    @property
    def bin_dir(self) -> Path:
        """Directory of the server's programs (psql, pg_recvlogical…)."""
        return self._install / "bin"

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._server is not None and self._server.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        assert self._server is not None, "the server has been started"
        return self._server.pid

    def dsn(self, dbname: str = "postgres", user: str = "postgres") -> str:
        """Return a connection string to database ``dbname``."""
        return f"host=127.0.0.1 port={self.port} user={user} dbname={dbname}"

    def start(self) -> None:
        """Start the server; create its data directory if there is none.

        Raises:
            PrerequisiteError: it does not start; the detail is the end of its log.
            TransientError: it is not ready in time.
        """
        if self.running:
            return
        self._prepare()
        for tries_left in reversed(range(_PORT_TRIES)):
            chosen = self.port or _free_port()
            self._configure(chosen)
            begin = self._launch()
            if self._wait_ready():
                self.port = chosen
                return
            text = self.log.read_bytes()[begin:].decode(errors="replace")
            lost_race = not self.port and "could not bind" in text
            if not lost_race or not tries_left:
                raise PrerequisiteError("the embedded Postgres did not start", detail=text[-2000:])

    def stop(self, mode: StopMode = "fast", timeout_s: float = 30.0) -> None:
        """Stop the server; after ``timeout_s`` stop it immediately."""
        if self._server is None:
            return
        self._dismiss_watchdog()
        with contextlib.suppress(ProcessLookupError):
            self._server.send_signal(_SIGNALS[mode])
        try:
            self._server.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait(timeout_s)
        self._server = None

    def kill(self) -> None:
        """Send SIGKILL to the postmaster and its children, as in a power failure."""
        if self._server is None:
            return
        self._dismiss_watchdog()
        # While it is stopped it cannot start a child that the list would miss.
        self._server.send_signal(signal.SIGSTOP)
        children = _children(self._server.pid)
        self._server.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._server.wait()
        self._server = None
        _wait_gone(children)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start again on the same port."""
        self.stop(mode)
        self.start()

    def destroy(self) -> None:
        """Stop the server at once and remove its data."""
        self.stop("immediate")
        real, log = self.data_dir, self.log
        shutil.rmtree(real, ignore_errors=True)
        log.unlink(missing_ok=True)
        if self._given.is_symlink():
            self._given.unlink()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server; remove a temporary data directory."""
        if self._temporary:
            self.destroy()
        else:
            self.stop()

    def _prepare(self) -> None:
        """Create the data directory, set its owner, and run initdb if it is empty."""
        if not self._given.is_symlink():
            self._given.parent.mkdir(parents=True, exist_ok=True)
            if self._account.can_enter(self._given.parent):
                self._given.mkdir(exist_ok=True)
            else:
                real = tempfile.mkdtemp(prefix="headrace-postgres-", dir="/var/tmp")
                if self._given.is_dir():
                    self._given.rmdir()
                self._given.symlink_to(real)
        self._account.take(self.data_dir)
        if (self.data_dir / "PG_VERSION").exists():
            return
        failure = self._initdb(self.locale)
        if failure and "locale" in failure and self.locale != "C":
            # Some systems (macOS, minimal images) have no C.UTF-8.
            failure = self._initdb("C")
        if failure:
            raise PrerequisiteError("the embedded Postgres could not be set up", detail=failure)
        with (self.data_dir / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude_if_exists 'headrace.conf'\n")

    def _initdb(self, locale: str) -> str:
        """Run initdb; return its error output if it failed, else ''."""
        done = subprocess.run(
            [
                *(self.bin_dir / "initdb", "--pgdata", self.data_dir),
                *("--username=postgres", "--auth=trust", "--encoding=UTF8"),
                *(f"--locale={locale}", "--no-sync", "--no-instructions"),
            ],
            capture_output=True,
            check=False,
            cwd="/",
            env=_environment(),
            text=True,
            **self._account.popen_args(),
        )
        return "" if done.returncode == 0 else done.stderr or "initdb failed"

    def _configure(self, port: int) -> None:
        """Write the settings; ALTER SYSTEM still overrides them."""
        lines = [
            "{} = '{}'\n".format(name, value.replace("'", "''"))
            for name, value in (self._settings | {"port": str(port)}).items()
        ]
        conf = self.data_dir / "headrace.conf"
        conf.write_text("".join(lines))
        if self._account.uid is not None and self._account.gid is not None:
            os.chown(conf, self._account.uid, self._account.gid)

    def _launch(self) -> int:
        """Start the server and its watchdog; return the length of the log before."""
        with self.log.open("ab") as log:
            begin = log.tell()
            self._server = subprocess.Popen(
                [self.bin_dir / "postgres", "-D", self.data_dir],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                # Ctrl-C in a terminal must reach only this process, which stops the server.
                start_new_session=True,
                **self._account.popen_args(),
            )
        self._watchdog = Watchdog(self._server.pid, signal.SIGQUIT)
        return begin

    def _wait_ready(self) -> bool:
        """Wait until the server accepts connections; False: it exited instead."""
        assert self._server is not None, "launched just before"
        pid_file = self.data_dir / "postmaster.pid"
        deadline = clock.monotonic() + self._start_timeout_s
        while clock.monotonic() < deadline:
            if self._server.poll() is not None:
                self._dismiss_watchdog()
                self._server = None
                return False
            with contextlib.suppress(FileNotFoundError):
                lines = pid_file.read_text().splitlines()
                # Line 1 is the pid (the file may be of a dead server), line 8 the state.
                if (
                    len(lines) >= 8
                    and int(lines[0]) == self._server.pid
                    and lines[7].strip() == "ready"
                ):
                    return True
            clock.sleep(_POLL_S)
        self.stop("immediate")
        raise TransientError("the embedded Postgres is not ready in time")

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.dismiss()
            self._watchdog = None


def _environment() -> dict[str, str]:
    """Return the environment without variables that would affect the server."""
    dropped = ("PG", "LC_", "LANG")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return kept | {"TZ": "UTC"}


def _free_port() -> int:
    """Return a port that is free now; the caller retries if it is taken meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _children(pid: int) -> list[int]:
    """Return the ids of processes whose parent is ``pid`` (empty without /proc)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name in parentheses may have blanks; state and parent follow it.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def _wait_gone(pids: list[int], timeout_s: float = 10.0) -> None:
    """Wait until none of ``pids`` runs, since they use the shared memory until then."""
    deadline = clock.monotonic() + timeout_s
    for pid in pids:
        while Path(f"/proc/{pid}").exists() and not _is_zombie(pid):
            if clock.monotonic() > deadline:
                raise TransientError("a process of the killed Postgres is still there")
            clock.sleep(_POLL_S)


def _is_zombie(pid: int) -> bool:
    """Return whether ``pid`` is a zombie, or gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "Z"
    return True
