"""pgbench, from the programs of the server."""

from __future__ import annotations

import re
import subprocess
from typing import Final

from psycopg.conninfo import conninfo_to_dict

from bench.scenario import Bed

_TPS: Final = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)


def command(on: Bed, dsn: str, *words: str) -> list[str]:
    """Return the command that runs pgbench with ``words`` on a database."""
    known = conninfo_to_dict(dsn)
    return [
        *(str(on.server.bin_dir / "pgbench"), *words),
        *("--host", str(known["host"]), "--port", str(known["port"])),
        *("--username", str(known["user"]), str(known["dbname"])),
    ]


def ran(on: Bed, dsn: str, *words: str) -> str:
    """Run it to its end; returns what it printed."""
    done = subprocess.run(
        command(on, dsn, *words), check=True, capture_output=True, text=True, env={}, timeout=3_600
    )
    return done.stdout


def rate(printed: str) -> float:
    """Return the transactions per second that pgbench printed."""
    found = _TPS.search(printed)
    assert found is not None, printed
    return float(found[1])
