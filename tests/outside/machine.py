"""A machine on which pages are followed literally: Headrace from a wheel or a clone, and a server.

``stand_ins`` maps the names of the pages (``db``, ``/opt/headrace``, port 6432 …) to their local
counterparts. Steps that need another machine, root or Docker are only checked (``shells.py``).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from headrace.embedded.postgres import EmbeddedPostgres
from tests.outside import pages, shells
from tests.outside.following import Follower
from tests.outside.pages import ROOT, Typed
from tests.waiting import wait_until

RUN = ("python3", "pip", "headrace")
SERVERS = ("start", "worker")
WHEEL = re.compile(r"headrace-\S+\.whl")
FIGURE = re.compile(r"\d+(\.\d+)?")


class Machine:
    """A machine for pages; ``wheel`` is installed where a page says so.

    ``clone``: a folder with the source and ``make``; then there is no wheel.
    """

    def __init__(
        self, folder: Path, wheel: Path | None = None, *, clone: Path | None = None
    ) -> None:
        folder.mkdir()
        self.data = folder / "data"
        self.folder = clone or folder
        self.venv = self.folder / (".venv" if clone else "venv")
        self._wheel = wheel
        self._run = (*RUN, "make") if clone else RUN
        self.server = EmbeddedPostgres(None, 16, durable=False)
        self._running: list[subprocess.Popen[str]] = []
        with (
            socket.create_server(("127.0.0.1", 0)) as one,
            socket.create_server(("127.0.0.1", 0)) as other,
        ):
            self.port, self._http = (int(free.getsockname()[1]) for free in (one, other))

    def __enter__(self) -> Self:
        """Start the database server, with a role that owns tables."""
        self.server.start()
        with psycopg.connect(self.server.dsn(), autocommit=True) as conn:
            conn.execute("CREATE DATABASE shop")
            conn.execute("CREATE ROLE app_owner LOGIN")
        with psycopg.connect(self.server.dsn("shop"), autocommit=True) as conn:
            conn.execute("GRANT CREATE ON SCHEMA public TO app_owner")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything."""
        self.end()
        self.server.destroy()

    @property
    def stand_ins(self) -> dict[str, str]:
        """Return the replacements for names on pages."""
        return {
            "host=db": f"host=127.0.0.1 port={self.server.port}",
            "127.0.0.1:6432": f"127.0.0.1:{self.port}",
            "127.0.0.1:8080": f"127.0.0.1:{self._http}",
            "/opt/headrace": str(self.venv),
            "/var/lib/headrace": str(self.data),
        }

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a new user: no repository, no compiler."""
        ours = ("HEADRACE_", "PYTHON", "VIRTUAL_ENV", "CFLAGS", "MAKE")
        path = (self.venv / "bin", Path(sys.base_prefix) / "bin", "/usr/bin", "/bin")
        return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | {
            "PATH": os.pathsep.join(map(str, path)),
            **({"CC": "/nonexistent"} if self._wheel else {}),
            "PIP_CONSTRAINT": str(ROOT / "requirements.lock"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "HEADRACE_DATA_DIR": str(self.data),
            "HEADRACE_ALLOW_TRUST": "true",  # that server uses trust, on this computer alone
        }

    def dsn(self, user: str) -> str:
        """Return the connection string of the pages' database, through Headrace."""
        return f"host=127.0.0.1 port={self.port} dbname=shop user={user}"

    @property
    def console(self) -> str:
        """The address of the console."""
        return f"http://127.0.0.1:{self._http}/"

    def follow(self, page: str, user: str) -> int:
        """Do what a page says; return the number of statements sent."""
        with contextlib.ExitStack() as stack:
            follower: Follower | None = None
            for block in pages.blocks(pages.page_of(page)):
                if block.kind in ("console", "sh"):
                    for typed in pages.session(block.body):
                        self.typed(typed)
                elif block.kind in ("sql", "shown", "error"):
                    if follower is None:
                        conn = psycopg.connect(self.dsn(user), autocommit=True)
                        stack.enter_context(contextlib.closing(conn))
                        follower = Follower(conn, self.server.dsn("shop"))
                    follower.take(block)
            if follower is not None:
                follower.end()
            return follower.sent if follower else 0

    def typed(self, typed: Typed) -> None:
        """Execute a line as typed, and compare the answer."""
        if not typed.is_shell:
            with psycopg.connect(self.server.dsn(typed.prompt[:-2]), autocommit=True) as conn:
                for statement in pages.statements(typed.words):
                    conn.execute(statement.encode())
            return
        shells.check(typed.words)
        line = WHEEL.sub(str(self._wheel), typed.words)
        for said, here in self.stand_ins.items():
            line = line.replace(said, here)
        words = shlex.split(line, comments=True)
        given = {}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            given[name] = value
        if Path(words[0]).name not in self._run:
            return
        if Path(words[0]).name == "headrace" and words[1] == "init":
            self._prepare(self.run(words, given))
        elif Path(words[0]).name == "headrace" and words[1] in SERVERS:
            self._serve(words, given, typed.answer)
        else:
            with self._lacking(typed.answer):
                self._compare(typed, self.run(words, given))

    def _prepare(self, script: str) -> None:
        """Run the script that ``headrace init`` prints, with the grants that it leaves to choose."""
        subprocess.run(
            [str(self.server.bin_dir / "psql"), "-v", "ON_ERROR_STOP=1", self.server.dsn("shop")],
            input=script.replace("\n-- GRANT", "\nGRANT"),
            text=True,
            check=True,
        )

    @contextlib.contextmanager
    def _lacking(self, answer: tuple[str, ...]) -> Iterator[None]:
        """Revoke the rights that a page shows as missing; grant them afterwards."""
        grants = [line.strip() for line in answer if line.strip().startswith("GRANT")]
        with psycopg.connect(self.server.dsn("shop"), autocommit=True) as conn:
            for grant in grants:
                revoke = grant.replace("GRANT", "REVOKE").replace(" TO ", " FROM ")
                conn.execute(revoke.encode())
            yield
            for grant in grants:
                conn.execute(grant.encode())

    def run(self, words: list[str], given: dict[str, str] | None = None) -> str:
        """Return the output of a command; only ``check`` may exit with status 1."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment | (given or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=1200,
        )
        assert done.returncode in ((0, 1) if "check" in words else (0,)), done.stdout
        return done.stdout

    def end(self) -> None:
        """Stop the running processes as the system would."""
        while self._running:
            process = self._running.pop()
            process.terminate()
            assert process.wait(60) == 0, "it stops well"

    def _serve(self, words: list[str], given: dict[str, str], answer: tuple[str, ...]) -> None:
        log = self.folder / f"{words[1]}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment | given,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                text=True,
            )
        self._running.append(process)

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            return "ready on " in log.read_text()

        wait_until(ready, log.read_text)
        for line in answer:
            assert self._here(line) in log.read_text().split("\n"), line

    def _here(self, line: str) -> str:
        for said, here in self.stand_ins.items():
            line = line.replace(said, here)
        return line

    def _compare(self, typed: Typed, printed: str) -> None:
        """Check that every line on the page was printed, in this order; figures may differ."""
        lines = iter([FIGURE.sub("#", line.rstrip()) for line in printed.split("\n")])
        for line in typed.answer:
            wanted = FIGURE.sub("#", self._here(line.rstrip()))
            assert any(wanted == found for found in lines), f"{line}\nis not in\n{printed}"
