"""relay: the cost of connections through the engine's port, compared with direct ones."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench import cpu
from bench.scenario import Bed, Figures, Options, Scenario, bed

_TABLE: Final = """
CREATE TABLE items (id int PRIMARY KEY, v text);
INSERT INTO items SELECT i, repeat('v', 50) FROM generate_series(1, 10000) i;
"""
_SCRIPTS: Final = {
    "point": "\\set id random(1, 10000)\nSELECT v FROM items WHERE id = :id;\n",
    "rows_1000": "SELECT id, v FROM items WHERE id <= 1000;\n",
}
_MODES: Final = ("simple", "extended", "prepared")
_CLIENTS: Final = (1, 8)
_ROUNDS: Final = 3


class Relay(Scenario):
    """pgbench through the port and directly, in turns; the median round of each counts."""

    name: ClassVar[str] = "relay"
    about: ClassVar[str] = (
        "transactions/s of pgbench and its latency through the port, beside going direct;"
        " CPU µs of the server per transaction"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure ``options.seconds`` of each script, protocol and number of clients."""
        seconds = max(round(options.seconds or 3), 1)
        lines: list[Figures] = []
        with bed(options, HEADRACE_SPARK_WARM="false") as on, _scripts() as scripts:
            with psycopg.connect(on.source, autocommit=True) as conn:
                conn.execute(_TABLE)
            on.engine.start()
            for name, script in scripts.items():
                for mode in _MODES if name == "point" else _MODES[:1]:
                    lines += [_compare(on, script, mode, clients, seconds) for clients in _CLIENTS]
        return lines


@contextmanager
def _scripts() -> Iterator[dict[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
        paths = {name: Path(home) / f"{name}.sql" for name in _SCRIPTS}
        for name, path in paths.items():
            path.write_text(_SCRIPTS[name])
        yield paths


def _compare(on: Bed, script: Path, mode: str, clients: int, seconds: int) -> Figures:
    def rate(dsn: str) -> float:
        return _pgbench(on, dsn, script, mode, clients, seconds)

    direct, relayed, spent = [], [], []
    for _ in range(_ROUNDS):
        direct.append(rate(on.source))
        before = cpu.of_process(on.engine.pid)
        relayed.append(rate(on.engine.dsn))
        after = cpu.of_process(on.engine.pid)
        spent.append((after - before) / (relayed[-1] * seconds))
    there, through = sorted(direct)[_ROUNDS // 2], sorted(relayed)[_ROUNDS // 2]
    return {
        "script": script.stem,
        "protocol": mode,
        "clients": clients,
        "direct_per_s": round(there),
        "relayed_per_s": round(through),
        "ratio": round(through / there, 3),
        "added_ms": round((clients / through - clients / there) * 1e3, 3),
        "cpu_us": round(sorted(spent)[_ROUNDS // 2] * 1e6, 1),
    }


def _pgbench(on: Bed, dsn: str, script: Path, mode: str, clients: int, seconds: int) -> float:
    """Return the transactions per second, without the time to connect."""
    known = conninfo_to_dict(dsn)
    ran = subprocess.run(
        [
            *(str(on.server.bin_dir / "pgbench"), "--no-vacuum", "--file", str(script)),
            *("--protocol", mode, "--client", str(clients), "--jobs", "1"),
            *("--time", str(seconds)),
            *("--host", str(known["host"]), "--port", str(known["port"])),
            *("--username", str(known["user"]), str(known["dbname"])),
        ],
        check=True,
        capture_output=True,
        text=True,
        env={"PGPASSWORD": str(known.get("password", ""))},
        timeout=60 + 10 * seconds,
    )
    found = re.search(r"^tps = ([\d.]+)", ran.stdout, re.MULTILINE)
    assert found is not None, ran.stdout
    return float(found[1])
