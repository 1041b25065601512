"""Random bytes and mutated messages at the port: it survives, and other clients notice nothing.

``HEADRACE_FUZZ_SEED`` repeats a run; the seed is printed.
"""

from __future__ import annotations

import random
import socket
import struct

import psycopg
import pytest

from tests import seeds
from tests.security import wire as w
from tests.waiting import wait_until

CALL = "CALL headrace.create_view('v', 'SELECT 1')"
SEEDS = [
    w.query("SELECT 1"),
    w.query(CALL),
    w.run(CALL) + w.SYNC,
    w.parse("CALL headrace.create_view($1, $2)", "s"),
    w.bind(b"v", b"SELECT 1", name="s") + w.execute() + w.SYNC,
    w.query("COPY (SELECT 1) TO STDOUT"),
    w.query("COPY t FROM STDIN") + w.copy_data(b"1\n") + w.COPY_DONE,
    w.message("p", b"secret\0"),
    w.message("F", b"\0" * 12),
    struct.pack("!ii", 8, 80877103),
    struct.pack("!iiii", 16, 80877102, 1, 2),
]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return ``data`` with a few bytes changed, removed, inserted or repeated."""
    out = bytearray(data)
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0 if at < len(out):
                out[at] = rng.randrange(256)
            case 1:
                del out[at : at + rng.randrange(8)]
            case 2:
                out[at:at] = rng.randbytes(rng.randrange(8))
            case _:
                out[at:at] = struct.pack("!i", rng.choice([-1, 0, 4, 5, 1 << 20, 2**31 - 1]))
    return bytes(out)


def attack(port: int, name: str, rng: random.Random) -> None:
    """Open a connection and send a few messages with errors."""
    with socket.create_connection(("127.0.0.1", port)) as conn:
        hello = w.startup(user="postgres", database=name)
        kind = rng.random()
        if kind < 0.2:
            hello = rng.randbytes(rng.randrange(1, 200))
        elif kind < 0.4:
            hello = mutated(hello, rng)
        try:
            conn.sendall(hello)
            for _ in range(rng.randrange(1, 8)):
                conn.sendall(mutated(rng.choice(SEEDS), rng))
            conn.setblocking(False)
            conn.recv(1 << 16)
        except OSError:
            pass


@pytest.mark.parametrize("attacks", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_port_lives_on(commander, database, attacks):
    rng = random.Random(seeds.chosen("HEADRACE_FUZZ_SEED"))
    name = str(psycopg.conninfo.conninfo_to_dict(database)["dbname"])
    with psycopg.connect(commander.dsn, autocommit=True) as witness:
        (pid,) = witness.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        for number in range(attacks):
            attack(commander.port, name, rng)
            if number % 10 == 0:
                assert witness.execute("SELECT pg_backend_pid()").fetchone() == (pid,)
        wait_until(lambda: len(commander.listener.port.connections) == 1, "all are gone")
        witness.execute(CALL)
    assert commander.builder.calls[-1][1]["caller"] == "postgres"
