"""The files in which libpq finds passwords: its password file and its service file.

libpq ignores an exposed password file, with a warning on stderr, and then fails for want of a
password; it does not look at the permissions of a service file at all.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace.process import secret_files

_SECRET: Final = re.compile(r"^\s*(password|sslpassword|oauth_client_secret)\s*=", re.MULTILINE)


def check(dsn: str) -> None:
    """Refuse password files of ``dsn`` that other users may read.

    Raises:
        PrerequisiteError: a file is exposed.
    """
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return  # the connection attempt reports it
    named = given.get("passfile") or os.environ.get("PGPASSFILE")
    if named and not given.get("password") and Path(str(named)).exists():
        secret_files.check(Path(str(named)), "password", of_root=False)
    if given.get("service") or os.environ.get("PGSERVICE"):
        for path in _service_files():
            with contextlib.suppress(PermissionError):  # libpq cannot read it either
                if path.is_file() and _SECRET.search(path.read_text(errors="replace")):
                    secret_files.check(path, "service")


def _service_files() -> Iterator[Path]:
    """Yield the files of libpq's ``parseServiceInfo``, except that of its build's directory."""
    if named := os.environ.get("PGSERVICEFILE"):
        yield Path(named)
    else:
        with contextlib.suppress(RuntimeError):  # the user has no home, as in some containers
            yield Path.home() / ".pg_service.conf"
    if folder := os.environ.get("PGSYSCONFDIR"):
        yield Path(folder) / "pg_service.conf"
